//! Ticks that keep their phase, whoever holds the target.
//!
//! The mark of the last tick stands beside the lease, in the store's time. A tick is claimed before it is given out, and a target is given
//! away only between ticks; so a move from one instance to another neither skips a tick nor repeats one. A tick that was claimed and not
//! begun, because the lease became uncertain or had to be let go of, is kept for this holder or the next. One whose holder died in the
//! middle of it is not repeated.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::due::{last_tick, next_due, phase};
use super::mark::Mark;
use crate::event::EventKind;
use crate::store::{ErrorKind, Outcome, Reply, Request, StoreError};
use crate::tenure::{PublishError, TermHandle, call_store};
use crate::time::ServerTime;

/// The record beside the lease.
const DUE_RECORD: &str = "due";

/// How long is slept at a stretch: clocks may be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(60);

impl TermHandle {
    /// Ticks at this interval, at least a millisecond. The phase is the target's own, so that targets do not fire together, and stays
    /// the same whoever holds it.
    pub fn every(&self, interval: Duration) -> Ticks {
        Ticks {
            term: self.clone(),
            interval: interval.max(Duration::from_millis(1)),
            last: None,
            before: None,
            claimed: false,
            deferred: false,
            pending: None,
            has_reported: false,
        }
    }
}

/// Ticks of a target.
#[derive(Debug)]
pub struct Ticks {
    term: TermHandle,
    interval: Duration,
    /// The last tick that was given out, by us or by whoever held the target before. `None` before that was read.
    last: Option<ServerTime>,
    /// The one before it.
    before: Option<ServerTime>,
    /// Whether a later one may be on record as claimed.
    claimed: bool,
    /// Whether the last that was given out was put back.
    deferred: bool,
    /// What was sent and not looked at since.
    pending: Option<PendingAppend>,
    /// Whether was said that nothing can be written.
    has_reported: bool,
}

/// A request that is answered while nobody waits.
#[derive(Debug)]
struct PendingAppend {
    /// The tick that it claims.
    claimed_due: Option<ServerTime>,
    reply: oneshot::Receiver<Outcome>,
}

/// What has come of it.
enum ClaimOutcome {
    /// Nothing that could be relied on.
    Unknown,
    /// A tick is ours.
    Claimed(ServerTime),
    /// The term is over.
    Refused,
}

/// One tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick(ServerTime);

impl Tick {
    /// When it was due, by the store's clock.
    pub fn due(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0.as_micros())
    }

    /// The same in milliseconds since 1970.
    pub fn due_millis(&self) -> u64 {
        self.0.as_micros() / 1_000
    }
}

