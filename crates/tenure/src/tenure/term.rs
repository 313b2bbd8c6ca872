//! A term: the right to work, and how it ends in time.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use thiserror::Error;
use tokio::sync::oneshot;

use super::call_store;
use crate::event::{Event, EventKind};
use crate::keeper::{Command, PendingCall, SharedTerm, TermGuard, WorkStart};
use crate::lease::{Ending, Intent, LeaseState, Loss, ReleaseReason};
use crate::name::{InstanceId, LeaseName};
use crate::store::{DocumentRequest, ErrorKind, Holding, LogRequest, Outcome, Reply, Request, StoreError};
use crate::time::{LeaseClock, Moment, ServerTime, SystemClock};
use crate::token::{Nonce, Token};

/// A held lease, from grant to release. Dropping it stops its work and releases the lease in the background. At the end
/// of a program wait for that, with [`release`](Term::release) or [`Tenure::shutdown`](crate::Tenure::shutdown);
/// otherwise the lease stays held until its ttl ends. A lease cannot be acquired again inside its own work.
///
/// The methods of a term are on its [`TermHandle`], which can be cloned and shared. Only the term itself keeps the
/// lease.
///
/// ```
/// use tenure::Tenure;
/// use tenure::lease::{Ending, ReleaseReason};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// println!("importing under token {}", lease.token());
/// let handle = (*lease).clone();
/// drop(lease); // `release` waits for the store, and reports the outcome
/// assert_eq!(handle.cancelled().await, Ending::Released(ReleaseReason::Voluntary));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a term releases the lease"]
pub struct Term(TermGuard);

impl Term {
    pub(crate) fn new(granted: TermGuard) -> Self {
        Self(granted)
    }

    /// Stops the work, waits until it has ended, releases the lease, and waits for the store's confirmation. While the
    /// store cannot be reached, the keeper retries until the lease has expired.
    ///
    /// # Errors
    /// When the term was lost before its release, when its work still runs at its deadline, or when the store did not
    /// reply before the lease expired. In each case the term is over, and there is nothing to repeat.
    ///
    /// # Cancel safety
    /// Safe: it continues in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.release_with_reason(ReleaseReason::Voluntary).await
    }

    /// Lets running work finish, then releases the lease or hands it over. The caller must keep the term until it is
    /// over.
    pub(crate) fn drain(&self, intent: Intent) {
        let shared = &self.0.handle().0;
        shared.keeper.send(Command::Intent(shared.id(), intent));
    }

    /// Like [`release`](Self::release), for a given reason.
    pub(crate) async fn release_with_reason(mut self, reason: ReleaseReason) -> Result<(), ReleaseError> {
        let handle = (*self).clone();
        self.0.reason = reason;
        drop(self);
        handle.wait_until_over().await;
        handle.release_result()
    }
}

impl Deref for Term {
    type Target = TermHandle;

