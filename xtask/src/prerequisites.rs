//! The tools that the stages need besides cargo, and how to find and install them.
//!
//! [`plan`] only decides; [`ensure`] inspects the machine and carries out the plan.

use crate::command_line::CommandLine;
use crate::stages::StageOutcome;

/// Formats the code.
pub const RUSTFMT: Tool = Tool {
    name: "rustfmt",
    needed_for: "the format check",
    found_by: "cargo fmt --version",
    component: Some("rustfmt"),
    package: "rustfmt",
};

/// Lints the code.
pub const CLIPPY: Tool = Tool {
    name: "clippy",
    needed_for: "the lints",
    found_by: "cargo clippy --version",
    component: Some("clippy"),
    package: "rust-clippy",
};

/// The store for the tests of the Redis store. They start their own servers and do not use a service that the package
/// may start.
pub const REDIS_SERVER: Tool = Tool {
    name: "redis-server",
    needed_for: "the Redis tests",
    found_by: "redis-server --version",
    component: None,
    package: "redis-server",
};

/// Gives a test server a clock that jumps. The tests use the library; the program comes with it and is easy to find.
pub const FAKETIME: Tool = Tool {
    name: "faketime",
    needed_for: "the tests with a clock that jumps",
    found_by: "faketime --version",
    component: None,
    package: "faketime",
};

/// A program that a stage needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Name of the tool.
    name: &'static str,
    /// The stage that needs it.
    needed_for: &'static str,
    /// A command that succeeds if the tool is present.
    found_by: &'static str,
    /// The rustup component that contains it, if any.
    component: Option<&'static str>,
    /// The Debian package that contains it.
    package: &'static str,
}

/// The means of installation on this machine.
#[derive(Clone, Copy, Debug)]
struct Machine {
    root: bool,
    apt: bool,
    rustup: bool,
}

/// What to do about missing tools.
#[derive(Debug, PartialEq, Eq)]
enum InstallPlan {
    /// All tools are present.
    Nothing,
    /// Run these commands in order.
    Install(Vec<CommandLine>),
    /// A user with the permission must install them; the text says what to run.
    AskUser(String),
}

/// Ensures that the tools are present. Its messages go to the standard error, because the standard output may belong to
/// the command that needs the tools.
///
/// # Errors
/// If a tool is missing and cannot be installed. The text says what to install.
pub fn ensure(tools: &[Tool]) -> Result<StageOutcome, String> {
    if tools.is_empty() {
        eprintln!("no tools needed");
        return Ok(StageOutcome::Passed);
    }
    let missing = missing(tools);
    match plan(&missing, Machine::detect()) {
        InstallPlan::Nothing => eprintln!("all present: {}", names(tools)),
        InstallPlan::AskUser(line) => return Err(line),
        InstallPlan::Install(lines) => {
            eprintln!("missing: {}", names(&missing));
            for line in &lines {
                eprintln!("installing: {line}");
                line.run_to_stderr()?;
            }
            if let Some(tool) = self::missing(&missing).first() {
                return Err(format!("{} was installed, but `{}` still fails", tool.name, tool.found_by));
            }
        }
    }
    Ok(StageOutcome::Passed)
}

fn plan(missing: &[Tool], machine: Machine) -> InstallPlan {
    if missing.is_empty() {
        return InstallPlan::Nothing;
    }
    let mut components = Vec::new();
    let mut packages = Vec::new();
    for tool in missing {
        match tool.component {
            Some(component) if machine.rustup => components.push(component),
            _ => packages.push(tool.package),
        }
    }
    let by_rustup = (!components.is_empty())
        .then(|| CommandLine::new("rustup component add").arguments(components.iter().copied()));

    if packages.is_empty() || (machine.root && machine.apt) {
        let by_apt = (!packages.is_empty()).then(|| {
            let install = CommandLine::new("apt-get install -y --no-install-recommends")
                .variable("DEBIAN_FRONTEND", "noninteractive")
                .arguments(packages);
            // Old or absent package lists name packages that cannot be fetched.
            [CommandLine::new("apt-get update"), install]
        });
        return InstallPlan::Install(by_rustup.into_iter().chain(by_apt.into_iter().flatten()).collect());
    }

    let needs = missing.iter().map(|tool| format!("{} (for {})", tool.name, tool.needed_for)).collect::<Vec<_>>();
    let by_hand = if machine.apt {
        format!("`sudo apt-get install {}`", packages.join(" "))
    } else {
        format!("your package manager (Debian's names: {})", packages.join(", "))
    };
    let ways = by_rustup.map(|line| format!("`{line}`")).into_iter().chain([by_hand]).collect::<Vec<_>>();
    InstallPlan::AskUser(format!("missing: {}; install with {}", needs.join(", "), ways.join(" and ")))
}

