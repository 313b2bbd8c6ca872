//! A term that is held: the right to act, and how it is taken away in time.

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
use crate::keeper::{Command, SharedTerm, StoreCall, TermGuard, WorkStart};
use crate::lease::{Ending, Intent, LeaseState, Loss, ReleaseReason};
use crate::name::{InstanceId, LeaseName};
use crate::store::{ErrorKind, Holding, Outcome, Reply, Request, StoreError};
use crate::time::{LeaseClock, Moment, ServerTime, SystemClock};
use crate::token::Token;

/// A lease that is held, from grant to goodbye. Dropping it stops its work and lets go of the lease in the background; at the
/// end of a program wait for that, with [`release`](Term::release) or [`Tenure::shutdown`](crate::Tenure::shutdown), or the
/// lease is held until its ttl ends. A lease cannot be acquired again inside its own work.
///
/// Everything that can be asked of a term is on its [`TermHandle`], which can be cloned and passed around; the term
/// itself is the one thing that decides how long it is held.
#[must_use = "dropping a term lets go of the lease"]
pub struct Term(TermGuard);

impl Term {
    pub(crate) fn new(granted: TermGuard) -> Self {
        Self(granted)
    }

    /// Stops the work, waits until it is gone, lets go of the lease and waits until the store has confirmed that. While the
    /// store cannot be reached it goes on trying, until the lease has run out by itself.
    ///
    /// # Errors
    /// When the term was lost before it could be let go of, or when its work is still there at its deadline: then the
    /// lease runs out by itself.
    ///
    /// # Cancel safety
    /// Safe: it goes on without anybody waiting.
    pub async fn release(self) -> Result<(), Lost> {
        self.release_with_reason(ReleaseReason::Voluntary).await
    }

    /// Lets the work that runs finish, and then lets go of the lease, or hands it over. The term must be kept until it is over.
    pub(crate) fn drain(&self, intent: Intent) {
        let shared = &self.0.handle().0;
        shared.keeper.send(Command::Intent(shared.id(), intent));
    }

