//! Ticks that keep their phase, whichever instance holds the target.
//!
//! The mark of the last tick is a record beside the lease, in the store's time. The holder claims a tick before it
//! works on it, and hands a target over only between ticks. So a move from one instance to another neither skips a tick
//! nor repeats one. A tick that was claimed but not begun, because the lease became uncertain or had to be released, is
//! kept for this holder or the next. A tick whose holder died in the middle of it is not repeated.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::{last_tick, next_due, phase};
use crate::event::EventKind;
use crate::lease::LeaseState;
use crate::store::{DocumentRequest, ErrorKind, LogRequest, Outcome, Reply, StoreError};
use crate::tenure::{PublishError, TermHandle, call_store};
use crate::time::ServerTime;
use crate::token::Nonce;
use tenure_core::pool::Mark;

/// The record beside the lease.
const DUE_RECORD: &str = "due";

/// The longest uninterrupted sleep: clocks may be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// How long a tick that was put back waits at least.
const PUT_BACK_DELAY: Duration = Duration::from_millis(50);

impl TermHandle {
    /// Ticks at this interval, at least a millisecond. Each target has its own phase, so that targets do not tick
    /// together. The phase stays the same whichever instance holds the target.
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
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("thermometer").acquire().await?;
/// let mut ticks = lease.every(Duration::from_millis(20));
/// while let Some(tick) = ticks.next().await { // None: the lease is to be released, or is over
///     println!("measuring, due at {:?}", tick.due());
///     # break;
/// }
/// ticks.end().await; // gives back a tick that was claimed ahead
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Ticks {
    term: TermHandle,
    interval: Duration,
    /// The last tick that was returned, here or by the previous holder. `None` until it is read.
    last: Option<ServerTime>,
    /// The tick before that.
    before: Option<ServerTime>,
    /// Whether the store may have a claim of a later tick.
    claimed: bool,
    /// Whether the last tick was put back.
    deferred: bool,
    /// A request in flight whose reply was not read yet.
    pending: Option<PendingAppend>,
    /// Whether a failure to write was reported.
    has_reported: bool,
}

/// An append whose reply is not awaited yet.
#[derive(Debug)]
struct PendingAppend {
    /// The tick that it claims ahead.
    claimed_due: Option<ServerTime>,
    reply: oneshot::Receiver<Outcome>,
}

/// The outcome of a claim ahead.
enum ClaimOutcome {
    /// Unknown: nothing to rely on.
    Unknown,
    /// The tick is claimed.
    Claimed(ServerTime),
    /// The term is over.
    Refused,
}

/// One tick.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("thermometer").acquire().await?;
/// let tick = lease.every(Duration::from_millis(20)).next().await.ok_or("the term is over")?;
/// let lateness = SystemTime::now().duration_since(tick.due()).unwrap_or_default();
/// println!("due at {} ms, {lateness:?} late", tick.due_millis());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick(ServerTime);

impl Tick {
    /// When it was due, by the store's clock.
    pub fn due(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0.as_micros())
    }

    /// The due time in milliseconds since 1970.
    pub fn due_millis(&self) -> u64 {
        self.0.as_micros() / 1_000
    }
}

