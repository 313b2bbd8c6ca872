//! Checks what the crates depend on: the decisions on no runtime and no I/O; the library alone on no store, HTTP server,
//! log or flag parser.

use crate::command_line::CommandLine;
use crate::stages::StageOutcome;

/// A crate, and the families of crates that it must not depend on.
pub struct DependencyRule {
    package: &'static str,
    features: &'static str,
    forbidden: &'static [&'static str],
    /// Why, and what to do.
    advice: &'static str,
}

/// What decides depends on nothing that waits or reads a clock, with any feature.
pub const DECISIONS: DependencyRule = DependencyRule {
    package: "tenure-core",
    features: "--all-features",
    forbidden: &["tokio", "mio", "futures", "async", "rustix", "libc", "nix", "socket2", "redis", "rusqlite", "hyper"],
    advice: "decisions are pure; move what needs it to `tenure`",
};

/// What only features may add to the library.
pub const LIBRARY_ALONE: DependencyRule = DependencyRule {
    package: "tenure",
    features: "--no-default-features",
    forbidden: &["redis", "rusqlite", "tracing", "hyper", "axum", "clap"],
    advice: "make the dependency optional",
};

impl DependencyRule {
    /// The command that lists the dependencies.
    pub fn command(&self) -> CommandLine {
        let Self { package, features, .. } = self;
        CommandLine::new(&format!("cargo tree -p {package} {features} -e normal --prefix none"))
    }

    /// Checks the dependencies.
    ///
    /// # Errors
    /// If the crate depends on a forbidden one, or if the tree cannot be listed.
    pub fn check(&self) -> Result<StageOutcome, String> {
        let tree = self.command().output()?;
        let crates = crates(&tree);
        if !crates.contains(&self.package) {
            return Err(format!("cannot check the dependency tree: `cargo tree` did not list `{}`", self.package));
        }
        let found = forbidden_crates(&crates, self.forbidden);
        if found.is_empty() {
            println!("{} crates: {}", crates.len(), crates.join(", "));
            return Ok(StageOutcome::Passed);
        }
        let (Self { package, features, advice, .. }, found) = (self, found.join(", "));
        Err(format!("`{package}` ({features}) must not depend on {found}; {advice}"))
    }
}

/// The name of each crate in the tree, once.
fn crates(tree: &str) -> Vec<&str> {
    let mut names: Vec<_> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn forbidden_crates<'a>(crates: &[&'a str], families: &[&str]) -> Vec<&'a str> {
    let is_of = |name: &str, family: &str| {
        name.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
    };
    crates.iter().filter(|name| families.iter().any(|family| is_of(name, family))).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_listed_once_and_by_name() {
        let tree = "tenure v0.1.0 (/somewhere)\nlibc v0.2.1\nrustix v1.1.0\nlibc v0.2.1 (*)\n\n";
        assert_eq!(crates(tree), ["libc", "rustix", "tenure"]);
    }

    #[test]
    fn a_family_is_kept_out_with_all_its_members() {
        let crates = ["clap_builder", "claptrap", "hyper", "hyperfine", "redis", "redis-protocol", "tenure"];
        assert_eq!(
            forbidden_crates(&crates, LIBRARY_ALONE.forbidden),
            ["clap_builder", "hyper", "redis", "redis-protocol"]
        );
    }
}
