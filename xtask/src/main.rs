//! Tenure's development commands: `cargo xtask help` lists them.

mod command_line;
mod dependency_tree;
mod language;
mod module_cycles;
mod pipelines;
mod prerequisites;
mod public_api;
mod redis_releases;
mod stages;

use std::env;
use std::path::Path;
use std::process::ExitCode;

use command_line::CommandLine;
use pipelines::Pipeline;
use prerequisites::REDIS_SERVER;

const HELP: &str = "\
Tenure's development commands

Usage: cargo xtask COMMAND

  test                Install what the tests need, then run all tests
  check               Run the quick checks: format, words, clippy, the library's tests, 200 simulated worlds
  lint                Check format, words, clippy, documentation and dependency policy
  api                 Write docs/public-api.txt, the list of the library's public API
  soak                Run the pool scenarios with a ttl of 30 s, renewed every 10 s; takes 15 min
  sim [ARG]…          Run the simulator, built for release: --fleets small|large, --seeds N, --seed S, --trace, --jobs N
  bench NAME [ARG]…   Run a benchmark (`lease`, `election`, `pool`, `serve`) on a real store, built for release; the last line is JSON
  upgrade REVISION    Build the program of an earlier revision or release, and upgrade a fleet from it to this one
  ci                  Run test, then lint, like .ci/run
  help                Print this text";

/// Exit status for wrong usage, as in `sysexits.h`.
const EXIT_USAGE: u8 = 64;

/// The parsed arguments.
#[derive(Debug, PartialEq, Eq)]
enum XtaskCommand {
    Test,
    Check,
    Lint,
    Api,
    Sim(Vec<String>),
    Bench(Vec<String>),
    Soak,
    Upgrade(String),
    Ci,
    Help,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let request = match parse(&arguments) {
        Ok(request) => request,
        Err(message) => {
            eprintln!("xtask: {message}; `cargo xtask help` lists the commands");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if let Err(message) = cd_to_workspace_root() {
        eprintln!("xtask: {message}");
        return ExitCode::FAILURE;
    }
    let passed = match request {
        XtaskCommand::Test => Pipeline::test().run(),
        XtaskCommand::Check => Pipeline::check().run(),
        XtaskCommand::Lint => Pipeline::lint().run(),
        XtaskCommand::Soak => Pipeline::soak().run(),
        XtaskCommand::Upgrade(revision) => Pipeline::upgrade(&revision).run(),
        XtaskCommand::Api => match public_api::write() {
            Ok(()) => true,
            Err(message) => {
                eprintln!("xtask: {message}");
                false
            }
        },
        XtaskCommand::Ci => Pipeline::test().then(Pipeline::lint()).run(),
        XtaskCommand::Sim(arguments) => return run_program("tenure-sim", arguments),
        XtaskCommand::Bench(arguments) => return run_bench(arguments),
        XtaskCommand::Help => {
            println!("{HELP}");
            true
        }
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(arguments: &[String]) -> Result<XtaskCommand, String> {
    let (command, rest) = arguments.split_first().ok_or("no command")?;
    let request = match command.as_str() {
        "test" => XtaskCommand::Test,
        "check" => XtaskCommand::Check,
        "lint" => XtaskCommand::Lint,
        "api" => XtaskCommand::Api,
        "soak" => XtaskCommand::Soak,
        // These programs parse their own flags.
        "sim" => return Ok(XtaskCommand::Sim(rest.to_vec())),
        "bench" => return Ok(XtaskCommand::Bench(rest.to_vec())),
        "upgrade" => {
            return match rest {
                [revision] if !revision.starts_with('-') => Ok(XtaskCommand::Upgrade(revision.clone())),
                _ => Err("`upgrade` needs a revision: a tag such as v0.1.0, or a commit".to_owned()),
            };
        }
        "ci" => XtaskCommand::Ci,
        "help" | "--help" | "-h" => XtaskCommand::Help,
        unknown => return Err(format!("unknown command `{unknown}`")),
    };
    match rest {
        [] => Ok(request),
        [flag] if flag == "--help" || flag == "-h" => Ok(XtaskCommand::Help),
        [argument, ..] => Err(format!("`{command}` takes no argument `{argument}`")),
    }
}

/// Changes to the workspace root, which every stage expects.
fn cd_to_workspace_root() -> Result<(), String> {
    let Some(own) = env::var_os("CARGO_MANIFEST_DIR") else {
        return Err("cannot find the workspace; run `cargo xtask`".to_owned());
    };
    let root = Path::new(&own).parent().unwrap_or(Path::new("."));
    env::set_current_dir(root).map_err(|error| format!("cannot change to \"{}\": {error}", root.display()))
}

/// Runs a benchmark, after installing what it needs. The standard output belongs to the benchmark: its last line is
/// JSON.
fn run_bench(arguments: Vec<String>) -> ExitCode {
    if arguments.is_empty() {
        eprintln!("xtask: `bench` needs a name: lease, election, pool or serve");
        return ExitCode::from(64);
    }
    // `bench serve` measures the `tenure` binary next to `tenure-bench`, so build it first.
    let program = arguments.first().is_some_and(|name| name == "serve");
    let built =
        || if program { CommandLine::new("cargo build --release -p tenure-cli").run_to_stderr() } else { Ok(()) };
    match prerequisites::ensure(&[REDIS_SERVER]).and_then(|_| built()) {
        Ok(()) => run_program("tenure-bench", arguments),
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the program of this package, and exits with its status.
fn run_program(package: &str, arguments: Vec<String>) -> ExitCode {
    match CommandLine::new("cargo run --release -p").arguments([package, "--"]).arguments(arguments).status() {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from),
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<XtaskCommand, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn every_command_in_the_help_is_known() {
        for line in HELP.lines().filter(|line| line.starts_with("  ")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let count = if words[1] == "REVISION" { 2 } else { 1 };
            let command = words[..count].join(" ");
            assert!(parsed(&command).is_ok(), "{command}");
        }
    }

    #[test]
    fn arguments_go_to_the_programs_and_to_nothing_else() {
        let arguments = ["--seed", "7", "--trace"].map(str::to_owned).to_vec();
        assert_eq!(parsed("sim --seed 7 --trace"), Ok(XtaskCommand::Sim(arguments)));
        let arguments = ["failover", "--help"].map(str::to_owned).to_vec();
        assert_eq!(parsed("bench failover --help"), Ok(XtaskCommand::Bench(arguments)));
        assert_eq!(parsed("test --fast"), Err("`test` takes no argument `--fast`".to_owned()));
        assert_eq!(parsed("help me"), Err("`help` takes no argument `me`".to_owned()));
    }

    #[test]
    fn every_spelling_of_help_is_known() {
        for line in ["help", "--help", "-h", "test --help", "lint -h"] {
            assert_eq!(parsed(line), Ok(XtaskCommand::Help), "{line}");
        }
    }

    #[test]
    fn an_unknown_command_is_named() {
        assert_eq!(parsed("tset"), Err("unknown command `tset`".to_owned()));
        assert_eq!(parsed("--fast"), Err("unknown command `--fast`".to_owned()));
        assert_eq!(parsed(""), Err("no command".to_owned()));
    }
}
