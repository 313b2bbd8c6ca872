//! Opens the file, and refuses files in which leases are not safe.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::ffi::ErrorCode;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
use tenure_core::backoff::Backoff;

use super::companions::{ClaimError, DatabaseUse, companion};
use super::failure::{self, location};
use super::host::{self, Host};
use crate::store::MAX_TTL;
use crate::store::{ErrorKind, StoreError};
use crate::time::ServerTime;

/// The version of the layout.
const SCHEMA_VERSION: i64 = 5;

/// The version before: it had sessions instead of documents.
const SCHEMA_VERSION_4: i64 = 4;

/// The version before that: it recorded how long leases may be, but not until when.
const SCHEMA_VERSION_3: i64 = 3;

/// The version without logs and sessions.
const SCHEMA_VERSION_2: i64 = 2;

/// The first version: without groups of heartbeats, and without a record of which holders have renewed without
/// progress.
const SCHEMA_VERSION_1: i64 = 1;

/// Marks a database as Tenure's: `TENU`.
const APPLICATION_ID: i64 = 0x5445_4E55;

const OPEN_FLAGS: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

/// Interval at which a writer refreshes the file's `touched` time.
const TOUCH_EVERY_MICROS: i64 = 5_000_000;

/// File systems on which other hosts can use the same file, or on which a program answers for the kernel. Locks are not
/// reliable there, a shared-memory file is not shared, and other hosts' clocks differ.
const SHARED_FILE_SYSTEMS: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFE53_4D42, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00C3_6400, "Ceph"),
    (0x0BD0_0BD0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x0102_1997, "9P"),
    (0x1980_3317, "OrangeFS"),
    (0x2003_0528, "OrangeFS"),
    (0x6573_5546, "FUSE"),
    (0x1983_0326, "BeeGFS"),
    (0x4750_4653, "GPFS"),
    (0xAAD7_AAEA, "PanFS"),
    (0x6163_6673, "ACFS"),
    (0x0131_11A8, "IBRIX"),
    (0xBEEF_DEAD, "StorNext"),
    (0xBACB_ACBC, "VMware's shared folders"),
    (0x786F_4256, "VirtualBox's shared folders"),
    (0x7C7C_6673, "Parallels' shared folders"),
    (0x564C, "NCP"),
];

/// The size to which SQLite trims the write-ahead log (WAL) after a checkpoint.
const WAL_SIZE_LIMIT_BYTES: i64 = 16 * 1024 * 1024;

/// When the WAL has grown to this size, it is truncated as soon as no reader blocks it.
const WAL_TRUNCATE_BYTES: u64 = 64 * 1024 * 1024;

/// The size is checked after this many writes.
const WAL_CHECK_EVERY_WRITES: u32 = 256;

/// An open file. SQLite closes its connection first: fields are dropped in this order.
pub(super) struct DatabaseFile {
    pub(super) connection: Connection,
    database: DatabaseUse,
    pub(super) path: PathBuf,
    /// See `host` in `schema.sql`.
    epoch: i64,
    touched: i64,
    /// Number of writes since the WAL's size was last checked.
    writes: u32,
    /// Whether the file was created although another process may still have a deleted one open.
    pub(super) orphaned: bool,
}

/// The store's clock: the time since boot plus the Unix time of the boot.
#[derive(Clone, Copy, Debug)]
pub(super) struct BootClock {
    epoch: i64,
}

impl BootClock {
    pub(super) fn now(self) -> ServerTime {
        ServerTime::from_micros(u64::try_from(host::since_boot().saturating_add(self.epoch)).unwrap_or(0))
    }
}

/// What a process has seen of a file that it could not use, or no longer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Observed {
    /// Of a file in use under another host's identity.
    foreign_use: Option<ForeignUse>,
    /// That the files beside it were not those of all processes, so that the latest writes may be lost. The next attach
    /// has to allow for leases that are not on record.
    pub(super) lost_companions: bool,
}

/// What a process has seen of a file in use under another host's identity: its last `touched` time, and since when that
/// has not changed.
#[derive(Clone, Copy, Debug)]
struct ForeignUse {
    touched: i64,
    since: i64,
}

