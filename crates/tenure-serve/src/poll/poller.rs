//! The worker of one session: polls at every due time while this instance holds the session, and publishes results with
//! the lease's token.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};
use tenure::lease::LeaseState;
use tenure::pool::Tick;
use tenure::{Tenure, TermHandle};

use super::ability_monitor::AbilityMonitor;
use super::backoff::PollBackoff;
use super::client::{PollClient, PollError, PollFault, TargetClient};
use super::result::{self, EncodedResult, PollInfo};
use crate::counters::Counters;
use crate::events::ServeEvent;
use crate::result_settings::ResultSettings;
use crate::session::Session;
use crate::session_cache::SessionCache;

/// Name of the result log beside the lease of a session.
pub const RESULTS_LOG: &str = "results";
/// Name of the record with the last result, if it is longer than the log entry.
pub const STATE_RECORD: &str = "state";

/// Timeout of reading a target's history; without it the backoff starts anew.
const HISTORY_READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Everything that polling needs.
#[derive(Clone, Debug)]
pub struct Poller {
    /// The sessions.
    pub session_cache: SessionCache,
    /// The HTTP client.
    pub client: PollClient,
    /// The counters.
    pub counters: Arc<Counters>,
    /// Watches whether this instance can poll at all.
    pub ability_monitor: AbilityMonitor,
    /// Stores the results.
    pub tenure: Tenure,
    /// Settings for results, unless a session overrides them.
    pub defaults: ResultSettings,
}

/// State of one target on this instance.
struct PollState {
    client: TargetClient,
    /// `None` until the history was read.
    backoff: Option<PollBackoff>,
}

/// Outcome of a tick.
enum TickOutcome {
    /// The target was polled.
    Polled(EncodedResult),
    /// The target was not polled: it is backed off, or this instance could not poll it.
    Skipped,
    /// The poll was not started, because the lease is uncertain.
    NotStarted,
}

impl Poller {
    /// Polls a session until it is handed over, paused or deleted.
    pub async fn work(&self, target: &str, lease: TermHandle) {
        let session_watch = self.session_cache.watch(target);
        let mut state = PollState { client: self.client.for_target(), backoff: None };
        // Each interval has its own ticks.
        loop {
            let Some(session) = self.active(target) else {
                // The lease is released in a moment, unless the session is resumed before.
                tokio::select! {
                    () = session_watch.changed() => continue,
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
                            // The next tick may be a day away.
                            () = session_watch.changed() => {
                                if self.active(target).is_none_or(|session| session.interval != interval) {
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
                // Read the session again: its URL may have changed.
                let Some(session) = self.active(target) else {
                    ticks.end().await;
                    break;
                };
                match self.poll_if_due(&session, &lease, tick, &mut state).await {
                    TickOutcome::Polled(encoded) => {
                        let whole = encoded.whole.map(|whole| (STATE_RECORD.to_owned(), whole.into_bytes()));
                        let keep_results = session.overrides.or(self.defaults).keep_results;
                        ticks.append_with(RESULTS_LOG, encoded.entry, keep_results, whole.into_iter().collect());
                    }
                    TickOutcome::Skipped => {}
                    TickOutcome::NotStarted => ticks.put_back(tick),
                }
                if session.interval != interval {
                    ticks.end().await;
                    break;
                }
            }
        }
    }

    /// Returns the session, if it is not paused.
    fn active(&self, target: &str) -> Option<Arc<Session>> {
        self.session_cache.session(target).filter(|session| !session.is_paused)
    }

    /// Polls the target, if a poll is due.
    async fn poll_if_due(
        &self,
        session: &Session,
        lease: &TermHandle,
        tick: Tick,
        state: &mut PollState,
    ) -> TickOutcome {
        let ResultSettings { max_body, backoff: setting, .. } = session.overrides.or(self.defaults);
        let max_pause = setting.max_pause();
        let backoff = match &mut state.backoff {
            Some(backoff) => backoff,
            none => none.insert(self.previous_backoff(session, lease, max_pause).await),
        };
        // While renewals fail, start nothing that may not finish.
        if lease.state() != LeaseState::Owned {
            return TickOutcome::NotStarted;
        }
        if !backoff.is_due(session.interval, max_pause) {
            return TickOutcome::Skipped;
        }
        lease.emit(ServeEvent::PollStarted);
        let poll =
            PollInfo { session: session.id, instance: lease.info().holder, token: lease.token(), due: tick.due() };
        let (polled_at, began) = (SystemTime::now(), std::time::Instant::now());
        let ours = tenure_headers(&poll, tick);
        let answer = state.client.fetch(&session.url, &session.headers, &ours, session.timeout, max_body).await;
        let took = began.elapsed();
        let answer = match answer {
            Ok(answer) => Ok(answer),
            // The failure says nothing about the target.
            Err(error) if matches!(error.fault, PollFault::Instance | PollFault::Saturated) => {
                if error.fault == PollFault::Instance {
                    self.ability_monitor.record_shortage(&error.message);
                } else {
                    self.ability_monitor.record_saturation(&error.message);
                }
                lease.emit(ServeEvent::PollFinished { error: Some(error.message) });
                return TickOutcome::Skipped;
            }
            Err(error) => Err(error),
        };
        let ok = answer.as_ref().is_ok_and(result::is_ok);
        match &answer {
            Err(PollError { fault: PollFault::Exhausts { has_shortage }, message }) => {
                backoff.record_exhausted(session.interval, max_pause);
                if *has_shortage {
                    self.ability_monitor.record_shortage(message);
                }
            }
            _ => {
                backoff.record(ok);
                self.ability_monitor.record_completed();
            }
        }
        self.counters.record_poll(ok, took);
        let answer = answer.map_err(|error| error.message);
        let encoded = result::encode(&poll, polled_at, took, &answer, backoff.failures());
        lease.emit(ServeEvent::PollFinished { error: answer.err() });
        TickOutcome::Polled(encoded)
    }

    /// Returns the backoff that the target had with its last holder, so that it continues.
    async fn previous_backoff(
        &self,
        session: &Session,
        lease: &TermHandle,
        max_pause: Option<Duration>,
    ) -> PollBackoff {
        let last =
            tokio::time::timeout(HISTORY_READ_TIMEOUT, self.tenure.recent(lease.name(), RESULTS_LOG, None, 1)).await;
        let last = last.ok().and_then(Result::ok).and_then(|mut results| results.pop());
        let Some((failures, at)) = last.and_then(|last| result::read_failures(&last.value)) else {
            return PollBackoff::default();
        };
        PollBackoff::resume(failures, at.elapsed().unwrap_or_default(), session.interval, max_pause)
    }
}

/// Headers of every poll, which tell the target the poller's identity and let it reject stale polls.
fn tenure_headers(poll: &PollInfo, tick: Tick) -> HeaderMap {
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
