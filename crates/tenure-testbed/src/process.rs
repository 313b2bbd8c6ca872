//! The test program again, as a process that plays a part.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal};

/// A test of this very program that runs as a process of its own: an ignored one, which does nothing unless it is told what to be. It is
/// killed when this is dropped.
#[derive(Debug)]
pub struct TestProcess {
    child: Child,
    /// Kept: whoever writes to nobody fails.
    stdout: BufReader<ChildStdout>,
}

impl TestProcess {
    /// Starts the test of this name, with this variable in its environment.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(test: &str, variable: &str, value: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(variable, value)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Waits until it says `READY` and a word, and returns that.
    ///
    /// # Panics
    /// When it ends first.
    pub fn ready(&mut self) -> String {
        let mut lines = self.stdout.by_ref().lines();
        lines.find_map(|line| line.unwrap().split_once("READY ").map(|(_, word)| word.to_owned())).unwrap()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When it has ended and was waited for.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it has ended by itself, and returns whether that was well.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn wait_success(&mut self) -> bool {
        let _ = self.stdout.read_to_end(&mut Vec::new());
        self.child.wait().unwrap().success()
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        // Also one that is stopped, and one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
