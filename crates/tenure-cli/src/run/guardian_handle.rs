//! The guardian, as seen by the process that renews the lease.

use std::ffi::OsString;
use std::io::{self, IoSlice, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::MAX_SILENCE;
use super::cgroup::Cgroup;
use super::processes::{self, Children};
use super::protocol::{GuardianOrder, GuardianReport, now};
use crate::notice::warning;

/// Poll interval for remaining processes.
const CHECK_EVERY: Duration = Duration::from_millis(1);

/// Interval of sending SIGCONT to a guardian that has not started yet.
const WAKE_EVERY: Duration = Duration::from_millis(250);

/// The guardian and the command that it starts.
pub struct GuardianHandle {
    guardian: Child,
    /// Name of the command's cgroup, if it has one.
    cgroup: String,
    orders: OwnedWriteHalf,
    reports: Lines<BufReader<OwnedReadHalf>>,
}

impl GuardianHandle {
    /// Starts a guardian. The guardian starts the command when it receives the first deadline.
    pub fn start(command: &[OsString], environment: &[(&str, String)], hidden: &[&str]) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        // The running program, even if its file has been replaced since.
        let mut guardian = Command::new("/proc/self/exe");
        guardian.arg0("tenure");
        let cgroup = Cgroup::new_name();
        guardian.args(["__guard", "--cgroup", &cgroup, "--"]).args(command).stdin(Stdio::from(OwnedFd::from(theirs)));
        guardian.envs(environment.iter().map(|(name, value)| (name, value)));
        for name in hidden {
            guardian.env_remove(name);
        }
        // In its own group: the guardian must survive signals from our terminal.
        let guardian = spawn(guardian.process_group(0))?;
        send_stdin(&ours)?;
        ours.set_nonblocking(true)?;
        let (reports, orders) = tokio::net::UnixStream::from_std(ours)?.into_split();
        Ok(Self { guardian, cgroup, orders, reports: BufReader::new(reports).lines() })
    }

    /// Sends an order without waiting: a stopped guardian does not read. A dead one shows by its silence.
    pub fn send(&self, order: GuardianOrder) {
        let _ = self.orders.try_write(order.line().as_bytes());
    }

    /// Continues a stopped guardian.
    pub fn resume(&self) {
        let _ = kill_process(Pid::from_child(&self.guardian), Signal::CONT);
    }

    /// Returns the next report of the guardian, or `None` when no more will come.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn next_report(&mut self) -> Option<GuardianReport> {
        loop {
            let line = self.reports.next_line().await.ok()??;
            if let Some(report) = GuardianReport::read(&line) {
                return Some(report);
            }
        }
    }

    /// Waits for the exit of a guardian that has sent its last report.
    pub async fn wait_exit(mut self) {
        while self.guardian.try_wait().is_ok_and(|status| status.is_none()) {
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }

    /// Ends the command in place of a guardian that was killed or is stopped. Returns when the kernel reports that no
    /// process of the command is left, or at `gone_by`, with the visible remaining processes.
    pub async fn kill_command(mut self, gone_by: u64) -> GuardianReport {
        let cgroup = Cgroup::named(&self.cgroup);
        // The guardian's children become our children.
        let _ = self.guardian.kill();
        loop {
            if let Some(cgroup) = &cgroup {
                cgroup.kill();
            }
            processes::kill_all(getpid());
            if processes::reap().1 == Children::None {
                if let Some(cgroup) = cgroup {
                    cgroup.remove();
                }
                return GuardianReport::Gone;
            }
            if now() >= gone_by {
                return GuardianReport::Stuck { pids: processes::pids_of_descendants(getpid()) };
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }
}

/// Starts a process. A process that is stopped between fork and exec blocks the thread that starts it, while other
/// threads renew the lease. So another thread continues the process, and kills it if that does not help within
/// [`MAX_SILENCE`].
fn spawn(command: &mut Command) -> io::Result<Child> {
    let (done, spawned) = mpsc::channel::<()>();
    let wake = move || {
        let began = Instant::now();
        while spawned.recv_timeout(WAKE_EVERY) == Err(RecvTimeoutError::Timeout) {
            if began.elapsed() < MAX_SILENCE {
                processes::continue_all(getpid());
            } else {
                warning!("the guardian does not start; killing it");
                processes::kill_all(getpid());
            }
        }
    };
    thread::scope(|scope| {
        thread::Builder::new().spawn_scoped(scope, wake)?;
        let child = command.spawn();
        drop(done);
        child
    })
}

/// Passes our stdin on to the command. The guardian does not read it: its own stdin is the socket to us. A terminal is
/// not passed on: it stops a background process group that reads from it, and the command has its own group.
fn send_stdin(socket: &UnixStream) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let stdin = io::stdin();
    let descriptors = [stdin.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut sent = SendAncillaryBuffer::new(&mut space);
    if !stdin.is_terminal() {
        sent.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    match sendmsg(socket, &[IoSlice::new(b"!")], &mut sent, SendFlags::empty()) {
        // This process was started without stdin.
        Err(rustix::io::Errno::BADF) => {
            let mut none = SendAncillaryBuffer::default();
            sendmsg(socket, &[IoSlice::new(b"!")], &mut none, SendFlags::empty())?;
        }
        sent => drop(sent?),
    }
    Ok(())
}
