//! The work on one session, for as long as this instance holds it: polls when it is due, and publishes what comes of it under the lease's token.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};
use tenure::lease::LeaseState;
use tenure::pool::{Target, Tick};
use tenure::{EventKind, Tenure, TermHandle};

use super::ability_monitor::AbilityMonitor;
use super::backoff::PollBackoff;
use super::client::{PollClient, PollError, PollFault, TargetClient};
use super::result::{self, EncodedResult, PollInfo};
use crate::counters::Counters;
use crate::result_settings::ResultSettings;
use crate::session::Session;
use crate::session_cache::SessionCache;

/// The log of results beside the lease of a session.
pub const RESULTS_LOG: &str = "results";
/// The record of its last result, where that is more than the log keeps of it.
pub const STATE_RECORD: &str = "state";

/// How long it may take to see how a target was doing before; otherwise it begins anew.
const HISTORY_READ_TIMEOUT: Duration = Duration::from_secs(1);

/// What polling works with.
#[derive(Clone, Debug)]
pub struct Poller {
    /// What is polled.
    pub session_cache: SessionCache,
    /// Who asks.
    pub client: PollClient,
    /// What is counted.
    pub counters: Arc<Counters>,
    /// Who watches whether polls can be made at all.
    pub ability_monitor: AbilityMonitor,
    /// Where results are kept.
    pub tenure: Tenure,
    /// What is kept of them, unless a session says something else.
    pub defaults: ResultSettings,
}

/// How one target is doing here.
struct PollState {
    client: TargetClient,
    /// `None` before it was seen how it was doing before.
    backoff: Option<PollBackoff>,
}

/// What became of a tick.
enum TickOutcome {
    /// There was a poll.
    Polled(EncodedResult),
    /// There was none: the target is backed off, or this instance could not poll it.
    Skipped,
    /// It was not begun, because the lease is not certain.
    NotStarted,
}

impl Poller {
    /// Polls a session until it is to be given away, paused, or deleted.
    pub async fn work(&self, target: Target, lease: TermHandle) {
        let session_watch = self.session_cache.watch(&target);
        let mut state = PollState { client: self.client.for_target(), backoff: None };
        // Another interval is another rhythm.
        loop {
            let Some(session) = self.active(&target) else {
                // It is let go of in a moment, unless it goes on before that.
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
                            // A tick may be a day away.
                            () = session_watch.changed() => {
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

    /// The session, if it is to be polled.
    fn active(&self, target: &str) -> Option<Arc<Session>> {
        self.session_cache.session(target).filter(|session| !session.is_paused)
    }

    /// Polls, if it is time for it.
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
        // While renewals fail nothing is begun that may not come to its end.
        if lease.state() != LeaseState::Owned {
            return TickOutcome::NotStarted;
        }
        if !backoff.is_due(session.interval, max_pause) {
            return TickOutcome::Skipped;
        }
        lease.emit(EventKind::PollStarted);
        let poll =
            PollInfo { session: session.id, instance: lease.info().holder, token: lease.token(), due: tick.due() };
        let (polled_at, began) = (SystemTime::now(), std::time::Instant::now());
        let ours = tenure_headers(&poll, tick);
        let answer = state.client.fetch(&session.url, &session.headers, &ours, session.timeout, max_body).await;
        let took = began.elapsed();
        let answer = match answer {
            Ok(answer) => Ok(answer),
            // Nothing is known of the target then.
            Err(error) if matches!(error.fault, PollFault::Instance | PollFault::Saturated) => {
                if error.fault == PollFault::Instance {
                    self.ability_monitor.record_shortage(&error.message);
                } else {
                    self.ability_monitor.record_saturation(&error.message);
                }
                lease.emit(EventKind::PollFinished { error: Some(error.message) });
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
        lease.emit(EventKind::PollFinished { error: answer.err() });
        TickOutcome::Polled(encoded)
    }

    /// How the target was doing with its last holder: a back-off goes on with the next one.
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

/// What every poll carries, so that the target can tell who is asking, and refuse a stale one.
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
