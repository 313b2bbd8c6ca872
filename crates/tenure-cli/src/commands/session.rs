//! `tenure session`: sessions, straight on the store, whether an instance runs or not.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::Path;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tenure::Tenure;
use tenure_serve::catalogue::Catalogue;
use tenure_serve::editing::{self, EditError};
use tenure_serve::keys::Keys;
use tenure_serve::results;
use tenure_serve::session::{Invalid, Session, written};
use uuid::Uuid;

use crate::arguments::{SessionAdd, SessionCommand, SessionId, SessionResult, StoreArguments};
use crate::exit::{DONE, Failure, NO};
use crate::notice::{failure, note, warning};
use crate::output::{Table, replace_file, say, shortened};
use crate::secrets::hide;

pub async fn manage(store: &StoreArguments, command: SessionCommand, json: bool) -> Result<u8, Failure> {
    let tenure = match command {
        SessionCommand::Add(_) | SessionCommand::Import => store.connect().await?,
        _ => store.look().await?,
    };
    let done = match command {
        SessionCommand::Add(add) => create(&tenure, &store.keys(), add, json).await,
        SessionCommand::Ls => show(&tenure, json).await,
        SessionCommand::Result(result) => results(&tenure, &store.keys(), &result, json).await,
        SessionCommand::Pause(session) => pause(&tenure, &session, true, json).await,
        SessionCommand::Resume(session) => pause(&tenure, &session, false, json).await,
        SessionCommand::Rm(session) => remove(&tenure, &session.id, json).await,
        SessionCommand::Export(to) => export(&tenure, to.output.as_deref()).await,
        SessionCommand::Import => import(&tenure, &store.keys(), json).await,
    };
    tenure.shutdown().await;
    done
}

async fn create(tenure: &Tenure, keys: &Keys, add: SessionAdd, json: bool) -> Result<u8, Failure> {
    let mut request = Map::new();
    request.insert("url".to_owned(), Value::String(add.url));
    for (field, value) in
        [("name", add.session_name), ("interval", add.interval.map(written)), ("timeout", add.timeout.map(written))]
    {
        request.extend(value.map(|value| (field.to_owned(), Value::String(value))));
    }
    let headers: Map<String, Value> =
        add.headers.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
    for (field, value) in [
        ("headers", (!headers.is_empty()).then_some(Value::Object(headers))),
        ("maxBody", add.max_body.map(Value::from)),
        ("keepResults", add.keep_results.map(Value::from)),
        ("backoff", add.backoff.map(|backoff| Value::from(backoff.shown()))),
        ("isPaused", add.paused.then_some(Value::Bool(true))),
    ] {
        request.extend(value.map(|value| (field.to_owned(), value)));
    }
    let session = Session::create(request, Timestamp::now()).map_err(wrong)?;
    editing::create(tenure, keys, &session).await.map_err(unwritten)?;
    if json { print(&session.shown()) } else { say(&session.id.to_string()) }
}

async fn show(tenure: &Tenure, json: bool) -> Result<u8, Failure> {
    let all = Catalogue::default();
    all.read_all(tenure).await?;
    let (sessions, unreadable) = (all.page(None, usize::MAX), all.unreadable());
    if json {
        let unreadable = unreadable.iter().map(|(id, error)| json!({"id": id, "error": error}));
        return print(&sessions.iter().map(|session| session.shown()).chain(unreadable).collect());
    }
    let mut table = Table::new(&["SESSION", "EVERY", "STATE", "TARGET"]);
    for session in sessions {
        let state = if session.is_paused { "paused" } else { "active" };
        let shown = session.shown();
        let url = shown["url"].as_str().unwrap_or_default();
        let target = session.name.as_ref().map_or_else(|| url.to_owned(), |name| format!("{name} {url}"));
        table.row([session.id.to_string(), written(session.interval), state.to_owned(), shortened(&target, 28)]);
    }
    table.print()?;
    for (id, error) in unreadable {
        say(&format!("{id} cannot be polled: {error}"))?;
    }
    Ok(DONE)
}

/// The last result of a session, or the latest ones.
async fn results(tenure: &Tenure, keys: &Keys, asked: &SessionResult, json: bool) -> Result<u8, Failure> {
    let id = asked.session.id.to_string();
    let name = keys.session(&id).map_err(|error| Failure::Usage(error.to_string()))?;
    let found = match asked.history {
        Some(count) => results::latest(tenure, &name, count).await?,
        None => results::last(tenure, &name).await?.into_iter().collect(),
    };
    if found.is_empty() {
        let exists = editing::stored(tenure, &id).await?.is_some();
        failure!(
            "{}",
            if exists { format!("session {id} has not been polled yet") } else { format!("there is no session {id}") }
        );
        return Ok(NO);
    }
    for result in &found {
        if json {
            print(result)?;
        } else {
            say(&line(result))?;
            if asked.history.is_none() {
                result["body"].as_str().unwrap_or_default().lines().try_for_each(|line| say(line).map(drop))?;
            }
        }
    }
    Ok(DONE)
}

/// A result on one line.
fn line(result: &Value) -> String {
    let text = |field: &str| result[field].as_str().unwrap_or_default().to_owned();
    let outcome = match (result["status"].as_u64(), result["error"].as_str()) {
        (Some(status), _) => status.to_string(),
        (None, Some(error)) => error.to_owned(),
        (None, None) => "no answer".to_owned(),
    };
    let ok = if result["ok"] == true { "ok" } else { "failed" };
    let latency = result["latencyMs"].as_f64().unwrap_or_default();
    format!("{} {ok} {outcome} {latency:.0} ms by {}", text("polledAt"), text("instanceId"))
}

