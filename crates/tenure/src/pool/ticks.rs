//! Ticks that keep their phase, whichever instance holds the target.
//!
//! The mark of the last tick is a record beside the lease, in the store's time. The holder claims a tick before it
//! works on it, and hands a target over only between ticks. So a move from one instance to another neither skips a tick
//! nor repeats one. A tick that was claimed but not begun, because the lease became uncertain or had to be released, is
//! kept for this holder or the next. A tick whose holder died in the middle of it is not repeated.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::pool::{Mark, TermView, Ticker, TickerStep, WriteOutcome};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::event::EventKind;
use crate::lease::LeaseState;
use crate::store::{DocumentRequest, ErrorKind, LogRequest, Outcome, Reply, StoreError};
use crate::tenure::{TermHandle, call_store};
use crate::time::ServerTime;
use crate::token::Nonce;

/// The record beside the lease.
const DUE_RECORD: &str = "due";

impl TermHandle {
    /// Ticks at this interval, at least a millisecond. Each target has its own phase, so that targets do not tick
    /// together. The phase stays the same whichever instance holds the target.
    pub fn every(&self, interval: Duration) -> Ticks {
        let ticker = Ticker::new(self.name().label(), interval, self.0.settings.attempt_timeout());
        Ticks { term: self.clone(), ticker, append: None, has_reported: false }
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
    /// What decides.
    ticker: Ticker,
    /// The append whose reply was not read yet.
    append: Option<oneshot::Receiver<Outcome>>,
    /// Whether an error of the store was reported.
    has_reported: bool,
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
        loop {
            match self.ticker.next(&self.view()) {
                TickerStep::Work(due) => return Some(Tick(due)),
                TickerStep::End => return None,
                TickerStep::ReadMark => self.read_mark().await,
                TickerStep::Write(mark) => self.write(mark).await,
                TickerStep::AwaitAppend => self.await_append().await,
                TickerStep::AwaitCertainty => self.term.wait_until_certain().await,
                TickerStep::Sleep(span) => self.sleep(span).await,
            }
        }
    }

    /// Puts back a tick, the last one returned, whose work was not begun because the lease is uncertain or draining. It
    /// is returned again: here, when the lease is certain, or by the next holder.
    pub fn put_back(&mut self, tick: Tick) {
        self.ticker.put_back(tick.0);
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
        let mark = self.ticker.begin_append(&self.view());
        records.extend(mark.map(|mark| (DUE_RECORD.to_owned(), mark.encode())));
        let (holding, log, value) = (self.term.holding(), log.to_owned(), value.into());
        let nonce = Nonce::new(fastrand::u128(..));
        self.append = Some(self.term.call_ahead(LogRequest::Append { holding, log, value, kept, nonce, records }));
    }

    /// Waits for the [appended](Self::append) entries, and gives back a tick claimed ahead, so that the next holder
    /// begins with it.
    ///
    /// # Cancel safety
    /// A tick claimed ahead may be skipped.
    pub async fn end(mut self) {
        self.ticker.end();
        // Returns no tick any more.
        let _ = self.next().await;
    }

    fn view(&self) -> TermView {
        let shared = &self.term.0;
        TermView {
            now: self.term.server_time(),
            remaining: self.term.remaining(),
            is_uncertain: self.term.state() == LeaseState::Uncertain,
            is_draining: self.term.is_draining(),
            must_stop: shared.must_stop(),
            is_over: shared.is_over() || shared.is_overdue() || shared.keeper.is_forked(),
        }
    }

    /// Sleeps until the term begins to drain. If it does already, until it is over: a tick is being given back.
    async fn sleep(&self, span: Duration) {
        let ends = async {
            if self.term.is_draining() { self.term.wait_until_over().await } else { self.term.draining().await }
        };
        tokio::select! {
            () = tokio::time::sleep(span) => {}
            () = ends => {}
        }
    }

    /// Reads the mark of the previous holder.
    async fn read_mark(&mut self) {
        let read = DocumentRequest::ReadRecord { name: self.term.name().clone(), record: DUE_RECORD.to_owned() };
        let mark = match call_store(&self.term.0.keeper, read, self.term.0.settings.attempt_timeout()).await {
            Outcome::Answered(Reply::Record(found)) => found.and_then(|record| Mark::decode(&record.value)),
            // A corrupted mark counts as none. The next mark overwrites it.
            Outcome::Failed(error) if error.kind() == ErrorKind::Corrupt => {
                self.report_once(&error);
                None
            }
            _ => return self.ticker.failed(),
        };
        self.ticker.mark_read(self.term.server_time(), mark);
    }

    /// Writes the mark, under the token.
    async fn write(&mut self, mark: Mark) {
        let (holding, record, value) = (self.term.holding(), DUE_RECORD.to_owned(), mark.encode());
        let publish = DocumentRequest::Publish { holding, record, value, announced: false };
        let outcome = call_store(&self.term.0.keeper, publish, self.term.0.settings.attempt_timeout()).await;
        let outcome = self.outcome(Some(outcome));
        self.ticker.written(outcome);
    }

    /// Reads the reply to the append.
    async fn await_append(&mut self) {
        let reply = match &mut self.append {
            Some(reply) => match reply.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.term.0.keeper.flush_deferred_calls();
                    reply.await.ok()
                }
                reply => reply.ok(),
            },
            None => None,
        };
        self.append = None;
        let outcome = self.outcome(reply);
        self.ticker.appended(outcome);
    }

    fn outcome(&mut self, outcome: Option<Outcome>) -> WriteOutcome {
        match outcome {
            Some(Outcome::Answered(Reply::Done)) => WriteOutcome::Done,
            Some(Outcome::Answered(Reply::Refused(_))) => WriteOutcome::Refused,
            Some(Outcome::Failed(error) | Outcome::Unknown(error)) => {
                // No work begins meanwhile, so report why.
                self.report_once(&error);
                if error.is_retryable() { WriteOutcome::Unknown } else { WriteOutcome::Failed }
            }
            Some(Outcome::Answered(_)) => WriteOutcome::Failed,
            None => WriteOutcome::Unknown,
        }
    }

    /// Reports a store error, once, that keeps marks from being read or written.
    fn report_once(&mut self, error: &StoreError) {
        if error.kind() != ErrorKind::Unreachable && !std::mem::replace(&mut self.has_reported, true) {
            self.term.emit(EventKind::StoreRefused { error: error.to_string() });
        }
    }
}
