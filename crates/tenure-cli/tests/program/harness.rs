//! A store, programs on it, and the files their commands write.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Timeout of every wait.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A folder with a store and the files of commands.
pub struct Fixture {
    folder: TempDir,
    store: String,
}

impl Fixture {
    /// Creates a fixture on a file.
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

    /// Returns `tenure` with these arguments, on this store. Commands find this folder in `$FIXTURE`.
    pub fn tenure(&self, arguments: &[&str]) -> Command {
        self.plain(&[&["--bootstrap"], arguments].concat())
    }

    /// Returns `tenure` with only these arguments.
    pub fn plain(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments);
        command.env("TENURE_STORE", &self.store).env("FIXTURE", self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Runs `tenure` and returns its output.
    pub fn output(&self, arguments: &[&str]) -> Output {
        self.tenure(arguments).output().unwrap()
    }

    /// Runs `tenure` and returns its exit status.
    pub fn code(&self, arguments: &[&str]) -> i32 {
        let output = self.output(arguments);
        output.status.code().unwrap_or_else(|| panic!("killed: {output:?}"))
    }

    /// Starts `tenure` in the background.
    pub fn start(&self, arguments: &[&str]) -> Program {
        Program::spawn(self.tenure(arguments))
    }

    /// Starts `run` with these flags and a shell script.
    pub fn run(&self, role: &str, flags: &[&str], script: &str) -> Program {
        let arguments = [&["run", role][..], flags, &["--", "sh", "-c", script][..]].concat();
        self.start(&arguments)
    }

    /// Does the same without cgroups of version 2. Only root can create cgroups, so other users need no mount
    /// namespace.
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

/// A running program. Dropping it ends the program with everything that it has started.
pub struct Program(Child);

impl Program {
    /// Starts a command without output.
    pub fn spawn(mut command: Command) -> Self {
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Waits for the exit, and returns the status: 128 + n when signal n killed it.
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
        // The guardian ends the command.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a condition holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WAIT_TIMEOUT, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether a process with this pid runs.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// Returns the state of a process from `/proc`: `T` when it is stopped.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Returns a script that writes a line `token pid` at its start, and then the time and its token every 10 ms until it
/// ends.
pub fn busy_script(name: &str) -> String {
    format!(
        r#"echo "$TENURE_TOKEN $$" >> "$FIXTURE/{name}.begun"
           while :; do echo "$(date +%s%N) $TENURE_TOKEN" >> "$FIXTURE/{name}"; sleep 0.01; done"#
    )
}

/// Asserts that no line of a token was written after one of a larger token.
pub fn assert_no_overlap(record: &Path) {
    let text = std::fs::read_to_string(record).unwrap();
    let mut entries: Vec<(u128, u64)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        // The last line of a killed command may be incomplete.
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

/// Runs a program with this input.
pub fn with_input(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}
