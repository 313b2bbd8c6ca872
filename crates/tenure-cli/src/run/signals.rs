//! Signals that are sent to `tenure run`, and meant for the command.

use std::io;

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{self, SignalKind};

/// What is passed on.
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

/// The second signal to end: the program ends at once.
pub struct SecondSignal(pub u8);

pub struct Signals {
    streams: Vec<(i32, unix::Signal)>,
    /// The last signal to end.
    fatal: Option<u8>,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        let mut streams = Vec::new();
        for number in FORWARDED_SIGNALS {
            streams.push((number, unix::signal(SignalKind::from_raw(number))?));
        }
        Ok(Self { streams, fatal: None })
    }

    /// The next signal.
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

    /// The next signal that ends a program which does not say otherwise. One that stops does so.
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

    /// Waits for something that follows the command, when there is nothing to pass signals on to. The first signal to end
    /// may have been passed on before; the second ends the wait.
    ///
    /// # Errors
    /// The second signal.
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

    /// The last signal to end that was heard, if one was.
    pub fn last_fatal(&self) -> Option<u8> {
        self.fatal
    }
}

/// Whether this signal ends a program that does not handle it.
pub fn is_fatal(number: i32) -> bool {
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].iter().any(|signal| signal.as_raw() == number)
}

/// Whether this is ctrl-Z.
pub fn is_stop(number: i32) -> bool {
    number == Signal::TSTP.as_raw()
}

/// Stops as the shell expects it. Nothing is renewed then: the guardian ends the command when its time is up.
pub fn stop_self() {
    // We can always be stopped.
    let _ = kill_process(getpid(), Signal::STOP);
}
