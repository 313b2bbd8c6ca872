//! Keeps `docs/public-api.txt`, a list of the library's public API, so that a change of the API is seen in its diff; and
//! checks that public items have examples.
//!
//! Both read the JSON of rustdoc, which needs an unstable flag, so the stable compiler is told to accept it. With a
//! compiler whose format is not known they are skipped.

use std::fs;

use crate::command_line::CommandLine;
use crate::stages::StageOutcome;

/// The list in the repository.
const SNAPSHOT: &str = "docs/public-api.txt";

/// The library, and the crate whose items it re-exports.
const CRATES: [&str; 2] = ["tenure", "tenure-core"];

/// Where rustdoc writes. A folder of its own: the flag would make cargo build everything else anew.
const TARGET: &str = "target/public-api";

/// The command that repeats the check, and the one that accepts a change.
pub fn command() -> CommandLine {
    CommandLine::new("cargo xtask api")
}

/// Writes the JSON of rustdoc.
fn write_json() -> Result<(), String> {
    for name in CRATES {
        let line = format!(
            "cargo rustdoc -q -p {name} --lib --all-features --target-dir {TARGET} -- \
             -Z unstable-options --output-format json"
        );
        CommandLine::new(&line).variable("RUSTC_BOOTSTRAP", "1").run()?;
    }
    Ok(())
}

/// Lists something in the JSON of rustdoc.
fn list(flags: &[&str]) -> Result<String, String> {
    let lister = CommandLine::new("cargo run -q -p xtask-public-api --").arguments(flags.iter().copied());
    lister.arguments(CRATES.map(|name| format!("{TARGET}/doc/{}.json", name.replace('-', "_")))).output()
}

/// Writes the list.
///
/// # Errors
/// If the API cannot be listed, or the file cannot be written.
pub fn write() -> Result<(), String> {
    write_json()?;
    let api = list(&[])?;
    fs::write(SNAPSHOT, &api).map_err(|error| format!("cannot write {SNAPSHOT}: {error}"))?;
    println!("{SNAPSHOT}: {} items", api.lines().count());
    Ok(())
}

/// Checks that the list is up to date, and that every public item has an example.
///
/// # Errors
/// If one of these is not so, or the documentation cannot be built.
pub fn check() -> Result<StageOutcome, String> {
    write_json()?;
    let api = match list(&[]) {
        Ok(api) => api,
        Err(why) => return Ok(StageOutcome::Skipped(why)),
    };
    let known = fs::read_to_string(SNAPSHOT).map_err(|error| format!("cannot read {SNAPSHOT}: {error}"))?;
    let changes = changes(&known, &api);
    if !changes.is_empty() {
        changes.iter().for_each(|line| println!("{line}"));
        return Err(format!("{} lines of {SNAPSHOT} differ; `{}` accepts the change", changes.len(), command()));
    }
    let missing = list(&["--without-examples"])?;
    if !missing.is_empty() {
        print!("{missing}");
        return Err(format!("{} public items have no example in their documentation", missing.lines().count()));
    }
    Ok(StageOutcome::Passed)
}

/// The lines that were removed and added.
fn changes(known: &str, api: &str) -> Vec<String> {
    let of = |text: &str| -> std::collections::BTreeSet<String> { text.lines().map(str::to_owned).collect() };
    let (before, after) = (of(known), of(api));
    let removed = before.difference(&after).map(|line| format!("- {line}"));
    removed.chain(after.difference(&before).map(|line| format!("+ {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_line_is_removed_and_added() {
        assert_eq!(changes("a\nb\n", "a\nb\n"), [""; 0]);
        assert_eq!(changes("a\nb\n", "a\nc\n"), ["- b", "+ c"]);
    }
}
