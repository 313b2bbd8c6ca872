//! A process and everything that comes from it.

use std::collections::BTreeMap;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

/// A process that has ended.
pub struct Dead {
    pub pid: Pid,
    /// Its exit status; 128 + n when it was killed by signal n.
    pub code: u8,
}

/// From now on whoever loses its parent, and comes from us, is our child: nobody gets away by forking twice.
pub fn adopt_orphans() {
    // Any process will do as the argument, and there is nothing to be done where the kernel cannot.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Whoever of our children has ended since the last call.
pub fn reap() -> Vec<Dead> {
    let mut dead = Vec::new();
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        let signal = status.terminating_signal().map(|signal| 128 + signal);
        if let Some(code) = status.exit_status().or(signal) {
            dead.push(Dead { pid, code: u8::try_from(code).unwrap_or(u8::MAX) });
        }
    }
    dead
}

/// Everybody who comes from this process and is still running.
pub fn descendants(of: Pid) -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // It may have ended since.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // `pid (name) state parent …`; the name may have anything in it.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let (state, parent) = (fields.next(), fields.next().and_then(|parent| parent.parse::<i32>().ok()));
        if let Some(parent) = parent.filter(|_| state != Some("Z")) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![of.as_raw_nonzero().get()];
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            found.extend(Pid::from_raw(child));
            open.push(child);
        }
    }
    found
}

/// Sends a signal to all of them.
pub fn signal(family: &[Pid], signal: Signal) {
    for pid in family {
        // Whoever is gone needs none.
        let _ = kill_process(*pid, signal);
    }
}
