//! The guardian: a process of its own, with one thread, that starts the command and sees that it ends in time, whatever
//! becomes of the process that renews the lease.

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

/// How often is looked who is left, once all have to go, and once they are being killed.
const CHECK_EVERY: Duration = Duration::from_millis(20);
const KILL_CHECK_EVERY: Duration = Duration::from_millis(1);

/// How often the clock is looked at, whatever the runtime's timers do: they stand still while the machine sleeps.
const CLOCK_CHECK_EVERY: Duration = Duration::from_millis(250);

/// For how long after the deadline what is left is still killed: it may only be slow.
const KILL_RETRY_NANOS: u64 = 10_000_000_000;

/// Signals that would end or stop a guardian: service managers send them to every process they know.
const IGNORED_SIGNALS: [SignalKind; 5] = [
    SignalKind::terminate(),
    SignalKind::interrupt(),
    SignalKind::hangup(),
    SignalKind::quit(),
    // SIGTSTP
    SignalKind::from_raw(20),
];

/// Does all that a guardian does.
pub fn run(guard: &GuardianArguments) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            failure!("the guardian cannot start: {error}");
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
    processes::adopt_orphans();
    // When the process that renews the lease ends, a guardian that was stopped goes on, and ends the command.
    let _ = set_parent_process_death_signal(Some(Signal::CONT));
    let mut ignored = Vec::new();
    for kind in IGNORED_SIGNALS {
        // As long as this lives the signal does nothing.
        ignored.push(signal(kind)?);
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = receive_stdin(&socket)?;
    socket.set_nonblocking(true)?;
    let (orders, mut reports) = tokio::net::UnixStream::from_std(socket)?.into_split();
    let mut orders = Some(BufReader::new(orders).lines());
    // Without a deadline nothing is started: the process that tells it may be stopped just now, for as long as it takes
    // the lease to become another's.
    let Some(deadline) = first_deadline(&mut orders).await else { return Ok(()) };
    if now() >= deadline.end_at {
        return reports.write_all(GuardianReport::TooLate.line().as_bytes()).await;
    }
    // A wrapper that was killed since it sent the deadline renews nothing: its command is not started.
    if reports.write_all(GuardianReport::Acknowledged.line().as_bytes()).await.is_err() {
        return Ok(());
    }
    let children = signal(SignalKind::child())?;
    let (child, cgroup) = match start(guard, stdin) {
        Ok(started) => started,
        Err((code, why)) => return reports.write_all(GuardianReport::NotStarted { code, why }.line().as_bytes()).await,
    };
    // From here on nothing may fail: a guardian that returns leaves the command behind.
    let child = Pid::from_child(&child);
    Guardian { child, cgroup, deadline, told_to_end: false, is_stuck: false, orders, reports }.watch(children).await;
    Ok(())
}

/// The first deadline that is told; `None` when none will be.
async fn first_deadline(orders: &mut Option<Lines<BufReader<OwnedReadHalf>>>) -> Option<Deadline> {
    loop {
        match next(orders).await? {
            GuardianOrder::Deadline(deadline) => return Some(deadline),
            GuardianOrder::End => return None,
            // There is nothing yet to pass it on to.
            GuardianOrder::Signal(_) => {}
        }
    }
}

/// Starts the command, in a group of its own, and in a cgroup of its own where that can be had.
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

/// What the command shall read from comes with the first byte.
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
    /// Whether it was reported that the command could not be ended in time.
    is_stuck: bool,
    /// `None` once the process that renews the lease is gone.
    orders: Option<Lines<BufReader<OwnedReadHalf>>>,
    reports: OwnedWriteHalf,
}

impl Guardian {
    /// Returns when nothing of the command is left, or when the guardian has given up on killing the rest.
    async fn watch(mut self, mut children: unix::Signal) {
        loop {
            let (exited, left) = processes::reap();
            if let Some(child) = exited.iter().find(|exited| exited.pid == self.child) {
                self.report(&GuardianReport::Ended { code: child.code }).await;
                // What it has left behind ends, too.
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
                        // Nobody renews the lease any more.
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
            // Once it was told to end there is no way back.
            GuardianOrder::Deadline(_) if self.told_to_end => {}
            GuardianOrder::Deadline(deadline) => self.deadline = deadline,
            GuardianOrder::End => self.end(),
            GuardianOrder::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    // A group that is gone needs none.
                    let _ = kill_process_group(self.child, signal);
                }
                // A command that is stopped could not act on it.
                if signals::is_fatal(number) {
                    let _ = kill_process_group(self.child, Signal::CONT);
                }
            }
        }
    }

    /// Tells the command to end. It has the time for that which it always has, but not beyond its deadline.
    fn end(&mut self) {
        if std::mem::replace(&mut self.told_to_end, true) {
            return;
        }
        let stop_budget = self.deadline.kill_at.saturating_sub(self.deadline.end_at);
        self.deadline.kill_at = self.deadline.kill_at.min(now().saturating_add(stop_budget));
        processes::terminate_all(getpid());
    }

    /// Kills all of the command: its cgroup or its group in one go, and whatever else there is of it.
    fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        let _ = kill_process_group(self.child, Signal::KILL);
        processes::kill_all(getpid());
    }

    async fn report(&mut self, report: &GuardianReport) {
        // When the process that renews the lease is gone there is nobody to tell.
        let _ = self.reports.write_all(report.line().as_bytes()).await;
    }
}

/// The next order; `None` when there will be no more.
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
