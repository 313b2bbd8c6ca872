//! `tenure session`: sessions, straight on the store, whether an instance runs or not.

use std::io::BufRead;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tenure::Tenure;
use tenure_serve::catalogue::Catalogue;
use tenure_serve::editing::{self, EditError};
use tenure_serve::keys::Keys;
use tenure_serve::session::{Invalid, Session, written};
use uuid::Uuid;

use crate::arguments::{SessionAdd, SessionCommand, SessionId, StoreArguments};
use crate::exit::{DONE, Failure, NO};
use crate::notice::note;
use crate::output::say;

pub async fn manage(store: &StoreArguments, command: SessionCommand) -> Result<u8, Failure> {
    let tenure = match command {
        SessionCommand::Add(_) | SessionCommand::Import => store.connect().await?,
        _ => store.look().await?,
    };
    let done = match command {
        SessionCommand::Add(add) => create(&tenure, &store.keys(), add).await,
        SessionCommand::Ls(list) => show(&tenure, list.json).await,
        SessionCommand::Pause(session) => pause(&tenure, &session, true).await,
        SessionCommand::Resume(session) => pause(&tenure, &session, false).await,
        SessionCommand::Rm(session) => remove(&tenure, &session).await,
        SessionCommand::Export => export(&tenure).await,
        SessionCommand::Import => import(&tenure, &store.keys()).await,
    };
    tenure.shutdown().await;
    done
}

async fn create(tenure: &Tenure, keys: &Keys, add: SessionAdd) -> Result<u8, Failure> {
    let mut request = Map::new();
    request.insert("url".to_owned(), Value::String(add.url));
    for (field, value) in
        [("name", add.name), ("interval", add.interval.map(written)), ("timeout", add.timeout.map(written))]
    {
        request.extend(value.map(|value| (field.to_owned(), Value::String(value))));
    }
    let session = Session::create(request, Timestamp::now()).map_err(wrong)?;
    editing::create(tenure, keys, &session).await.map_err(unwritten)?;
    if add.json { print(&session.shown()) } else { say(&session.id.to_string()) }
}

async fn show(tenure: &Tenure, json: bool) -> Result<u8, Failure> {
    let all = Catalogue::default();
    all.read_all(tenure).await?;
    let (sessions, unreadable) = (all.page(None, usize::MAX), all.unreadable());
    if json {
        let unreadable = unreadable.iter().map(|(id, error)| serde_json::json!({"id": id, "error": error}));
        return print(&sessions.iter().map(|session| session.shown()).chain(unreadable).collect());
    }
    for session in sessions {
        let paused = if session.is_paused { " (paused)" } else { "" };
        let name = session.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        let (shown, every) = (session.shown(), written(session.interval));
        let url = shown["url"].as_str().unwrap_or_default();
        say(&format!("{} every {every}{paused} {url}{name}", session.id))?;
    }
    for (id, error) in unreadable {
        say(&format!("{id} cannot be polled: {error}"))?;
    }
    Ok(DONE)
}

async fn pause(tenure: &Tenure, session: &SessionId, paused: bool) -> Result<u8, Failure> {
    done(session, editing::change(tenure, &session.id.to_string(), |session| session.paused(paused)).await.map(drop))
}

async fn remove(tenure: &Tenure, session: &SessionId) -> Result<u8, Failure> {
    done(session, editing::delete(tenure, &session.id.to_string()).await)
}

fn done(session: &SessionId, edited: Result<(), EditError>) -> Result<u8, Failure> {
    match edited {
        Ok(()) => Ok(DONE),
        Err(EditError::Missing) => {
            note!("there is no session {}", session.id);
            Ok(NO)
        }
        Err(error) => Err(unwritten(error)),
    }
}

/// Everything as it stands, the values of headers included: it is for another store.
async fn export(tenure: &Tenure) -> Result<u8, Failure> {
    let all = Catalogue::default();
    all.read_all(tenure).await?;
    for session in all.page(None, usize::MAX) {
        say(&session.exported().to_string())?;
    }
    let unreadable = all.unreadable();
    for (id, error) in &unreadable {
        note!("session {id:?} is left out: {error}");
    }
    Ok(if unreadable.is_empty() { DONE } else { NO })
}

async fn import(tenure: &Tenure, keys: &Keys) -> Result<u8, Failure> {
    let (mut there, mut refused) = (0_u64, 0_u64);
    for (number, line) in (1_u64..).zip(std::io::stdin().lock().lines()) {
        let line = line.map_err(Failure::system("cannot read sessions"))?;
        if line.trim().is_empty() {
            continue;
        }
        let session = match Session::imported(line.as_bytes()) {
            Ok(session) => session,
            Err(error) => {
                refused += 1;
                note!("line {number}: {error}");
                continue;
            }
        };
        match editing::create(tenure, keys, &session).await {
            Ok(()) => there += 1,
            Err(EditError::Taken) => {
                refused += 1;
                note!("line {number}: session {} is there and is not the same; it was left as it is", session.id);
            }
            Err(error @ EditError::Leaving) => {
                refused += 1;
                note!("line {number}: {error}");
            }
            Err(error) => return Err(unwritten(error)),
        }
    }
    note!("there now: {there}; refused: {refused}");
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

/// Reads an id.
pub fn id(text: &str) -> Result<Uuid, String> {
    Uuid::parse_str(text).map_err(|_| "the id of a session is a UUID".to_owned())
}