    fn deref(&self) -> &TermHandle {
        self.0.handle()
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// A term as seen by its work. Cheap to clone; it does not keep the lease.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// let term = (*lease).clone();
/// let task = tokio::spawn(async move {
///     while term.wait(Duration::from_millis(5)).await { // false as soon as the lease is released
///         println!("{:?} left without a renewal", term.remaining());
///     }
/// });
/// lease.release().await?;
/// task.await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TermHandle(pub(crate) Arc<SharedTerm>);

impl TermHandle {
    /// The token of this term. Pass it with every effect on other systems, and reject smaller tokens there.
    pub fn token(&self) -> Token {
        self.0.token()
    }

    /// The lease of this term.
    pub fn name(&self) -> &LeaseName {
        &self.0.name
    }

    /// The state of the lease, computed now.
    pub fn state(&self) -> LeaseState {
        self.0.state()
    }

    /// Whether the term may be relied on, computed now: there is no flag that could be out of date. Always `false` in a
    /// forked child.
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the term may be relied on without a renewal, computed now.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Checks that work of this length may begin: the lease is certain, and has this much time left without a renewal.
    ///
    /// # Errors
    /// When the lease is not certain, or has less time left.
    pub fn require(&self, span: Duration) -> Result<(), RequireError> {
        let (state, remaining) = (self.state(), self.remaining());
        if state == LeaseState::Owned && remaining >= span {
            return Ok(());
        }
        Err(RequireError { state, remaining, required: span })
    }

    /// A summary of the term, for people.
    pub fn info(&self) -> TermInfo {
        let (acquired, renewed) = self.0.times();
        let (now, wall) = (SystemClock.now(), SystemTime::now());
        let at = |moment: Moment| wall.checked_sub(now.since(moment)).unwrap_or(SystemTime::UNIX_EPOCH);
        TermInfo {
            name: self.0.name.clone(),
            holder: self.0.keeper.instance.clone(),
            token: self.token(),
            state: self.state(),
            acquired_at: at(acquired),
            last_renewed_at: at(renewed),
        }
    }

    /// Reports progress of the work. Needed only with [`stall_after`](super::LeaseBuilder::stall_after), or when a
    /// waiter uses `take_over_after`.
    pub fn progress(&self) {
        self.0.progress();
    }

    /// Waits until work must stop, and returns why: the term was lost, or is released or handed over.
    ///
    /// This alone does not delay the next grant: the keeper waits only for work that is *counted*. [Run](Self::run) the
    /// work under the lease, or [begin](Self::begin) it and stop within the stop budget when this returns.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn cancelled(&self) -> Ending {
        loop {
            let mut changed = pin!(self.0.changed());
            // Enabled before the check, so that no change is missed.
            changed.as_mut().enable();
            if let Some(ending) = self.ending() {
                return ending;
            }
            changed.await;
        }
    }

    /// Waits until the term is lost. It does not return when the term is released or handed over; to learn of every
    /// end, use [`cancelled`](Self::cancelled).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> Lost {
        match self.cancelled().await {
            Ending::Lost(reason) => self.lost_for(reason),
            Ending::Released(_) | Ending::GivenUp => std::future::pending().await,
        }
    }

    /// How the term has ended or is ending: lost or released, and why. `None` while work may go on.
    pub fn ending(&self) -> Option<Ending> {
        self.0.must_stop().then(|| self.0.presumed_cause())
    }

    /// Whether the lease will be released when the running work has ended. Then nothing more may begin.
    pub(crate) fn is_draining(&self) -> bool {
        self.0.is_draining()
    }

    /// Waits until no more work should begin: the lease is to be handed over or released as soon as the running work has
    /// ended, or work must stop. Work that waits for its end in a pool waits for this; otherwise a hand-over takes until
    /// the drain timeout.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn draining(&self) {
        loop {
            let mut changed = pin!(self.0.changed());
            // Enabled before the check, so that no change is missed.
            changed.as_mut().enable();
            if self.0.is_draining() || self.0.must_stop() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until work may begin again, or no more work should begin.
    pub(crate) async fn wait_until_certain(&self) {
        loop {
            let mut changed = pin!(self.0.changed());
            // Enabled before the check, so that no change is missed.
            changed.as_mut().enable();
            if self.0.state() == LeaseState::Owned || self.0.is_draining() || self.0.must_stop() {
                return;
            }
            changed.await;
        }
    }

    /// The store's time, as far as known here.
    pub(crate) fn server_time(&self) -> ServerTime {
        let offset = self.0.keeper.gauges.server_offset.load(std::sync::atomic::Ordering::Relaxed);
        crate::keeper::server_time(SystemClock.now(), offset)
    }

    /// Waits until work may begin: at once while the lease is certain, and after a short outage of the store when it is
    /// certain again.
    ///
    /// # Errors
    /// When the term ends first.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn begin(&self) -> Result<Work, RunError> {
        loop {
            let mut changed = pin!(self.0.changed());
            // Enabled before the check, so that no change is missed.
            changed.as_mut().enable();
            match self.0.start_work() {
                WorkStart::Started => return Ok(Work(self.clone())),
                WorkStart::Refused => return Err(self.interrupted()),
                WorkStart::Deferred => changed.await,
            }
        }
    }

