//! Classifies errors of SQLite, and finds the process that causes "busy".

use std::io;
use std::path::Path;

use rusqlite::ffi::ErrorCode;

use super::companions::companion;
use crate::store::{ErrorKind, StoreError};

/// The byte of the shared-memory file that a writer locks (SQLite's `WAL_WRITE_LOCK`).
const WAL_WRITE_LOCK_BYTE: u64 = 120;

/// Converts an error of SQLite into one for the operator.
pub(super) fn from_sqlite(path: &Path, error: &rusqlite::Error) -> StoreError {
    if is_content_error(error) {
        let why = "cannot read a row: another program has changed the file";
        return StoreError::new(ErrorKind::Corrupt, format!("{}: {why} ({error})", location(path)));
    }
    let code = error.sqlite_error_code();
    let (kind, why) = match code {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => return busy(path),
        Some(ErrorCode::DiskFull) => (ErrorKind::Unavailable, "the disk is full; nothing was changed".to_owned()),
        Some(ErrorCode::ReadOnly) => return read_only(path),
        Some(ErrorCode::CannotOpen) => (ErrorKind::Configuration, cannot_open(path)),
        Some(ErrorCode::PermissionDenied) => (ErrorKind::Configuration, "permission denied".to_owned()),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Corrupt,
            "the file is damaged or not an SQLite database; to start anew, stop all processes using it and move it away"
                .to_owned(),
        ),
        _ => (ErrorKind::Unavailable, "SQLite failed".to_owned()),
    };
    StoreError::new(kind, format!("{}: {why} ({error})", location(path)))
}

/// Converts an error of the kernel while a file is opened.
pub(super) fn from_open(path: &Path, error: &io::Error) -> StoreError {
    let (kind, why) = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => (ErrorKind::Configuration, cannot_open(path)),
        _ => (ErrorKind::Unavailable, "cannot open the file".to_owned()),
    };
    StoreError::new(kind, format!("{}: {why} ({error})", location(path)))
}

/// Why a file cannot be opened, and what to do.
fn cannot_open(path: &Path) -> String {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists()) {
        Some(folder) => format!("cannot open the file: the directory {} does not exist; create it", folder.display()),
        None => "cannot open the file; this user must be able to read and write it and its directory".to_owned(),
    }
}

/// Whether the error is about the contents of the file, and not about the file itself.
pub(super) fn is_content_error(error: &rusqlite::Error) -> bool {
    use rusqlite::Error;
    match error {
        Error::InvalidColumnType(..) | Error::FromSqlConversionFailure(..) | Error::IntegralValueOutOfRange(..) => true,
        Error::SqliteFailure(_, Some(text)) | Error::SqlInputError { msg: text, .. } => text.contains("no such"),
        _ => false,
    }
}

pub(super) fn read_only(path: &Path) -> StoreError {
    let why = "the file or its directory cannot be written; leases need both, for the file, its -wal and its -shm";
    StoreError::new(ErrorKind::Configuration, format!("{}: {why}", location(path)))
}

/// Whether a commit that failed with this error may have succeeded all the same.
pub(super) fn is_commit_unknown(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::SystemIoFailure | ErrorCode::Unknown) | None)
}

pub(super) fn location(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

/// Another process has been writing for too long: name it.
fn busy(path: &Path) -> StoreError {
    let why = match writer(path) {
        Some(process) => format!("{process} has been inside a write for too long"),
        None => "another process has been inside a write for too long".to_owned(),
    };
    StoreError::new(ErrorKind::Unavailable, format!("{}: {why}", location(path)))
}

/// The process that holds the write lock, from the kernel's list of locks. The file itself is not opened for this:
/// closing it again would drop every lock that this process has on it.
fn writer(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let shared = std::fs::metadata(companion(&path.canonicalize().ok()?, "-shm")).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| lock_holder(line, shared.ino()))?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let name = field("Name:").map_or_else(String::new, |name| format!(" ({name})"));
    let stopped = match field("State:").and_then(|state| state.chars().next()) {
        Some('T' | 't') => ", which is stopped,",
        _ => "",
    };
    Some(format!("process {pid}{name}{stopped}"))
}

/// The process that holds the write lock of this inode, if this line of `/proc/locks` is about it: `1: POSIX  ADVISORY
/// WRITE 1234 08:01:5678 120 120`.
fn lock_holder(line: &str, inode: u64) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1).peekable();
    // A waiting process has an arrow before the kind.
    if words.peek() == Some(&"->") {
        return None;
    }
    let (_kind, _mode, access, pid) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let file = words.next()?;
    let (start, end): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let same_file = file.rsplit(':').next()?.parse::<u64>().ok()? == inode;
    let writes = access == "WRITE" && (start..=end).contains(&WAL_WRITE_LOCK_BYTE);
    (same_file && writes).then(|| pid.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_is_found_among_the_locks() {
        assert_eq!(lock_holder("1: POSIX  ADVISORY  WRITE 1234 08:01:5678 120 120", 5678), Some(1234));
        assert_eq!(lock_holder("1: POSIX  ADVISORY  WRITE 1234 08:01:5678 120 127", 5678), Some(1234));
        for other in [
            "1: POSIX  ADVISORY  WRITE 1234 08:01:9999 120 120",
            "1: POSIX  ADVISORY  READ 1234 08:01:5678 120 120",
            "1: POSIX  ADVISORY  WRITE 1234 08:01:5678 123 123",
            "1: -> POSIX  ADVISORY  WRITE 1234 08:01:5678 120 120",
            "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF",
            "",
        ] {
            assert_eq!(lock_holder(other, 5678), None, "{other}");
        }
    }
}
