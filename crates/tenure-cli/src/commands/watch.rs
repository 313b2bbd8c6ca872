//! `tenure watch`: prints the events of the whole fleet as they occur.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::fleet::FleetEvent;
use tenure::lease::Ending;
use tenure::store::{Announcement, SubscriptionItem, TermNote};
use tenure::time::ServerTime;
use tenure::{InstanceId, LeaseKind, Tenure};
use tenure_serve::event_stream;

use crate::arguments::{StoreArguments, WatchArguments};
use crate::exit::{CliError, DONE};
use crate::notice::{note, warning};

/// Poll interval for instances. A crashed instance announces nothing.
const FLEET_CHECK_EVERY: Duration = Duration::from_secs(2);

/// Number of term records that `--all` prints first.
const MAX_RECORDS: usize = 10_000;

pub async fn watch(store: &StoreArguments, arguments: WatchArguments, json: bool) -> Result<u8, CliError> {
    let tenure = store.connect().await?;
    let done = follow(&tenure, arguments.all, json).await;
    tenure.shutdown().await;
    // A closed pipe is a normal end.
    done.map(|()| DONE).or_else(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Ok(DONE),
        _ => Err(CliError::system("cannot write")(error)),
    })
}

async fn follow(tenure: &Tenure, all: bool, json: bool) -> std::io::Result<()> {
    let mut announcements = tenure.fleet().announcements();
    let mut fleet = None;
    if all {
        for note in tenure.admin().terms(MAX_RECORDS).await.unwrap_or_default() {
            for event in events_of_term(&note) {
                print(&event, json)?;
            }
        }
    }
    let mut ended = std::pin::pin!(tokio::signal::ctrl_c());
    let mut checks = tokio::time::interval(FLEET_CHECK_EVERY);
    let (mut is_lost, mut has_begun) = (false, false);
    loop {
        tokio::select! {
            _ = &mut ended => return Ok(()),
            heard = announcements.next() => match heard {
                SubscriptionItem::Announced(Announcement::Event { event }) => {
                    if let Some(event) = FleetEvent::decode(&event) {
                        print(&event, json)?;
                    }
                }
                SubscriptionItem::Announced(Announcement::Joined { .. } | Announcement::Left { .. }) => {
                    print_membership_changes(tenure, &mut fleet, json).await?;
                }
                // The first gap marks the start of the subscription.
                SubscriptionItem::Gap if !std::mem::replace(&mut has_begun, true) => {}
                SubscriptionItem::Gap => note!("events may have been missed: the connection was replaced"),
                SubscriptionItem::Closed => return Ok(()),
                SubscriptionItem::Announced(_) => {}
            },
            _ = checks.tick() => {
                let was_lost = std::mem::replace(&mut is_lost, print_membership_changes(tenure, &mut fleet, json).await?);
                match (was_lost, is_lost) {
                    (false, true) => warning!("the store cannot be reached; waiting for it"),
                    (true, false) => note!("the store is reachable again"),
                    _ => {}
                }
            }
        }
    }
}

/// Prints instances that joined or left since the last call. Returns whether the store was unreachable.
async fn print_membership_changes(
    tenure: &Tenure,
    known: &mut Option<BTreeSet<InstanceId>>,
    json: bool,
) -> std::io::Result<bool> {
    let Ok(members) = tenure.fleet().instances().await else { return Ok(true) };
    let now: BTreeSet<InstanceId> = members.into_iter().map(|member| member.instance).collect();
    if let Some(before) = known.replace(now.clone()) {
        for instance in now.difference(&before) {
            print(&membership_event("fleet.joined", instance), json)?;
        }
        for instance in before.difference(&now) {
            print(&membership_event("fleet.left", instance), json)?;
        }
    }
    Ok(false)
}

fn membership_event(name: &str, instance: &InstanceId) -> FleetEvent {
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
        writeln!(out, "{}", event_stream::to_json_line(event))?;
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

/// Converts a term record to events: one of the lease, and one of the election if the lease is a role.
fn events_of_term(note: &TermNote) -> Vec<FleetEvent> {
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
            ([lease, "election.leadership_lost"], at, Some(ending.as_str()))
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
        FleetEvent { at: system_time(at), level: "info".to_owned(), name: name.to_owned(), fields }
    };
    names.into_iter().take(count).map(event).collect()
}

/// Converts a store time, limited to years of four digits: any program can write a record.
fn system_time(time: ServerTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(time.as_micros().min(253_402_300_799_999_999))
}

pub fn timestamp(time: ServerTime) -> String {
    humantime::format_rfc3339_micros(system_time(time)).to_string()
}
