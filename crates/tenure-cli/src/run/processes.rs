//! The children of this process, and everything that comes from them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open, pidfd_send_signal, wait,
};

/// A child that has exited.
pub struct Exited {
    pub pid: Pid,
    /// Its exit status; 128 + n when it was killed by signal n.
    pub code: u8,
}

/// Whether this process has children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// The kernel says that there are none. As orphans are adopted, nothing that comes from this process is left.
    None,
    /// There may be.
    Some,
}

/// From now on a process that loses its parent, and comes from this one, becomes its child: forking twice is no way out.
pub fn adopt_orphans() {
    // Any process will do as the argument, and there is nothing to be done where the kernel cannot.
    let _ = rustix::process::set_child_subreaper(Some(getpid()));
}

/// Reaps every child that has exited since the last call.
pub fn reap() -> (Vec<Exited>, Children) {
    let mut exited = Vec::new();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                let signal = status.terminating_signal().map(|signal| 128 + signal);
                if let Some(code) = status.exit_status().or(signal) {
                    exited.push(Exited { pid, code: u8::try_from(code).unwrap_or(u8::MAX) });
                }
            }
            Err(Errno::CHILD) => return (exited, Children::None),
            Err(Errno::INTR) => {}
            // What went wrong does not say that there are none.
            Ok(None) | Err(_) => return (exited, Children::Some),
        }
    }
}

/// A process, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessEntry {
    pid: Pid,
    parent: i32,
    group: i32,
    /// When it was started. Another process with the same number was started later.
    started: u64,
}

impl ProcessEntry {
    /// Reads `/proc/<pid>`.
    fn read(folder: &Path) -> Option<Self> {
        let pid = folder.file_name()?.to_str()?.parse::<i32>().ok().and_then(Pid::from_raw)?;
        let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
        // `pid (name) state parent group …`; the name may have anything in it. One whose first thread has exited reads
        // as a zombie, and may have others that run.
        let mut fields = stat.rsplit(')').next()?.split_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let started = fields.nth(16)?.parse().ok()?;
        Some(Self { pid, parent, group, started })
    }

    /// Sends a signal, unless the number belongs to another process by now.
    fn signal(&self, signal: Signal) {
        match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(handle) => {
                let folder = Path::new("/proc").join(self.pid.as_raw_nonzero().to_string());
                if Self::read(&folder).is_some_and(|now| now.started == self.started) {
                    // One that has exited needs none.
                    let _ = pidfd_send_signal(handle, signal);
                }
            }
            Err(Errno::SRCH) => {}
            // A kernel without handles of processes.
            Err(_) => drop(kill_process(self.pid, signal)),
        }
    }
}

/// All that comes from this process, as far as `/proc` shows it. What it does not show may be there all the same.
fn descendants(of: Pid) -> Vec<ProcessEntry> {
    let mut children: BTreeMap<i32, Vec<ProcessEntry>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(process) = ProcessEntry::read(&entry.path()) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![of.as_raw_nonzero().get()];
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            open.push(child.pid.as_raw_nonzero().get());
            found.push(child);
        }
    }
    found
}

/// The numbers of these.
pub fn pids_of_descendants(of: Pid) -> Vec<i32> {
    descendants(of).iter().map(|process| process.pid.as_raw_nonzero().get()).collect()
}

/// Asks all that comes from this process to end. One that is stopped would not notice.
pub fn terminate_all(of: Pid) {
    let all = descendants(of);
    for signal in [Signal::TERM, Signal::CONT] {
        all.iter().for_each(|process| process.signal(signal));
    }
}

/// Tells all that comes from this process to go on, should it be stopped.
pub fn continue_all(of: Pid) {
    descendants(of).iter().for_each(|process| process.signal(Signal::CONT));
}

/// Kills all that comes from this process. Groups come first: the kernel kills a whole group at once, while a chain of
/// processes that each start the next outruns a list.
pub fn kill_all(of: Pid) {
    let all = descendants(of);
    let pids: BTreeSet<i32> = all.iter().map(|process| process.pid.as_raw_nonzero().get()).collect();
    // Only groups that were founded by one of these: others may have joined theirs.
    let groups: BTreeSet<i32> = all.iter().map(|process| process.group).filter(|group| pids.contains(group)).collect();
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    all.iter().for_each(|process| process.signal(Signal::KILL));
}
