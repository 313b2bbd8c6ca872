//! `tenure session`: sessions, straight on the store, whether an instance runs or not.

use std::io::{BufRead, Write};

use jiff::Timestamp;
use serde_json::{Map, Value};
use tenure::{SessionError, Tenure};
use tenure_serve::session::{Invalid, Session, written};
use uuid::Uuid;

use crate::arguments::{SessionAdd, SessionCommand, SessionId, StoreArguments};
use crate::exit::{DONE, Failure, NO};

/// How many sessions are read in one go.
const AT_ONCE: usize = 500;

/// How often a change is tried that somebody else comes before.
const ATTEMPTS: usize = 5;

pub async fn manage(store: &StoreArguments, command: SessionCommand) -> Result<u8, Failure> {
    let tenure = store.connect().await?;
    let done = match command {
        SessionCommand::Add(add) => create(&tenure, add).await,
        SessionCommand::Ls(list) => show(&tenure, list.json).await,
        SessionCommand::Pause(session) => pause(&tenure, &session, true).await,
        SessionCommand::Resume(session) => pause(&tenure, &session, false).await,
        SessionCommand::Rm(session) => remove(&tenure, &session).await,
        SessionCommand::Export => export(&tenure).await,
        SessionCommand::Import => import(&tenure).await,
    };
    tenure.shutdown().await;
    done
}

async fn create(tenure: &Tenure, add: SessionAdd) -> Result<u8, Failure> {
    let mut request = Map::new();
    request.insert("url".to_owned(), Value::String(add.url));
    for (field, value) in
        [("name", add.name), ("interval", add.interval.map(written)), ("timeout", add.timeout.map(written))]
    {
        request.extend(value.map(|value| (field.to_owned(), Value::String(value))));
    }
    let session = Session::create(request, Timestamp::now()).map_err(wrong)?;
    tenure.write_session(&session.id.to_string(), None, Some(&session.stored())).await.map_err(unwritten)?;
    if add.json { print(&session.shown()) } else { say(&session.id.to_string()) }
}

async fn show(tenure: &Tenure, json: bool) -> Result<u8, Failure> {
    let all = read_all(tenure).await?;
    if json {
        let shown = |(id, stored): &(String, Vec<u8>)| match Session::read(id, stored) {
            Ok(session) => session.shown(),
            Err(error) => serde_json::json!({"id": id, "error": error.to_string()}),
        };
        return print(&Value::Array(all.iter().map(shown).collect()));
    }
    for (id, stored) in &all {
        match Session::read(id, stored) {
            Ok(session) => {
                let paused = if session.is_paused { " (paused)" } else { "" };
                let name = session.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
                let url = session.shown()["url"].as_str().unwrap_or_default().to_owned();
                say(&format!("{id} every {}{paused} {url}{name}", written(session.interval)))?;
            }
            Err(error) => drop(say(&format!("{id} cannot be polled: {error}"))?),
        }
    }
    Ok(DONE)
}

async fn pause(tenure: &Tenure, session: &SessionId, paused: bool) -> Result<u8, Failure> {
    let id = session.id.to_string();
    for _ in 0..ATTEMPTS {
        let Some(seen) = read(tenure, &id).await? else { return no_session(&id) };
        let changed = Session::read(&id, &seen).and_then(|session| session.paused(paused)).map_err(wrong)?;
        match tenure.write_session(&id, Some(&seen), Some(&changed.stored())).await {
            Err(SessionError::Changed(_)) => {}
            done => return done.map(|()| DONE).map_err(unwritten),
        }
    }
    Err(Failure::Closed("others change this session all the time; try again".to_owned()))
}

async fn remove(tenure: &Tenure, session: &SessionId) -> Result<u8, Failure> {
    let id = session.id.to_string();
    for _ in 0..ATTEMPTS {
        let Some(seen) = read(tenure, &id).await? else { return no_session(&id) };
        match tenure.write_session(&id, Some(&seen), None).await {
            Err(SessionError::Changed(_)) => {}
            done => return done.map(|()| DONE).map_err(unwritten),
        }
    }
    Err(Failure::Closed("others change this session all the time; try again".to_owned()))
}

/// Everything as it stands, the values of headers included: it is for another store.
async fn export(tenure: &Tenure) -> Result<u8, Failure> {
    let mut unreadable = 0;
    for (id, stored) in read_all(tenure).await? {
        match Session::read(&id, &stored) {
            Ok(session) => drop(say(&session.exported().to_string())?),
            Err(error) => {
                unreadable += 1;
                eprintln!("tenure: session {id:?} is left out: {error}");
            }
        }
    }
    Ok(if unreadable > 0 { NO } else { DONE })
}

async fn import(tenure: &Tenure) -> Result<u8, Failure> {
    let (mut made, mut refused) = (0_u64, 0_u64);
    for (number, line) in (1_u64..).zip(std::io::stdin().lock().lines()) {
        let line = line.map_err(Failure::system("cannot read sessions"))?;
        if line.trim().is_empty() {
            continue;
        }
        let session = match Session::imported(line.as_bytes()) {
            Ok(session) => session,
            Err(error) => {
                refused += 1;
                eprintln!("tenure: line {number}: {error}");
                continue;
            }
        };
        match tenure.write_session(&session.id.to_string(), None, Some(&session.stored())).await {
            Ok(()) => made += 1,
            Err(SessionError::Changed(_)) => {
                refused += 1;
                eprintln!("tenure: line {number}: there is another session with the id {}", session.id);
            }
            Err(error) => return Err(unwritten(error)),
        }
    }
    eprintln!("tenure: {made} sessions are there now, {refused} were refused");
    Ok(if refused > 0 { NO } else { DONE })
}

async fn read(tenure: &Tenure, id: &str) -> Result<Option<Vec<u8>>, Failure> {
    Ok(tenure.read_sessions(vec![id.to_owned()]).await?.into_iter().flatten().next())
}

async fn read_all(tenure: &Tenure) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let ids = tenure.session_ids().await?;
    let mut all = Vec::with_capacity(ids.len());
    for some in ids.chunks(AT_ONCE) {
        let stored = tenure.read_sessions(some.to_vec()).await?;
        all.extend(some.iter().cloned().zip(stored).filter_map(|(id, stored)| Some((id, stored?))));
    }
    Ok(all)
}

fn no_session(id: &str) -> Result<u8, Failure> {
    eprintln!("tenure: there is no session {id}");
    Ok(NO)
}

fn wrong(error: Invalid) -> Failure {
    Failure::Usage(error.to_string())
}

fn unwritten(error: SessionError) -> Failure {
    match error {
        SessionError::Store(error) => Failure::Store(error),
        changed => Failure::Closed(changed.to_string()),
    }
}

fn print(value: &Value) -> Result<u8, Failure> {
    say(&value.to_string())
}

/// A line of the answer. Whoever reads no more has had enough.
fn say(line: &str) -> Result<u8, Failure> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::System { what: "cannot write", error })
        }
        _ => Ok(DONE),
    }
}

/// Reads an id.
pub fn id(text: &str) -> Result<Uuid, String> {
    Uuid::parse_str(text).map_err(|_| "the id of a session is a UUID".to_owned())
}
