//! Signals that are sent to `tenure run`, and meant for the command.

use std::io;

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{self, SignalKind};

/// What is passed on.
const PASSED_ON: [i32; 9] = [
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

pub struct Signals {
    streams: Vec<(i32, unix::Signal)>,
    were_fatal: bool,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        let mut streams = Vec::new();
        for number in PASSED_ON {
            streams.push((number, unix::signal(SignalKind::from_raw(number))?));
        }
        Ok(Self { streams, were_fatal: false })
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
        self.were_fatal |= is_fatal(number);
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
            if stops(number) {
                stop_ourselves();
            }
        }
    }

    /// Whether somebody has told the program to end.
    pub fn were_fatal(&self) -> bool {
        self.were_fatal
    }
}

fn is_fatal(number: i32) -> bool {
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].iter().any(|signal| signal.as_raw() == number)
}

/// Whether this is ctrl-Z.
pub fn stops(number: i32) -> bool {
    number == Signal::TSTP.as_raw()
}

/// Stops as the shell expects it. Nothing is renewed then: the guardian ends the command when its time is up.
pub fn stop_ourselves() {
    // We can always be stopped.
    let _ = kill_process(getpid(), Signal::STOP);
}
