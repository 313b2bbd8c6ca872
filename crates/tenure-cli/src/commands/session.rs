//! `tenure session`: manages sessions directly in the store, whether an instance runs or not.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::Path;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tenure::Tenure;
use tenure_serve::keys::KeyPrefixes;
use tenure_serve::results;
use tenure_serve::session::{InvalidSession, Session, format_duration};
use tenure_serve::session_cache::SessionCache;
use tenure_serve::session_repo::{self, EditError};
use uuid::Uuid;

use super::status::describe_target;
use crate::arguments::{SessionAdd, SessionCommand, SessionId, SessionResult, StoreArguments};
use crate::exit::{CliError, DONE, NO};
use crate::notice::{failure, note, warning};
use crate::output::{TextTable, print_line, replace_file};
use crate::secrets::hide;

pub async fn manage(store: &StoreArguments, command: SessionCommand, json: bool) -> Result<u8, CliError> {
    let tenure = match command {
        SessionCommand::Add(_) | SessionCommand::Import => store.connect().await?,
        _ => store.connect_existing().await?,
    };
    let done = match command {
        SessionCommand::Add(add) => create(&tenure, &store.keys(), add, json).await,
        SessionCommand::Ls => list(&tenure, json).await,
        SessionCommand::Result(result) => results(&tenure, &store.keys(), &result, json).await,
        SessionCommand::Pause(session) => set_paused(&tenure, &session, true, json).await,
        SessionCommand::Resume(session) => set_paused(&tenure, &session, false, json).await,
        SessionCommand::Rm(session) => remove(&tenure, &session.id, json).await,
        SessionCommand::Export(to) => export(&tenure, to.output.as_deref()).await,
        SessionCommand::Import => import(&tenure, &store.keys(), json).await,
    };
    tenure.shutdown().await;
    done
}

async fn create(tenure: &Tenure, keys: &KeyPrefixes, add: SessionAdd, json: bool) -> Result<u8, CliError> {
    let mut request = Map::new();
    request.insert("url".to_owned(), Value::String(add.url));
    for (field, value) in [
        ("name", add.session_name),
        ("interval", add.interval.map(format_duration)),
        ("timeout", add.timeout.map(format_duration)),
    ] {
        request.extend(value.map(|value| (field.to_owned(), Value::String(value))));
    }
    let headers: Map<String, Value> =
        add.headers.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
    for (field, value) in [
        ("headers", (!headers.is_empty()).then_some(Value::Object(headers))),
        ("maxBody", add.max_body.map(Value::from)),
        ("keepResults", add.keep_results.map(Value::from)),
        ("backoff", add.backoff.map(|backoff| Value::from(backoff.to_text()))),
        ("isPaused", add.paused.then_some(Value::Bool(true))),
    ] {
        request.extend(value.map(|value| (field.to_owned(), value)));
    }
    let session = Session::create(request, Timestamp::now()).map_err(usage_error)?;
    session_repo::create(tenure, keys, &session).await.map_err(edit_error)?;
    if json { print(&session.to_json()) } else { print_line(&session.id.to_string()) }
}

async fn list(tenure: &Tenure, json: bool) -> Result<u8, CliError> {
    let all = SessionCache::default();
    all.read_all(tenure).await?;
    let (sessions, unreadable) = (all.page(None, usize::MAX), all.unreadable());
    if json {
        let unreadable = unreadable.iter().map(|(id, error)| json!({"id": id, "error": error}));
        return print(&sessions.iter().map(|session| session.to_json()).chain(unreadable).collect());
    }
    let mut table = TextTable::new(&["SESSION", "EVERY", "STATE", "TARGET"]);
    for session in sessions {
        let state = if session.is_paused { "paused" } else { "active" };
        let target = describe_target(&session);
        table.row([session.id.to_string(), format_duration(session.interval), state.to_owned(), target]);
    }
    table.print()?;
    for (id, error) in unreadable {
        print_line(&format!("{id} cannot be polled: {error}"))?;
    }
    Ok(DONE)
}