    /// The same, for a reason.
    pub(crate) async fn release_with_reason(mut self, reason: ReleaseReason) -> Result<(), Lost> {
        let handle = (*self).clone();
        self.0.reason = reason;
        drop(self);
        handle.ended().await;
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

/// A term as seen by whoever works under it. Cheap to clone; it does not keep the lease.
#[derive(Clone)]
pub struct TermHandle(pub(crate) Arc<SharedTerm>);

impl TermHandle {
    /// The number of this term. Pass it with every effect on the outside world and refuse smaller ones there.
    pub fn token(&self) -> Token {
        self.0.token()
    }

    /// Which lease this is a term of.
    pub fn name(&self) -> &LeaseName {
        &self.0.name
    }

    /// How it stands with the lease, computed now.
    pub fn state(&self) -> LeaseState {
        self.0.state()
    }

    /// Whether the term may be relied on, computed now: there is no flag that could be out of date. Never in a forked
    /// child.
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// For how long the term may be relied on if it is not renewed, computed now.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Sees that something that takes this long can be begun: the lease is certain, and has this much time left without
    /// a renewal.
    ///
    /// # Errors
    /// When it is not certain, or has less.
    pub fn require(&self, span: Duration) -> Result<(), RequireError> {
        let (state, remaining) = (self.state(), self.remaining());
        if state == LeaseState::Owned && remaining >= span {
            return Ok(());
        }
        Err(RequireError { state, remaining, required: span })
    }

    /// The term in a few words, for people.
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

    /// Says that the work is getting on. Needed only where [`stall_after`](super::LeaseRequest::stall_after) or
    /// somebody's `take_over_after` asks for it.
    pub fn progress(&self) {
        self.0.progress();
    }

    /// Waits until the term is over or about to be, and says why.
    ///
    /// This alone keeps nobody from being granted the lease next: only work that is *counted* is waited for. Let it
    /// [run](Self::run) under the lease, or [begin](Self::begin) it and stop within the stop budget when this ends.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> Lost {
        loop {
            let mut changed = pin!(self.0.changed());
            // Before the look, so that no change can come between.
            changed.as_mut().enable();
            if self.0.must_stop() {
                return self.lost_error();
            }
            changed.await;
        }
    }

    /// Whether the lease is to be let go of when the work that runs has ended: begin nothing more.
    pub(crate) fn is_draining(&self) -> bool {
        self.0.is_draining()
    }

    /// Waits until nothing more should be begun: the lease is to be let go of, over, or about to be.
    pub(crate) async fn draining(&self) {
        loop {
            let mut changed = pin!(self.0.changed());
            // Before the look, so that no change can come between.
            changed.as_mut().enable();
            if self.0.is_draining() || self.0.must_stop() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until work may begin again, or nothing more should be begun.
    pub(crate) async fn wait_until_certain(&self) {
        loop {
            let mut changed = pin!(self.0.changed());
            // Before the look, so that no change can come between.
            changed.as_mut().enable();
            if self.0.state() == LeaseState::Owned || self.0.is_draining() || self.0.must_stop() {
                return;
            }
            changed.await;
        }
    }

    /// The store's time, as well as it is known here.
    pub(crate) fn server_time(&self) -> ServerTime {
        let offset = self.0.keeper.gauges.server_offset.load(std::sync::atomic::Ordering::Relaxed);
        crate::keeper::server_time(SystemClock.now(), offset)
    }

    /// Waits until work may begin: at once while the lease is certain, and after a blink of the store when it is certain
    /// again.
    ///
    /// # Errors
    /// When the term is over first.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn begin(&self) -> Result<Work, Lost> {
        loop {
            let mut changed = pin!(self.0.changed());
            // Before the look, so that no change can come between.
            changed.as_mut().enable();
            match self.0.start_work() {
                WorkStart::Started => return Ok(Work(self.clone())),
                WorkStart::Refused => return Err(self.lost_error()),
                WorkStart::Deferred => changed.await,
            }
        }
    }

    /// Runs work under the lease. It begins when the lease is certain, and is dropped a stop budget before the lease can be anybody else's, or at once when
    /// the lease is lost or let go of; every time it is polled, it is the clock that decides.
    ///
    /// The lease is not let go of before the work is gone, so keep polling it or drop it. What the work has spawned
    /// elsewhere (a task, a blocking thread) is not stopped with it: such work [begins](Self::begin) and ends by itself. Work
    /// that is done says nothing about the lease: it may have been lost since.
    ///
    /// # Errors
    /// When the lease was lost or let go of before the work was done.
    ///
    /// # Cancel safety
    /// As safe as the work itself, which is dropped.
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output, Lost> {
        // Dropped after the work, which is therefore gone when it is counted out.
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
        outcome.ok_or_else(|| self.lost_error())
    }

    /// Waits this long, or until the term is over, about to be, or to be given away when its work has ended. Returns whether the work may go on: the
    /// turn of a loop.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn wait(&self, span: Duration) -> bool {
        tokio::time::timeout(span, self.draining()).await.is_err()
    }

    /// The term, as the store knows it.
    pub(crate) fn holding(&self) -> Holding {
        Holding { name: self.0.name.clone(), holder: self.0.keeper.instance.clone(), token: self.token() }
    }

    /// Writes a record beside the lease, unless the term is over: what a holder writes that was paused for an hour, and
    /// has not noticed, is refused. Anybody can [read](super::Tenure::read) it.
    ///
    /// # Errors
    /// When the term is over, or the store cannot be asked.
    ///
    /// # Cancel safety
    /// The record may or may not be written.
    pub async fn publish(&self, record: &str, value: impl Into<Vec<u8>>) -> Result<(), PublishError> {
        let (holding, record, value) = (self.holding(), record.to_owned(), value.into());
        self.write(Request::Publish { holding, record, value, announced: true }).await
    }

    /// The same for what is of no use to anybody before it is needed: nobody is told.
    pub(crate) async fn publish_silently(&self, record: &str, value: Vec<u8>) -> Result<(), PublishError> {
        let (holding, record) = (self.holding(), record.to_owned());
        self.write(Request::Publish { holding, record, value, announced: false }).await
    }

    /// Adds an entry to a log beside the lease, of which so many of the latest are kept, unless the term is over. Anybody can
    /// [read](super::Tenure::recent) it.
    ///
    /// ```
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
    /// When the term is over, or the store cannot be asked.
    ///
    /// # Cancel safety
    /// The entry may or may not be added.
    pub async fn append(&self, log: &str, value: impl Into<Vec<u8>>, kept: usize) -> Result<(), PublishError> {
        let (holding, log, value) = (self.holding(), log.to_owned(), value.into());
        self.write(Request::Append { holding, log, value, kept, records: Vec::new() }).await
    }

    /// Asks something under this term, soon. The answer can be waited for later: nobody is woken by it until then.
    pub(crate) fn call_ahead(&self, request: Request) -> oneshot::Receiver<Outcome> {
        let (reply, answer) = oneshot::channel();
        let timeout = self.0.settings.attempt_timeout();
        if !self.0.keeper.is_forked() {
            self.0.keeper.call_deferred(StoreCall { request, timeout, is_work: true, reply });
        }
        answer
    }

    async fn write(&self, request: Request) -> Result<(), PublishError> {
        match call_store(&self.0.keeper, request, self.0.settings.attempt_timeout()).await {
            Outcome::Answered(Reply::Done) => Ok(()),
            Outcome::Answered(Reply::Refused(refusal)) => Err(PublishError::Refused(refusal.into())),
            Outcome::Answered(other) => {
                let message = format!("{}: an answer to another question: {other:?}", self.0.keeper.location);
                Err(PublishError::Store(StoreError::new(ErrorKind::Corrupt, message)))
            }
            Outcome::Failed(error) | Outcome::Unknown(error) => Err(PublishError::Store(error)),
        }
    }

    /// Tells logs, streams and listeners that something happened under this term.
    pub fn emit(&self, kind: EventKind) {
        if !self.0.keeper.gauges.has_listener_for(&kind) {
            return;
        }
        let (instance, lease) = (self.0.keeper.instance.clone(), Some(self.0.name.clone()));
        self.0.keeper.send(Command::Emit(Event { instance, lease, token: Some(self.token()), kind }));
    }

    /// Waits until everything is done, the goodbye to the store included.
    pub(crate) async fn ended(&self) {
        loop {
            let mut changed = pin!(self.0.changed());
            changed.as_mut().enable();
            if self.0.is_over() || self.0.is_overdue() || self.0.keeper.is_forked() {
                return;
            }
            changed.await;
        }
    }

    /// Whether a term that is over was let go of, and not lost.
    fn release_result(&self) -> Result<(), Lost> {
        match self.0.ending() {
            Some(Ending::Lost(_)) | None => Err(self.lost_error()),
            Some(_) => Ok(()),
        }
    }

    /// Why the term is over or about to be; `None` while it is neither.
    pub(crate) fn end_cause(&self) -> Option<Ending> {
        self.0.must_stop().then(|| self.0.presumed_cause())
    }

    /// How it ended, once everything is done.
    pub(crate) fn ending(&self) -> Ending {
        self.0.ending().cloned().unwrap_or_else(|| self.0.presumed_cause())
    }

    fn lost_error(&self) -> Lost {
        Lost { name: self.0.name.clone(), token: self.token(), reason: self.0.presumed_cause() }
    }
}

impl fmt::Debug for TermHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Term({} token {} {})", self.name(), self.token(), self.state())
    }
}

