//! Checks that the library alone is small: it depends on no store, HTTP server, log or flag parser.

use crate::command_line::CommandLine;
use crate::stages::StageOutcome;

/// Families of crates that only features may add.
const FORBIDDEN_CRATES: [&str; 6] = ["redis", "rusqlite", "tracing", "hyper", "axum", "clap"];

/// The command that lists the dependencies of the library alone.
pub fn command() -> CommandLine {
    CommandLine::new("cargo tree -p tenure --no-default-features -e normal --prefix none")
}

/// Checks that the library alone depends on no forbidden crate.
///
/// # Errors
/// If it does, or if the tree cannot be listed.
pub fn check() -> Result<StageOutcome, String> {
    let tree = command().output()?;
    let crates = crates(&tree);
    if !crates.contains(&"tenure") {
        return Err("cannot check the dependency tree: `cargo tree` did not list `tenure`".to_owned());
    }
    let forbidden_crates = forbidden_crates(&crates);
    if forbidden_crates.is_empty() {
        println!("{} crates: {}", crates.len(), crates.join(", "));
        return Ok(StageOutcome::Passed);
    }
    Err(format!(
        "the library alone (`--no-default-features`) must not depend on {}; make the dependency optional",
        forbidden_crates.join(", ")
    ))
}

/// The name of each crate in the tree, once.
fn crates(tree: &str) -> Vec<&str> {
    let mut names: Vec<_> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn forbidden_crates<'a>(crates: &[&'a str]) -> Vec<&'a str> {
    let is_of = |name: &str, family: &str| {
        name.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
    };
    crates.iter().filter(|name| FORBIDDEN_CRATES.iter().any(|family| is_of(name, family))).copied().collect()
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
        assert_eq!(forbidden_crates(&crates), ["clap_builder", "hyper", "redis", "redis-protocol"]);
    }
}
