//! The files beside a database: `-wal` has the latest writes, `-shm` an index of them and SQLite's locks.
//!
//! SQLite finds them by the path of the database. If they are deleted while in use, or the database has a second name,
//! a process that opens it later uses other ones: it sees neither the locks nor the latest writes of those before it.
//! So each process marks the database with the files that it uses: it locks a byte far behind the end, whose position
//! depends on them. It uses the database only if it finds no other byte locked there.
//!
//! The lock belongs to the open file, not to the process (`F_OFD_SETLK`): SQLite closes descriptors of its own, which
//! would drop a lock of the process. In turn, closing ours would drop those of SQLite. So a process opens each database
//! once for all its connections, and closes it after the last of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// A file, by device and inode.
pub(super) type FileId = (u64, u64);

/// Where the bytes begin that processes lock, and how many there are. No database is that long.
const MARKS_START: i64 = 1 << 62;
const MARKS_LEN: i64 = 1 << 60;

/// The databases that this process has open.
static DATABASES: Mutex<BTreeMap<FileId, Database>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Database {
    /// One, or more if the path led to another file for a moment.
    files: Vec<File>,
    /// What SQLite uses in this process: the same for all connections, whatever their path. `None` without a claim.
    companions: Option<Companions>,
    claims: usize,
    users: usize,
}

/// The inodes of the files beside a database. A file that a process still has open keeps its inode, even if it was
/// deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Companions {
    wal: u64,
    shm: u64,
}

impl Companions {
    fn beside(path: &Path) -> Option<Self> {
        let inode = |end: &str| std::fs::metadata(companion(path, end)).ok().map(|file| file.ino());
        Some(Self { wal: inode("-wal")?, shm: inode("-shm")? })
    }

    /// The byte that a process locks that uses these files.
    fn mark(self) -> i64 {
        let mixed = (self.wal.rotate_left(32) ^ self.shm).cast_signed();
        MARKS_START + mixed.rem_euclid(MARKS_LEN)
    }
}

/// Why a database cannot be used now.
#[derive(Debug)]
pub(super) enum ClaimError {
    /// The path leads to other files than those that this process has open.
    Replaced,
    /// Another process uses the database with other files.
    UsedWithOthers,
    /// The kernel refused.
    Lock(io::Error),
}

/// A connection's use of a database. It begins before SQLite opens the database, and ends after SQLite has closed it.
#[derive(Debug)]
pub(super) struct DatabaseUse {
    id: FileId,
    /// The path without symbolic links: SQLite keeps its files beside the database itself.
    resolved: PathBuf,
    companions: Option<Companions>,
}

impl DatabaseUse {
    /// Opens the database that the path leads to, unless this process has it open.
    pub(super) fn begin(path: &Path) -> io::Result<Self> {
        let mut databases = databases();
        let resolved = path.canonicalize()?;
        if let Some(id) = id(&resolved)
            && let Some(database) = databases.get_mut(&id)
        {
            database.users += 1;
            return Ok(Self { id, resolved, companions: None });
        }
        let file = File::open(&resolved)?;
        let found = file.metadata()?;
        let id = (found.dev(), found.ino());
        let database = databases.entry(id).or_default();
        database.files.push(file);
        database.users += 1;
        Ok(Self { id, resolved, companions: None })
    }

    /// Marks the database with the files beside it, which SQLite must have opened.
    pub(super) fn claim(&mut self) -> Result<(), ClaimError> {
        let mut databases = databases();
        let (Some(database), Some(beside)) = (databases.get_mut(&self.id), Companions::beside(&self.resolved)) else {
            return Err(ClaimError::Replaced);
        };
        match database.companions {
            Some(known) if known == beside => {}
            Some(_) => return Err(ClaimError::Replaced),
            None => {
                let file = database.files.first().ok_or(ClaimError::Replaced)?;
                mark(file, beside)?;
                database.companions = Some(beside);
            }
        }
        database.claims += 1;
        self.companions = Some(beside);
        Ok(())
    }

    /// Ends the claim, before SQLite closes the database: it deletes these files when it is the last, and a process that
    /// opens it then must not find our mark.
    pub(super) fn end_claim(&mut self) {
        let (mut databases, Some(companions)) = (databases(), self.companions.take()) else { return };
        if let Some(database) = databases.get_mut(&self.id) {
            database.claims -= 1;
            if database.claims == 0 {
                database.companions = None;
                if let Some(file) = database.files.first() {
                    // Closing the file unlocks it, too.
                    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, companions.mark(), 1)));
                }
            }
        }
    }

    /// Whether the path leads to this database.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        id(path) == Some(self.id)
    }

    /// Whether the files beside the database are those that SQLite opened.
    pub(super) fn has_companions(&self) -> bool {
        Companions::beside(&self.resolved) == self.companions
    }

    /// The write-ahead log of this database.
    pub(super) fn wal(&self) -> PathBuf {
        companion(&self.resolved, "-wal")
    }
}

impl Drop for DatabaseUse {
    fn drop(&mut self) {
        self.end_claim();
        let mut databases = databases();
        if let Some(database) = databases.get_mut(&self.id) {
            database.users -= 1;
            if database.users == 0 {
                databases.remove(&self.id);
            }
        }
    }
}

/// The file beside a database whose name ends like this.
pub(super) fn companion(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

fn databases() -> MutexGuard<'static, BTreeMap<FileId, Database>> {
    DATABASES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn id(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Locks the byte of these files, and then looks for others: of two processes that do so at once, at least one sees the
/// other.
fn mark(file: &File, beside: Companions) -> Result<(), ClaimError> {
    let mark = beside.mark();
    let lock =
        |kind| fcntl(file, FcntlArg::F_OFD_SETLK(&range(kind, mark, 1))).map_err(|why| ClaimError::Lock(why.into()));
    lock(libc::F_RDLCK)?;
    // A length of 0 would mean everything behind the start.
    let others = [(MARKS_START, mark - MARKS_START), (mark + 1, MARKS_START + MARKS_LEN - mark - 1)];
    for (start, len) in others.into_iter().filter(|(_, len)| *len > 0) {
        let mut found = range(libc::F_WRLCK, start, len);
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut found)).map_err(|why| ClaimError::Lock(why.into()))?;
        if i32::from(found.l_type) != libc::F_UNLCK {
            lock(libc::F_UNLCK)?;
            return Err(ClaimError::UsedWithOthers);
        }
    }
    Ok(())
}

fn range(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    // Both are small constants.
    let small = |number: libc::c_int| libc::c_short::try_from(number).unwrap_or_default();
    libc::flock { l_type: small(kind), l_whence: small(libc::SEEK_SET), l_start: start, l_len: len, l_pid: 0 }
}
