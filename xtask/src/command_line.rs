//! A command as data: it can be printed, compared and run.

use std::env;
use std::fmt;
use std::io;
use std::process::{Command, ExitStatus, Stdio};

/// A program with its arguments and environment variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    variables: Vec<(&'static str, &'static str)>,
    words: Vec<String>,
}

impl CommandLine {
    /// Creates a command from a line whose words are separated by white space.
    pub fn new(line: &str) -> Self {
        Self { variables: Vec::new(), words: line.split_whitespace().map(str::to_owned).collect() }
    }

    /// Adds an environment variable.
    pub fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    /// Adds arguments verbatim.
    pub fn arguments<T: Into<String>>(mut self, more: impl IntoIterator<Item = T>) -> Self {
        self.words.extend(more.into_iter().map(Into::into));
        self
    }

    /// Runs the command with inherited output.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn status(&self) -> Result<ExitStatus, String> {
        self.command().status().map_err(|error| self.not_started(&error))
    }

    /// Runs the command with inherited output; it must succeed.
    ///
    /// # Errors
    /// If it cannot be started or fails.
    pub fn run(&self) -> Result<(), String> {
        match self.status()? {
            status if status.success() => Ok(()),
            status => Err(format!("`{self}` exited with {status}")),
        }
    }

    /// Runs the command with all its output on our standard error; it must succeed.
    ///
    /// # Errors
    /// If it cannot be started or fails.
    pub fn run_to_stderr(&self) -> Result<(), String> {
        match self.command().stdout(io::stderr()).status().map_err(|error| self.not_started(&error))? {
            status if status.success() => Ok(()),
            status => Err(format!("`{self}` exited with {status}")),
        }
    }

    /// Returns the standard output of the command; it must succeed.
    ///
    /// # Errors
    /// If it cannot be started or fails.
    pub fn output(&self) -> Result<String, String> {
        let output = self.command().stderr(Stdio::inherit()).output().map_err(|error| self.not_started(&error))?;
        match output.status {
            status if status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            status => Err(format!("`{self}` exited with {status}")),
        }
    }

    /// Returns whether the command exists and succeeds. Its output is discarded.
    pub fn succeeds(&self) -> bool {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn command(&self) -> Command {
        let (program, arguments) = match self.words.split_first() {
            // The cargo that started us, not another one that is first on the path.
            Some((program, rest)) if program == "cargo" => (env::var_os("CARGO").unwrap_or("cargo".into()), rest),
            Some((program, rest)) => (program.into(), rest),
            None => ("".into(), [].as_slice()),
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.variables.iter().copied());
        command
    }

    fn not_started(&self, error: &io::Error) -> String {
        format!("cannot start `{self}`: {error}")
    }
}

/// Formats the command as typed into a shell.
impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variables = self.variables.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let words = self.words.iter().map(|word| quoted(word));
        f.write_str(&variables.chain(words).collect::<Vec<_>>().join(" "))
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@{}".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let line = CommandLine::new("cargo doc  --no-deps").variable("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(line.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
        let line = CommandLine::new("echo").arguments(["", "it's", "a b", "--seed=7"]);
        assert_eq!(line.to_string(), r"echo '' 'it'\''s' 'a b' --seed=7");
    }

    #[test]
    fn a_command_succeeds_only_if_it_exists_and_exits_with_zero() {
        assert!(CommandLine::new("true").succeeds());
        assert!(!CommandLine::new("false").succeeds());
        assert!(!CommandLine::new("tenure-has-no-such-program").succeeds());
        assert!(!CommandLine::new("").succeeds());
    }

    #[test]
    fn a_failure_names_the_command_and_its_exit_status() {
        let error = CommandLine::new("false").run().unwrap_err();
        assert!(error.starts_with("`false` exited with exit status: 1"), "{error}");
        let error = CommandLine::new("false").run_to_stderr().unwrap_err();
        assert!(error.starts_with("`false` exited with exit status: 1"), "{error}");
        let error = CommandLine::new("tenure-has-no-such-program").output().unwrap_err();
        assert!(error.starts_with("cannot start `tenure-has-no-such-program`"), "{error}");
    }

    #[test]
    fn variables_are_passed_and_output_is_captured() {
        let line = CommandLine::new("sh -c").arguments(["echo $TENURE_XTASK"]).variable("TENURE_XTASK", "a  b");
        assert_eq!(line.output().unwrap(), "a b\n");
    }
}
