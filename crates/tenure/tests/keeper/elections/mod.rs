//! Elections: the guarantees of the documents that they come from, on a real server.

mod candidates;
mod failures;
mod lifecycle;
mod listeners;
mod one_term;
mod work;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::election::ElectionBuilder;
use tenure::{Election, ElectionState, Event, EventKind, TermHandle};
use tenure_testbed::RedisServer;
use tokio::task::JoinHandle;

use crate::harness::{Instance, LONG_TTL, WorkLog, wait_until};

pub const ROLE: &str = "cleanup";

/// An election whose events are recorded, without those of its lease.
pub struct RecordedElection {
    pub election: Election,
    pub events: Arc<Mutex<Vec<Event>>>,
}

impl RecordedElection {
    pub fn of(election: ElectionBuilder) -> Self {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let heard = events.clone();
        let note = move |event: &Event| {
            if event.kind.name().starts_with("election.") {
                heard.lock().unwrap().push(event.clone());
            }
        };
        let election = election.on_event(note).build().unwrap();
        Self { election, events }
    }

    pub fn start(instance: &Instance, ttl: Duration) -> Self {
        let watched = Self::of(instance.tenure.election(ROLE).ttl(ttl));
        watched.election.start();
        watched
    }

    pub fn event_texts(&self) -> Vec<String> {
        let text = |event: &Event| match &event.kind {
            EventKind::StateChanged { from, to } => Some(format!("{} → {}", from.as_str(), to.as_str())),
            EventKind::LeadershipAcquired => Some("leadership acquired".to_owned()),
            EventKind::LeadershipLost { reason } => Some(format!("leadership lost ({})", reason.as_str())),
            EventKind::ElectionFailed { error } => Some(format!("election failed: {error}")),
            _ => None,
        };
        self.events.lock().unwrap().iter().filter_map(text).collect()
    }

    pub async fn wait_for_event(&self, what: &str) {
        wait_until(&format!("{what} among {:?}", self.event_texts()), || {
            self.event_texts().iter().any(|told| told == what)
        })
        .await;
    }

    pub async fn wait_for_leadership(&self) -> TermHandle {
        self.election.wait_for_leadership(Duration::from_secs(60)).await.unwrap()
    }

    /// Asserts that the events follow the state machine and that each term has its token.
    pub fn assert_event_order(&self) {
        let mut standing = ElectionState::Follower;
        let mut leads = None;
        for event in self.events.lock().unwrap().iter() {
            match &event.kind {
                EventKind::StateChanged { from, to } => {
                    assert_eq!(*from, standing, "{:#?}", self.event_texts());
                    standing = *to;
                }
                EventKind::LeadershipAcquired => {
                    assert_eq!((standing, leads), (ElectionState::Leader, None), "{:#?}", self.event_texts());
                    leads = event.token;
                    assert!(leads.is_some());
                }
                EventKind::LeadershipLost { .. } => {
                    assert!(standing != ElectionState::Leader && leads == event.token, "{:#?}", self.event_texts());
                    leads = None;
                }
                _ => {}
            }
        }
    }
}

/// Spawns a candidate that leads whenever it can and records its work.
pub fn spawn_leader(record: &WorkLog, instance: &Instance, ttl: Duration) -> JoinHandle<()> {
    let (record, tenure) = (record.clone(), instance.tenure.clone());
    tokio::spawn(async move {
        let who = tenure.instance().as_str().to_owned();
        let lead = tenure.election(ROLE).ttl(ttl).lead(|term| {
            let (record, who) = (record.clone(), who.clone());
            async move {
                record.work(&who, &term).await;
                Ok(())
            }
        });
        let _ = lead.until(std::future::pending::<()>()).await;
    })
}

/// Starts alice as the leader and bob as her follower.
pub async fn start_leader_and_follower(
    server: &RedisServer,
    ttl: Duration,
) -> ((Instance, RecordedElection), (Instance, RecordedElection)) {
    let (alice, bob) = Instance::pair(&server.url(), LONG_TTL).await;
    let first = RecordedElection::start(&alice, ttl);
    first.wait_for_leadership().await;
    let second = RecordedElection::start(&bob, ttl);
    second.wait_for_event("candidate → follower").await;
    ((alice, first), (bob, second))
}
