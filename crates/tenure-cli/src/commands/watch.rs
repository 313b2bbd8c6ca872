//! `tenure watch`: the events of the whole fleet, as they happen.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::fleet::FleetEvent;
use tenure::lease::Ending;
use tenure::store::{Announcement, Heard, TermNote};
use tenure::time::ServerTime;
use tenure::{InstanceId, LeaseKind, Tenure};
use tenure_serve::events;

use crate::arguments::{StoreArguments, Watch};
use crate::exit::{DONE, Failure};
use crate::notice::{note, warning};

/// How often instances are looked for although nothing was heard: one that crashed announces nothing.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How many records of terms `--all` begins with.
const RECORDS_READ: usize = 10_000;

pub async fn watch(store: &StoreArguments, arguments: Watch, json: bool) -> Result<u8, Failure> {
    let tenure = store.connect().await?;
    let done = follow(&tenure, arguments.all, json).await;
    tenure.shutdown().await;
    // With no one left to read, it has ended well.
    done.map(|()| DONE).or_else(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Ok(DONE),
        _ => Err(Failure::system("cannot write")(error)),
    })
}

async fn follow(tenure: &Tenure, all: bool, json: bool) -> std::io::Result<()> {
    let mut announcements = tenure.announcements();
    let mut fleet = None;
    if all {
        for note in tenure.terms(RECORDS_READ).await.unwrap_or_default() {
            for event in recorded(&note) {
                print(&event, json)?;
            }
        }
    }
    let mut ended = std::pin::pin!(tokio::signal::ctrl_c());
    let mut looks = tokio::time::interval(LOOK_EVERY);
    let (mut is_lost, mut has_begun) = (false, false);
    loop {
        tokio::select! {
            _ = &mut ended => return Ok(()),
            heard = announcements.next() => match heard {
                Heard::Announced(Announcement::Happened { event }) => {
                    if let Some(event) = FleetEvent::decode(&event) {
                        print(&event, json)?;
                    }
                }
                Heard::Announced(Announcement::Joined { .. } | Announcement::Left { .. }) => {
                    changes(tenure, &mut fleet, json).await?;
                }
                // The first one is the beginning.
                Heard::Gap if !std::mem::replace(&mut has_begun, true) => {}
                Heard::Gap => note!("events may have been missed: the connection was replaced"),
                Heard::Closed => return Ok(()),
                Heard::Announced(_) => {}
            },
            _ = looks.tick() => {
                let was_lost = std::mem::replace(&mut is_lost, changes(tenure, &mut fleet, json).await?);
                match (was_lost, is_lost) {
                    (false, true) => warning!("the store cannot be reached; waiting for it"),
                    (true, false) => note!("the store is reached again"),
                    _ => {}
                }
            }
        }
    }
}

/// Prints which instances have come and gone since the last look. Returns whether the store could not be asked.
async fn changes(tenure: &Tenure, known: &mut Option<BTreeSet<InstanceId>>, json: bool) -> std::io::Result<bool> {
    let Ok(members) = tenure.fleet().await else { return Ok(true) };
    let now: BTreeSet<InstanceId> = members.into_iter().map(|member| member.instance).collect();
    if let Some(before) = known.replace(now.clone()) {
        for instance in now.difference(&before) {
            print(&membership("fleet.joined", instance), json)?;
        }
        for instance in before.difference(&now) {
            print(&membership("fleet.left", instance), json)?;
        }
    }
    Ok(false)
}

fn membership(name: &str, instance: &InstanceId) -> FleetEvent {
    let field = |name: &str| (name.to_owned(), instance.to_string());
    FleetEvent {
        at: SystemTime::now(),
        level: "info".to_owned(),
        name: name.to_owned(),
        fields: vec![field("instance_id"), field("owner")],
    }
}

fn print(event: &FleetEvent, json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", events::line(event))?;
    } else {
        let fields: Vec<String> = event.fields.iter().map(|(name, value)| field(name, value)).collect();
        let at = humantime::format_rfc3339_micros(event.at);
        writeln!(out, "{at} {} {} {}", event.level, event.name, fields.join(" "))?;
    }
    out.flush()
}

fn field(name: &str, value: &str) -> String {
    let is_plain = value.chars().all(|letter| !letter.is_whitespace() && !letter.is_control() && letter != '"');
    if is_plain { format!("{name}={value}") } else { format!("{name}={value:?}") }
}

/// What a record of a term says, as events: one of the lease, and one of the election when it is a role's.
fn recorded(note: &TermNote) -> Vec<FleetEvent> {
    let kind = match note.name.kind() {
        LeaseKind::Role => "role",
        LeaseKind::Target => "endpoint_id",
        _ => "lease",
    };
    let (names, at, reason) = match &note.ending {
        None => (["lease.acquired", "election.leadership_acquired"], note.from, None),
        Some(ending) => {
            let lease = if matches!(ending, Ending::Lost(_)) { "lease.lost" } else { "lease.released" };
            let at = note.released.or(note.demoted).unwrap_or(note.from);
            ([lease, "election.leadership_lost"], at, Some(ending.word()))
        }
    };
    let count = if note.name.kind() == LeaseKind::Role { 2 } else { 1 };
    let event = |name: &'static str| {
        let mut fields = vec![
            ("instance_id".to_owned(), note.holder.to_string()),
            (kind.to_owned(), note.name.label().to_owned()),
            ("token".to_owned(), note.token.to_string()),
        ];
        fields.extend(reason.map(|reason| ("reason".to_owned(), reason.to_owned())));
        FleetEvent { at: moment(at), level: "info".to_owned(), name: name.to_owned(), fields }
    };
    names.into_iter().take(count).map(event).collect()
}

/// A moment of the store's, in years of four digits: any program can write a record.
fn moment(time: ServerTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(time.as_micros().min(253_402_300_799_999_999))
}

pub fn timestamp(time: ServerTime) -> String {
    humantime::format_rfc3339_micros(moment(time)).to_string()
}
