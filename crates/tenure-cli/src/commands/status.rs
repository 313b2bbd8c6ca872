//! `tenure status`: instances and holders, read directly from the store, whether an instance runs or not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tenure::fleet::{CrashBackoff, InstanceRecord};
use tenure::store::{LiveInstance, Quarantine};
use tenure::{InstanceId, Tenure};
use tenure_serve::session::Session;
use tenure_serve::session_cache::SessionCache;
use tenure_serve::{POOL, ownership, quarantine_json};

use super::role::{self, Role};
use tenure_serve::session_repo;

use crate::arguments::StoreArguments;
use crate::exit::{CliError, DONE};
use crate::output::{TextTable, print_line, truncate};

/// An instance, as recorded in the store.
struct InstanceSummary {
    id: InstanceId,
    status: &'static str,
    record: Option<InstanceRecord>,
    /// Age of its heartbeat.
    heartbeat_age: Option<Duration>,
    sessions: Vec<HeldSession>,
    /// Why it waits for its quota, if it does.
    waiting_note: Option<String>,
}

/// A session with a holder.
struct HeldSession {
    session: Arc<Session>,
    is_revoked: bool,
}

/// Everything that `status` prints.
struct FleetStatus {
    quarantine: Option<Quarantine>,
    instances: Vec<InstanceSummary>,
    unheld: Vec<Arc<Session>>,
    paused: usize,
    unreadable: BTreeMap<String, String>,
    roles: Vec<Role>,
}

pub async fn print(store: &StoreArguments, json: bool) -> Result<u8, CliError> {
    let tenure = store.connect_existing().await?;
    let status = FleetStatus::read(&tenure, store).await?;
    if json {
        print_line(&status.to_json().to_string())?;
    } else {
        status.print()?;
    }
    tenure.shutdown().await;
    Ok(DONE)
}

impl FleetStatus {
    async fn read(tenure: &Tenure, store: &StoreArguments) -> Result<Self, CliError> {
        let quarantine = tenure.admin().namespace().await?.quarantine;
        let session_cache = SessionCache::default();
        session_cache.read_all(tenure).await?;
        let ids: Vec<String> =
            session_cache.page(None, usize::MAX).iter().map(|session| session.id.to_string()).collect();
        let unreadable =
            session_cache.unreadable().into_iter().map(|(id, error)| (session_repo::documents(tenure).key(&id), error));
        let mut unreadable: BTreeMap<String, String> = unreadable.collect();
        let (mut held, mut unheld, mut paused) = (BTreeMap::<InstanceId, Vec<HeldSession>>::new(), Vec::new(), 0);
        for (id, inspection) in ownership::session_leases(tenure, &store.keys(), &ids).await? {
            let report = match inspection {
                Ok(report) => report,
                Err((key, error)) => {
                    unreadable.insert(key, error.to_string());
                    continue;
                }
            };
            let Some(session) = session_cache.session(&id) else { continue };
            let is_revoked = report.is_revoked();
            match report.held {
                Some(lease) => held.entry(lease.holder).or_default().push(HeldSession { session, is_revoked }),
                None if session.is_paused => paused += 1,
                None => unheld.push(session),
            }
        }
        let mut instances: Vec<InstanceSummary> =
            tenure.fleet().instances().await?.into_iter().map(|member| summarize(member, &mut held)).collect();
        let waiting = CrashBackoff::from_records(instances.iter().filter_map(|instance| instance.record.as_ref()));
        for instance in &mut instances {
            instance.waiting_note = waiting.get(&instance.id).and_then(|held| held.note(SystemTime::now()));
        }
        // A dead instance may hold leases that have not expired yet.
        instances.extend(held.into_iter().map(|(id, sessions)| InstanceSummary {
            id,
            status: "gone",
            record: None,
            heartbeat_age: None,
            sessions,
            waiting_note: None,
        }));
        let roles = role::read(tenure).await?;
        unreadable.extend(roles.iter().filter_map(|role| role.error.clone()));
        Ok(Self { quarantine, instances, unheld, paused, unreadable, roles })
    }

    fn to_json(&self) -> Value {
        let listed = |(key, error): (&String, &String)| json!({"key": key, "error": error});
        let leaders: BTreeMap<&str, Option<&str>> =
            self.roles.iter().map(|role| (role.name.as_str(), role.leader.as_deref())).collect();
        json!({
            "instances": self.instances.iter().map(InstanceSummary::to_json).collect::<Vec<Value>>(),
            "unheld": self.unheld.iter().map(|session| session.id.to_string()).collect::<Vec<_>>(),
            "paused": self.paused,
            "unreadable": self.unreadable.iter().map(listed).collect::<Vec<Value>>(),
            "leaders": leaders,
            "roles": self.roles.iter().map(Role::to_json).collect::<Vec<Value>>(),
            "quarantine": self.quarantine.as_ref().map(quarantine_json),
        })
    }

