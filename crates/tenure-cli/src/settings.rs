//! Merges the sources of settings: flags beat the environment, which beats the file, which beats defaults.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use tenure::log::Format;
use tenure_serve::session::REDACTED;

use crate::arguments::{self, Arguments, RunArguments};
use crate::exit::USAGE;
use crate::notice::{self, failure};
use crate::secrets::{hide, hide_in};
use crate::stderr::{self, Stderr};

/// The settings whose values may be secrets.
const SECRET_SETTINGS: [&str; 3] = ["store", "headers", "url"];

/// Values of a file, by the ids of their flags.
type Values = BTreeMap<String, Vec<String>>;

/// Reads the command line, the environment and the file.
pub fn read() -> Result<Arguments, ExitCode> {
    let plain = with_environment(Arguments::command());
    let matches = plain.clone().try_get_matches();
    // A flag or the environment names the file, so they are parsed first. Their errors are reported later.
    let file = match &matches {
        Ok(matches) => matches.get_one::<std::path::PathBuf>("config").cloned(),
        // A missing setting may be in the file.
        Err(error) if error.use_stderr() => config_path(),
        Err(_) => None,
    };
    let mut words = words_given();
    let mut file_values = FileValues::default();
    let matches = match file {
        None => matches,
        Some(path) => {
            let fail = |why: String| {
                notice::set_format(None);
                failure!("cannot read settings from {}: {why}", hide(&path.display().to_string()));
                ExitCode::from(USAGE)
            };
            let text = std::fs::read_to_string(&path).map_err(|error| fail(error.to_string()))?;
            let values = flatten(&text).map_err(fail)?;
            if let Some(name) = values.keys().find(|name| !is_known(&plain, name)) {
                return Err(fail(format!("`{}` is not a setting; see `tenure --help`", hide(&name.replace('_', "-")))));
            }
            let matches = with_defaults(plain, &values).try_get_matches();
            words.extend(values.values().flatten().cloned());
            file_values = FileValues { path: path.display().to_string(), values };
            matches
        }
    };
    let parsed = matches.and_then(|matches| {
        let mut arguments = Arguments::from_arg_matches(&matches)?;
        if let (arguments::CliCommand::Run(run), Some((_, matches))) = (&mut arguments.command, matches.subcommand()) {
            resolve_wait(run, matches)?;
        }
        Ok(arguments)
    });
    parsed.map_err(|error| {
        // Help and version are not errors.
        if !error.use_stderr() {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        let hint = source_note(&error, &file_values).or_else(|| command_hint(&error));
        let mut text = hide_secret_value(error).render().to_string();
        if let Some(hint) = hint {
            let end = text.find("\n\nFor more information").unwrap_or(text.len());
            text.insert_str(end, &format!("\n\n  {hint}"));
        }
        let text = hide_in(&text, &words);
        // A pipe that is not read must not hold up the exit.
        let _ = stderr::start();
        if notice::set_format(None) == Format::Text {
            let _ = Stderr.write_all(text.as_bytes());
        } else {
            failure!("{}", text.trim().trim_start_matches("error: "));
        }
        stderr::flush();
        ExitCode::from(USAGE)
    })
}

/// The values of the file, and its path.
#[derive(Default)]
struct FileValues {
    path: String,
    values: Values,
}

/// Says where a value that is not valid comes from, unless it is on the command line.
fn source_note(error: &clap::Error, file: &FileValues) -> Option<String> {
    let flag = error.get(ContextKind::InvalidArg)?.to_string();
    let flag = flag.split([' ', '=']).next()?;
    let is_flag = |word: std::ffi::OsString| {
        let word = word.to_string_lossy();
        word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    if std::env::args_os().skip(1).take_while(|word| word != "--").any(is_flag) {
        return None;
    }
    let id = id(flag.strip_prefix("--")?);
    let variable = variable(&id);
    if std::env::var_os(&variable).is_some() {
        return Some(format!("the value is from the variable {variable}"));
    }
    file.values.contains_key(&id).then(|| format!("the value is from the file {}", hide(&file.path)))
}

/// Says what is missing when the command of `run` does not follow `--`.
fn command_hint(error: &clap::Error) -> Option<String> {
    let usage = error.get(ContextKind::Usage)?.to_string();
    let is_bare = error.kind() == ErrorKind::UnknownArgument && usage.contains("-- <CMD>");
    is_bare.then(|| "put `--` before the command: tenure run ROLE -- CMD".to_owned())
}

/// The variable that sets a flag.
fn variable(id: &str) -> String {
    format!("TENURE_{}", id.to_uppercase())
}

/// Parses the value of a flag without an argument, from the environment or the file.
fn parse_boolean(text: &str) -> Result<bool, String> {
    arguments::parse_switch(text).map_err(|_| "expected true or false, yes or no, 1 or 0".to_owned())
}

/// Returns the values from the command line and the environment, which errors may repeat.
fn words_given() -> Vec<String> {
    let arguments = std::env::args_os().skip(1);
    let variables = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TENURE_"));
    let words = arguments.chain(variables.map(|(_, value)| value));
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Removes the value from an error about a flag whose values are secrets as a whole.
fn hide_secret_value(mut error: clap::Error) -> clap::Error {
    let flag = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    if ["--header ", "--store "].iter().any(|secret| flag.starts_with(secret)) {
        error.insert(ContextKind::InvalidValue, ContextValue::String(REDACTED.to_owned()));
    }
    error
}

/// Resolves `--wait` against `--no-wait`, which contradict each other: the source with the higher precedence wins.
fn resolve_wait(run: &mut RunArguments, matches: &ArgMatches) -> Result<(), clap::Error> {
    if run.wait.is_none() || !run.no_wait {
        return Ok(());
    }
    match matches.value_source("wait").cmp(&matches.value_source("no_wait")) {
        Ordering::Greater => run.no_wait = false,
        Ordering::Less => run.wait = None,
        Ordering::Equal => {
            let message = "--wait cannot be used with --no-wait; give one of them";
            return Err(Arguments::command().error(ErrorKind::ArgumentConflict, message));
        }
    }
    Ok(())
}

/// Finds the file named by the flags or the environment when the other flags cannot be parsed.
fn config_path() -> Option<std::path::PathBuf> {
    let mut arguments = std::env::args_os().take_while(|argument| argument != "--");
    let flag = arguments.find_map(|argument| match argument.to_str() {
        Some("--config") => Some(None),
        Some(text) => text.strip_prefix("--config=").map(|path| Some(path.into())),
        None => None,
    });
    let flag = flag.and_then(|path| path.or_else(|| arguments.next()));
    flag.or_else(|| std::env::var_os("TENURE_CONFIG")).map(Into::into)
}

/// Gives every flag its variable: `--drain-timeout` is set by `TENURE_DRAIN_TIMEOUT`.
fn with_environment(command: Command) -> Command {
    let name = |arg: Arg| {
        if arg.is_positional() || matches!(arg.get_action(), ArgAction::Help | ArgAction::Version) {
            return arg;
        }
        let variable = variable(arg.get_id().as_str());
        let is_secret = SECRET_SETTINGS.contains(&arg.get_id().as_str());
        let arg = if matches!(arg.get_action(), ArgAction::SetTrue) { arg.value_parser(parse_boolean) } else { arg };
        arg.env(variable).hide_env_values(is_secret)
    };
    command.mut_args(name).mut_subcommands(with_environment)
}

/// Reads `[keys] leader = "x"` as `keys_leader = "x"`.
fn flatten(text: &str) -> Result<Values, String> {
    let table: toml::Table = text.parse().map_err(|error| syntax_error(text, &error))?;
    let mut values = Values::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(inner) => {
                for (field, value) in inner {
                    values.insert(id(&format!("{name}-{field}")), toml_values(&field, &value)?);
                }
            }
            value => {
                values.insert(id(&name), toml_values(&name, &value)?);
            }
        }
    }
    Ok(values)
}

/// Describes a syntax error and its position, without the line itself, which may contain a password.
fn syntax_error(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|letter| *letter != '\n').count() + 1;
    format!("line {line}, column {column}: {}", error.message().trim())
}

