//! Opening the file, and refusing the ones that leases cannot be kept in.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::ffi::ErrorCode;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use super::failure::{self, location};
use super::host::{self, Host};
use crate::lease::MAX_TTL;
use crate::store::{ErrorKind, StoreError};
use crate::time::ServerTime;

/// The version of the layout.
const SCHEMA_VERSION: i64 = 4;

/// The one before: it said how long leases may be, and not until when.
const SCHEMA_VERSION_3: i64 = 3;

/// The one before that: there were no logs and no sessions.
const SCHEMA_VERSION_2: i64 = 2;

/// The first: heartbeats were of one group, too, and nobody could tell who had not renewed yet.
const SCHEMA_VERSION_1: i64 = 1;

/// What says that a database is Tenure's: `TENU`.
const APPLICATION_ID: i64 = 0x5445_4E55;

const OPEN_FLAGS: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

/// How often the file is told that somebody still writes it.
const TOUCH_EVERY_MICROS: i64 = 5_000_000;

/// File systems on which other hosts can have the same file, or programs answer for the kernel. Locks do not hold there
/// for sure, a shared-memory file is not shared, and other hosts' clocks differ.
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

/// How large the log beside the file is left when it was emptied.
const WAL_SIZE_LIMIT_BYTES: i64 = 16 * 1024 * 1024;

/// When the log has grown to this, it is emptied as soon as no reader is in the way.
const WAL_TRUNCATE_BYTES: u64 = 64 * 1024 * 1024;

/// How often its size is looked at: after this many writes.
const WAL_CHECK_EVERY_WRITES: u32 = 256;

/// An open file.
pub(super) struct DatabaseFile {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    inode: (u64, u64),
    /// See `host` in `schema.sql`.
    epoch: i64,
    touched: i64,
    /// How often it was written since the size of the log was looked at.
    writes: u32,
    /// Whether the file was made anew although somebody may still have one that was deleted.
    pub(super) orphaned: bool,
}

/// The store's time: that since boot, counted from when it would have been the Unix epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BootClock {
    epoch: i64,
}

impl BootClock {
    pub(super) fn now(self) -> ServerTime {
        ServerTime::from_micros(u64::try_from(host::since_boot().saturating_add(self.epoch)).unwrap_or(0))
    }
}

/// What a process has seen of a file that is in use under another host's name: when it was last written, and since
/// when it has been so.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForeignUse {
    touched: i64,
    since: i64,
}

impl DatabaseFile {
    /// Opens the file, makes it if there is none, and sees that it can be used here. `until` is when to stop waiting
    /// for others.
    pub(super) fn open(
        path: &Path,
        host: &Host,
        until: Instant,
        foreign_use: &mut Option<ForeignUse>,
    ) -> Result<Self, StoreError> {
        refuse_shared_file_systems(path)?;
        let beside = |end: &str| Path::new(&format!("{}{end}", path.display())).exists();
        // In this order: another process that makes the file at this moment makes it before those beside it.
        let orphaned = (beside("-wal") || beside("-shm")) && !path.exists();
        let failed = |error: rusqlite::Error| failure::from_sqlite(path, &error);
        // There are secrets in sessions, so the file is its owner's, as are those that SQLite makes beside it. If it is there, it is left as
        // it is, and if it cannot be made, SQLite says why.
        let behind = std::fs::read_link(path).map(|link| path.parent().unwrap_or(path).join(link));
        let file = behind.as_deref().unwrap_or(path);
        let _ = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
        // An absolute path: SQLite would take one that begins with `file:` for a URI.
        let mut connection =
            Connection::open_with_flags(path, OPEN_FLAGS | OpenFlags::SQLITE_OPEN_CREATE).map_err(failed)?;
        let inode = self::inode(path).ok_or_else(|| file_replaced(path))?;
        set_busy_deadline(until);
        connection.busy_handler(Some(back_off)).map_err(failed)?;
        if connection.is_readonly("main").map_err(failed)? {
            return Err(failure::read_only(path));
        }
        // Before anything is written: it may be somebody else's.
        read_schema_version(path, &*connection.transaction().map_err(failed)?)?;
        // A crash of the machine frees every lease, so only the file's structure has to survive it: NORMAL does that.
        let mut times = 0;
        // Of several who make a file at once, those who come too late are told so without having waited.
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
        migrate(path, &tx)?;
        let (epoch, touched) = adopt_times(path, &tx, host, foreign_use)?;
        let orphaned = record_orphaned(&tx, orphaned).map_err(failed)?;
        tx.commit().map_err(failed)?;
        // While we waited for others it may have been replaced.
        if self::inode(path) != Some(inode) {
            return Err(file_replaced(path));
        }
        Ok(Self { connection, path: path.to_owned(), inode, epoch, touched, orphaned, writes: 0 })
    }