impl Ticks {
    /// Waits until the next tick is due, and claims it. `None` when the lease is to be let go of, is over or is about to be: end
    /// the work then. Ticks that were missed are made up for by one, at once.
    ///
    /// # Cancel safety
    /// Safe: a tick that was claimed just then is given out by the next call, or [given back](Self::end).
    pub async fn next(&mut self) -> Option<Tick> {
        let phase = phase(self.term.name().label(), self.interval);
        if self.last.is_none() {
            let (mark, now) = (self.read().await?, self.term.server_time());
            // Where nobody has ever ticked, the first is the next.
            self.last = Some(mark.map_or(now, |mark| mark.last(now)));
        }
        loop {
            if self.term.is_draining() {
                self.return_claim().await;
                return None;
            }
            if self.term.0.must_stop() {
                return None;
            }
            // What was not begun is not due before it may begin. Then there may be a later tick that makes up for it, too.
            if std::mem::take(&mut self.deferred) {
                self.term.wait_until_certain().await;
                continue;
            }
            let now = self.term.server_time();
            let last = last_tick(now, self.last?, self.interval, phase);
            self.last = Some(last);
            let due = next_due(now, last, self.interval, phase);
            let left = Duration::from_micros(due.as_micros().saturating_sub(now.as_micros()));
            if !left.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(left.min(MAX_SLEEP)) => {}
                    () = self.term.draining() => {}
                }
                continue;
            }
            let is_ours = match self.resolve_pending().await {
                ClaimOutcome::Claimed(ahead) if ahead == due => true,
                ClaimOutcome::Claimed(_) | ClaimOutcome::Unknown => self.claim(due).await?,
                ClaimOutcome::Refused => return None,
            };
            if !is_ours {
                continue;
            }
            (self.before, self.last, self.claimed) = (self.last, Some(due), false);
            return Some(Tick(due));
        }
    }

    /// The work on this tick, the last that was given out, was not begun, because the lease is uncertain or to be let go of. It is given
    /// out again: here, when the lease is certain, or by the next holder.
    pub fn put_back(&mut self, tick: Tick) {
        if self.last == Some(tick.0)
            && let Some(before) = self.before.take()
        {
            (self.last, self.claimed, self.deferred) = (Some(before), true, true);
        }
    }

    /// Adds an entry to a log beside the lease, as [`TermHandle::append`] does, and does not wait for it: the next tick does. If that and
    /// the one after it are due before the lease could be anybody else's, it is claimed by the same request. An entry that is refused is told as `publish.refused`.
    ///
    /// End the work when [`next`](Self::next) says so, or [`end`](Self::end) the ticks first: what was claimed ahead is given back then.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::Tenure;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let lease = tenure.lease("thermometer").acquire().await?;
    /// let mut ticks = lease.every(Duration::from_millis(20));
    /// for degrees in ["20", "21"] {
    ///     ticks.next().await;
    ///     ticks.append("degrees", degrees, 10);
    /// }
    /// ticks.end().await;
    /// assert_eq!(tenure.recent(lease.name(), "degrees", None, 10).await?.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn append(&mut self, log: &str, value: impl Into<Vec<u8>>, kept: usize) {
        self.append_with(log, value, kept, Vec::new());
    }

    /// The same, and [publishes](TermHandle::publish) these records in the same step.
    pub fn append_with(
        &mut self,
        log: &str,
        value: impl Into<Vec<u8>>,
        kept: usize,
        mut records: Vec<(String, Vec<u8>)>,
    ) {
        let claimed_due = self.last.and_then(|last| {
            let now = self.term.server_time();
            let due = next_due(now, last, self.interval, phase(self.term.name().label(), self.interval));
            let left = Duration::from_micros(due.as_micros().saturating_sub(now.as_micros()));
            // Should we die before it is due, nobody else could have had it either; and whoever comes then makes up for the one after it.
            (left + self.interval <= self.term.remaining() && !self.term.is_draining()).then_some(due)
        });
        let (holding, log, value) = (self.term.holding(), log.to_owned(), value.into());
        let mark = self.last.zip(claimed_due).map(|(worked, due)| Mark { worked, ahead: Some(due) });
        records.extend(mark.map(|mark| (DUE_RECORD.to_owned(), mark.encode())));
        self.claimed |= mark.is_some();
        let reply = self.term.call_ahead(Request::Append { holding, log, value, kept, records });
        self.pending = Some(PendingAppend { claimed_due, reply });
    }

    /// Waits for what was [appended](Self::append), and gives back what was claimed ahead, so that whoever ticks next begins there.
    ///
    /// # Cancel safety
    /// A tick that was claimed ahead may be left out.
    pub async fn end(mut self) {
        self.return_claim().await;
    }

    /// Takes back what was claimed and not given out. Whether a claim has arrived may be unknown.
    async fn return_claim(&mut self) {
        if matches!(self.resolve_pending().await, ClaimOutcome::Refused) || !std::mem::take(&mut self.claimed) {
            return;
        }
        let Some(last) = self.last else { return };
        loop {
            let (holding, value) = (self.term.holding(), Mark { worked: last, ahead: None }.encode());
            let record = DUE_RECORD.to_owned();
            let reply = self.term.call_ahead(Request::Publish { holding, record, value, announced: false });
            self.term.0.keeper.flush_deferred_calls();
            match reply.await {
                Ok(Outcome::Failed(error) | Outcome::Unknown(error)) if error.is_retryable() => {}
                _ => return,
            }
            // If that cannot be done while the lease lasts, a tick that was due is left out.
            tokio::select! {
                () = tokio::time::sleep(self.term.0.settings.attempt_timeout()) => {}
                () = self.term.ended() => return,
            }
        }
    }

    /// What has come of what was sent ahead.
    async fn resolve_pending(&mut self) -> ClaimOutcome {
        let Some(PendingAppend { claimed_due, mut reply }) = self.pending.take() else { return ClaimOutcome::Unknown };
        let reply = match reply.try_recv() {
            Err(TryRecvError::Empty) => {
                self.term.0.keeper.flush_deferred_calls();
                reply.await.ok()
            }
            reply => reply.ok(),
        };
        match (reply, claimed_due) {
            (Some(Outcome::Answered(Reply::Done)), Some(due)) => ClaimOutcome::Claimed(due),
            (Some(Outcome::Answered(Reply::Refused(_))), _) => {
                self.claimed = false;
                ClaimOutcome::Refused
            }
            (Some(Outcome::Failed(error) | Outcome::Unknown(error)), _) => {
                self.report_once(&error);
                ClaimOutcome::Unknown
            }
            _ => ClaimOutcome::Unknown,
        }
    }

    /// The mark that whoever held the target before has left. Asked until it is known, or nothing more should be begun.
    async fn read(&mut self) -> Option<Option<Mark>> {
        let timeout = self.term.0.settings.attempt_timeout();
        loop {
            let read = Request::Read { name: self.term.name().clone(), record: DUE_RECORD.to_owned() };
            match call_store(&self.term.0.keeper, read, timeout).await {
                Outcome::Answered(Reply::Record(found)) => {
                    return Some(found.and_then(|record| Mark::decode(&record.value)));
                }
                // One that somebody has spoilt is none. The next is written over it.
                Outcome::Failed(error) if error.kind() == ErrorKind::Corrupt => {
                    self.report_once(&error);
                    return Some(None);
                }
                _ => {}
            }
            tokio::select! {
                () = tokio::time::sleep(timeout) => {}
                () = self.term.draining() => return None,
            }
        }
    }

    /// Says, once, that what has to be written cannot be.
    fn report_once(&mut self, error: &StoreError) {
        if error.kind() != ErrorKind::Unreachable && !std::mem::replace(&mut self.has_reported, true) {
            self.term.emit(EventKind::StoreRefused { error: error.to_string() });
        }
    }

    /// Writes the mark, under the token. While the store cannot be asked the tick waits, and nothing is begun. Returns whether it is ours: not
    /// if the lease is to be let go of first. `None` when the term is over.
    async fn claim(&mut self, due: ServerTime) -> Option<bool> {
        loop {
            self.claimed = true;
            match self.term.publish_silently(DUE_RECORD, Mark { worked: due, ahead: None }.encode()).await {
                Ok(()) => return Some(true),
                Err(PublishError::Refused(_)) => return None,
                Err(PublishError::Store(error)) => {
                    // Nothing is begun meanwhile, and somebody should know why.
                    self.report_once(&error);
                    tokio::select! {
                        () = tokio::time::sleep(self.term.0.settings.attempt_timeout()) => {}
                        () = self.term.draining() => return Some(false),
                    }
                }
            }
        }
    }
}