impl Machine {
    fn detect() -> Self {
        Self {
            root: CommandLine::new("id -u").output().is_ok_and(|id| id.trim() == "0"),
            apt: CommandLine::new("apt-get --version").succeeds(),
            rustup: CommandLine::new("rustup --version").succeeds(),
        }
    }
}

fn missing(tools: &[Tool]) -> Vec<Tool> {
    tools.iter().filter(|tool| !CommandLine::new(tool.found_by).succeeds()).copied().collect()
}

fn names(tools: &[Tool]) -> String {
    tools.iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROWSER: Tool = Tool {
        name: "chromium",
        needed_for: "the page tests",
        found_by: "chromium --version",
        component: None,
        package: "chromium",
    };

    const BARE: Machine = Machine { root: false, apt: false, rustup: false };

    /// The commands to run, or else the text for the user.
    fn planned(missing: &[Tool], machine: Machine) -> Result<Vec<String>, String> {
        match plan(missing, machine) {
            InstallPlan::Nothing => Ok(Vec::new()),
            InstallPlan::Install(lines) => Ok(lines.iter().map(ToString::to_string).collect()),
            InstallPlan::AskUser(line) => Err(line),
        }
    }

    #[test]
    fn nothing_is_done_when_nothing_is_missing() {
        for machine in [BARE, Machine { root: true, apt: true, rustup: true }] {
            assert_eq!(plan(&[], machine), InstallPlan::Nothing);
        }
    }

    #[test]
    fn components_come_from_rustup_and_need_no_root() {
        let machine = Machine { rustup: true, ..BARE };
        assert_eq!(planned(&[RUSTFMT, CLIPPY], machine).unwrap(), ["rustup component add rustfmt clippy"]);
    }

    #[test]
    fn without_rustup_root_gets_them_from_debian() {
        let machine = Machine { root: true, apt: true, rustup: false };
        assert_eq!(
            planned(&[RUSTFMT, CLIPPY], machine).unwrap(),
            [
                "apt-get update",
                "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends rustfmt rust-clippy",
            ]
        );
    }

    #[test]
    fn each_source_is_called_once_for_all_its_tools() {
        let machine = Machine { root: true, apt: true, rustup: true };
        assert_eq!(
            planned(&[REDIS_SERVER, CLIPPY, BROWSER], machine).unwrap(),
            [
                "rustup component add clippy",
                "apt-get update",
                "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends redis-server chromium",
            ]
        );
    }

    #[test]
    fn without_root_the_error_names_the_packages_and_nothing_is_run() {
        let machine = Machine { apt: true, ..BARE };
        assert_eq!(
            planned(&[REDIS_SERVER, CLIPPY], machine).unwrap_err(),
            "missing: redis-server (for the Redis tests), clippy (for the lints); \
             install with `sudo apt-get install redis-server rust-clippy`"
        );
        let machine = Machine { apt: true, rustup: true, ..BARE };
        assert_eq!(
            planned(&[REDIS_SERVER, CLIPPY], machine).unwrap_err(),
            "missing: redis-server (for the Redis tests), clippy (for the lints); \
             install with `rustup component add clippy` and `sudo apt-get install redis-server`"
        );
    }

    #[test]
    fn without_apt_the_error_names_the_packages() {
        for root in [false, true] {
            let line = planned(&[REDIS_SERVER], Machine { root, ..BARE }).unwrap_err();
            assert_eq!(
                line,
                "missing: redis-server (for the Redis tests); \
                 install with your package manager (Debian's names: redis-server)"
            );
        }
    }

    #[test]
    fn a_tool_is_there_when_its_command_succeeds() {
        let absent = Tool { found_by: "tenure-has-no-such-program", ..REDIS_SERVER };
        let present = Tool { found_by: "true", ..BROWSER };
        assert_eq!(missing(&[absent, present]), [absent]);
        assert_eq!(ensure(&[present]), Ok(StageOutcome::Passed));
        assert_eq!(ensure(&[]), Ok(StageOutcome::Passed));
    }
}