    /// Runs fallible work under the lease. The work begins when the lease is certain. It is dropped a stop budget before
    /// another instance could acquire the lease, or at once when the lease is lost or released. The clock is checked at
    /// every poll.
    ///
    /// The lease is not released before the work has ended, so keep polling the future or drop it. Tasks and threads
    /// that the work has spawned do not stop with it: such work must [begin](Self::begin) and end by itself. Finished
    /// work says nothing about the lease, which may have been lost since.
    ///
    /// ```
    /// use tenure::{RunError, Tenure, Token};
    ///
    /// async fn import(token: Token) -> Result<u32, std::io::Error> {
    ///     Ok(17) // pass the token with every write
    /// }
    ///
    /// # #[cfg(feature = "memory")]
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let lease = tenure.lease("import").acquire().await?;
    /// match lease.run(import(lease.token())).await {
    ///     Ok(rows) => println!("{rows} rows"),
    ///     Err(RunError::Work(error)) => println!("the import failed: {error}"),
    ///     Err(RunError::Lost(lost)) => println!("stopped half-way: {lost}"),
    ///     Err(other) => println!("stopped half-way: {other}"), // the lease was released meanwhile
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the work fails, or the lease was lost or released before the work was done.
    ///
    /// # Cancel safety
    /// As safe as the work itself, which is dropped.
    pub async fn run<W, T, E>(&self, work: W) -> Result<T, RunError<E>>
    where
        W: Future<Output = Result<T, E>>,
    {
        match self.run_infallible(work).await {
            Ok(done) => done.map_err(RunError::Work),
            Err(RunError::Lost(lost)) => Err(RunError::Lost(lost)),
            Err(RunError::Released(reason)) => Err(RunError::Released(reason)),
            Err(RunError::Work(never)) => match never {},
        }
    }

    /// Like [`run`](Self::run), for work that cannot fail: returns its output, whatever that is.
    ///
    /// # Errors
    /// When the lease was lost or released before the work was done.
    ///
    /// # Cancel safety
    /// As safe as the work itself, which is dropped.
    pub async fn run_infallible<W: Future>(&self, work: W) -> Result<W::Output, RunError> {
        // Dropped after the work, so that the work has ended when it is no longer counted.
        let _counted = self.begin().await?;
        let mut work = pin!(work);
        let mut changed = pin!(self.0.changed());
        let outcome = poll_fn(|context| {
            loop {
                changed.as_mut().enable();
                if self.0.must_stop() {
                    return Poll::Ready(None);
                }
                match changed.as_mut().poll(context) {
                    Poll::Ready(()) => changed.set(self.0.changed()),
                    Poll::Pending => break,
                }
            }
            work.as_mut().poll(context).map(Some)
        })
        .await;
        outcome.ok_or_else(|| self.interrupted())
    }

