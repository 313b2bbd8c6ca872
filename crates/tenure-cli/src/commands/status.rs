//! `tenure status`: instances and holders, read directly from the store, whether an instance runs or not.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tenure::store::Quarantine;
use tenure::{InstanceId, Tenure};
use tenure_serve::quarantine_json;
use tenure_serve::session::Session;
use tenure_serve::session_cache::SessionCache;
use tenure_serve::status::{FleetStatus, HeldSession, InstanceStatus};

use super::role::{self, Role};
use crate::arguments::StoreArguments;
use crate::exit::{CliError, DONE};
use crate::output::{TextTable, print_line, truncate};

/// Everything that `status` prints.
struct Report {
    quarantine: Option<Quarantine>,
    fleet: FleetStatus,
    roles: Vec<Role>,
}

pub async fn print(store: &StoreArguments, json: bool) -> Result<u8, CliError> {
    let tenure = store.connect_existing().await?;
    let report = Report::read(&tenure, store).await?;
    if json {
        print_line(&report.to_json().to_string())?;
    } else {
        report.print()?;
    }
    tenure.shutdown().await;
    Ok(DONE)
}

impl Report {
    async fn read(tenure: &Tenure, store: &StoreArguments) -> Result<Self, CliError> {
        let quarantine = tenure.admin().namespace().await?.quarantine;
        let sessions = SessionCache::default();
        sessions.read_all(tenure).await?;
        let mut fleet = FleetStatus::read(tenure, &store.keys(), &sessions).await?;
        let roles = role::read(tenure).await?;
        fleet.unreadable.extend(roles.iter().filter_map(|role| role.error.clone()));
        Ok(Self { quarantine, fleet, roles })
    }

    fn to_json(&self) -> Value {
        let listed = |(key, error): (&String, &String)| json!({"key": key, "error": error});
        let leaders: BTreeMap<&str, Option<&str>> =
            self.roles.iter().map(|role| (role.name.as_str(), role.leader.as_deref())).collect();
        json!({
            "instances": self.fleet.instances.iter().map(instance_json).collect::<Vec<Value>>(),
            "unheld": self.fleet.unheld.iter().map(|session| session.id.to_string()).collect::<Vec<_>>(),
            "paused": self.fleet.paused,
            "unreadable": self.fleet.unreadable.iter().map(listed).collect::<Vec<Value>>(),
            "leaders": leaders,
            "roles": self.roles.iter().map(Role::to_json).collect::<Vec<Value>>(),
            "quarantine": self.quarantine.as_ref().map(quarantine_json),
        })
    }

    fn print(&self) -> Result<(), CliError> {
        if let Some(quarantine) = &self.quarantine {
            print_line(&quarantine.to_string())?;
        }
        let held: usize = self.fleet.instances.iter().map(|instance| instance.sessions.len()).sum();
        let total = held + self.fleet.unheld.len() + self.fleet.paused;
        print_line(&format!(
            "{}, {}: {held} held, {} unheld, {} paused",
            count_of(self.fleet.instances.len(), "instance"),
            count_of(total, "session"),
            self.fleet.unheld.len(),
            self.fleet.paused
        ))?;
        if !self.fleet.instances.is_empty() {
            print_line("")?;
        }
        let mut table = TextTable::new(&["INSTANCE", "STATUS", "WEIGHT", "HELD", "STARTED"]);
        for instance in &self.fleet.instances {
            table.row(instance_cells(instance));
        }
        table.print()?;
        for note in self.fleet.instances.iter().flat_map(instance_notes) {
            print_line(&note)?;
        }
        let mut sessions = TextTable::new(&["SESSION", "HOLDER", "TARGET"]);
        for instance in &self.fleet.instances {
            for HeldSession { session, is_revoked, .. } in &instance.sessions {
                let revoked = if *is_revoked { " (revoked)" } else { "" };
                let holder = format!("{}{revoked}", short_id(&instance.id));
                sessions.row([session.id.to_string(), holder, describe_target(session)]);
            }
        }
        for session in &self.fleet.unheld {
            sessions.row([session.id.to_string(), "UNHELD".to_owned(), describe_target(session)]);
        }
        if total > self.fleet.paused {
            print_line("")?;
        }
        sessions.print()?;
        if !self.fleet.unheld.is_empty() {
            let why =
                match (&self.quarantine, self.fleet.instances.iter().any(|instance| status_word(instance) == "online"))
                {
                    (Some(_), _) => "the store grants no lease during the quarantine",
                    (None, false) => "no instance takes sessions; start one with `tenure serve`",
                    (None, true) => "an instance acquires them within moments, or logs why not",
                };
            print_line(&format!("unheld: {why}"))?;
        }
        for (key, error) in &self.fleet.unreadable {
            print_line(&format!("unreadable {key}: {error}"))?;
        }
        if !self.roles.is_empty() {
            print_line("")?;
        }
        role::print_table(&self.roles).map(drop)
    }
}

