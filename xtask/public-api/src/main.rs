//! Reads a rustdoc JSON file and lists the public API, one item per line, without hidden items and derived
//! implementations; or, with `--without-examples`, the public items whose documentation has no example.
//!
//! A program of its own, so that the other development commands need no dependency.

mod examples;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let listed = match &arguments[..] {
        [file] => list_api(file),
        [flag, file] if flag == "--without-examples" => examples::list_missing(file),
        _ => {
            eprintln!("usage: xtask-public-api [--without-examples] FILE.json");
            return ExitCode::from(64);
        }
    };
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

fn list_api(file: &str) -> Result<Vec<String>, String> {
    let builder = public_api::Builder::from_rustdoc_json(file).omit_blanket_impls(true).omit_auto_trait_impls(true);
    let api = builder.omit_auto_derived_impls(true).build().map_err(|error| error.to_string())?;
    Ok(api.items().map(ToString::to_string).collect())
}