    /// Waits this long, or until the term is over, about to be, or draining. Returns whether the work may continue: the
    /// condition of a loop. It is `true` while the lease is uncertain, too: a step that must not begin then goes through
    /// [`run`](Self::run) or [`begin`](Self::begin), which wait until the lease is certain again.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn wait(&self, span: Duration) -> bool {
        tokio::time::timeout(span, self.draining()).await.is_err()
    }

    /// The term, as the store identifies it.
    pub(crate) fn holding(&self) -> Holding {
        Holding { name: self.0.name.clone(), holder: self.0.keeper.instance.clone(), token: self.token() }
    }

    /// Writes a record beside the lease, unless the term is over. The store refuses the write of a holder that was
    /// paused for an hour and has not noticed. Any instance can [read](super::Tenure::read) the record.
    ///
    /// # Errors
    /// When the term is over, when the store cannot be reached or refuses the request, or when the outcome is
    /// [unknown](PublishError::Unknown). Repeating it is safe.
    ///
    /// # Cancel safety
    /// The record may or may not be written.
    pub async fn publish(&self, record: &str, value: impl Into<Vec<u8>>) -> Result<(), PublishError> {
        let (holding, record, value) = (self.holding(), record.to_owned(), value.into());
        self.write(DocumentRequest::Publish { holding, record, value, announced: true }).await
    }

    /// Appends an entry to a log beside the lease, unless the term is over. The log keeps the latest `kept` entries.
    /// Any instance can [read](super::Tenure::recent) it.
    ///
    /// ```
    /// # #[cfg(feature = "memory")]
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # let tenure = tenure::Tenure::connect("memory:").await?;
    /// let lease = tenure.lease("import").acquire().await?;
    /// for day in ["monday", "tuesday", "wednesday"] {
    ///     lease.append("imported", day, 2).await?;
    /// }
    /// let latest = tenure.recent(lease.name(), "imported", None, 10).await?;
    /// assert_eq!(latest.iter().map(|entry| &*entry.value).collect::<Vec<_>>(), [&b"tuesday"[..], b"wednesday"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the term is over, when the store cannot be reached or refuses the request, or when the outcome is still
    /// [unknown](PublishError::Unknown) at the end of the term: an append without a reply is repeated until then, and adds
    /// one entry at most, unless other tasks append to the same log at the same time. Another call adds another entry.
    ///
    /// # Cancel safety
    /// The entry may or may not be appended.
    pub async fn append(&self, log: &str, value: impl Into<Vec<u8>>, kept: usize) -> Result<(), PublishError> {
        let (holding, log, value) = (self.holding(), log.to_owned(), value.into());
        let nonce = Nonce::new(fastrand::u128(..));
        let append = LogRequest::Append { holding, log, value, kept, nonce, records: Vec::new() };
        loop {
            match self.write(append.clone()).await {
                // The same attempt again: at most one entry is added.
                Err(PublishError::Unknown(error)) => {
                    if !self.wait(self.0.settings.attempt_timeout()).await {
                        return Err(PublishError::Unknown(error));
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Sends a request under this term soon. The caller can await the reply later; until then the reply wakes no task.
    pub(crate) fn call_ahead(&self, request: impl Into<Request>) -> oneshot::Receiver<Outcome> {
        let (request, (reply, answer)) = (request.into(), oneshot::channel());
        let timeout = self.0.settings.attempt_timeout();
        if !self.0.keeper.is_forked() {
            self.0.keeper.call_deferred(PendingCall { request, timeout, is_work: true, reply });
        }
        answer
    }

    async fn write(&self, request: impl Into<Request>) -> Result<(), PublishError> {
        match call_store(&self.0.keeper, request, self.0.settings.attempt_timeout()).await {
            Outcome::Answered(Reply::Done) => Ok(()),
            Outcome::Answered(Reply::Refused(refusal)) => Err(PublishError::Refused(refusal.into())),
            Outcome::Answered(other) => {
                let message = format!("{}: unexpected reply: {other:?}", self.0.keeper.location);
                Err(PublishError::Store(StoreError::new(ErrorKind::Corrupt, message)))
            }
            Outcome::Failed(error) => Err(PublishError::Store(error)),
            Outcome::Unknown(error) => Err(PublishError::Unknown(error)),
        }
    }

    /// Emits an event of this term, such as a [`ProgramEvent`](crate::ProgramEvent): to the log, the streams and the
    /// listeners of this process. An event without a receiver costs almost nothing.
    pub fn emit(&self, kind: impl Into<EventKind>) {
        let kind = kind.into();
        if !self.0.keeper.gauges.has_listener_for(&kind) {
            return;
        }
        let (instance, lease) = (self.0.keeper.instance.clone(), Some(self.0.name.clone()));
        self.0.keeper.emit(Event { instance, lease, token: Some(self.token()), kind });
    }

    /// Waits until the term is over, including its release in the store.
    pub(crate) async fn wait_until_over(&self) {
        loop {
            let mut changed = pin!(self.0.changed());
            changed.as_mut().enable();
            if self.0.is_over() || self.0.is_overdue() || self.0.keeper.is_forked() {
                return;
            }
            changed.await;
        }
    }

    /// Whether a term that is over was released rather than lost.
    fn release_result(&self) -> Result<(), ReleaseError> {
        match self.0.ending() {
            Some(Ending::Lost(reason)) => Err(ReleaseError::Lost(self.lost_for(reason.clone()))),
            Some(_) if self.0.is_release_unknown() => {
                Err(ReleaseError::Unknown { name: self.0.name.clone(), token: self.token() })
            }
            Some(_) => Ok(()),
            // The work still runs at the deadline, or this is a forked child: the lease expires.
            None => Err(ReleaseError::Lost(self.lost_for(match self.0.presumed_cause() {
                Ending::Lost(reason) => reason,
                Ending::Released(_) | Ending::GivenUp => Loss::Expired,
            }))),
        }
    }

    /// How the term ended, once it is over.
    pub(crate) fn final_ending(&self) -> Ending {
        self.0.ending().cloned().unwrap_or_else(|| self.0.presumed_cause())
    }

    fn interrupted(&self) -> RunError {
        match self.0.presumed_cause() {
            Ending::Lost(reason) => RunError::Lost(self.lost_for(reason)),
            Ending::Released(reason) => RunError::Released(reason),
            Ending::GivenUp => RunError::Released(ReleaseReason::Voluntary),
        }
    }

    fn lost_for(&self, reason: Loss) -> Lost {
        Lost { name: self.0.name.clone(), token: self.token(), reason }
    }
}

impl fmt::Debug for TermHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Term({} token {} {})", self.name(), self.token(), self.state())
    }
}

/// A piece of work that has [begun](TermHandle::begin). The lease is not released until this is dropped. So drop it
/// only when no part of the work runs any more, and within the stop budget after [`cancelled`](TermHandle::cancelled)
/// has returned.
///
/// For work that cannot be dropped, because it runs on its own thread or needs time to stop:
///
/// ```
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # let tenure = tenure::Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// let work = lease.begin().await?;
/// std::thread::spawn(move || {
///     while work.is_valid() {
///         // A short step.
///         # break;
///     }
///     drop(work);
/// });
/// # lease.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "work counts only until this is dropped"]
pub struct Work(TermHandle);

impl Work {
    /// Whether the work may continue: it was not told to stop, and more than the stop budget is left until the
    /// deadline.
    pub fn is_valid(&self) -> bool {
        !self.0.0.must_stop()
    }
}

impl Deref for Work {
    type Target = TermHandle;

    fn deref(&self) -> &TermHandle {
        &self.0
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.0.end_work();
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work under {:?}", self.0)
    }
}

/// The term was lost: it ended before its holder released it.
///
/// ```
/// use tenure::Tenure;
/// use tenure::lease::Loss;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// tenure.admin().revoke("import").await?; // an operator does this
/// let lost = lease.lost().await;
/// assert_eq!((&lost.name, lost.token, &lost.reason), (lease.name(), lease.token(), &Loss::Revoked));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("lost {name} (term {token}): {reason}")]
#[non_exhaustive]
pub struct Lost {
    /// The lease.
    pub name: LeaseName,
    /// The token of the term.
    pub token: Token,
    /// Why it was lost.
    pub reason: Loss,
}

/// Why work under a lease was not done. The work was dropped, unless it failed by itself: then it has ended.
///
/// `E` is the error of the work. It need not be an [`Error`](std::error::Error), so `anyhow::Error` and
/// `Box<dyn Error + Send + Sync>` can be returned with `?` as well.
///
/// ```
/// use tenure::{RunError, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// let error = lease.run(async { Err::<(), _>("no such file") }).await.unwrap_err();
/// assert_eq!(error, RunError::Work("no such file"));
/// assert_eq!(error.to_string(), "no such file");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunError<E = Infallible> {
    /// The lease was lost. What the work did before that may be incomplete.
    Lost(Lost),
    /// The lease was released or handed over while the work ran. What the work did before that may be incomplete.
    Released(ReleaseReason),
    /// The work failed. The lease is still held.
    Work(E),
}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(lost) => fmt::Display::fmt(lost, f),
            Self::Released(reason) => write!(f, "the lease was released ({reason}) before the work was done"),
            // The alternate form of `anyhow` is the whole chain, which a `?` would lose; most other errors have none.
            Self::Work(error) => write!(f, "{error:#}"),
        }
    }
}

