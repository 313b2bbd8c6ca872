//! The work on one session, for as long as this instance holds it: polls when it is due, and publishes what comes of it under the lease's token.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};
use tenure::lease::LeaseState;
use tenure::pool::{Target, Tick};
use tenure::{Happening, Tenure, TermHandle};

use super::client::{Fault, PollClient, TargetClient, Trouble};
use super::pace::Pace;
use super::result::{self, Kept, Poll};
use super::supervisor::Supervisor;
use crate::catalogue::Catalogue;
use crate::counts::Counts;
use crate::keeping::Defaults;
use crate::session::Session;

/// The log of results beside the lease of a session.
pub const RESULTS: &str = "results";
/// The record of its last result, where that is more than the log keeps of it.
pub const STATE: &str = "state";

/// How long it may take to see how a target was doing before; otherwise it begins anew.
const READS_WITHIN: Duration = Duration::from_secs(1);

/// What polling works with.
#[derive(Clone, Debug)]
pub struct Poller {
    /// What is polled.
    pub catalogue: Catalogue,
    /// Who asks.
    pub client: PollClient,
    /// What is counted.
    pub counts: Arc<Counts>,
    /// Who watches whether polls can be made at all.
    pub supervisor: Supervisor,
    /// Where results are kept.
    pub tenure: Tenure,
    /// What is kept of them, unless a session says something else.
    pub defaults: Defaults,
}

/// How one target is doing here.
struct State {
    client: TargetClient,
    /// `None` before it was seen how it was doing before.
    pace: Option<Pace>,
}

/// What became of a tick.
enum Turn {
    /// There was a poll.
    Polled(Kept),
    /// There was none: the target is backed off, or this instance could not poll it.
    Passed,
    /// It was not begun, because the lease is not certain.
    NotBegun,
}

impl Poller {
    /// Polls a session until it is to be given away, paused, or deleted.
    pub async fn work(&self, target: Target, lease: TermHandle) {
        let attendance = self.catalogue.attend(&target);
        let mut state = State { client: self.client.for_target(), pace: None };
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
                match self.turn(&session, &lease, tick, &mut state).await {
                    Turn::Polled(kept) => {
                        let whole = kept.whole.map(|whole| (STATE.to_owned(), whole.into_bytes()));
                        let keep_results = session.keeping.or(self.defaults).keep_results;
                        ticks.append_with(RESULTS, kept.entry, keep_results, whole.into_iter().collect());
                    }
                    Turn::Passed => {}
                    Turn::NotBegun => ticks.put_back(tick),
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

    /// Polls, if it is time for it.
    async fn turn(&self, session: &Session, lease: &TermHandle, tick: Tick, state: &mut State) -> Turn {
        let Defaults { max_body, backoff, .. } = session.keeping.or(self.defaults);
        let longest = backoff.longest();
        let pace = match &mut state.pace {
            Some(pace) => pace,
            none => none.insert(self.pace_before(session, lease, longest).await),
        };
        // While renewals fail nothing is begun that may not come to its end.
        if lease.state() != LeaseState::Owned {
            return Turn::NotBegun;
        }
        if !pace.is_due(session.interval, longest) {
            return Turn::Passed;
        }
        lease.tell(Happening::PollStarted);
        let poll = Poll { session: session.id, instance: lease.info().holder, token: lease.token(), due: tick.due() };
        let (polled_at, began) = (SystemTime::now(), std::time::Instant::now());
        let ours = carried(&poll, tick);
        let answer = state.client.ask(&session.url, &session.headers, &ours, session.timeout, max_body).await;
        let took = began.elapsed();
        let answer = match answer {
            Ok(answer) => Ok(answer),
            // Nothing is known of the target then.
            Err(trouble) if matches!(trouble.fault, Fault::Ours | Fault::Crowded) => {
                if trouble.fault == Fault::Ours {
                    self.supervisor.poll_could_not_be_made(&trouble.words);
                } else {
                    self.supervisor.poll_found_no_place(&trouble.words);
                }
                lease.tell(Happening::PollFinished { error: Some(trouble.words) });
                return Turn::Passed;
            }
            Err(trouble) => Err(trouble),
        };
        let ok = answer.as_ref().is_ok_and(result::is_ok);
        match &answer {
            Err(Trouble { fault: Fault::Exhausts { is_short }, words }) => {
                pace.exhausts(session.interval, longest);
                if *is_short {
                    self.supervisor.poll_could_not_be_made(words);
                }
            }
            _ => {
                pace.went(ok);
                self.supervisor.poll_worked();
            }
        }
        self.counts.polled(ok, took);
        let answer = answer.map_err(|trouble| trouble.words);
        let kept = result::kept(&poll, polled_at, took, &answer, pace.failures());
        lease.tell(Happening::PollFinished { error: answer.err() });
        Turn::Polled(kept)
    }

    /// How the target was doing with its last holder: a back-off goes on with the next one.
    async fn pace_before(&self, session: &Session, lease: &TermHandle, longest: Option<Duration>) -> Pace {
        let last = tokio::time::timeout(READS_WITHIN, self.tenure.recent(lease.name(), RESULTS, None, 1)).await;
        let last = last.ok().and_then(Result::ok).and_then(|mut results| results.pop());
        let Some((failures, at)) = last.and_then(|last| result::failures(&last.value)) else { return Pace::default() };
        Pace::resume(failures, at.elapsed().unwrap_or_default(), session.interval, longest)
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
