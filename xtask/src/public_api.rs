//! Keeps `docs/public-api.txt`, a list of the library's public API, so that a change of the API is seen in its diff; and
//! checks that public items have examples.
//!
//! Both read what only unstable flags of rustdoc print, so the stable compiler is told to accept them. A compiler whose
//! format is not known skips the check of the list.

use std::fs;

use crate::command_line::CommandLine;
use crate::stages::StageOutcome;

/// The list in the repository.
const SNAPSHOT: &str = "docs/public-api.txt";

/// What rustdoc writes.
const RUSTDOC_JSON: &str = "target/doc/tenure.json";

/// The command that repeats the check, and the one that accepts a change.
pub fn command() -> CommandLine {
    CommandLine::new("cargo xtask api")
}

fn rustdoc(flags: &str) -> CommandLine {
    let line = format!("cargo rustdoc -q -p tenure --lib --all-features -- -Z unstable-options {flags}");
    CommandLine::new(&line).variable("RUSTC_BOOTSTRAP", "1")
}

/// Lists the API as it is now; the reason when that cannot be done with this compiler.
fn list() -> Result<Result<String, String>, String> {
    rustdoc("--output-format json").run()?;
    let lister = CommandLine::new("cargo run -q -p xtask-public-api --").arguments([RUSTDOC_JSON]);
    Ok(lister.output())
}

/// Writes the list.
///
/// # Errors
/// If the API cannot be listed, or the file cannot be written.
pub fn write() -> Result<(), String> {
    let api = list()??;
    fs::write(SNAPSHOT, &api).map_err(|error| format!("cannot write {SNAPSHOT}: {error}"))?;
    println!("{SNAPSHOT}: {} items", api.lines().count());
    Ok(())
}

/// Checks that the list is up to date.
///
/// # Errors
/// If it is not, or the documentation cannot be built.
pub fn check() -> Result<StageOutcome, String> {
    let api = match list()? {
        Ok(api) => api,
        Err(why) => return Ok(StageOutcome::Skipped(why)),
    };
    let known = fs::read_to_string(SNAPSHOT).map_err(|error| format!("cannot read {SNAPSHOT}: {error}"))?;
    let changes = changes(&known, &api);
    if changes.is_empty() {
        return Ok(StageOutcome::Passed);
    }
    changes.iter().for_each(|line| println!("{line}"));
    Err(format!("{} lines of {SNAPSHOT} differ; `{}` accepts the change", changes.len(), command()))
}

/// The lines that were removed and added.
fn changes(known: &str, api: &str) -> Vec<String> {
    let of = |text: &str| -> std::collections::BTreeSet<String> { text.lines().map(str::to_owned).collect() };
    let (before, after) = (of(known), of(api));
    let removed = before.difference(&after).map(|line| format!("- {line}"));
    removed.chain(after.difference(&before).map(|line| format!("+ {line}"))).collect()
}

/// Checks that every public item has an example, by rustdoc's own count.
///
/// # Errors
/// If one has none, or the documentation cannot be built.
pub fn check_examples() -> Result<StageOutcome, String> {
    let table = rustdoc("--show-coverage").output()?;
    let missing = files_without_examples(&table);
    if missing.is_empty() {
        return Ok(StageOutcome::Passed);
    }
    missing.iter().for_each(|line| println!("{line}"));
    Err(format!("{} files have public items without an example", missing.len()))
}

/// The rows of rustdoc's table whose last column is below 100 %.
fn files_without_examples(table: &str) -> Vec<String> {
    let is_incomplete = |row: &&str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        matches!(cells[..], [file, _, _, _, examples] if file.contains(".rs") && examples != "100.0%")
    };
    table.lines().filter(is_incomplete).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_line_is_removed_and_added() {
        assert_eq!(changes("a\nb\n", "a\nb\n"), [""; 0]);
        assert_eq!(changes("a\nb\n", "a\nc\n"), ["- b", "+ c"]);
    }

    #[test]
    fn a_file_below_100_percent_is_listed() {
        let table = "\
| File                       | Documented | Percentage |   Examples | Percentage |
| crates/tenure/src/a.rs     |         16 |     100.0% |          1 |     100.0% |
| crates/tenure/src/b.rs     |          5 |     100.0% |          0 |       0.0% |
| Total                      |         21 |     100.0% |          1 |      50.0% |";
        assert_eq!(files_without_examples(table).len(), 1);
        assert!(files_without_examples(table)[0].contains("b.rs"));
    }
}
