//! The promise that the library alone is small: no runtime, no client, no server and no flag parser comes with it.

use crate::command_line::CommandLine;
use crate::stages::StageOutcome;

/// The families of crates that only features may bring in.
const FORBIDDEN_CRATES: [&str; 8] = ["tokio", "redis", "rusqlite", "hashbrown", "tracing", "hyper", "axum", "clap"];

/// The command that lists what the library alone is built from.
pub fn command() -> CommandLine {
    CommandLine::new("cargo tree -p tenure --no-default-features -e normal --prefix none")
}

/// Looks for crates that the library alone must not need.
///
/// # Errors
/// When there is one, or when the tree could not be listed.
pub fn check() -> Result<StageOutcome, String> {
    let tree = command().output()?;
    let crates = crates(&tree);
    if !crates.contains(&"tenure") {
        return Err("the tree of `tenure` does not contain `tenure`; was it listed at all?".to_owned());
    }
    let forbidden_crates = forbidden_crates(&crates);
    if forbidden_crates.is_empty() {
        println!("{} crates: {}", crates.len(), crates.join(", "));
        return Ok(StageOutcome::Passed);
    }
    Err(format!(
        "the library alone (`--no-default-features`) must not need {}; make the dependency optional",
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
        let crates = ["clap_builder", "claptrap", "hyper", "hyperfine", "tenure", "tokio", "tokio-util"];
        assert_eq!(forbidden_crates(&crates), ["clap_builder", "hyper", "tokio", "tokio-util"]);
    }
}
