//! Stderr, written by a thread of its own. A full pipe that is not read delays no renewal, no signal and no stop: lines
//! are dropped and counted instead.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use crate::notice::warning;

/// How many writes may wait.
const MAX_QUEUED: usize = 4_096;

/// How long the program waits at its end for the last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

static QUEUE: OnceLock<SyncSender<Job>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

enum Job {
    Write(Vec<u8>),
    /// Reports that everything before was written.
    Flush(SyncSender<()>),
}

/// Starts the thread. Before, and without it, lines are written directly.
pub fn start() -> io::Result<()> {
    let (queue, jobs) = sync_channel(MAX_QUEUED);
    std::thread::Builder::new().name("tenure-stderr".to_owned()).spawn(move || write_all(&jobs))?;
    let _ = QUEUE.set(queue);
    Ok(())
}

/// Waits, for a little, until all lines are written. Called before the program exits.
pub fn flush() {
    let Some(queue) = QUEUE.get() else { return };
    let (done, is_done) = sync_channel(1);
    if queue.try_send(Job::Flush(done)).is_ok() {
        let _: Result<(), RecvTimeoutError> = is_done.recv_timeout(FLUSH_TIMEOUT);
    }
}

/// Ends the program with this status, after the last lines.
pub fn exit(code: i32) -> ! {
    flush();
    std::process::exit(code)
}

/// Stderr as a writer. Each write is one or more whole lines, and never blocks.
pub struct Stderr;

impl Write for Stderr {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        match QUEUE.get() {
            Some(queue) => {
                if queue.try_send(Job::Write(lines.to_vec())).is_err() {
                    DROPPED.fetch_add(1, Ordering::Relaxed);
                }
            }
            None => io::stderr().write_all(lines)?,
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        match job {
            // A failure to write to stderr cannot be reported.
            Job::Write(lines) => _ = io::stderr().write_all(&lines),
            Job::Flush(done) => _ = done.send(()),
        }
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            warning!("{dropped} lines of the log were dropped: stderr was not read in time");
        }
    }
}