impl Ticks {
    /// Waits until the next tick is due, and claims it. Returns `None` when the lease is draining, over or about to be:
    /// then end the work. One tick, at once, makes up for all missed ones.
    ///
    /// # Cancel safety
    /// Safe: a tick claimed by a dropped call is returned by the next call, or [given back](Self::end).
    pub async fn next(&mut self) -> Option<Tick> {
        let phase = phase(self.term.name().label(), self.interval);
        if self.last.is_none() {
            let (mark, now) = (self.read().await?, self.term.server_time());
            // Without a mark, the first tick is the next slot.
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
            // A tick that was put back is not due before work may begin. By then a later tick may make up for it.
            if std::mem::take(&mut self.deferred) {
                // Not at once: work may put a tick back for a reason of its own, again and again.
                tokio::select! {
                    () = tokio::time::sleep(PUT_BACK_DELAY) => self.term.wait_until_certain().await,
                    () = self.term.draining() => {}
                }
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
            // No work begins while the lease is uncertain, even if the tick was claimed before.
            if self.term.state() == LeaseState::Uncertain {
                self.term.wait_until_certain().await;
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

    /// Puts back a tick, the last one returned, whose work was not begun because the lease is uncertain or draining. It
    /// is returned again: here, when the lease is certain, or by the next holder.
    pub fn put_back(&mut self, tick: Tick) {
        if self.last == Some(tick.0)
            && let Some(before) = self.before.take()
        {
            (self.last, self.claimed, self.deferred) = (Some(before), true, true);
        }
    }

    /// Appends an entry to a log beside the lease, like [`TermHandle::append`], without waiting: the next tick waits
    /// for it. The same request claims the next tick, if both that and the one after it are due before another instance
    /// could acquire the lease. A refused entry is reported as `publish.refused`.
    ///
    /// End the work when [`next`](Self::next) returns `None`, or [`end`](Self::end) the ticks first: that gives back a
    /// tick claimed ahead.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::Tenure;
    ///
    /// # #[cfg(feature = "memory")]
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

    /// Like [`append`](Self::append), and [publishes](TermHandle::publish) these records in the same step.
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
            // If we die before it is due, no other instance could have run it either; and the next holder makes up for
            // the tick after it.
            (left + self.interval <= self.term.remaining() && !self.term.is_draining()).then_some(due)
        });
        let (holding, log, value) = (self.term.holding(), log.to_owned(), value.into());
        let mark = self.last.zip(claimed_due).map(|(worked, due)| Mark { worked, ahead: Some(due) });
        records.extend(mark.map(|mark| (DUE_RECORD.to_owned(), mark.encode())));
        self.claimed |= mark.is_some();
        let reply = self.term.call_ahead(LogRequest::Append {
            holding,
            log,
            value,
            kept,
            nonce: Nonce::new(fastrand::u128(..)),
            records,
        });
        self.pending = Some(PendingAppend { claimed_due, reply });
    }

    /// Waits for the [appended](Self::append) entries, and gives back a tick claimed ahead, so that the next holder
    /// begins with it.
    ///
    /// # Cancel safety
    /// A tick claimed ahead may be skipped.
    pub async fn end(mut self) {
        self.return_claim().await;
    }

    /// Gives back a tick that was claimed but not returned. It may be unknown whether the claim reached the store.
    async fn return_claim(&mut self) {
        if matches!(self.resolve_pending().await, ClaimOutcome::Refused) || !std::mem::take(&mut self.claimed) {
            return;
        }
        let Some(last) = self.last else { return };
        loop {
            let (holding, value) = (self.term.holding(), Mark { worked: last, ahead: None }.encode());
            let record = DUE_RECORD.to_owned();
            let reply = self.term.call_ahead(DocumentRequest::Publish { holding, record, value, announced: false });
            self.term.0.keeper.flush_deferred_calls();
            match reply.await {
                Ok(Outcome::Failed(error) | Outcome::Unknown(error)) if error.is_retryable() => {}
                _ => return,
            }
            // If this fails until the lease has ended, a due tick is skipped.
            tokio::select! {
                () = tokio::time::sleep(self.term.0.settings.attempt_timeout()) => {}
                () = self.term.wait_until_over() => return,
            }
        }
    }

    /// Reads the outcome of the pending append.
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

    /// Reads the mark of the previous holder. Retries until it is known, or the lease is draining.
    async fn read(&mut self) -> Option<Option<Mark>> {
        let timeout = self.term.0.settings.attempt_timeout();
        loop {
            let read = DocumentRequest::ReadRecord { name: self.term.name().clone(), record: DUE_RECORD.to_owned() };
            match call_store(&self.term.0.keeper, read, timeout).await {
                Outcome::Answered(Reply::Record(found)) => {
                    return Some(found.and_then(|record| Mark::decode(&record.value)));
                }
                // A corrupted mark counts as none. The next mark overwrites it.
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

    /// Reports a store error, once, that keeps marks from being read or written.
    fn report_once(&mut self, error: &StoreError) {
        if error.kind() != ErrorKind::Unreachable && !std::mem::replace(&mut self.has_reported, true) {
            self.term.emit(EventKind::StoreRefused { error: error.to_string() });
        }
    }

    /// Writes the mark, under the token. While the store cannot be reached the tick waits, and no work begins. Returns
    /// whether the tick is claimed: `false` if the lease drains first, `None` when the term is over.
    async fn claim(&mut self, due: ServerTime) -> Option<bool> {
        loop {
            self.claimed = true;
            match self.term.publish_silently(DUE_RECORD, Mark { worked: due, ahead: None }.encode()).await {
                Ok(()) => return Some(true),
                Err(PublishError::Refused(_)) => return None,
                Err(PublishError::Store(error) | PublishError::Unknown(error)) => {
                    // No work begins meanwhile, so report why.
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
