//! Signals sent to `tenure run` that are meant for the command.

use std::io;

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{self, SignalKind};

/// Signals that are passed on.
const FORWARDED_SIGNALS: [i32; 9] = [
    Signal::TERM.as_raw(),
    Signal::INT.as_raw(),
    Signal::HUP.as_raw(),
    Signal::QUIT.as_raw(),
    Signal::USR1.as_raw(),
    Signal::USR2.as_raw(),
    Signal::WINCH.as_raw(),
    Signal::TSTP.as_raw(),
    Signal::CONT.as_raw(),
];

/// The second fatal signal: the program ends at once.
pub struct SecondSignal(pub u8);

pub struct Signals {
    streams: Vec<(i32, unix::Signal)>,
    /// The last fatal signal.
    fatal: Option<u8>,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        let mut streams = Vec::new();
        let is_hangup_ignored = is_hangup_ignored();
        for number in FORWARDED_SIGNALS {
            if number == Signal::HUP.as_raw() && is_hangup_ignored {
                continue;
            }
            streams.push((number, unix::signal(SignalKind::from_raw(number))?));
        }
        Ok(Self { streams, fatal: None })
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn next(&mut self) -> i32 {
        let number = std::future::poll_fn(|context| {
            for (number, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await;
        if is_fatal(number) {
            self.fatal = u8::try_from(number).ok();
        }
        number
    }

    /// Waits for the next signal that ends a program by default. A stop signal stops this process.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn fatal(&mut self) -> u8 {
        loop {
            let number = self.next().await;
            if is_fatal(number) {
                return u8::try_from(number).unwrap_or(0);
            }
            if is_stop(number) {
                stop_self();
            }
        }
    }

    /// Waits for a future after the command has ended, when signals have no receiver. The first fatal signal may have
    /// been passed on before; the second ends the wait.
    ///
    /// # Errors
    /// Fails with the second fatal signal.
    pub async fn or_second_signal<F: Future>(&mut self, future: F) -> Result<F::Output, SecondSignal> {
        let mut future = std::pin::pin!(future);
        loop {
            let had_one = self.fatal.is_some();
            tokio::select! {
                done = &mut future => return Ok(done),
                signal = self.fatal() => {
                    if had_one {
                        return Err(SecondSignal(signal));
                    }
                }
            }
        }
    }

    /// Returns the last fatal signal, if there was one.
    pub fn last_fatal(&self) -> Option<u8> {
        self.fatal
    }
}

/// Returns whether this signal ends a program that does not handle it.
pub fn is_fatal(number: i32) -> bool {
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].iter().any(|signal| signal.as_raw() == number)
}

/// Returns whether this process was started with SIGHUP ignored, as by `nohup`. It must stay so.
pub fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (Signal::HUP.as_raw() - 1) != 0
}

/// Returns whether this is the signal of ctrl-Z.
pub fn is_stop(number: i32) -> bool {
    number == Signal::TSTP.as_raw()
}

/// Stops this process as the shell expects. The lease is not renewed meanwhile: the guardian ends the command in time.
pub fn stop_self() {
    // A process can always stop itself.
    let _ = kill_process(getpid(), Signal::STOP);
}
