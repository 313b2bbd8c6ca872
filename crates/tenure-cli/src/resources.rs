//! Checks at the start that the process can have what it needs: a runtime that cannot start a thread, or open a file when
//! it listens for signals, panics.

use std::fs::File;
use std::io;
use std::sync::mpsc::channel;
use std::thread::available_parallelism;

/// Threads beside those of the runtime: the keeper, events, listeners, stderr, a connection and its announcements, and
/// name lookups.
const THREADS: usize = 8;

/// Files for the runtimes, signals, a connection and its announcements.
const FILES: usize = 32;

/// Starts the threads and opens the files for a moment.
///
/// # Errors
/// When the limits of this process do not allow them; the text says which.
pub fn check() -> Result<(), String> {
    let files: io::Result<Vec<File>> = (0..FILES).map(|_| File::open("/dev/null")).collect();
    files.map_err(|error| format!("cannot open {FILES} files ({error}); raise the limit of open files (ulimit -n)"))?;
    let workers = available_parallelism().map_or(1, usize::from);
    let wanted = THREADS + workers;
    let (held, release) = channel::<()>();
    let release = std::sync::Arc::new(std::sync::Mutex::new(release));
    let start = |_| {
        let release = release.clone();
        // Each waits until the sender is dropped.
        std::thread::Builder::new().spawn(move || drop(release.lock().map(|release| release.recv())))
    };
    let started: Vec<io::Result<_>> = (0..wanted).map(start).collect();
    drop(held);
    let failed = started.into_iter().filter_map(|started| match started {
        Ok(thread) => thread.join().err().map(|_| io::Error::other("a thread failed")),
        Err(error) => Some(error),
    });
    match failed.last() {
        Some(error) => Err(format!(
            "cannot start {wanted} threads ({error}); raise the limit of processes (ulimit -u, or pids.max of the cgroup)"
        )),
        None => Ok(()),
    }
}