/// Prints the last result of a session, or the latest ones.
async fn results(tenure: &Tenure, keys: &KeyPrefixes, asked: &SessionResult, json: bool) -> Result<u8, CliError> {
    let id = asked.session.id.to_string();
    let name = keys.session(&id).map_err(|error| CliError::Usage(error.to_string()))?;
    // The janitor removes the results of a deleted session a little later.
    if session_repo::read(tenure, &id).await?.is_none() {
        failure!("no such session: {id}");
        return Ok(NO);
    }
    let found = match asked.history {
        Some(count) => results::latest(tenure, &name, count).await?,
        None => results::last(tenure, &name).await?.into_iter().collect(),
    };
    if found.is_empty() {
        failure!("session {id} has not been polled yet");
        return Ok(NO);
    }
    for result in &found {
        if json {
            print(result)?;
        } else {
            print_line(&format_result(result))?;
            if asked.history.is_none() {
                result["body"].as_str().unwrap_or_default().lines().try_for_each(|line| print_line(line).map(drop))?;
            }
        }
    }
    Ok(DONE)
}

/// Formats a result on one line.
fn format_result(result: &Value) -> String {
    let text = |field: &str| result[field].as_str().unwrap_or_default().to_owned();
    let outcome = match (result["status"].as_u64(), result["error"].as_str()) {
        (Some(status), _) => status.to_string(),
        (None, Some(error)) => error.to_owned(),
        (None, None) => "no answer".to_owned(),
    };
    let ok = if result["ok"] == true { "ok" } else { "failed" };
    let latency = result["latencyMs"].as_f64().unwrap_or_default();
    let digits = if latency < 10.0 { 1 } else { 0 };
    format!("{} {ok} {outcome} {latency:.digits$} ms by {}", text("polledAt"), text("instanceId"))
}

async fn set_paused(tenure: &Tenure, session: &SessionId, paused: bool, json: bool) -> Result<u8, CliError> {
    let changed = session_repo::change(tenure, &session.id.to_string(), |session| session.with_paused(paused)).await;
    let changed = found(session, changed)?;
    if let Some(changed) = changed.as_ref().filter(|_| json) {
        print(&changed.to_json())?;
    }
    Ok(if changed.is_some() { DONE } else { NO })
}

/// Deletes the session with this id as listed, with this key, or with this UUID in another notation.
async fn remove(tenure: &Tenure, listed: &str, json: bool) -> Result<u8, CliError> {
    let uuid = Uuid::parse_str(listed).ok().map(|uuid| uuid.to_string());
    let by_key = listed.strip_prefix(&session_repo::documents(tenure).key("")).map(str::to_owned);
    let ids = [Some(listed.to_owned()), by_key, uuid.clone()];
    let mut removed = None;
    for id in ids.into_iter().flatten() {
        match session_repo::delete(tenure, &id).await {
            Ok(()) => {
                removed = Some(id);
                break;
            }
            Err(EditError::NotFound) => {}
            Err(error) => return Err(edit_error(error)),
        }
    }
    if removed.is_none() {
        match uuid {
            Some(uuid) => failure!("no such session: {uuid}"),
            None => failure!("no such session: {:?}; see `tenure session ls`", hide(listed)),
        }
    }
    if json {
        print(&json!({"id": removed.as_deref().unwrap_or(listed), "removed": removed.is_some()}))?;
    }
    Ok(if removed.is_some() { DONE } else { NO })
}

/// Returns the edited session, or `None` if it does not exist.
fn found<T>(session: &SessionId, edited: Result<T, EditError>) -> Result<Option<T>, CliError> {
    match edited {
        Ok(edited) => Ok(Some(edited)),
        Err(EditError::NotFound) => {
            failure!("no such session: {}", session.id);
            Ok(None)
        }
        Err(error) => Err(edit_error(error)),
    }
}