impl DatabaseFile {
    /// Opens the file, creates it if there is none, and checks that it can be used here. Waits for other writers until
    /// `until` at the latest.
    pub(super) fn open(path: &Path, host: &Host, until: Instant, observed: &mut Observed) -> Result<Self, StoreError> {
        refuse_shared_file_systems(path)?;
        let file = &behind_links(path);
        let beside = |end: &str| companion(file, end).exists();
        // In this order: another process that creates the file at this moment creates it before the files beside it.
        let orphaned = (beside("-wal") || beside("-shm")) && !path.exists();
        let failed = |error: rusqlite::Error| failure::from_sqlite(path, &error);
        // Sessions contain secrets, so only the owner may read the file and those that SQLite creates beside it. An
        // existing file keeps its mode. If the file cannot be created, SQLite reports why.
        let _ = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
        refuse_second_names(path)?;
        let mut database = begin_use(path)?;
        // An absolute path: SQLite would take one that begins with `file:` for a URI.
        let mut connection =
            Connection::open_with_flags(path, OPEN_FLAGS | OpenFlags::SQLITE_OPEN_CREATE).map_err(failed)?;
        set_busy_deadline(until);
        connection.busy_handler(Some(back_off)).map_err(failed)?;
        if connection.is_readonly("main").map_err(failed)? {
            return Err(failure::read_only(path));
        }
        // Before anything is written: the file may be another program's.
        read_schema_version(path, &*connection.transaction().map_err(failed)?)?;
        // A crash of the machine ends every lease, so only the file's structure has to survive it: NORMAL guarantees
        // that.
        let mut times = 0;
        // When several processes create a file at once, SQLite reports "busy" to the later ones without having waited.
        let settings = format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = {WAL_SIZE_LIMIT_BYTES};"
        );
        while let Err(error) = connection.execute_batch(&settings) {
            let busy = matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked));
            if !busy || !back_off(times) {
                return Err(failed(error));
            }
            times += 1;
        }
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        if let Err(error) = database.claim() {
            observed.lost_companions |= matches!(error, ClaimError::UsedWithOthers);
            return Err(claim_failed(path, &error));
        }
        migrate(path, &tx)?;
        let (epoch, touched) = adopt_times(path, &tx, host, &mut observed.foreign_use)?;
        let orphaned = record_orphaned(&tx, orphaned).map_err(failed)?;
        tx.commit().map_err(failed)?;
        // The file may have been replaced while we waited for other writers.
        if !database.is_at(path) {
            return Err(file_replaced(path));
        }
        Ok(Self { connection, database, path: path.to_owned(), epoch, touched, orphaned, writes: 0 })
    }

    /// Opens a file that an instance has attached to, for a subscription. Does not create it: the creator has to know
    /// what was there before.
    pub(super) fn open_for_subscription(path: &Path, until: Instant) -> Result<Self, StoreError> {
        let failed = |error: rusqlite::Error| failure::from_sqlite(path, &error);
        let mut database = begin_use(path)?;
        let mut connection = Connection::open_with_flags(path, OPEN_FLAGS).map_err(failed)?;
        set_busy_deadline(until);
        connection.busy_handler(Some(back_off)).map_err(failed)?;
        let tx = connection.transaction().map_err(failed)?;
        if read_schema_version(path, &tx)?.is_none() {
            return Err(file_replaced(path));
        }
        database.claim().map_err(|error| claim_failed(path, &error))?;
        drop(tx);
        if !database.is_at(path) {
            return Err(file_replaced(path));
        }
        Ok(Self { connection, database, path: path.to_owned(), epoch: 0, touched: 0, orphaned: false, writes: 0 })
    }

    /// The store's clock.
    pub(super) fn clock(&self) -> BootClock {
        BootClock { epoch: self.epoch }
    }

    /// Starts a write. Waits for other writers until `until` at the latest.
    pub(super) fn write(&mut self, until: Instant) -> Result<Transaction<'_>, StoreError> {
        set_busy_deadline(until);
        let path = &self.path;
        let failed = |error: rusqlite::Error| failure::from_sqlite(path, &error);
        if !(self.database.is_at(path) && self.database.has_companions()) {
            return Err(file_replaced(path));
        }
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let wall = host::wall();
        if (wall - self.touched).abs() >= TOUCH_EVERY_MICROS {
            tx.execute("UPDATE host SET touched = ?1", [wall]).map_err(failed)?;
            self.touched = wall;
        }
        Ok(tx)
    }

    /// Truncates the WAL when it has become too large. SQLite does that by itself, unless a reader blocked it each
    /// time: then the WAL keeps growing, and stays as large.
    pub(super) fn truncate_wal(&mut self) {
        self.writes += 1;
        if self.writes < WAL_CHECK_EVERY_WRITES {
            return;
        }
        self.writes = 0;
        if std::fs::metadata(self.wal()).is_ok_and(|log| log.len() >= WAL_TRUNCATE_BYTES) {
            // No waiting: renewals come first, and the next check follows soon.
            set_busy_deadline(Instant::now());
            let _ = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }

    /// The write-ahead log (WAL) of this file.
    pub(super) fn wal(&self) -> PathBuf {
        self.database.wal()
    }

    /// Whether the path still leads to this file, and to the files beside it that SQLite uses.
    pub(super) fn is_in_place(&self) -> bool {
        self.database.is_at(&self.path) && self.database.has_companions()
    }

    /// Whether only the files beside it were replaced.
    pub(super) fn has_lost_companions(&self) -> bool {
        self.database.is_at(&self.path) && !self.database.has_companions()
    }
}

