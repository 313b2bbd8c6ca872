//! Checks that the modules of a crate do not depend on each other in a circle: at the top level, and among the modules
//! inside each folder. What decides can then be read, and tested, from the bottom up.
//!
//! Reads the sources as text: the paths in `use` and elsewhere that begin with `crate::` or `super::`. A name that a module
//! re-exports from a child counts as that child's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::stages::StageOutcome;

/// The crates whose modules must not depend on each other in a circle.
const CRATES: [&str; 1] = ["crates/tenure-core"];

/// The path of a module inside its crate.
type ModulePath = Vec<String>;

/// Checks the crates.
///
/// # Errors
/// If there is a circle, or a file cannot be read.
pub fn check() -> Result<StageOutcome, String> {
    let mut found = Vec::new();
    for name in CRATES {
        let modules = read_modules(Path::new(name))?;
        found.extend(cycles(&modules).into_iter().map(|cycle| format!("{name}: {}", cycle.join(" → "))));
    }
    if found.is_empty() {
        return Ok(StageOutcome::Passed);
    }
    found.iter().for_each(|line| println!("{line}"));
    Err("modules depend on each other in a circle; move what both need below both".to_owned())
}

/// The text of each module, without its unit tests.
fn read_modules(folder: &Path) -> Result<BTreeMap<ModulePath, String>, String> {
    let (mut modules, root) = (BTreeMap::new(), folder.join("src"));
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        let failed = |error| format!("cannot read {}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text =
                    fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                let inside = path.strip_prefix(&root).unwrap_or(&path).with_extension("");
                let mut name: ModulePath = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                if name.last().is_some_and(|last| last == "mod" || last == "lib") {
                    name.pop();
                }
                modules.insert(name, code(&text));
            }
        }
    }
    Ok(modules)
}

/// The code without comments and unit tests.
fn code(text: &str) -> String {
    let tests = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    let lines = text[..tests].lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// One circle for each group of modules that has any.
fn cycles(modules: &BTreeMap<ModulePath, String>) -> Vec<Vec<String>> {
    let parents: BTreeSet<ModulePath> =
        modules.keys().filter(|path| !path.is_empty()).map(|path| parent(path)).collect();
    parents.iter().filter_map(|group| find_cycle(&dependencies(modules, group))).collect()
}

fn parent(path: &[String]) -> ModulePath {
    path[..path.len() - 1].to_vec()
}

/// For each module in a group, the other modules of the group that it or anything inside it uses.
fn dependencies(modules: &BTreeMap<ModulePath, String>, group: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in modules.iter().filter(|(path, _)| path.len() > group.len() && path.starts_with(group)) {
        let member = &path[group.len()];
        let used = paths(text).into_iter().filter_map(|used| resolve(modules, path, &used));
        let others = used.filter(|used| used.len() > group.len() && used.starts_with(group));
        let others = others.map(|used| used[group.len()].clone()).filter(|other| other != member);
        found.entry(member.clone()).or_default().extend(others);
    }
    found
}

/// All paths that begin with `crate` or `super`, with each branch of a `use` as a path of its own.
fn paths(text: &str) -> Vec<Vec<String>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            if !text[..at].ends_with(|c: char| is_word(c) || c == ':') {
                collect(&text[at..], &mut Vec::new(), &mut found);
            }
        }
    }
    found
}