fn toml_values(name: &str, value: &toml::Value) -> Result<Vec<String>, String> {
    match value {
        toml::Value::Array(values) => values.iter().map(|value| toml_value(name, value)).collect(),
        value => Ok(vec![toml_value(name, value)?]),
    }
}

fn toml_value(name: &str, value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Boolean(flag) => Ok(flag.to_string()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        _ => Err(format!("`{}` must be text, a number, true or false, or a list of these", hide(name))),
    }
}

/// Returns whether a command or one of its subcommands has a flag with this id.
fn is_known(command: &Command, id: &str) -> bool {
    has_flag(command, id) || command.get_subcommands().any(|sub| is_known(sub, id))
}

fn has_flag(command: &Command, id: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == id && !arg.is_positional())
}

/// Applies the values of the file as defaults, so that flags and the environment take precedence.
fn with_defaults(command: Command, values: &Values) -> Command {
    let apply = |command: Command, (id, values): (&String, &Vec<String>)| {
        if has_flag(&command, id) {
            command.mut_arg(id, |arg| arg.required(false).default_values(values.clone()))
        } else {
            command
        }
    };
    values.iter().fold(command, apply).mut_subcommands(|sub| with_defaults(sub, values))
}

fn id(name: &str) -> String {
    name.replace('-', "_")
}