/// A piece of work that has [begun](TermHandle::begin). Until it is dropped the lease is not let go of, so drop it only when
/// nothing of the work is running any more: within the stop budget after [`lost`](TermHandle::lost) has ended.
///
/// For work that cannot be dropped, because it runs on a thread of its own or needs a moment to stop:
///
/// ```
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
    /// Whether the work may go on: it was not told to stop, and the deadline is not nearer than the stop budget.
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

/// A term is over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the term {token} of {name} is over: {reason}")]
#[non_exhaustive]
pub struct Lost {
    /// Which lease.
    pub name: LeaseName,
    /// Which term.
    pub token: Token,
    /// Why.
    pub reason: Ending,
}

/// There is not enough time for what was to be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{required:?} are needed, and the lease is {state} with {remaining:.1?} left")]
#[non_exhaustive]
pub struct RequireError {
    /// How it stands with the lease.
    pub state: LeaseState,
    /// How much time there is without a renewal.
    pub remaining: Duration,
    /// How much was required.
    pub required: Duration,
}

/// A record was not published.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The term is over; nothing was written.
    #[error("the term is over: {0}")]
    Refused(Loss),
    /// The store could not be asked, or did not answer: the record may have been written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A term in a few words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TermInfo {
    /// Which lease.
    pub name: LeaseName,
    /// Who holds it.
    pub holder: InstanceId,
    /// Which term.
    pub token: Token,
    /// How it stands.
    pub state: LeaseState,
    /// When the term began.
    pub acquired_at: SystemTime,
    /// When it was last renewed.
    pub last_renewed_at: SystemTime,
}
