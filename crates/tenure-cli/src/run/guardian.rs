//! The guardian: a process of its own, with one thread, that starts the command and sees that it ends in time, whatever
//! becomes of whoever renews the lease.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{SignalKind, signal};

use super::processes;
use super::protocol::{Order, Report, now};
use crate::arguments::Guard;
use crate::exit;

/// How often is looked who is still there, once all have to go.
const LOOK: Duration = Duration::from_millis(20);

/// How often the clock is looked at, whatever the runtime's timers do: they stand still while the machine sleeps.
const BACKSTOP: Duration = Duration::from_millis(250);

/// Signals that would end or stop a guardian: service managers send them to every process they know.
const UNHEEDED: [SignalKind; 5] = [
    SignalKind::terminate(),
    SignalKind::interrupt(),
    SignalKind::hangup(),
    SignalKind::quit(),
    // SIGTSTP
    SignalKind::from_raw(20),
];

/// Does all that a guardian does.
pub fn watch_over(guard: &Guard) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tenure: the guardian cannot start: {error}");
            return ExitCode::from(exit::SOFTWARE);
        }
    };
    match runtime.block_on(guard_command(guard)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure: the guardian has failed: {error}");
            ExitCode::from(exit::SOFTWARE)
        }
    }
}

async fn guard_command(guard: &Guard) -> io::Result<()> {
    processes::adopt_orphans();
    let mut unheeded = Vec::new();
    for kind in UNHEEDED {
        // As long as this lives the signal does nothing.
        unheeded.push(signal(kind)?);
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = receive_stdin(&socket)?;
    socket.set_nonblocking(true)?;
    let (orders, mut reports) = tokio::net::UnixStream::from_std(socket)?.into_split();
    let (program, arguments) = guard.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let started = Command::new(program).args(arguments).stdin(stdin).process_group(0).spawn();
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            let why = format!("{}: {error}", program.display());
            let report = Report::NotStarted { code, why };
            return reports.write_all(report.line().as_bytes()).await;
        }
    };
    Guardian {
        child: Pid::from_child(&child),
        end_at: u64::MAX,
        kill_at: u64::MAX,
        told_to_end: false,
        orders: Some(BufReader::new(orders).lines()),
        reports,
    }
    .watch()
    .await
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
    end_at: u64,
    kill_at: u64,
    told_to_end: bool,
    /// `None` once whoever renews the lease is gone.
    orders: Option<Lines<BufReader<OwnedReadHalf>>>,
    reports: OwnedWriteHalf,
}

impl Guardian {
    async fn watch(mut self) -> io::Result<()> {
        let mut children = signal(SignalKind::child())?;
        let mut ended = false;
        loop {
            for dead in processes::reap() {
                if dead.pid == self.child {
                    ended = true;
                    self.report(&Report::Ended { code: dead.code }).await;
                    // What it has left behind ends, too.
                    self.end();
                }
            }
            if now() >= self.end_at {
                self.end();
            }
            // Who there is matters only when they have to go, and finding out takes a look at every process there is.
            if self.told_to_end {
                let family = processes::descendants(getpid());
                if ended && family.is_empty() {
                    self.report(&Report::Gone).await;
                    return Ok(());
                }
                if now() >= self.kill_at {
                    processes::signal(&family, Signal::KILL);
                }
            }
            let left = Duration::from_nanos(self.end_at.saturating_sub(now()));
            let nap = if self.told_to_end { LOOK } else { left.min(BACKSTOP) };
            tokio::select! {
                order = next(&mut self.orders) => match order {
                    Some(order) => self.obey(order),
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

    fn obey(&mut self, order: Order) {
        match order {
            // Once it was told to end there is no way back.
            Order::Deadline { .. } if self.told_to_end => {}
            Order::Deadline { end_at, kill_at } => (self.end_at, self.kill_at) = (end_at, kill_at),
            Order::End => self.end(),
            Order::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    // Whoever is gone needs none.
                    let _ = kill_process_group(self.child, signal);
                }
            }
        }
    }

    /// Tells the command to end. It has the time for that which it always has, but not beyond its deadline.
    fn end(&mut self) {
        if std::mem::replace(&mut self.told_to_end, true) {
            return;
        }
        let patience = self.kill_at.saturating_sub(self.end_at);
        self.kill_at = self.kill_at.min(now().saturating_add(patience));
        let mut family = processes::descendants(getpid());
        family.push(self.child);
        processes::signal(&family, Signal::TERM);
        // One that is stopped would not notice.
        processes::signal(&family, Signal::CONT);
    }

    async fn report(&mut self, report: &Report) {
        // Whoever is gone need not know.
        let _ = self.reports.write_all(report.line().as_bytes()).await;
    }
}

/// The next order; `None` when there will be no more.
async fn next(orders: &mut Option<Lines<BufReader<OwnedReadHalf>>>) -> Option<Order> {
    match orders {
        Some(lines) => loop {
            match lines.next_line().await {
                Ok(Some(line)) => match Order::read(&line) {
                    Some(order) => return Some(order),
                    None => continue,
                },
                Ok(None) | Err(_) => return None,
            }
        },
        None => std::future::pending().await,
    }
}