async fn pause(tenure: &Tenure, session: &SessionId, paused: bool, json: bool) -> Result<u8, Failure> {
    let changed = editing::change(tenure, &session.id.to_string(), |session| session.paused(paused)).await;
    let changed = done(session, changed)?;
    if let Some(changed) = changed.as_ref().filter(|_| json) {
        print(&changed.shown())?;
    }
    Ok(if changed.is_some() { DONE } else { NO })
}

/// Deletes the session with this id as it is listed, with this key, or with this UUID in another notation.
async fn remove(tenure: &Tenure, listed: &str, json: bool) -> Result<u8, Failure> {
    let uuid = Uuid::parse_str(listed).ok().map(|uuid| uuid.to_string());
    let by_key = listed.strip_prefix(&tenure.session_key("")).map(str::to_owned);
    let ids = [Some(listed.to_owned()), by_key, uuid.clone()];
    let mut removed = None;
    for id in ids.into_iter().flatten() {
        match editing::delete(tenure, &id).await {
            Ok(()) => {
                removed = Some(id);
                break;
            }
            Err(EditError::Missing) => {}
            Err(error) => return Err(unwritten(error)),
        }
    }
    if removed.is_none() {
        match uuid {
            Some(uuid) => failure!("there is no session {uuid}"),
            None => {
                return Err(Failure::Usage(format!(
                    "no session has the id {:?}; see `tenure session ls`",
                    hide(listed)
                )));
            }
        }
    }
    if json {
        print(&json!({"id": removed.as_deref().unwrap_or(listed), "removed": removed.is_some()}))?;
    }
    Ok(if removed.is_some() { DONE } else { NO })
}

/// What was edited, if it is there.
fn done<T>(session: &SessionId, edited: Result<T, EditError>) -> Result<Option<T>, Failure> {
    match edited {
        Ok(edited) => Ok(Some(edited)),
        Err(EditError::Missing) => {
            failure!("there is no session {}", session.id);
            Ok(None)
        }
        Err(error) => Err(unwritten(error)),
    }
}

/// Everything as it stands, the values of headers included: it is for another store.
async fn export(tenure: &Tenure, file: Option<&Path>) -> Result<u8, Failure> {
    let all = Catalogue::default();
    all.read_all(tenure).await?;
    let lines: Vec<String> = all.page(None, usize::MAX).iter().map(|session| session.exported().to_string()).collect();
    let unreadable = all.unreadable();
    for (id, error) in &unreadable {
        warning!("session {id:?} is left out: {error}");
    }
    match file {
        Some(file) if lines.is_empty() => {
            // After a loss of data the last good export is needed.
            failure!("there are no sessions to export; {} is left as it is", file.display());
            return Ok(NO);
        }
        Some(file) => {
            let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
            replace_file(file, text.as_bytes())
                .map_err(|error| Failure::CannotWrite(format!("cannot write {}: {error}", file.display())))?;
        }
        None => lines.iter().try_for_each(|line| say(line).map(drop))?,
    }
    Ok(if unreadable.is_empty() { DONE } else { NO })
}

async fn import(tenure: &Tenure, keys: &Keys, json: bool) -> Result<u8, Failure> {
    let known: BTreeSet<String> = tenure.session_ids().await?.into_iter().collect();
    let (mut there, mut refused, mut created) = (0_u64, 0_u64, Vec::new());
    for (number, line) in (1_u64..).zip(std::io::stdin().lock().lines()) {
        let line = line.map_err(Failure::system("cannot read sessions"))?;
        if line.trim().is_empty() {
            continue;
        }
        let session = match Session::imported(line.as_bytes(), Timestamp::now()) {
            Ok(session) => session,
            Err(error) => {
                refused += 1;
                failure!("line {number}: {error}");
                continue;
            }
        };
        let id = session.id.to_string();
        let is_new = !known.contains(&id);
        match editing::create(tenure, keys, &session).await {
            Ok(()) => {
                there += 1;
                if is_new && !json {
                    say(&id)?;
                }
                created.extend(is_new.then_some(id));
            }
            Err(EditError::Taken) => {
                refused += 1;
                failure!("line {number}: session {} is there and is not the same; it was left as it is", session.id);
            }
            Err(error @ EditError::Leaving) => {
                refused += 1;
                failure!("line {number}: {error}");
            }
            Err(error) => return Err(unwritten(error)),
        }
    }
    if json {
        print(&json!({"there": there, "refused": refused, "created": created}))?;
    } else {
        note!("there now: {there}; refused: {refused}");
    }
    Ok(if refused > 0 { NO } else { DONE })
}

fn wrong(error: Invalid) -> Failure {
    Failure::Usage(error.to_string())
}

fn unwritten(error: EditError) -> Failure {
    match error {
        EditError::Store(error) => Failure::Store(error),
        EditError::Invalid(error) => wrong(error),
        other => Failure::Closed(other.to_string()),
    }
}

fn print(value: &Value) -> Result<u8, Failure> {
    say(&value.to_string())
}

/// Reads `Name: value`, or `Name: @FILE`.
pub fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a header is written as `Name: value`")?;
    let value = value.trim();
    let value = match value.strip_prefix('@') {
        Some(file) => {
            // A value that is not a file may be a password that begins with `@`.
            let failed = |error| format!("cannot read the file of the header `{}`: {error}", name.trim());
            std::fs::read_to_string(file).map_err(failed)?.trim().to_owned()
        }
        None => value.to_owned(),
    };
    Ok((name.trim().to_owned(), value))
}

/// Reads an id.
pub fn id(text: &str) -> Result<Uuid, String> {
    Uuid::parse_str(text).map_err(|_| "the id of a session is a UUID".to_owned())
}
