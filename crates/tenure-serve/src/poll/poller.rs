//! The work on one session, for as long as this instance holds it: polls when it is due, and publishes what comes of it under the lease's token.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};
use tenure::lease::LeaseState;
use tenure::pool::{Target, Tick};
use tenure::{Happening, TermHandle};

use super::client::PollClient;
use super::pace::{Pace, Poll as Turn};
use super::result::{self, Poll};
use crate::catalogue::Catalogue;
use crate::counts::Counts;
use crate::session::Session;

/// The log of results beside the lease of a session, and how many are kept.
pub const RESULTS: &str = "results";
/// How many results are kept.
pub const KEPT: usize = 20;

/// What polling works with.
#[derive(Clone, Debug)]
pub struct Poller {
    /// What is polled.
    pub catalogue: Catalogue,
    /// Who asks.
    pub client: PollClient,
    /// What is counted.
    pub counts: Arc<Counts>,
}

impl Poller {
    /// Polls a session until it is to be given away, paused, or deleted.
    pub async fn work(&self, target: Target, lease: TermHandle) {
        let (mut pace, attendance) = (Pace::default(), self.catalogue.attend(&target));
        // Another interval is another rhythm.
        loop {
            let Some(session) = self.active(&target) else {
                // It is let go of in a moment, unless it goes on before that.
                tokio::select! {
                    () = attendance.changed() => continue,
                    _ = lease.wait(Duration::MAX) => return,
                }
            };
            let interval = session.interval;
            let mut ticks = lease.every(interval);
            loop {
                let tick = {
                    let mut next = pin!(ticks.next());
                    loop {
                        tokio::select! {
                            tick = &mut next => break Some(tick),
                            // A tick may be a day away.
                            () = attendance.changed() => {
                                if self.active(&target).is_none_or(|session| session.interval != interval) {
                                    break None;
                                }
                            }
                        }
                    }
                };
                let tick = match tick {
                    Some(Some(tick)) => tick,
                    Some(None) => return,
                    None => {
                        ticks.end().await;
                        break;
                    }
                };
                // As it is now: it may have another address.
                let Some(session) = self.active(&target) else {
                    ticks.end().await;
                    break;
                };
                if let Some(result) = self.turn(&session, &lease, tick, &mut pace).await {
                    ticks.append(RESULTS, result, KEPT);
                }
                if session.interval != interval {
                    ticks.end().await;
                    break;
                }
            }
        }
    }

    /// The session, if it is to be polled.
    fn active(&self, target: &str) -> Option<Arc<Session>> {
        self.catalogue.session(target).filter(|session| !session.is_paused)
    }

    /// What came of a poll, if it was time for one.
    async fn turn(&self, session: &Session, lease: &TermHandle, tick: Tick, pace: &mut Pace) -> Option<String> {
        let light = match pace.next(session.interval) {
            Turn::Skip => return None,
            turn => turn == Turn::Light,
        };
        // While renewals fail nothing is begun that may not come to its end.
        let doubtful = lease.state() != LeaseState::Owned && lease.require(session.timeout).is_err();
        if doubtful || !lease.is_valid() {
            return None;
        }
        lease.tell(Happening::PollStarted);
        let poll = Poll { session: session.id, instance: lease.info().holder, token: lease.token(), due: tick.due() };
        let (polled_at, began) = (SystemTime::now(), std::time::Instant::now());
        let ours = carried(&poll, tick);
        let answer = self.client.ask(&session.url, &session.headers, &ours, session.timeout, light).await;
        let took = began.elapsed();
        let answer = match answer {
            Ok(answer) => Ok(answer),
            // Nothing is known of the target then.
            Err(trouble) if trouble.is_ours => {
                lease.tell(Happening::PollFinished { error: Some(trouble.words) });
                return None;
            }
            Err(trouble) => Err(trouble.words),
        };
        let document = result::document(&poll, polled_at, took, &answer);
        let ok = document.get("ok").and_then(serde_json::Value::as_bool).unwrap_or(false);
        pace.went(ok);
        self.counts.polled(ok, took);
        lease.tell(Happening::PollFinished { error: answer.err() });
        Some(document.to_string())
    }
}

/// What every poll carries, so that the target can tell who is asking, and refuse a stale one.
fn carried(poll: &Poll, tick: Tick) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("tenure-target", poll.session.to_string()),
        ("tenure-instance", poll.instance.to_string()),
        ("tenure-token", poll.token.to_string()),
        ("tenure-due", tick.due_millis().to_string()),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    headers
}
