//! Lists the public API in a rustdoc JSON file, one item per line, without hidden items and derived implementations.
//! A program of its own, so that the other development commands need no dependency.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: xtask-public-api FILE.json");
        return ExitCode::from(64);
    };
    let builder = public_api::Builder::from_rustdoc_json(file).omit_blanket_impls(true).omit_auto_trait_impls(true);
    match builder.omit_auto_derived_impls(true).build() {
        Ok(api) => {
            api.items().for_each(|item| println!("{item}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot read the JSON of rustdoc: {error}");
            ExitCode::FAILURE
        }
    }
}