impl Drop for DatabaseFile {
    fn drop(&mut self) {
        self.database.end_claim();
    }
}

/// The most symbolic links that are followed, as in the kernel.
const MAX_LINKS: usize = 40;

/// Pauses while another process writes.
const BUSY_BACKOFF: Backoff = Backoff::new(Duration::from_micros(100), Duration::from_micros(6_400));

thread_local! {
    /// When this thread stops waiting for other writers. SQLite's busy handler takes no argument of its own.
    static BUSY_DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn set_busy_deadline(until: Instant) {
    BUSY_DEADLINE.set(Some(until));
}

/// Waits a little: longer each time, with jitter.
fn back_off(times: i32) -> bool {
    let failures = u32::try_from(times).unwrap_or(0) + 1;
    std::thread::sleep(BUSY_BACKOFF.jittered(failures, fastrand::f64()));
    BUSY_DEADLINE.get().is_some_and(|until| Instant::now() < until)
}

/// The file that symbolic links lead to, whether it exists or not.
fn behind_links(path: &Path) -> PathBuf {
    let mut file = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(link) = std::fs::read_link(&file) else { break };
        file = file.parent().unwrap_or(&file).join(link);
    }
    file
}

fn begin_use(path: &Path) -> Result<DatabaseUse, StoreError> {
    DatabaseUse::begin(path).map_err(|error| failure::from_open(path, &error))
}

fn file_replaced(path: &Path) -> StoreError {
    let why = "the file, its -wal or its -shm was moved, deleted or replaced while in use; attach again to use the present one";
    StoreError::new(ErrorKind::Unreachable, format!("{}: {why}", location(path)))
}

fn claim_failed(path: &Path, error: &ClaimError) -> StoreError {
    let why = match error {
        ClaimError::Replaced => return file_replaced(path),
        ClaimError::UsedWithOthers => {
            "another process uses this file with another -wal and -shm: they were deleted while \
             in use, or the file has a second name; it can be used when that process has noticed or ended"
                .to_owned()
        }
        ClaimError::Lock(error) => format!("the file cannot be locked ({error}); use a local disk"),
    };
    StoreError::new(ErrorKind::Unavailable, format!("{}: {why}", location(path)))
}

/// Refuses a file that can be opened by another path: SQLite would use another `-wal` and `-shm` there, even long after
/// this process has ended.
fn refuse_second_names(path: &Path) -> Result<(), StoreError> {
    let refuse = |why: &str| Err(StoreError::new(ErrorKind::Configuration, format!("{}: {why}", location(path))));
    // What cannot be examined cannot be opened either, and that error is better.
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    if found.nlink() > 1 {
        return refuse(
            "the file has a second name (a hard link), by which its latest writes would be missed; remove one",
        );
    }
    let attributes = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::empty());
    if attributes.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)) {
        return refuse("only the file is mounted here, without its -wal and -shm; mount its directory instead");
    }
    Ok(())
}

fn refuse_shared_file_systems(path: &Path) -> Result<(), StoreError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A directory that cannot be examined cannot be opened either, and SQLite's error is better.
    let Ok(found) = rustix::fs::statfs(directory) else { return Ok(()) };
    match shared_file_system(found.f_type as u64) {
        None => Ok(()),
        Some(kind) => Err(StoreError::new(
            ErrorKind::Configuration,
            format!(
                "{}: SQLite's locks are not reliable on {kind}; use a local disk, or Redis for several hosts",
                location(path)
            ),
        )),
    }
}