    fn print(&self) -> Result<(), CliError> {
        if let Some(quarantine) = &self.quarantine {
            print_line(&quarantine.to_string())?;
        }
        let held: usize = self.instances.iter().map(|instance| instance.sessions.len()).sum();
        let total = held + self.unheld.len() + self.paused;
        print_line(&format!(
            "{}, {}: {held} held, {} unheld, {} paused",
            count_of(self.instances.len(), "instance"),
            count_of(total, "session"),
            self.unheld.len(),
            self.paused
        ))?;
        if !self.instances.is_empty() {
            print_line("")?;
        }
        let mut table = TextTable::new(&["INSTANCE", "STATUS", "WEIGHT", "HELD", "STARTED"]);
        for instance in &self.instances {
            table.row(instance.cells());
        }
        table.print()?;
        for note in self.instances.iter().flat_map(InstanceSummary::notes) {
            print_line(&note)?;
        }
        let mut sessions = TextTable::new(&["SESSION", "HOLDER", "TARGET"]);
        for instance in &self.instances {
            for HeldSession { session, is_revoked } in &instance.sessions {
                let revoked = if *is_revoked { " (revoked)" } else { "" };
                let holder = format!("{}{revoked}", short_id(&instance.id));
                sessions.row([session.id.to_string(), holder, describe_target(session)]);
            }
        }
        for session in &self.unheld {
            sessions.row([session.id.to_string(), "UNHELD".to_owned(), describe_target(session)]);
        }
        if total > self.paused {
            print_line("")?;
        }
        sessions.print()?;
        if !self.unheld.is_empty() {
            let why = match (&self.quarantine, self.instances.iter().any(|instance| instance.status == "online")) {
                (Some(_), _) => "the store grants no lease during the quarantine",
                (None, false) => "no instance takes sessions; start one with `tenure serve`",
                (None, true) => "an instance acquires them within moments, or logs why not",
            };
            print_line(&format!("unheld: {why}"))?;
        }
        for (key, error) in &self.unreadable {
            print_line(&format!("unreadable {key}: {error}"))?;
        }
        if !self.roles.is_empty() {
            print_line("")?;
        }
        role::print_table(&self.roles).map(drop)
    }
}

fn summarize(member: LiveInstance, held: &mut BTreeMap<InstanceId, Vec<HeldSession>>) -> InstanceSummary {
    let record = InstanceRecord::decode(&member.record);
    let age = record.as_ref().map(|record| record.heartbeat_ttl.saturating_sub(member.remaining));
    InstanceSummary {
        status: record.as_ref().map_or("foreign", |record| record.status.as_str()),
        heartbeat_age: age,
        sessions: held.remove(&member.instance).unwrap_or_default(),
        id: member.instance,
        record,
        waiting_note: None,
    }
}

impl InstanceSummary {
    /// Age of the heartbeat, if it is overdue.
    fn heartbeat_delay(&self) -> Option<Duration> {
        let every = self.record.as_ref()?.heartbeat_every;
        self.heartbeat_age.filter(|age| *age > every + every / 5)
    }

    /// Pool targets that are not sessions, of programs that use the library.
    fn pools(&self) -> BTreeMap<&str, usize> {
        let held = self.record.iter().flat_map(|record| &record.held);
        held.filter(|(pool, _)| *pool != POOL).map(|(pool, count)| (pool.as_str(), *count)).collect()
    }

    fn cells(&self) -> [String; 5] {
        let status = if self.heartbeat_delay().is_some() { "late" } else { self.status };
        let weight = self.record.as_ref().map_or_else(
            || "-".to_owned(),
            |record| (f64::from(record.weight_in(POOL)) / f64::from(tenure::placement::FULL_WEIGHT)).to_string(),
        );
        let held = self.sessions.len() + self.pools().values().sum::<usize>();
        let started = self.record.as_ref().and_then(|record| SystemTime::now().duration_since(record.started_at).ok());
        let started = started.map_or_else(|| "-".to_owned(), |age| format!("{} ago", format_age(age)));
        [self.id.to_string(), status.to_owned(), weight, held.to_string(), started]
    }

    /// Notes for the operator below the table.
    fn notes(&self) -> Vec<String> {
        let id = short_id(&self.id);
        let late = self.heartbeat_delay().map(|age| format!("  {id}: its last heartbeat is {} old", format_age(age)));
        let pools = self
            .pools()
            .into_iter()
            .map(|(pool, count)| format!("  {id}: {} of pool {pool}", count_of(count, "target")));
        let waiting_note = self.waiting_note.iter().map(|why| format!("  {id}: {why}"));
        late.into_iter().chain(waiting_note).chain(pools).collect()
    }

    fn to_json(&self) -> Value {
        json!({
            "instanceId": self.id.as_str(),
            "status": self.status,
            "sessions": self.sessions.iter().map(|held| held.session.id.to_string()).collect::<Vec<_>>(),
            "revoked": self.sessions.iter().filter(|held| held.is_revoked).map(|held| held.session.id.to_string()).collect::<Vec<_>>(),
            "pools": self.pools(),
            "heartbeatAgeMs": self.heartbeat_age.map(|age| age.as_millis() as u64),
            "isLate": self.heartbeat_delay().is_some(),
            "note": self.waiting_note,
        })
    }
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
