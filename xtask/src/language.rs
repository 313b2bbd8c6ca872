//! The words of the project: what `language.txt` rules out in names and prose, and how commit subjects are written.

use std::path::Path;

use crate::command_line::CommandLine;
use crate::stages::StageOutcome;

/// The rules, which can be changed without touching code.
const RULES: &str = include_str!("../language.txt");

/// Files that name such words: the rules, their tests, and the history of names.
const EXCLUDED: [&str; 6] =
    ["CHANGELOG.md", "xtask/language.txt", "xtask/src/language.rs", "LICENSE-APACHE", "LICENSE-MIT", "Cargo.lock"];

/// The kinds of files that people read.
const EXTENSIONS: [&str; 4] = ["rs", "md", "lua", "toml"];

/// Lines that are printed for each rule.
const MAX_LINES_SHOWN: usize = 5;

/// The longest subject of a commit.
const MAX_SUBJECT: usize = 72;

/// A word that is ruled out, what to write instead, and how often it may still occur.
#[derive(Debug, PartialEq, Eq)]
struct Rule<'a> {
    word: &'a str,
    instead: &'a str,
    at_most: usize,
}

/// Looks for words that are ruled out, in every file that git tracks.
///
/// # Errors
/// When a word occurs more often than its rule allows, or less often: then the rule has to be lowered.
pub fn check_words() -> Result<StageOutcome, String> {
    let rules = parse_rules(RULES)?;
    let files = CommandLine::new("git ls-files").output()?;
    let files: Vec<(&str, String)> = files
        .lines()
        .filter(|file| is_checked(file))
        .filter_map(|file| Some((file, std::fs::read_to_string(file).ok()?)))
        .collect();
    let mut complaints = Vec::new();
    for rule in &rules {
        let mut found = Vec::new();
        for (file, text) in &files {
            let lines = (1..).zip(text.lines());
            let hits = lines.flat_map(|(number, line)| vec![(number, line); occurrences(line, rule.word)]);
            found.extend(hits.map(|(number, line)| format!("  {file}:{number}: {}", line.trim())));
        }
        println!("{:>5}  {}", found.len(), rule.word);
        if found.len() > rule.at_most {
            let shown = found.iter().take(MAX_LINES_SHOWN).cloned().collect::<Vec<_>>().join("\n");
            let (word, count, at_most, instead) = (rule.word, found.len(), rule.at_most, rule.instead);
            complaints
                .push(format!("`{word}` occurs {count} times, at most {at_most} are left; write {instead}\n{shown}"));
        }
        if found.len() < rule.at_most {
            let (word, count) = (rule.word, found.len());
            complaints.push(format!("`{word}` occurs only {count} times: lower its number in xtask/language.txt"));
        }
    }
    if complaints.is_empty() { Ok(StageOutcome::Passed) } else { Err(complaints.join("\n")) }
}

/// Looks at the subject of the newest commit, which is the one that can still be changed.
///
/// # Errors
/// When it is not `area: summary` or too long.
pub fn check_subject() -> Result<StageOutcome, String> {
    let subject = CommandLine::new("git log -1 --no-merges --format=%s").output()?;
    check_one_subject(subject.trim()).map(|()| StageOutcome::Passed)
}

fn check_one_subject(subject: &str) -> Result<(), String> {
    let area = subject.split_once(": ").map_or("", |(area, _)| area);
    if area.is_empty() || area.contains(' ') {
        return Err(format!("commit subject {subject:?}: write `area: imperative summary`"));
    }
    match subject.chars().count() {
        count if count > MAX_SUBJECT => {
            Err(format!("commit subject {subject:?} has {count} characters; at most {MAX_SUBJECT}"))
        }
        _ => Ok(()),
    }
}

fn is_checked(file: &str) -> bool {
    let extension = Path::new(file).extension().and_then(|extension| extension.to_str());
    !EXCLUDED.contains(&file) && extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

/// How often a word occurs, as a word of its own or as a part of a name in snake case, in any case.
fn occurrences(line: &str, word: &str) -> usize {
    let line = line.to_lowercase();
    let is_letter = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    let starts = line.match_indices(word).map(|(at, _)| at);
    starts
        .filter(|at| !is_letter(line[..*at].chars().next_back()) && !is_letter(line[at + word.len()..].chars().next()))
        .count()
}

/// Reads `word | what to write instead | how often it may occur` lines.
fn parse_rules(text: &str) -> Result<Vec<Rule<'_>>, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let parse = |line| {
        let parts: Vec<&str> = str::split(line, '|').map(str::trim).collect();
        let [word, instead, at_most] = parts[..] else {
            return Err(format!("xtask/language.txt: {line:?} is not `word | instead | at most`"));
        };
        let at_most = at_most.parse().map_err(|_| format!("xtask/language.txt: {at_most:?} is not a number"))?;
        Ok(Rule { word, instead, at_most })
    };
    lines.map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_found_alone_and_in_names_but_not_inside_other_words() {
        assert_eq!(occurrences("Nobody waits; nobody_waits()", "nobody"), 2);
        assert_eq!(occurrences("a companion", "company"), 0);
        assert_eq!(occurrences("let go of, and let go of", "let go of"), 2);
    }

    #[test]
    fn rules_are_read_and_a_wrong_line_is_named() {
        let rules = parse_rules("# a comment\n\nwhoever | the actor | 3\n").unwrap();
        assert_eq!(rules, [Rule { word: "whoever", instead: "the actor", at_most: 3 }]);
        assert!(parse_rules("whoever | 3").unwrap_err().contains("whoever | 3"));
        assert!(parse_rules(RULES).is_ok());
    }

    #[test]
    fn subjects_have_an_area_and_fit_into_a_line() {
        assert!(check_one_subject("pool: keep a claimed slot").is_ok());
        assert!(check_one_subject("keep a claimed slot").is_err());
        assert!(check_one_subject("and then: some").is_err());
        assert!(check_one_subject(&format!("pool: {}", "x".repeat(80))).is_err());
    }
}
