//! docs/configuration.md names every setting of every command, and no other.

use std::collections::BTreeSet;
use std::process::Command;

/// Every command that has settings of its own, and the program itself.
const COMMANDS: [&[&str]; 16] = [
    &[],
    &["serve"],
    &["run"],
    &["status"],
    &["leader"],
    &["step-down"],
    &["drain"],
    &["undrain"],
    &["revoke"],
    &["watch"],
    &["reopen"],
    &["role", "rm"],
    &["session", "add"],
    &["session", "export"],
    &["session", "import"],
    &["session", "result"],
];

/// The flags that a text names.
fn flags(text: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '-';
    let flag = |(at, _): (usize, &str)| {
        let rest = &text[at..];
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    let is_start = |at: usize| !text[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '-');
    text.match_indices("--").filter(|(at, _)| is_start(*at)).map(flag).filter(|flag| flag.len() > 2).collect()
}

#[test]
fn configuration_names_every_setting_and_no_other() {
    let documented = flags(include_str!("../../../../../docs/configuration.md"));
    let mut existing = BTreeSet::new();
    for command in COMMANDS {
        let help = Command::new(env!("CARGO_BIN_EXE_tenure")).args(command).arg("--help").output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        existing.extend(help.lines().filter(|line| line.trim_start().starts_with('-')).flat_map(flags));
    }
    for other in ["--help", "--version"] {
        existing.remove(other);
    }
    // Table rules of Markdown are dashes, too.
    let documented: BTreeSet<String> =
        documented.into_iter().filter(|flag| flag.contains(|letter: char| letter != '-')).collect();
    assert_eq!(existing, documented);
}