/// Collects the paths that begin here. Returns the length of the text that they take.
fn collect(text: &str, prefix: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    let (depth, mut at) = (prefix.len(), 0);
    loop {
        let word: String = text[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_' || *c == '*').collect();
        at += word.len();
        if !word.is_empty() {
            prefix.push(word);
        }
        if text[at..].starts_with("::") {
            at += 2;
            if text[at..].starts_with('{') {
                at += 1;
                while !text[at..].starts_with('}') && at < text.len() {
                    let skipped = text[at..].len() - text[at..].trim_start_matches([' ', ',', '\n']).len();
                    at += skipped;
                    if text[at..].starts_with('}') {
                        break;
                    }
                    let taken = collect(&text[at..], prefix, found);
                    at += taken.max(1);
                }
                at += 1;
                break;
            }
            continue;
        }
        found.push(prefix.clone());
        break;
    }
    prefix.truncate(depth);
    at.min(text.len())
}

/// The module that a path names, or that defines the item it names.
fn resolve(modules: &BTreeMap<ModulePath, String>, from: &[String], path: &[String]) -> Option<ModulePath> {
    let mut here: ModulePath = if path[0] == "crate" { Vec::new() } else { from.to_vec() };
    let mut words = path.iter().peekable();
    if path[0] == "crate" {
        words.next();
    }
    while words.next_if(|word| *word == "super").is_some() {
        here.pop()?;
    }
    for word in words {
        let inside: ModulePath = here.iter().chain([word]).cloned().collect();
        if modules.contains_key(&inside) {
            here = inside;
            continue;
        }
        // An item: perhaps re-exported from a child.
        let is_child = |path: &ModulePath| path.len() == here.len() + 1 && path.starts_with(&here);
        let text = modules.get(&here)?;
        let child = modules.keys().filter(|path| is_child(path)).find(|path| re_exports(text, &path[here.len()], word));
        return Some(child.cloned().unwrap_or(here));
    }
    Some(here)
}

/// Whether a module re-exports this item of a child.
fn re_exports(text: &str, child: &str, item: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices("use ").any(|(at, _)| {
        let rest = text[at + 4..].split(';').next().unwrap_or_default();
        let rest = rest.strip_prefix("self::").unwrap_or(rest);
        let names = rest.strip_prefix(child).and_then(|rest| rest.strip_prefix("::"));
        names.is_some_and(|names| names.split(|c| !is_word(c)).any(|name| name == item))
    })
}

/// A circle of dependencies, if there is one.
fn find_cycle(dependencies: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn visit(
        at: &str,
        dependencies: &BTreeMap<String, BTreeSet<String>>,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(begin) = way.iter().position(|visited| visited == at) {
            return Some(way[begin..].iter().cloned().chain([at.to_owned()]).collect());
        }
        if !done.contains(at) {
            way.push(at.to_owned());
            for next in dependencies.get(at).into_iter().flatten() {
                if let Some(cycle) = visit(next, dependencies, way, done) {
                    return Some(cycle);
                }
            }
            way.pop();
            done.insert(at.to_owned());
        }
        None
    }
    let mut done = BTreeSet::new();
    dependencies.keys().find_map(|start| visit(start, dependencies, &mut Vec::new(), &mut done))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(texts: &[(&str, &str)]) -> BTreeMap<ModulePath, String> {
        let path = |name: &str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        texts.iter().map(|(name, text)| (path(name), code(text))).collect()
    }

    #[test]
    fn each_branch_of_a_use_is_a_path() {
        let found = paths("use crate::{a::{B, c::D}, e};\nfn f() { super::g::h(1) }");
        let found: Vec<String> = found.iter().map(|path| path.join("::")).collect();
        assert_eq!(found, ["crate::a::B", "crate::a::c::D", "crate::e", "super::g::h"]);
    }

    #[test]
    fn a_circle_is_found_through_re_exports_and_inside_folders() {
        let circle = modules(&[
            ("", "mod a; mod b;"),
            ("a", "use crate::b::B; pub struct A;"),
            ("b", "mod inner;\npub use inner::B;"),
            ("b::inner", "use crate::a::A; pub struct B(A);"),
        ]);
        assert_eq!(cycles(&circle), [["a", "b", "a"]]);
        let inside = modules(&[
            ("", "mod a;"),
            ("a", "mod one; mod two;\npub use one::One;\npub use two::Two;"),
            ("a::one", "use super::Two; pub struct One;"),
            ("a::two", "use super::one::One; pub struct Two;"),
        ]);
        assert_eq!(cycles(&inside), [["one", "two", "one"]]);
    }

    #[test]
    fn tests_comments_and_the_parent_make_no_circle() {
        let fine = modules(&[
            ("", "mod a; mod b;"),
            ("a", "use crate::b::B;\n#[cfg(test)]\nmod tests { use crate::b::B; }"),
            ("b", "// crate::a::A is above\nmod c;\n#[cfg(test)]\nmod tests { use crate::a::A; }"),
            ("b::c", "use super::B;"),
        ]);
        assert!(cycles(&fine).is_empty());
    }
}