/// Exports the whole documents, including the values of headers: the export is meant for another store.
async fn export(tenure: &Tenure, file: Option<&Path>) -> Result<u8, CliError> {
    let all = SessionCache::default();
    all.read_all(tenure).await?;
    let lines: Vec<String> = all.page(None, usize::MAX).iter().map(|session| session.to_export().to_string()).collect();
    let unreadable = all.unreadable();
    for (id, error) in &unreadable {
        warning!("cannot export session {id:?}: {error}; it is left out");
    }
    match file {
        Some(file) if lines.is_empty() => {
            // After a loss of data the operator needs the last good export.
            failure!("no sessions to export; {} is left unchanged", file.display());
            return Ok(NO);
        }
        Some(file) => {
            let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
            replace_file(file, text.as_bytes())
                .map_err(|error| CliError::CannotWrite(format!("cannot write {}: {error}", file.display())))?;
        }
        None => lines.iter().try_for_each(|line| print_line(line).map(drop))?,
    }
    Ok(if unreadable.is_empty() { DONE } else { NO })
}

async fn import(tenure: &Tenure, keys: &KeyPrefixes, json: bool) -> Result<u8, CliError> {
    let known: BTreeSet<String> = session_repo::documents(tenure).ids().await?.into_iter().collect();
    let (mut there, mut refused, mut created) = (0_u64, 0_u64, Vec::new());
    for (number, line) in (1_u64..).zip(std::io::stdin().lock().split(b'\n')) {
        let line = line.map_err(CliError::system("cannot read sessions"))?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let session = match Session::from_export(line.trim_ascii(), Timestamp::now()) {
            Ok(session) => session,
            Err(error) => {
                refused += 1;
                failure!("line {number}: {error}");
                continue;
            }
        };
        let id = session.id.to_string();
        let is_new = !known.contains(&id);
        match session_repo::create(tenure, keys, &session).await {
            Ok(()) => {
                there += 1;
                if is_new && !json {
                    print_line(&id)?;
                }
                created.extend(is_new.then_some(id));
            }
            Err(EditError::AlreadyExists) => {
                refused += 1;
                failure!("line {number}: session {} exists and differs; it is left unchanged", session.id);
            }
            Err(error @ EditError::StillHeld) => {
                refused += 1;
                failure!("line {number}: {error}");
            }
            Err(error) => return Err(edit_error(error)),
        }
    }
    if json {
        print(&json!({"there": there, "refused": refused, "created": created}))?;
    } else {
        note!("created: {}; unchanged: {}; refused: {refused}", created.len(), there - created.len() as u64);
    }
    Ok(if refused > 0 { NO } else { DONE })
}

fn usage_error(error: InvalidSession) -> CliError {
    CliError::Usage(error.to_string())
}

fn edit_error(error: EditError) -> CliError {
    match error {
        EditError::Request(error) => error.into(),
        EditError::Invalid(error) => usage_error(error),
        other => CliError::Refused(other.to_string()),
    }
}

fn print(value: &Value) -> Result<u8, CliError> {
    print_line(&value.to_string())
}

/// Parses `Name: value`, or `Name: @FILE`.
pub fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected a header such as `Name: value`")?;
    let value = value.trim();
    let value = match value.strip_prefix('@') {
        Some(file) => {
            // The message omits the value: if it does not name a file, it may be a password that begins with `@`.
            let failed = |error| format!("cannot read the file of the header `{}`: {error}", name.trim());
            std::fs::read_to_string(file).map_err(failed)?.trim().to_owned()
        }
        None => value.to_owned(),
    };
    Ok((name.trim().to_owned(), value))
}

/// Parses a session id.
pub fn parse_id(text: &str) -> Result<Uuid, String> {
    Uuid::parse_str(text).map_err(|_| "the id of a session must be a UUID".to_owned())
}