fn shared_file_system(kind: u64) -> Option<&'static str> {
    // The kernel returns the number as a signed word, which may have been widened.
    SHARED_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == kind & 0xFFFF_FFFF).map(|(_, name)| *name)
}

/// The version of the file's layout if it is Tenure's; `None` if it is empty.
fn read_schema_version(path: &Path, connection: &Connection) -> Result<Option<i64>, StoreError> {
    let failed = |error: rusqlite::Error| failure::from_sqlite(path, &error);
    let number = |query: &str| connection.query_row(query, [], |row| row.get::<_, i64>(0)).map_err(failed);
    let refuse = |why: String| Err(StoreError::new(ErrorKind::Configuration, format!("{}: {why}", location(path))));
    let (application, version) = (number("PRAGMA application_id")?, number("PRAGMA user_version")?);
    match (application, version) {
        (APPLICATION_ID, SCHEMA_VERSION_1..=SCHEMA_VERSION) => Ok(Some(version)),
        (APPLICATION_ID, newer) if newer > SCHEMA_VERSION => refuse(format!(
            "the file was written by a newer tenure (layout {newer}; this one knows up to {SCHEMA_VERSION}); update this program"
        )),
        (0, 0) if number("SELECT count(*) FROM sqlite_schema")? == 0 => Ok(None),
        _ => refuse("the file is another program's database; choose another file".to_owned()),
    }
}

fn migrate(path: &Path, tx: &Transaction<'_>) -> Result<(), StoreError> {
    let failed = |error: rusqlite::Error| failure::from_sqlite(path, &error);
    // Read again: another process may have been first.
    let found = read_schema_version(path, tx)?;
    let run = |sql: &str| tx.execute_batch(sql).map_err(failed);
    match found {
        Some(SCHEMA_VERSION) => return Ok(()),
        Some(SCHEMA_VERSION_1) => {
            // Heartbeats last a few seconds, and live instances write them again.
            run("DROP TABLE members; ALTER TABLE leases ADD COLUMN idled INTEGER NOT NULL DEFAULT 0")?;
            run(include_str!("members.sql"))?;
        }
        Some(_) => {}
        None => {
            run(include_str!("schema.sql"))?;
            run(include_str!("members.sql"))?;
            tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
        }
    }
    if found.is_none_or(|version| version <= SCHEMA_VERSION_2) {
        run(include_str!("service.sql"))?;
    }
    if found.is_none_or(|version| version <= SCHEMA_VERSION_3) {
        run(include_str!("ttls.sql"))?;
    }
    if found.is_none_or(|version| version <= SCHEMA_VERSION_4) {
        run(include_str!("documents.sql"))?;
    }
    tx.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(failed)
}

/// Whether the file was recently created beside leftovers of another one, by us now or by an earlier process. This is
/// recorded together with the creation: the creator may die before it has attached.
fn record_orphaned(tx: &Transaction<'_>, orphaned: bool) -> rusqlite::Result<bool> {
    let boot = host::since_boot();
    if orphaned {
        tx.execute("UPDATE host SET orphaned = ?1", [boot])?;
    }
    let since: Option<i64> = tx.query_row("SELECT orphaned FROM host", [], |row| row.get(0))?;
    let longest = i64::try_from(MAX_TTL.as_micros()).unwrap_or(i64::MAX);
    Ok(since.is_some_and(|since| (0..longest).contains(&boot.saturating_sub(since))))
}

