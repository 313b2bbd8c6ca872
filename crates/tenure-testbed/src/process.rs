//! Runs a test of this test binary as a child process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal};

/// An ignored test of this test binary, run as a child process. Without its environment variable that test does
/// nothing. The process is killed when the value is dropped.
#[derive(Debug)]
pub struct TestProcess {
    child: Child,
    /// Kept open: without a reader the child's writes fail.
    stdout: BufReader<ChildStdout>,
}

impl TestProcess {
    /// Starts the test of this name with this environment variable.
    ///
    /// # Panics
    /// If it cannot be started.
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

    /// Waits until it prints `READY` and a word, and returns that word.
    ///
    /// # Panics
    /// If it exits first.
    pub fn ready(&mut self) -> String {
        let mut lines = self.stdout.by_ref().lines();
        lines.find_map(|line| line.unwrap().split_once("READY ").map(|(_, word)| word.to_owned())).unwrap()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it has exited and was waited for.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it exits by itself, and returns whether it succeeded.
    ///
    /// # Panics
    /// If it cannot be waited for.
    pub fn wait_success(&mut self) -> bool {
        let _ = self.stdout.read_to_end(&mut Vec::new());
        self.child.wait().unwrap().success()
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        // This also works if it is stopped or has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
