//! Elections: everything that the documents they come from promise, on a real server.

mod candidates;
mod failures;
mod life;
mod listeners;
mod one_term;
mod work;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::election::{ElectionEvent, ElectionNews};
use tenure::{Election, Standing, TermHandle};
use tenure_testbed::RedisServer;
use tokio::task::JoinHandle;

use crate::stage::{Instance, LONG, Record, until};

pub const ROLE: &str = "cleanup";

/// An election whose events are written down.
pub struct Watched {
    pub election: Election,
    pub events: Arc<Mutex<Vec<ElectionEvent>>>,
}

impl Watched {
    pub fn of(election: Election) -> Self {
        let events: Arc<Mutex<Vec<ElectionEvent>>> = Arc::default();
        let heard = events.clone();
        election.on(move |event| heard.lock().unwrap().push(event.clone())).unwrap();
        Self { election, events }
    }

    pub fn start(instance: &Instance, ttl: Duration) -> Self {
        let watched = Self::of(instance.tenure.election(ROLE).ttl(ttl).build().unwrap());
        watched.election.start();
        watched
    }

    pub fn told(&self) -> Vec<String> {
        self.events.lock().unwrap().iter().map(|event| event.news.to_string()).collect()
    }

    pub async fn hears(&self, what: &str) {
        until(&format!("{what} among {:?}", self.told()), || self.told().iter().any(|told| told == what)).await;
    }

    pub async fn leads(&self) -> TermHandle {
        self.election.wait_for_leadership(Duration::from_secs(60)).await.unwrap()
    }

    /// Every event in the order that the state machine has, every term with its token.
    pub fn check(&self) {
        let mut standing = Standing::Follower;
        let mut leads = None;
        for event in self.events.lock().unwrap().iter() {
            match &event.news {
                ElectionNews::StateChanged { from, to } => {
                    assert_eq!(*from, standing, "{:#?}", self.told());
                    standing = *to;
                }
                ElectionNews::LeadershipAcquired => {
                    assert_eq!((standing, leads), (Standing::Leader, None), "{:#?}", self.told());
                    leads = event.token;
                    assert!(leads.is_some());
                }
                ElectionNews::LeadershipLost { .. } => {
                    assert!(standing != Standing::Leader && leads == event.token, "{:#?}", self.told());
                    leads = None;
                }
                _ => {}
            }
        }
    }
}

/// Somebody who leads whenever it can, and whose work writes itself down.
pub fn leading(record: &Record, instance: &Instance, ttl: Duration) -> JoinHandle<()> {
    let (record, tenure) = (record.clone(), instance.tenure.clone());
    tokio::spawn(async move {
        let who = tenure.instance().as_str().to_owned();
        let lead = tenure.election(ROLE).ttl(ttl).lead(|term| {
            let (record, who) = (record.clone(), who.clone());
            async move {
                record.work(&who, &term).await;
                Ok::<(), std::io::Error>(())
            }
        });
        let _ = lead.until(std::future::pending::<()>()).await;
    })
}

/// Alice leads, and bob is her follower.
pub async fn a_leader_and_a_follower(
    server: &RedisServer,
    ttl: Duration,
) -> ((Instance, Watched), (Instance, Watched)) {
    let (alice, bob) = Instance::pair(&server.url(), LONG).await;
    let first = Watched::start(&alice, ttl);
    first.leads().await;
    let second = Watched::start(&bob, ttl);
    second.hears("candidate → follower").await;
    ((alice, first), (bob, second))
}
