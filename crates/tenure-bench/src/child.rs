//! Child processes of a measurement, and their resource usage.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// The kernel's ticks per second, the same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process that is killed when the value is dropped and when this process ends in any way: the main thread starts it.
pub struct ChildProcess {
    child: Child,
    /// Kept open: the child exits when its stdin is closed.
    stdin: ChildStdin,
}

impl ChildProcess {
    /// Starts this binary with other arguments, and waits until it prints `READY` and a word.
    pub fn start_self(arguments: &[&str]) -> Result<(Self, String), Box<dyn Error>> {
        let mut command = bound_command(&std::env::current_exe()?);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = Self::spawn(command)?;
        let output = BufReader::new(process.child.stdout.take().ok_or("the child has no stdout")?);
        let word = wait_for_word(output, |line| line.strip_prefix("READY "))?;
        Ok((process, word))
    }

    /// Starts a program, and waits for a line with a word in its log.
    pub fn start_program(
        program: &Path,
        arguments: &[&str],
        word: impl Fn(&str) -> Option<&str>,
    ) -> Result<(Self, String), Box<dyn Error>> {
        let mut command = bound_command(program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = Self::spawn(command)?;
        let output = BufReader::new(process.child.stderr.take().ok_or("the child has no stderr")?);
        let word = wait_for_word(output, word)?;
        Ok((process, word))
    }

    fn spawn(mut command: Command) -> Result<Self, Box<dyn Error>> {
        let mut child = command.stdin(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().ok_or("the child has no stdin")?;
        Ok(Self { child, stdin })
    }

    /// Lets the child continue.
    pub fn send_go(&mut self) -> std::io::Result<()> {
        self.stdin.write_all(b"go\n")
    }

    /// CPU time of all its threads, in seconds.
    pub fn cpu(&self) -> Result<f64, Box<dyn Error>> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name, in brackets, may contain spaces.
        let fields: Vec<&str> = stat
            .rsplit_once(") ")
            .ok_or("cannot read the CPU time: no process name in /proc")?
            .1
            .split_whitespace()
            .collect();
        let [user, system] = fields.get(11..13).ok_or("no times")? else { return Err("no times".into()) };
        Ok((user.parse::<f64>()? + system.parse::<f64>()?) / TICKS_PER_SECOND)
    }

    /// Resident memory, in bytes.
    pub fn resident(&self) -> Result<f64, Box<dyn Error>> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .ok_or("cannot read the memory: no VmRSS in /proc")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // This also works if it has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command for the program. It ends with this process, where the system supports that.
pub fn bound_command(program: &Path) -> Command {
    let bind = ["--pdeathsig", "KILL", "--"];
    let mut trial = Command::new("setpriv");
    trial.args(bind).arg("true").stdout(Stdio::null()).stderr(Stdio::null());
    if !trial.status().is_ok_and(|status| status.success()) {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(bind).arg(program);
    command
}

/// Waits for a matching line, then drains the rest on a thread so that the child never blocks on a full pipe.
fn wait_for_word(
    output: impl BufRead + Send + 'static,
    word: impl Fn(&str) -> Option<&str>,
) -> Result<String, Box<dyn Error>> {
    let (mut lines, mut said) = (output.lines(), String::new());
    loop {
        let Some(line) = lines.next().transpose()? else { return Err(format!("it exited early: {said}").into()) };
        if let Some(word) = word(&line) {
            let word = word.to_owned();
            std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
            return Ok(word);
        }
        said.push_str(&line);
        said.push('\n');
    }
}
