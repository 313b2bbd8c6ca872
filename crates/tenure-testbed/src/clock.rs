//! A wall clock for one process that can be stepped forward and back with libfaketime.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// The wall clock of one child.
#[derive(Debug)]
pub(crate) struct FakeClock {
    library: PathBuf,
    file: PathBuf,
    /// Offset to the real time, in microseconds.
    ahead: Mutex<i128>,
}

impl FakeClock {
    /// Creates a clock with the real time, kept in a file of this folder. Returns `None` if libfaketime is not
    /// installed.
    pub(crate) fn new(folder: &Path) -> Option<Self> {
        let clock = Self { library: faketime_library()?, file: folder.join("clock"), ahead: Mutex::new(0) };
        clock.write(0).unwrap();
        Some(clock)
    }

    /// Makes the command use this clock.
    pub(crate) fn apply_to(&self, command: &mut Command) {
        // libfaketime allocates while it starts. A program whose allocator reads the time while it starts, such as
        // Debian's Redis, then deadlocks. The C library's allocator does not read the time; this preload enforces it.
        // If the file does not exist, the linker prints a warning and continues.
        command.env("LD_PRELOAD", format!("libc_malloc_debug.so.0 {}", self.library.display()));
        command.env("FAKETIME_TIMESTAMP_FILE", &self.file);
        // Steps take effect at once. Timeouts are not under test, so the monotonic clock is real; the variable's name
        // differs between releases.
        command.env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    }

    /// Steps the clock forward or back, on top of all earlier steps.
    pub(crate) fn step(&self, by: Duration, forward: bool) {
        let mut ahead = self.ahead.lock().unwrap();
        let by = i128::try_from(by.as_micros()).unwrap();
        *ahead += if forward { by } else { -by };
        self.write(*ahead).unwrap();
    }

    fn write(&self, ahead: i128) -> io::Result<()> {
        // The reader must never see a partial write.
        let new = self.file.with_extension("new");
        fs::write(&new, offset(ahead))?;
        fs::rename(new, &self.file)
    }
}

/// Removes the files that libfaketime leaves behind when its process is killed. A later process with the same pid would
/// fail on them.
pub(crate) fn clean_up_after(pid: u32) {
    for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        // Already removed if the process ended by itself.
        let _ = fs::remove_file(Path::new("/dev/shm").join(name));
    }
}

/// Finds libfaketime in the folders that Debian and others use.
pub(crate) fn faketime_library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    ["/usr/lib".into(), "/usr/lib64".into(), "/usr/local/lib".into()]
        .into_iter()
        .chain(folders)
        .map(|folder: PathBuf| folder.join("faketime/libfaketime.so.1"))
        .find(|path| path.is_file())
}

/// Formats an offset in seconds, with the sign that makes it relative.
fn offset(microseconds: i128) -> String {
    let sign = if microseconds < 0 { '-' } else { '+' };
    let size = microseconds.unsigned_abs();
    format!("{sign}{}.{:06}\n", size / 1_000_000, size % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_has_a_sign_and_all_its_digits() {
        assert_eq!(offset(0), "+0.000000\n");
        assert_eq!(offset(1_500_000), "+1.500000\n");
        assert_eq!(offset(-20_000_007), "-20.000007\n");
        assert_eq!(offset(-7), "-0.000007\n");
    }
}