    /// Opens a file that somebody has attached, to look at it. It is not made: whoever makes one has to know what was
    /// there before.
    pub(super) fn open_for_subscription(path: &Path, until: Instant) -> Result<Self, StoreError> {
        let failed = |error: rusqlite::Error| failure::from_sqlite(path, &error);
        let inode = self::inode(path).ok_or_else(|| file_replaced(path))?;
        let mut connection = Connection::open_with_flags(path, OPEN_FLAGS).map_err(failed)?;
        set_busy_deadline(until);
        connection.busy_handler(Some(back_off)).map_err(failed)?;
        if read_schema_version(path, &connection)?.is_none() || self::inode(path) != Some(inode) {
            return Err(file_replaced(path));
        }
        Ok(Self { connection, path: path.to_owned(), inode, epoch: 0, touched: 0, orphaned: false, writes: 0 })
    }

    /// The store's clock.
    pub(super) fn clock(&self) -> BootClock {
        BootClock { epoch: self.epoch }
    }

    /// Starts a write. Waits for others, but not beyond `until`.
    pub(super) fn write(&mut self, until: Instant) -> Result<Transaction<'_>, StoreError> {
        set_busy_deadline(until);
        let path = &self.path;
        let failed = |error: rusqlite::Error| failure::from_sqlite(path, &error);
        if inode(path) != Some(self.inode) {
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

    /// Empties the log when it has become too large. SQLite does that by itself, unless a reader was in the way each time:
    /// then it goes on growing, and stays as large.
    pub(super) fn truncate_wal(&mut self) {
        self.writes += 1;
        if self.writes < WAL_CHECK_EVERY_WRITES {
            return;
        }
        self.writes = 0;
        let log = format!("{}-wal", self.path.display());
        if std::fs::metadata(log).is_ok_and(|log| log.len() >= WAL_TRUNCATE_BYTES) {
            // No waiting: renewals come first, and the next look is not far away.
            set_busy_deadline(Instant::now());
            let _ = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }

    /// Whether the path still leads to this file.
    pub(super) fn is_in_place(&self) -> bool {
        inode(&self.path) == Some(self.inode)
    }
}

thread_local! {
    /// When this thread stops waiting for others. SQLite's busy handler takes no argument of its own.
    static BUSY_DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn set_busy_deadline(until: Instant) {
    BUSY_DEADLINE.set(Some(until));
}

/// Waits a little; more each time, and never in step with others.
fn back_off(times: i32) -> bool {
    let longest = 100 * (1 << times.clamp(0, 6)) as u64;
    std::thread::sleep(Duration::from_micros(fastrand::u64(longest / 2..=longest)));
    BUSY_DEADLINE.get().is_some_and(|until| Instant::now() < until)
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn file_replaced(path: &Path) -> StoreError {
    let why = "the file was moved, deleted or replaced while in use; entering again uses what is there now";
    StoreError::new(ErrorKind::Unreachable, format!("{}: {why}", location(path)))
}

fn refuse_shared_file_systems(path: &Path) -> Result<(), StoreError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // What cannot be looked at cannot be opened either, and SQLite says so better.
    let Ok(found) = rustix::fs::statfs(directory) else { return Ok(()) };
    match shared_file_system(found.f_type as u64) {
        None => Ok(()),
        Some(kind) => Err(StoreError::new(
            ErrorKind::Configuration,
            format!(
                "{}: SQLite's locks do not hold on {kind}; use a local disk, or Redis for several hosts",
                location(path)
            ),
        )),
    }
}

fn shared_file_system(kind: u64) -> Option<&'static str> {
    // The kernel gives the number as a signed word, which may have been widened.
    SHARED_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == kind & 0xFFFF_FFFF).map(|(_, name)| *name)
}

/// Whether the file is Tenure's: `Some` version of its layout, or `None` when it is empty.
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
        _ => refuse("this is some other program's database; choose another file".to_owned()),
    }
}

