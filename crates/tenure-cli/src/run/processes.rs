//! The children of this process and all their descendants.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open, pidfd_send_signal, wait,
};

/// A child that has exited.
pub struct Exited {
    pub pid: Pid,
    /// Its exit status; 128 + n when signal n killed it.
    pub code: u8,
}

/// Whether this process has children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// The kernel reports none. As orphans are adopted, no descendant of this process is left.
    None,
    /// There may be some.
    Some,
}

/// Makes this process the parent of orphaned descendants from now on, so that a double fork does not escape it.
pub fn adopt_orphans() -> io::Result<()> {
    // The kernel ignores which process is the argument.
    rustix::process::set_child_subreaper(Some(getpid())).map_err(Into::into)
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
            // An error does not prove that there are none.
            Ok(None) | Err(_) => return (exited, Children::Some),
        }
    }
}

/// Snapshot of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessEntry {
    pid: Pid,
    parent: i32,
    group: i32,
    /// Start time. A later process with the same pid has a later one.
    started: u64,
}

impl ProcessEntry {
    /// Reads `/proc/<pid>`.
    fn read(folder: &Path) -> Option<Self> {
        let pid = folder.file_name()?.to_str()?.parse::<i32>().ok().and_then(Pid::from_raw)?;
        let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
        // `pid (name) state parent group …`; the name may contain anything. A process whose first thread has exited
        // reads as a zombie, and may have running threads.
        let mut fields = stat.rsplit(')').next()?.split_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let started = fields.nth(16)?.parse().ok()?;
        Some(Self { pid, parent, group, started })
    }

    /// Sends a signal, unless the pid belongs to another process by now.
    fn signal(&self, signal: Signal) {
        match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(handle) => {
                let folder = Path::new("/proc").join(self.pid.as_raw_nonzero().to_string());
                if Self::read(&folder).is_some_and(|now| now.started == self.started) {
                    // It may have exited.
                    let _ = pidfd_send_signal(handle, signal);
                }
            }
            Err(Errno::SRCH) => {}
            // The kernel has no pidfds.
            Err(_) => drop(kill_process(self.pid, signal)),
        }
    }
}

/// Returns all descendants of a process that `/proc` shows. There may be others that it does not show.
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

/// Returns the pids of all visible descendants.
pub fn pids_of_descendants(of: Pid) -> Vec<i32> {
    descendants(of).iter().map(|process| process.pid.as_raw_nonzero().get()).collect()
}

/// Sends SIGTERM to all descendants, and continues stopped ones, which would not notice it.
pub fn terminate_all(of: Pid) {
    let all = descendants(of);
    for signal in [Signal::TERM, Signal::CONT] {
        all.iter().for_each(|process| process.signal(signal));
    }
}

/// Sends SIGCONT to all descendants.
pub fn continue_all(of: Pid) {
    descendants(of).iter().for_each(|process| process.signal(Signal::CONT));
}

/// Kills all descendants. Groups come first: the kernel kills a whole group at once, while a chain of processes that
/// each start the next outruns a list.
pub fn kill_all(of: Pid) {
    let all = descendants(of);
    let pids: BTreeSet<i32> = all.iter().map(|process| process.pid.as_raw_nonzero().get()).collect();
    // Only groups that a descendant leads: a descendant may have joined a foreign group.
    let groups: BTreeSet<i32> = all.iter().map(|process| process.group).filter(|group| pids.contains(group)).collect();
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    all.iter().for_each(|process| process.signal(Signal::KILL));
}