// No `source`: it would be the same text again, and `anyhow::Error` is no `Error`.
impl<E: fmt::Debug + fmt::Display> std::error::Error for RunError<E> {}

impl<E> From<Lost> for RunError<E> {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// Why a release was not confirmed. In each case the term is over and the lease is unheld, at the latest when its ttl has
/// ended; there is nothing to repeat.
///
/// ```
/// use tenure::{ReleaseError, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// # tenure.admin().revoke("import").await?;
/// # lease.lost().await;
/// match lease.release().await {
///     Ok(()) => println!("released"),
///     Err(ReleaseError::Lost(lost)) => println!("another instance may have worked since: {lost}"),
///     Err(error) => println!("it is released when its ttl has ended: {error}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The term was lost before its release, or its work still ran at the deadline.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The store did not reply before the lease expired. It may have carried out the release before that.
    #[error("outcome of the release of {name} (term {token}) unknown: no reply came before the lease expired")]
    Unknown {
        /// The lease.
        name: LeaseName,
        /// The token of the term.
        token: Token,
    },
}

/// The lease is not certain, or has too little time left for the work.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// lease.require(Duration::from_secs(5))?; // before a step that takes 5 s at most
/// let error = lease.require(Duration::from_secs(60)).unwrap_err(); // longer than the ttl
/// assert!(error.remaining < error.required);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot begin work of {required:?}: the lease is {state} with {remaining:.1?} left")]
#[non_exhaustive]
pub struct RequireError {
    /// The state of the lease.
    pub state: LeaseState,
    /// How much time is left without a renewal.
    pub remaining: Duration,
    /// How much time the work requires.
    pub required: Duration,
}

