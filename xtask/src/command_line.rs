//! A command as data: it can be shown, compared and run.

use std::env;
use std::fmt;
use std::io;
use std::process::{Command, ExitStatus, Stdio};

/// A program with its arguments and the variables it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    variables: Vec<(&'static str, &'static str)>,
    words: Vec<String>,
}

impl CommandLine {
    /// The command of this line, whose words are separated by white space.
    pub fn new(line: &str) -> Self {
        Self { variables: Vec::new(), words: line.split_whitespace().map(str::to_owned).collect() }
    }

    /// The command with one more variable in its environment.
    pub fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    /// The command with more arguments, taken as they are.
    pub fn arguments<T: Into<String>>(mut self, more: impl IntoIterator<Item = T>) -> Self {
        self.words.extend(more.into_iter().map(Into::into));
        self
    }

    /// Runs the command, its output going where ours goes.
    ///
    /// # Errors
    /// When it could not be started.
    pub fn status(&self) -> Result<ExitStatus, String> {
        self.command().status().map_err(|error| self.not_started(&error))
    }

    /// Runs the command, its output going where ours goes; it must succeed.
    ///
    /// # Errors
    /// When it could not be started or did not succeed.
    pub fn run(&self) -> Result<(), String> {
        match self.status()? {
            status if status.success() => Ok(()),
            status => Err(format!("`{self}` ended with {status}")),
        }
    }

    /// Runs the command, all its output going to our standard error; it must succeed.
    ///
    /// # Errors
    /// When it could not be started or did not succeed.
    pub fn run_to_stderr(&self) -> Result<(), String> {
        match self.command().stdout(io::stderr()).status().map_err(|error| self.not_started(&error))? {
            status if status.success() => Ok(()),
            status => Err(format!("`{self}` ended with {status}")),
        }
    }

    /// What the command writes to its standard output; it must succeed.
    ///
    /// # Errors
    /// When it could not be started or did not succeed.
    pub fn output(&self) -> Result<String, String> {
        let output = self.command().stderr(Stdio::inherit()).output().map_err(|error| self.not_started(&error))?;
        match output.status {
            status if status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            status => Err(format!("`{self}` ended with {status}")),
        }
    }

    /// Whether the command is there and succeeds. Nothing of it is shown.
    pub fn succeeds(&self) -> bool {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn command(&self) -> Command {
        let (program, arguments) = match self.words.split_first() {
            // The cargo that started us, not another one that happens to be first on the path.
            Some((program, rest)) if program == "cargo" => (env::var_os("CARGO").unwrap_or("cargo".into()), rest),
            Some((program, rest)) => (program.into(), rest),
            None => ("".into(), [].as_slice()),
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.variables.iter().copied());
        command
    }

    fn not_started(&self, error: &io::Error) -> String {
        format!("`{self}` could not be started: {error}")
    }
}

/// As one would type it into a shell.
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
        assert!(error.starts_with("`false` ended with exit status: 1"), "{error}");
        let error = CommandLine::new("false").run_to_stderr().unwrap_err();
        assert!(error.starts_with("`false` ended with exit status: 1"), "{error}");
        let error = CommandLine::new("tenure-has-no-such-program").output().unwrap_err();
        assert!(error.starts_with("`tenure-has-no-such-program` could not be started"), "{error}");
    }

    #[test]
    fn variables_are_passed_and_output_is_captured() {
        let line = CommandLine::new("sh -c").arguments(["echo $TENURE_XTASK"]).variable("TENURE_XTASK", "a  b");
        assert_eq!(line.output().unwrap(), "a b\n");
    }
}
