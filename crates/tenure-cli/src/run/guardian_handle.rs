//! A command that is watched over: the guardian, from the side of whoever renews the lease.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::processes;
use super::protocol::{Order, Report};

/// The guardian and the command that it has started.
pub struct GuardianHandle {
    guardian: Child,
    orders: OwnedWriteHalf,
    reports: Lines<BufReader<OwnedReadHalf>>,
}

impl GuardianHandle {
    /// Starts the command under a guardian, which waits for its first deadline.
    pub fn start(command: &[OsString], environment: &[(&str, String)]) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut guardian = Command::new(std::env::current_exe()?);
        guardian.args(["__guard", "--"]).args(command).stdin(Stdio::from(OwnedFd::from(theirs)));
        guardian.envs(environment.iter().map(|(name, value)| (name, value)));
        // In a group of its own: what a terminal does to us it must survive.
        let guardian = guardian.process_group(0).spawn()?;
        send_stdin(&ours)?;
        ours.set_nonblocking(true)?;
        let (reports, orders) = tokio::net::UnixStream::from_std(ours)?.into_split();
        Ok(Self { guardian, orders, reports: BufReader::new(reports).lines() })
    }

    pub async fn tell(&mut self, order: Order) {
        // A guardian that is gone is noticed by its silence.
        let _ = self.orders.write_all(order.line().as_bytes()).await;
    }

    /// What the guardian says next; `None` when it will say nothing more.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn report(&mut self) -> Option<Report> {
        loop {
            let line = self.reports.next_line().await.ok()??;
            if let Some(report) = Report::read(&line) {
                return Some(report);
            }
        }
    }

    /// Sees that nothing is left, also when somebody has killed the guardian.
    pub async fn gone(mut self) {
        loop {
            // Whoever has lost its guardian is ours now.
            let family = processes::descendants(getpid());
            if self.guardian.try_wait().is_ok_and(|status| status.is_some()) {
                processes::signal(&family, Signal::KILL);
                processes::reap();
            }
            if family.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The command reads from what we read from. The guardian does not: it hears from us there.
fn send_stdin(socket: &UnixStream) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let stdin = io::stdin();
    let descriptors = [stdin.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut sent = SendAncillaryBuffer::new(&mut space);
    sent.push(SendAncillaryMessage::ScmRights(&descriptors));
    match sendmsg(socket, &[IoSlice::new(b"!")], &mut sent, SendFlags::empty()) {
        // We were started without one.
        Err(rustix::io::Errno::BADF) => {
            let mut none = SendAncillaryBuffer::default();
            sendmsg(socket, &[IoSlice::new(b"!")], &mut none, SendFlags::empty())?;
        }
        sent => drop(sent?),
    }
    Ok(())
}
