//! The commands that consist of stages: `test`, `check`, `lint`, and `ci`, which is test and lint.

use crate::command_line::CommandLine;
use crate::dependency_tree::{DECISIONS, DependencyRule, LIBRARY_ALONE};
use crate::language;
use crate::module_cycles;
use crate::prerequisites::{self, CLIPPY, FAKETIME, REDIS_SERVER, RUSTFMT, Tool};
use crate::public_api;
use crate::redis_releases;
use crate::stages::{self, Stage, StageOutcome};

/// Most tests wait for leases to expire, so more of them run at a time than there are processors.
const TEST_THREADS: &str = "4";

/// The program of an earlier revision, as its own tests would find it: tests run in the folder of their crate.
const PREVIOUS_BINARY: &str = "../../target/previous/target/debug/tenure";

/// Stages and the tools that they need.
pub struct Pipeline {
    tools: Vec<Tool>,
    stages: Vec<Stage>,
}

impl Pipeline {
    /// All tests: every crate and feature, the library alone, many simulated worlds, the examples.
    pub fn test() -> Self {
        Self {
            tools: vec![REDIS_SERVER, FAKETIME],
            stages: vec![
                Stage::check("redis releases", redis_releases::ensure_all),
                // A separate stage, so that the time of the tests does not include the build.
                command("build", "cargo test --workspace --all-features --no-run"),
                Stage::command(
                    "tests",
                    CommandLine::new("cargo test --workspace --all-features")
                        .variable("RUST_TEST_THREADS", TEST_THREADS),
                ),
                command("library alone", "cargo test -p tenure --no-default-features"),
                command("redis alone", "cargo check -p tenure --no-default-features --features redis"),
                command("tls alone", "cargo check -p tenure --no-default-features --features tls"),
                command("sqlite alone", "cargo check -p tenure --no-default-features --features sqlite"),
                dependencies("small tree", &LIBRARY_ALONE),
                command("simulator", "cargo run --release -p tenure-sim -- --seeds 5000"),
                command("small fleets", "cargo run --release -p tenure-sim -- --fleets small --seeds 1000"),
                command("large fleets", "cargo run --release -p tenure-sim -- --fleets large --seeds 50"),
                // Built with the tests; `cargo run` would build it again with other features.
                command("example one_lease", "target/debug/examples/one_lease"),
            ],
        }
    }

    /// The quick loop while writing code.
    pub fn check() -> Self {
        Self {
            tools: vec![RUSTFMT, CLIPPY],
            stages: vec![
                format_check(),
                words(),
                Stage::check("commit subject", language::check_subject),
                clippy(),
                command(
                    "library tests",
                    "cargo test -p tenure-core -p tenure --all-features --lib --test lease --test memory_faults",
                ),
                command("conformance", "cargo test -p tenure --all-features --test conformance memory"),
                command("simulator", "cargo run --release -p tenure-sim -- --seeds 200"),
                command("small fleets", "cargo run --release -p tenure-sim -- --fleets small --seeds 50"),
            ],
        }
    }

    /// The pool scenarios with the ttl of a real fleet: 30 s, renewed every 10 s. Takes 15 minutes.
    pub fn soak() -> Self {
        let line = "cargo test -p tenure --all-features --test pool -- --test-threads=8";
        Self {
            tools: vec![REDIS_SERVER],
            stages: vec![
                command("build", "cargo test -p tenure --all-features --test pool --no-run"),
                Stage::command("pools with a ttl of 30 s", CommandLine::new(line).variable("TENURE_TEST_TTL", "30")),
            ],
        }
    }

    /// A rolling upgrade of real processes from an earlier revision to this one.
    pub fn upgrade(revision: &str) -> Self {
        let revision = revision.to_owned();
        let check_out = move || {
            let line = if std::path::Path::new("target/previous/Cargo.toml").exists() {
                "git -C target/previous checkout --detach"
            } else {
                "git worktree add --force --detach target/previous"
            };
            CommandLine::new(line).arguments([revision]).run().map(|()| StageOutcome::Passed)
        };
        let test = "cargo test -p tenure-cli --test program -- --ignored --exact \
                    serve::upgrades::an_upgrade_of_one_instance_after_the_other_moves_no_session_more_than_twice";
        Self {
            tools: vec![REDIS_SERVER],
            stages: vec![
                Stage::check("earlier revision", check_out),
                command(
                    "its program",
                    "cargo build -p tenure-cli --manifest-path target/previous/Cargo.toml --target-dir target/previous/target",
                ),
                Stage::command("upgrade", CommandLine::new(test).variable("TENURE_PREVIOUS_BINARY", PREVIOUS_BINARY)),
            ],
        }
    }

    /// All checks that do not run the code.
    pub fn lint() -> Self {
        let documentation =
            |name, line| Stage::command(name, CommandLine::new(line).variable("RUSTDOCFLAGS", "-D warnings"));
        Self {
            tools: vec![RUSTFMT, CLIPPY],
            stages: vec![
                format_check(),
                words(),
                dependencies("pure core", &DECISIONS),
                Stage::check("module cycles", module_cycles::check),
                clippy(),
                documentation("docs", "cargo doc --workspace --no-deps --all-features"),
                documentation("docs by default", "cargo doc -p tenure --no-deps"),
                Stage::check("public api", public_api::check).rerun_with(&public_api::command()),
                dependency_policy(),
            ],
        }
    }

    /// Appends another pipeline.
    pub fn then(mut self, other: Self) -> Self {
        for tool in other.tools {
            if !self.tools.contains(&tool) {
                self.tools.push(tool);
            }
        }
        self.stages.extend(other.stages);
        self
    }

    /// Installs the tools and runs the stages. Returns whether no stage failed.
    pub fn run(self) -> bool {
        let tools = self.tools;
        let first = Stage::check("prerequisites", move || prerequisites::ensure(&tools));
        stages::run([first].into_iter().chain(self.stages).collect())
    }
}

fn command(name: &'static str, line: &str) -> Stage {
    Stage::command(name, CommandLine::new(line))
}

fn format_check() -> Stage {
    command("format", "cargo fmt --all --check")
}

fn words() -> Stage {
    Stage::check("words", language::check_words)
}

fn dependencies(name: &'static str, rule: &'static DependencyRule) -> Stage {
    Stage::check(name, || rule.check()).rerun_with(&rule.command())
}

fn clippy() -> Stage {
    command("clippy", "cargo clippy --workspace --all-targets --all-features -- -D warnings")
}

/// Checks the rules of `deny.toml`. The tool takes minutes to build, so it is used if present and never installed.
fn dependency_policy() -> Stage {
    let line = CommandLine::new("cargo deny check bans licenses sources");
    Stage::check("dependency policy", {
        let line = line.clone();
        move || {
            if CommandLine::new("cargo deny --version").succeeds() {
                return line.run().map(|()| StageOutcome::Passed);
            }
            let why = "cargo-deny is not installed; run `cargo install cargo-deny --locked`";
            Ok(StageOutcome::Skipped(why.to_owned()))
        }
    })
    .rerun_with(&line)
}
