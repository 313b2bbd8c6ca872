//! The guardian: a separate process with one thread. It starts the command and ends it in time, even if the process
//! that renews the lease hangs or dies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process_group, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{self, SignalKind, signal};

use super::cgroup::Cgroup;
use super::processes::{self, Children};
use super::protocol::{Deadline, GuardianOrder, GuardianReport, now};
use super::signals;
use crate::arguments::GuardianArguments;
use crate::exit;
use crate::notice::failure;

/// Poll interval for remaining processes: while the command is ending, and while it is being killed.
const CHECK_EVERY: Duration = Duration::from_millis(20);
const KILL_CHECK_EVERY: Duration = Duration::from_millis(1);

/// Interval of reading the clock, because timers of the runtime stop while the machine sleeps.
const CLOCK_CHECK_EVERY: Duration = Duration::from_millis(250);

/// Time after the deadline in which the guardian keeps killing: the processes may only be slow to die.
const KILL_RETRY_NANOS: u64 = 10_000_000_000;

/// Signals that would end or stop the guardian. Service managers send them to every process they know.
const IGNORED_SIGNALS: [SignalKind; 5] = [
    SignalKind::terminate(),
    SignalKind::interrupt(),
    SignalKind::hangup(),
    SignalKind::quit(),
    // SIGTSTP
    SignalKind::from_raw(20),
];

/// Runs the guardian until the command has ended.
pub fn run(guard: &GuardianArguments) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            failure!("cannot start the guardian: {error}");
            return ExitCode::from(exit::SOFTWARE);
        }
    };
    match runtime.block_on(guard_command(guard)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            failure!("the guardian has failed: {error}");
            ExitCode::from(exit::SOFTWARE)
        }
    }
}

async fn guard_command(guard: &GuardianArguments) -> io::Result<()> {
    // `tenure run` has warned of a failure.
    let _ = processes::adopt_orphans();
    // When `tenure run` dies, the kernel continues a stopped guardian, which then ends the command.
    let _ = set_parent_process_death_signal(Some(Signal::CONT));
    let mut ignored = Vec::new();
    for kind in IGNORED_SIGNALS {
        // `nohup` holds for the command, too: the signal stays ignored.
        if kind != SignalKind::hangup() || !signals::is_hangup_ignored() {
            // The signal has no effect as long as this stream lives.
            ignored.push(signal(kind)?);
        }
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = receive_stdin(&socket)?;
    socket.set_nonblocking(true)?;
    let (orders, mut reports) = tokio::net::UnixStream::from_std(socket)?.into_split();
    let mut orders = Some(BufReader::new(orders).lines());
    // Do not start without a deadline: `tenure run` may be stopped at this moment, until another instance holds the
    // lease.
    let Some(deadline) = first_deadline(&mut orders).await else { return Ok(()) };
    if now() >= deadline.end_at {
        return reports.write_all(GuardianReport::TooLate.line().as_bytes()).await;
    }
    // If `tenure run` was killed after it sent the deadline, the lease is not renewed: do not start the command.
    if reports.write_all(GuardianReport::Acknowledged.line().as_bytes()).await.is_err() {
        return Ok(());
    }
    let children = signal(SignalKind::child())?;
    let (child, cgroup) = match start(guard, stdin) {
        Ok(started) => started,
        Err((code, why)) => return reports.write_all(GuardianReport::NotStarted { code, why }.line().as_bytes()).await,
    };
    // From here on nothing may fail: a guardian that returns leaves the command running.
    let child = Pid::from_child(&child);
    Guardian { child, cgroup, deadline, told_to_end: false, is_stuck: false, orders, reports }.watch(children).await;
    Ok(())
}

/// Returns the first deadline, or `None` when none will come.
async fn first_deadline(orders: &mut Option<Lines<BufReader<OwnedReadHalf>>>) -> Option<Deadline> {
    loop {
        match next(orders).await? {
            GuardianOrder::Deadline(deadline) => return Some(deadline),
            GuardianOrder::End => return None,
            // The command has not been started yet.
            GuardianOrder::Signal(_) => {}
        }
    }
}

/// Starts the command in its own process group, and in its own cgroup where possible.
fn start(guard: &GuardianArguments, stdin: Stdio) -> Result<(Child, Option<Cgroup>), (u8, String)> {
    let (program, arguments) = guard.command.split_first().ok_or((126, "there is no command".to_owned()))?;
    let cgroup = Cgroup::join_new(&guard.cgroup);
    let started = Command::new(program).args(arguments).stdin(stdin).process_group(0).spawn();
    let cgroup = cgroup.and_then(Cgroup::leave);
    match started {
        Ok(child) => Ok((child, cgroup)),
        Err(error) => {
            if let Some(cgroup) = cgroup {
                cgroup.remove();
            }
            let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            Err((code, format!("{}: {error}", program.display())))
        }
    }
}

/// Receives the command's stdin, which is attached to the first byte.
fn receive_stdin(socket: &UnixStream) -> io::Result<Stdio> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut byte = [0_u8; 1];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [io::IoSliceMut::new(&mut byte)], &mut received, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor: Option<OwnedFd> = received.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptor.map_or_else(Stdio::null, Stdio::from))
}