/// Why a record or an entry was not written, or not known to be.
///
/// ```
/// use tenure::{PublishError, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// match lease.publish("position", "row 17").await {
///     Ok(()) => println!("written"),
///     Err(PublishError::Refused(loss)) => println!("too late: {loss}"),
///     Err(PublishError::Unknown(_)) => println!("perhaps written: publish it again"),
///     Err(PublishError::Store(error)) if error.is_retryable() => println!("not written: publish it again"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The term is over: this request wrote nothing, and a retry will not help. An earlier attempt whose outcome was
    /// unknown may have been carried out.
    #[error("the term is over: {0}")]
    Refused(Loss),
    /// The store could not be reached or refused the request. Nothing was written. A retry may help if the error is
    /// [retryable](StoreError::is_retryable).
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The request was sent, and no reply came: it may have been carried out, or may be until the lease has expired in
    /// the store. Publish the same value again. If that is refused, wait for one ttl, read the record and compare its
    /// token.
    #[error("outcome unknown: {0}; the value may have been written")]
    Unknown(#[source] StoreError),
}

/// A summary of a term.
///
/// ```
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// let info = lease.info();
/// assert_eq!((&info.holder, info.token), (tenure.instance(), lease.token()));
/// println!("{} is {} since {:?}", info.name, info.state, info.acquired_at);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TermInfo {
    /// The lease.
    pub name: LeaseName,
    /// Its holder.
    pub holder: InstanceId,
    /// The token of the term.
    pub token: Token,
    /// The state of the lease.
    pub state: LeaseState,
    /// When the term began.
    pub acquired_at: SystemTime,
    /// When it was last renewed.
    pub last_renewed_at: SystemTime,
}
