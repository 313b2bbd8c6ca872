//! The state of the fleet, read from the store: instances, the sessions that each holds, and those that none holds. The
//! API and the program render this one report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tenure::fleet::{CrashBackoff, InstanceRecord};
use tenure::placement::FULL_WEIGHT;
use tenure::store::{Held, LiveInstance};
use tenure::{InstanceId, RequestError, Tenure};

use crate::keys::KeyPrefixes;
use crate::ownership;
use crate::service::POOL;
use crate::session::Session;
use crate::session_cache::SessionCache;
use crate::session_repo::documents;

/// The state of the fleet.
#[derive(Debug)]
pub struct FleetStatus {
    /// Live instances, and then those without a heartbeat whose leases have not expired yet.
    pub instances: Vec<InstanceStatus>,
    /// Active sessions without a holder.
    pub unheld: Vec<Arc<Session>>,
    /// Number of paused sessions without a holder.
    pub paused: usize,
    /// Keys that cannot be read, and why.
    pub unreadable: BTreeMap<String, String>,
}

/// An instance.
#[derive(Debug)]
pub struct InstanceStatus {
    /// Its id.
    pub id: InstanceId,
    /// Whether it has no heartbeat any more.
    pub is_gone: bool,
    /// What it says about itself; `None` when it is gone, or an instance of another program.
    pub record: Option<InstanceRecord>,
    /// Age of its heartbeat.
    pub heartbeat_age: Option<Duration>,
    /// The sessions that it holds, in the order of their ids.
    pub sessions: Vec<HeldSession>,
    /// Why it waits for its quota, if it does.
    pub note: Option<String>,
}

/// A session with a holder.
#[derive(Debug)]
pub struct HeldSession {
    /// The session.
    pub session: Arc<Session>,
    /// Its lease.
    pub held: Held,
    /// Whether its lease was revoked.
    pub is_revoked: bool,
}

impl FleetStatus {
    /// Reads the state of the fleet. The sessions must have been read into the cache.
    ///
    /// # Errors
    /// When a request to the store fails.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read(tenure: &Tenure, keys: &KeyPrefixes, sessions: &SessionCache) -> Result<Self, RequestError> {
        let key = |id: &String| documents(tenure).key(id);
        let unreadable = sessions.unreadable().into_iter().map(|(id, error)| (key(&id), error));
        let mut status =
            Self { instances: Vec::new(), unheld: Vec::new(), paused: 0, unreadable: unreadable.collect() };
        let ids: Vec<String> = sessions.page(None, usize::MAX).iter().map(|session| session.id.to_string()).collect();
        let mut held = BTreeMap::<InstanceId, Vec<HeldSession>>::new();
        for (id, inspection) in ownership::session_leases(tenure, keys, &ids).await? {
            let report = match inspection {
                Ok(report) => report,
                Err((key, error)) => {
                    status.unreadable.insert(key, error.to_string());
                    continue;
                }
            };
            let Some(session) = sessions.session(&id) else { continue };
            let is_revoked = report.is_revoked();
            match report.held {
                Some(lease) => {
                    let holder = lease.holder.clone();
                    held.entry(holder).or_default().push(HeldSession { session, held: lease, is_revoked });
                }
                // A paused session is unheld on purpose.
                None if session.is_paused => status.paused += 1,
                None => status.unheld.push(session),
            }
        }
        let live = tenure.fleet().instances().await?;
        status.instances = live.into_iter().map(|member| InstanceStatus::live(member, &mut held)).collect();
        let records = status.instances.iter().filter_map(|instance| instance.record.as_ref());
        let waiting = CrashBackoff::from_records(records);
        for instance in &mut status.instances {
            instance.note = waiting.get(&instance.id).and_then(|backoff| backoff.note(SystemTime::now()));
        }
        status.instances.extend(held.into_iter().map(|(id, sessions)| InstanceStatus::gone(id, sessions)));
        Ok(status)
    }
}

impl InstanceStatus {
    fn live(member: LiveInstance, held: &mut BTreeMap<InstanceId, Vec<HeldSession>>) -> Self {
        let record = InstanceRecord::decode(&member.record);
        let heartbeat_age = record.as_ref().map(|record| record.heartbeat_ttl.saturating_sub(member.remaining));
        let sessions = held.remove(&member.instance).unwrap_or_default();
        Self { id: member.instance, is_gone: false, record, heartbeat_age, sessions, note: None }
    }

    fn gone(id: InstanceId, sessions: Vec<HeldSession>) -> Self {
        Self { id, is_gone: true, record: None, heartbeat_age: None, sessions, note: None }
    }

    /// Age of the heartbeat, if it is overdue.
    pub fn heartbeat_delay(&self) -> Option<Duration> {
        let every = self.record.as_ref()?.heartbeat_every;
        self.heartbeat_age.filter(|age| *age > every + every / 5)
    }

    /// Its weight in the pool of sessions: 1 is the usual one.
    pub fn weight(&self) -> Option<f64> {
        let record = self.record.as_ref()?;
        Some(f64::from(record.weight_in(POOL)) / f64::from(FULL_WEIGHT))
    }

    /// Numbers of targets in pools of other programs that use the library.
    pub fn other_pools(&self) -> BTreeMap<&str, usize> {
        let held = self.record.iter().flat_map(|record| &record.held);
        held.filter(|(pool, _)| *pool != POOL).map(|(pool, count)| (pool.as_str(), *count)).collect()
    }
}