struct Guardian {
    child: Pid,
    cgroup: Option<Cgroup>,
    deadline: Deadline,
    told_to_end: bool,
    /// Whether the guardian has reported that it could not end the command in time.
    is_stuck: bool,
    /// `None` once `tenure run` is gone.
    orders: Option<Lines<BufReader<OwnedReadHalf>>>,
    reports: OwnedWriteHalf,
}

impl Guardian {
    /// Returns when no process of the command is left, or when the guardian has given up killing the rest.
    async fn watch(mut self, mut children: unix::Signal) {
        loop {
            let (exited, left) = processes::reap();
            if let Some(child) = exited.iter().find(|exited| exited.pid == self.child) {
                let in_time = !self.told_to_end && now() < self.deadline.end_at;
                self.report(&GuardianReport::Ended { code: child.code, in_time }).await;
                // End its remaining descendants, too.
                self.end();
            }
            if left == Children::None {
                if let Some(cgroup) = &self.cgroup {
                    cgroup.remove();
                }
                self.report(&GuardianReport::Gone).await;
                return;
            }
            if now() >= self.deadline.end_at {
                self.end();
            }
            let kills = self.told_to_end && now() >= self.deadline.kill_at;
            if kills {
                self.kill();
                if now() >= self.deadline.gone_by && !std::mem::replace(&mut self.is_stuck, true) {
                    self.report(&GuardianReport::Stuck { pids: processes::pids_of_descendants(getpid()) }).await;
                }
                if now() >= self.deadline.gone_by.saturating_add(KILL_RETRY_NANOS) {
                    return;
                }
            }
            let left = Duration::from_nanos(self.deadline.end_at.saturating_sub(now()));
            let nap = match (kills, self.told_to_end) {
                (true, _) if self.is_stuck => CHECK_EVERY,
                (true, _) => KILL_CHECK_EVERY,
                (false, true) => CHECK_EVERY,
                (false, false) => left.min(CLOCK_CHECK_EVERY),
            };
            tokio::select! {
                order = next(&mut self.orders) => match order {
                    Some(order) => {
                        self.apply(order);
                        if matches!(order, GuardianOrder::Deadline(_)) {
                            self.report(&GuardianReport::Acknowledged).await;
                        }
                    }
                    None => {
                        // `tenure run` is gone, so the lease is not renewed.
                        self.orders = None;
                        self.end();
                    }
                },
                _ = children.recv() => {}
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    fn apply(&mut self, order: GuardianOrder) {
        match order {
            // An end order is final.
            GuardianOrder::Deadline(_) if self.told_to_end => {}
            GuardianOrder::Deadline(deadline) => self.deadline = deadline,
            GuardianOrder::End => self.end(),
            GuardianOrder::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    // The group may be gone.
                    let _ = kill_process_group(self.child, signal);
                }
                // A stopped command could not handle the signal.
                if signals::is_fatal(number) {
                    let _ = kill_process_group(self.child, Signal::CONT);
                }
            }
        }
    }

    /// Asks the command to end. It gets its usual stop budget, but no time beyond its deadline.
    fn end(&mut self) {
        if std::mem::replace(&mut self.told_to_end, true) {
            return;
        }
        let stop_budget = self.deadline.kill_at.saturating_sub(self.deadline.end_at);
        self.deadline.kill_at = self.deadline.kill_at.min(now().saturating_add(stop_budget));
        processes::terminate_all(getpid());
    }

    /// Kills the whole command: its cgroup or process group at once, then all other descendants.
    fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        let _ = kill_process_group(self.child, Signal::KILL);
        processes::kill_all(getpid());
    }

    async fn report(&mut self, report: &GuardianReport) {
        // Without `tenure run` there is no receiver.
        let _ = self.reports.write_all(report.line().as_bytes()).await;
    }
}

/// Returns the next order, or `None` when no more will come.
async fn next(orders: &mut Option<Lines<BufReader<OwnedReadHalf>>>) -> Option<GuardianOrder> {
    match orders {
        Some(lines) => loop {
            match lines.next_line().await {
                Ok(Some(line)) => match GuardianOrder::read(&line) {
                    Some(order) => return Some(order),
                    None => continue,
                },
                Ok(None) | Err(_) => return None,
            }
        },
        None => std::future::pending().await,
    }
}