fn status_word(instance: &InstanceStatus) -> &'static str {
    match &instance.record {
        _ if instance.is_gone => "gone",
        None => "foreign",
        Some(record) => record.status.as_str(),
    }
}

fn instance_cells(instance: &InstanceStatus) -> [String; 5] {
    let status = if instance.heartbeat_delay().is_some() { "late" } else { status_word(instance) };
    let weight = instance.weight().map_or_else(|| "-".to_owned(), |weight| weight.to_string());
    let held = instance.sessions.len() + instance.other_pools().values().sum::<usize>();
    let started = instance.record.as_ref().and_then(|record| SystemTime::now().duration_since(record.started_at).ok());
    let started = started.map_or_else(|| "-".to_owned(), |age| format!("{} ago", format_age(age)));
    [instance.id.to_string(), status.to_owned(), weight, held.to_string(), started]
}

/// Notes for the operator below the table.
fn instance_notes(instance: &InstanceStatus) -> Vec<String> {
    let id = short_id(&instance.id);
    let late = instance.heartbeat_delay().map(|age| format!("  {id}: its last heartbeat is {} old", format_age(age)));
    let waits = instance.note.iter().map(|why| format!("  {id}: {why}"));
    let pools = instance.other_pools().into_iter();
    let pools = pools.map(|(pool, count)| format!("  {id}: {} of pool {pool}", count_of(count, "target")));
    late.into_iter().chain(waits).chain(pools).collect()
}

fn instance_json(instance: &InstanceStatus) -> Value {
    let revoked = instance.sessions.iter().filter(|held| held.is_revoked);
    json!({
        "instanceId": instance.id.as_str(),
        "status": status_word(instance),
        "sessions": instance.sessions.iter().map(|held| held.session.id.to_string()).collect::<Vec<_>>(),
        "revoked": revoked.map(|held| held.session.id.to_string()).collect::<Vec<_>>(),
        "pools": instance.other_pools(),
        "heartbeatAgeMs": instance.heartbeat_age.map(|age| age.as_millis() as u64),
        "isLate": instance.heartbeat_delay().is_some(),
        "note": instance.note,
    })
}

/// Returns the name of a session, if it has one, and its URL without a password.
pub(super) fn describe_target(session: &Session) -> String {
    let shown = session.to_json();
    let url = shown["url"].as_str().unwrap_or_default();
    session.name.as_ref().map_or_else(|| url.to_owned(), |name| format!("{name} {url}"))
}

/// Returns the name and the last letters of an id. The timestamp between them is of no use to readers.
fn short_id(id: &InstanceId) -> String {
    let text = id.as_str();
    let mut parts = text.rsplitn(3, '-');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(end), Some(_), Some(name)) => truncate(&format!("{name}…{end}"), 20),
        _ => truncate(text, 20),
    }
}

fn count_of(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Formats a duration in its largest unit.
fn format_age(span: Duration) -> String {
    match span.as_secs() {
        0 => format!("{} ms", span.as_millis()),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}