fn migrate(path: &Path, tx: &Transaction<'_>) -> Result<(), StoreError> {
    let failed = |error: rusqlite::Error| failure::from_sqlite(path, &error);
    // Asked again: somebody else may have been first.
    match read_schema_version(path, tx)? {
        Some(SCHEMA_VERSION) => return Ok(()),
        Some(SCHEMA_VERSION_3) => {
            tx.execute_batch(include_str!("ttls.sql")).map_err(failed)?;
            return tx.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(failed);
        }
        Some(SCHEMA_VERSION_2) => {}
        // Heartbeats last a few seconds, and those who live write them again.
        Some(_) => {
            tx.execute_batch("DROP TABLE members; ALTER TABLE leases ADD COLUMN idled INTEGER NOT NULL DEFAULT 0")
                .map_err(failed)?;
            tx.execute_batch(include_str!("members.sql")).map_err(failed)?;
        }
        None => {
            tx.execute_batch(include_str!("schema.sql")).map_err(failed)?;
            tx.execute_batch(include_str!("members.sql")).map_err(failed)?;
            tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
        }
    }
    tx.execute_batch(include_str!("service.sql")).map_err(failed)?;
    tx.execute_batch(include_str!("ttls.sql")).map_err(failed)?;
    tx.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(failed)
}

/// Whether the file was made beside leftovers of another one lately, by us now or by somebody before. It is written down with
/// the file itself: whoever made it may die before it has attached.
fn record_orphaned(tx: &Transaction<'_>, orphaned: bool) -> rusqlite::Result<bool> {
    let boot = host::since_boot();
    if orphaned {
        tx.execute("UPDATE host SET orphaned = ?1", [boot])?;
    }
    let since: Option<i64> = tx.query_row("SELECT orphaned FROM host", [], |row| row.get(0))?;
    let longest = i64::try_from(MAX_TTL.as_micros()).unwrap_or(i64::MAX);
    Ok(since.is_some_and(|since| (0..longest).contains(&boot.saturating_sub(since))))
}

/// Whose times these are. After a reboot nobody can hold anything, and everything is free. But another host that has
/// the same file looks the same, so as long as somebody may still be writing under the other name nothing is touched.
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
                let why = "it is in use by another host or time namespace, or was until this one was restarted";
                let left = Duration::from_secs(u64::try_from(left).unwrap_or(0).div_ceil(1_000_000));
                let wait = format!("if nobody writes it any more it can be used in {left:?}");
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
        // After a reboot nobody has another file open.
        "INSERT OR REPLACE INTO host (only_row, identity, epoch, touched, orphaned) VALUES (1, ?1, ?2, ?3, NULL)",
        rusqlite::params![host.identity, epoch, wall],
    )
    .map_err(failed)?;
    Ok((epoch, wall))
}

/// How long a file that was written under another name must be left alone: until it has not been written for the
/// longest ttl, by the wall clock or, since that may be wrong after a reboot, by our own watching.
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
        // Somebody wrote meanwhile.
        assert_eq!(foreign_use_remaining(130 * S, 131 * S, 26 * S, 30 * S, &mut foreign_use), 29 * S);
        // A wall clock that is behind: only watching counts.
        let mut foreign_use = None;
        assert_eq!(foreign_use_remaining(1_000 * S, 10 * S, 0, 30 * S, &mut foreign_use), 30 * S);
        assert_eq!(foreign_use_remaining(1_000 * S, 20 * S, 10 * S, 30 * S, &mut foreign_use), 20 * S);
        assert!(foreign_use_remaining(1_000 * S, 41 * S, 31 * S, 30 * S, &mut foreign_use) <= 0);
    }
}
