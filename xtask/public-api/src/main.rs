//! Reads the rustdoc JSON of a crate and of the crates whose items it re-exports, and lists the public API, one item per
//! line, without hidden items and derived implementations; or, with `--without-examples`, the public items whose
//! documentation has no example.
//!
//! A program of its own, so that the other development commands need no dependency.

mod document;
mod examples;

use std::process::ExitCode;

use document::Documents;

fn main() -> ExitCode {
    let mut files: Vec<String> = std::env::args().skip(1).collect();
    let wants_examples = files.first().is_some_and(|flag| flag == "--without-examples");
    if wants_examples {
        files.remove(0);
    }
    if files.is_empty() {
        eprintln!("usage: xtask-public-api [--without-examples] CRATE.json [RE_EXPORTED.json…]");
        return ExitCode::from(64);
    }
    let listed = Documents::read(&files).and_then(|documents| {
        if wants_examples { Ok(examples::list_missing(&documents)) } else { list_api(&documents, &files) }
    });
    match listed {
        Ok(lines) => {
            lines.iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot read the JSON of rustdoc: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The API of the first crate, and of the other crates what it re-exports.
fn list_api(documents: &Documents, files: &[String]) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    let re_exported = documents.re_exported_paths();
    for (number, file) in files.iter().enumerate() {
        let builder = public_api::Builder::from_rustdoc_json(file).omit_blanket_impls(true).omit_auto_trait_impls(true);
        let api = builder.omit_auto_derived_impls(true).build().map_err(|error| error.to_string())?;
        let listed = api.items().map(ToString::to_string);
        lines.extend(listed.filter(|line| number == 0 || re_exported.iter().any(|path| is_about(line, path))));
    }
    Ok(lines)
}

/// Whether a line of an API is about the item with this path, or about something in it.
fn is_about(line: &str, path: &str) -> bool {
    // What follows are the types of arguments, fields and results.
    let subject = line.split(['(', '=']).next().unwrap_or(line);
    let subject = if line.contains("impl") { subject } else { subject.split(": ").next().unwrap_or(subject) };
    subject
        .match_indices(path)
        .any(|(at, _)| !subject[at + path.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_about_the_item_it_declares_and_not_about_its_arguments() {
        let path = "core::name::InstanceId";
        for about in [
            "pub struct core::name::InstanceId(_)",
            "pub fn core::name::InstanceId::new(text: &str) -> core::Result",
            "impl core::fmt::Display for core::name::InstanceId",
            "pub core::name::InstanceId::field: u32",
        ] {
            assert!(is_about(about, path), "{about}");
        }
        for other in [
            "pub struct core::name::InstanceIdentity",
            "pub fn core::pool::Engine::new(me: core::name::InstanceId)",
            "pub core::store::Held::holder: core::name::InstanceId",
        ] {
            assert!(!is_about(other, path), "{other}");
        }
    }
}
