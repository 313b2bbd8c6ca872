//! A store, programs on it, and what their commands write down.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// After this long something that should have happened never will.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A folder with a store in it, and whatever commands write.
pub struct Fixture {
    folder: TempDir,
    store: String,
}

impl Fixture {
    /// On a file.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", folder.path().join("leases.db").display());
        Self { folder, store }
    }

    pub fn on(store: &str) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), store: store.to_owned() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `tenure` with these arguments, on this store. What it runs finds this folder in `$FIXTURE`.
    pub fn tenure(&self, arguments: &[&str]) -> Command {
        self.plain(&[&["--bootstrap"], arguments].concat())
    }

    /// The same, with nothing but these.
    pub fn plain(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments);
        command.env("TENURE_STORE", &self.store).env("FIXTURE", self.folder.path()).stdin(Stdio::null());
        command
    }

    /// What it prints, and how it ends.
    pub fn output(&self, arguments: &[&str]) -> Output {
        self.tenure(arguments).output().unwrap()
    }

    /// How it ends.
    pub fn code(&self, arguments: &[&str]) -> i32 {
        let output = self.output(arguments);
        output.status.code().unwrap_or_else(|| panic!("killed: {output:?}"))
    }

    /// Starts it and goes on.
    pub fn start(&self, arguments: &[&str]) -> Program {
        Program::spawn(self.tenure(arguments))
    }

    /// Starts `run` with a shell script, after the flags.
    pub fn run(&self, role: &str, flags: &[&str], script: &str) -> Program {
        let arguments = [&["run", role][..], flags, &["--", "sh", "-c", script][..]].concat();
        self.start(&arguments)
    }

    /// The same in a world without cgroups of version 2, which only root can make: for others there are none to be had.
    pub fn run_without_cgroups(&self, role: &str, flags: &[&str], script: &str) -> Program {
        let arguments = [&["run", role][..], flags, &["--", "sh", "-c", script][..]].concat();
        let plain = self.tenure(&arguments);
        if !rustix::process::geteuid().is_root() {
            return Program::spawn(plain);
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", r#"umount -a -t cgroup2; exec "$@""#, "sh"]);
        command.arg(plain.get_program()).args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
        Program::spawn(command)
    }

    /// Waits until a file has this many lines, and returns them.
    pub fn lines(&self, name: &str, count: usize) -> Vec<String> {
        let lines = || self.read(name).lines().map(str::to_owned).collect::<Vec<_>>();
        wait_until(&format!("{count} lines in {name}: {:?}", lines()), || lines().len() >= count);
        lines()
    }
}

/// A program that runs. Ended when this is dropped, with everything that it has started.
pub struct Program(Child);

impl Program {
    /// Starts a command that says nothing.
    pub fn spawn(mut command: Command) -> Self {
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Waits for its end, and returns its status: 128 + n when it was killed.
    pub fn wait_exit(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let mut status = None;
        wait_until("the program ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Its guardian does the rest.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something is so.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WAIT_TIMEOUT, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process of this number runs.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// The state of a process as `/proc` shows it: `T` when it is stopped.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// A script that writes a line `token pid` when it begins, and then its token every 10 ms, with the time, until it ends.
pub fn busy_script(name: &str) -> String {
    format!(
        r#"echo "$TENURE_TOKEN $$" >> "$FIXTURE/{name}.begun"
           while :; do echo "$(date +%s%N) $TENURE_TOKEN" >> "$FIXTURE/{name}"; sleep 0.01; done"#
    )
}

/// Sees that what was written under one token was never written after something under a larger one.
pub fn assert_no_overlap(record: &Path) {
    let text = std::fs::read_to_string(record).unwrap();
    let mut entries: Vec<(u128, u64)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        // The last line of one that was killed may not be whole.
        if let (Some(Ok(at)), Some(Ok(token)), None) =
            (words.next().map(str::parse), words.next().map(str::parse), words.next())
        {
            entries.push((at, token));
        }
    }
    entries.sort_unstable();
    for pair in entries.windows(2) {
        assert!(pair[0].1 <= pair[1].1, "{} worked after {}", pair[1].1, pair[0].1);
    }
}

/// Gives a program something to read.
pub fn with_input(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}
