//! A wall clock for one process that can be put forward and back, by way of libfaketime.

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
    /// How far it is ahead, in microseconds.
    ahead: Mutex<i128>,
}

impl FakeClock {
    /// A clock that is right, kept in a file of this folder. `None` when the library is not installed.
    pub(crate) fn new(folder: &Path) -> Option<Self> {
        let clock = Self { library: faketime_library()?, file: folder.join("clock"), ahead: Mutex::new(0) };
        clock.write(0).unwrap();
        Some(clock)
    }

    /// Has the command see this clock.
    pub(crate) fn apply_to(&self, command: &mut Command) {
        // A program whose allocator asks for the time while it starts, as Debian's Redis does, waits for itself forever:
        // the library allocates while it starts. The C library's allocator does not ask, and this is how to insist on it.
        // Where there is no such file, the linker says so and goes on.
        command.env("LD_PRELOAD", format!("libc_malloc_debug.so.0 {}", self.library.display()));
        command.env("FAKETIME_TIMESTAMP_FILE", &self.file);
        // Steps are seen at once, and timeouts are not what is being tested. Releases differ in the variable's name.
        command.env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    }

    /// Puts it forward or back, on top of all steps before.
    pub(crate) fn step(&self, by: Duration, forward: bool) {
        let mut ahead = self.ahead.lock().unwrap();
        let by = i128::try_from(by.as_micros()).unwrap();
        *ahead += if forward { by } else { -by };
        self.write(*ahead).unwrap();
    }

    fn write(&self, ahead: i128) -> io::Result<()> {
        // The reader must never see half of it.
        let new = self.file.with_extension("new");
        fs::write(&new, offset(ahead))?;
        fs::rename(new, &self.file)
    }
}

/// Removes what the library leaves behind when its process is killed. A later process of the same number would trip over it.
pub(crate) fn clean_up_after(pid: u32) {
    for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        // Gone already, if the process ended by itself.
        let _ = fs::remove_file(Path::new("/dev/shm").join(name));
    }
}

/// The library, where Debian and others put it.
pub(crate) fn faketime_library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    ["/usr/lib".into(), "/usr/lib64".into(), "/usr/local/lib".into()]
        .into_iter()
        .chain(folders)
        .map(|folder: PathBuf| folder.join("faketime/libfaketime.so.1"))
        .find(|path| path.is_file())
}

/// In seconds, with the sign that makes it relative.
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