/// Adopts the times in the file for this host. After a reboot no process can hold a lease, so all leases become unheld.
/// But another host with the same file looks the same, so nothing is changed while a process may still write under the
/// other identity.
fn adopt_times(
    path: &Path,
    tx: &Transaction<'_>,
    host: &Host,
    foreign_use: &mut Option<ForeignUse>,
) -> Result<(i64, i64), StoreError> {
    let failed = |error: rusqlite::Error| failure::from_sqlite(path, &error);
    let (boot, wall) = (host::since_boot(), host::wall());
    let found = tx.query_row("SELECT identity, epoch, touched FROM host", [], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
    });
    match found {
        Ok((identity, epoch, touched)) if identity == host.identity => return Ok((epoch, touched)),
        Ok((_, _, touched)) => {
            let longest = tx
                .query_row("SELECT coalesce(max(ttl), 0) FROM ttls", [], |row| row.get::<_, i64>(0))
                .map_err(failed)?;
            let longest = longest.clamp(0, i64::try_from(MAX_TTL.as_micros()).unwrap_or(i64::MAX)) + TOUCH_EVERY_MICROS;
            let left = foreign_use_remaining(touched, wall, boot, longest, foreign_use);
            if left > 0 {
                let why = "the file is in use by another host or time namespace, or was until this host was restarted";
                let left = Duration::from_secs(u64::try_from(left).unwrap_or(0).div_ceil(1_000_000));
                let wait = format!("if no process writes it any more, it can be used in {left:?}");
                let message = format!("{}: {why}; {wait}; for several hosts use Redis", location(path));
                return Err(StoreError::new(ErrorKind::Unavailable, message));
            }
            tx.execute("UPDATE leases SET holder = NULL, expires = NULL, wait_out_until = NULL", []).map_err(failed)?;
            tx.execute("UPDATE namespaces SET closed_until = NULL", []).map_err(failed)?;
            tx.execute("DELETE FROM members", []).map_err(failed)?;
            tx.execute("DELETE FROM ttls", []).map_err(failed)?;
        }
        Err(rusqlite::Error::QueryReturnedNoRows) => {}
        Err(error) => return Err(failed(error)),
    }
    let epoch = wall.saturating_sub(boot);
    tx.execute(
        // After a reboot no process has another file open.
        "INSERT OR REPLACE INTO host (only_row, identity, epoch, touched, orphaned) VALUES (1, ?1, ?2, ?3, NULL)",
        rusqlite::params![host.identity, epoch, wall],
    )
    .map_err(failed)?;
    Ok((epoch, wall))
}

/// How long a file with another identity must be left alone: until it has not been written for the longest ttl. That is
/// measured by the wall clock or, since that may be wrong after a reboot, by our own observation.
fn foreign_use_remaining(
    touched: i64,
    wall: i64,
    boot: i64,
    longest: i64,
    foreign_use: &mut Option<ForeignUse>,
) -> i64 {
    let watched = match foreign_use {
        Some(seen) if seen.touched == touched => boot - seen.since,
        _ => {
            *foreign_use = Some(ForeignUse { touched, since: boot });
            0
        }
    };
    let unwritten = if touched <= wall { wall - touched } else { 0 };
    longest - unwritten.max(watched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_file_systems_are_recognised_by_their_magic_number() {
        assert_eq!(shared_file_system(0x6969), Some("NFS"));
        assert_eq!(shared_file_system(0x6573_5546), Some("FUSE"));
        assert_eq!(shared_file_system(0xFF53_4D42_u32 as i32 as u64), Some("CIFS"));
        for local in [0xEF53, 0x0102_1994, 0x9123_683E, 0x5846_5342, 0x794C_7630] {
            assert_eq!(shared_file_system(local), None);
        }
    }

    #[test]
    fn a_file_of_another_host_is_refused_until_it_has_not_been_written_for_the_longest_ttl() {
        const S: i64 = 1_000_000;
        let mut foreign_use = None;
        assert_eq!(foreign_use_remaining(100 * S, 110 * S, 5 * S, 30 * S, &mut foreign_use), 20 * S);
        assert!(
            foreign_use_remaining(100 * S, 131 * S, 26 * S, 30 * S, &mut foreign_use) <= 0,
            "long enough by the wall clock"
        );
        // Another process wrote meanwhile.
        assert_eq!(foreign_use_remaining(130 * S, 131 * S, 26 * S, 30 * S, &mut foreign_use), 29 * S);
        // The wall clock is behind: only our own observation counts.
        let mut foreign_use = None;
        assert_eq!(foreign_use_remaining(1_000 * S, 10 * S, 0, 30 * S, &mut foreign_use), 30 * S);
        assert_eq!(foreign_use_remaining(1_000 * S, 20 * S, 10 * S, 30 * S, &mut foreign_use), 20 * S);
        assert!(foreign_use_remaining(1_000 * S, 41 * S, 31 * S, 30 * S, &mut foreign_use) <= 0);
    }
}
