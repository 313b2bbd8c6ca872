//! Flags before the environment before the file before defaults.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::arguments::Arguments;
use crate::exit::USAGE;
use crate::notice::{self, failure};
use tenure::log::Format;

/// Reads the command line, the environment and the file.
pub fn read() -> Result<Arguments, ExitCode> {
    let plain = Arguments::command();
    let matches = plain.clone().try_get_matches();
    // The file is named by a flag or by the environment, so these are read first. What is wrong with them is said then.
    let file = matches.as_ref().ok().and_then(|matches| matches.get_one::<std::path::PathBuf>("config").cloned());
    let matches = match file {
        None => matches,
        Some(path) => {
            let said = |why: String| {
                failure!("{}: {why}", path.display());
                ExitCode::from(USAGE)
            };
            let text = std::fs::read_to_string(&path).map_err(|error| said(error.to_string()))?;
            let values = flatten(&text).map_err(said)?;
            known(&plain, &values).map_err(|name| said(format!("`{name}` is no setting")))?;
            with_defaults(plain, &values).try_get_matches()
        }
    };
    let parsed = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed.map_err(|error| {
        // Help and version are no errors.
        if !error.use_stderr() {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        if notice::set_format(None) == Format::Text {
            let _ = error.print();
        } else {
            failure!("{}", error.render().to_string().trim().trim_start_matches("error: "));
        }
        ExitCode::from(USAGE)
    })
}

/// `[keys] leader = "x"` as `keys-leader = "x"`.
fn flatten(text: &str) -> Result<BTreeMap<String, String>, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string().trim().to_owned())?;
    let mut values = BTreeMap::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(inner) => {
                for (field, value) in inner {
                    values.insert(format!("{name}-{field}"), word(&field, &value)?);
                }
            }
            value => {
                values.insert(name.clone(), word(&name, &value)?);
            }
        }
    }
    Ok(values)
}

fn word(name: &str, value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Boolean(flag) => Ok(flag.to_string()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        _ => Err(format!("`{name}` must be text, a number or true or false")),
    }
}

fn known(command: &clap::Command, values: &BTreeMap<String, String>) -> Result<(), String> {
    let mut names: Vec<String> = command.get_arguments().map(|argument| argument.get_id().to_string()).collect();
    names.extend(command.get_subcommands().flat_map(|sub| sub.get_arguments().map(|a| a.get_id().to_string())));
    match values.keys().find(|name| !names.contains(&id(name))) {
        Some(name) => Err(name.clone()),
        None => Ok(()),
    }
}

/// What the file says, as defaults: whatever was said elsewhere comes first.
fn with_defaults(command: clap::Command, values: &BTreeMap<String, String>) -> clap::Command {
    let apply = |command: clap::Command| {
        values.iter().fold(command, |command, (name, value)| {
            let id = id(name);
            if command.get_arguments().any(|argument| *argument.get_id() == *id) {
                command.mut_arg(id, |argument| argument.default_value(value.clone()))
            } else {
                command
            }
        })
    };
    let subcommands: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    subcommands.into_iter().fold(apply(command), |command, name| command.mut_subcommand(name, apply))
}

fn id(name: &str) -> String {
    name.replace('-', "_")
}
