//! Schedules that a leader keeps, and that outlive it.
//!
//! The leader claims every run before it begins and records it when it is done, both under its token. So a failover
//! neither repeats a run that was done nor forgets one that became due meanwhile.
//!
//! ```
//! use std::time::Duration;
//! use tenure::Tenure;
//! use tenure::schedule::Schedule;
//!
//! # #[cfg(feature = "memory")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let tenure = Tenure::connect("memory:").await?;
//! let shutdown = tokio::time::sleep(Duration::from_millis(50)); // a signal, in a real program
//! let often = Schedule::every(Duration::from_millis(10))?; // or Schedule::cron("0 2 * * *")?, with the feature `cron`
//! tenure
//!     .election("reports")
//!     .lead(async |term| {
//!         let mut runs = term.schedule("daily", often.clone());
//!         while let Some(run) = runs.next().await {
//!             println!("the report that was due at {:?}", run.due());
//!             run.done().await?;
//!         }
//!         Ok(())
//!     })
//!     .until(shutdown)
//!     .await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[doc(inline)]
pub use tenure_core::schedule::{CatchUp, Schedule, ScheduleError, Unfinished};
use tenure_core::schedule::{NextRun, Policy, ScheduleRecord, next_run};

use crate::store::{DocumentRequest, LeaseRequest, Outcome, Reply};
use crate::tenure::{PublishError, TermHandle, call_store};
use crate::time::{LeaseClock, Moment, ServerTime, SystemClock};

/// The longest uninterrupted sleep: clocks may be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(60);

impl TermHandle {
    /// Keeps a schedule under this term. The name distinguishes it from other schedules of the same lease.
    pub fn schedule(&self, name: &str, schedule: Schedule) -> Runs {
        let max_lateness = self.0.settings.ttl().saturating_mul(2);
        let policy = Policy { catch_up: CatchUp::default(), unfinished: Unfinished::default(), max_lateness };
        Runs { term: self.clone(), record: format!("schedule:{name}"), schedule, policy, open: None }
    }
}

/// The runs of a schedule, as they become due.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
/// use tenure::schedule::Schedule;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("reports").acquire().await?;
/// let mut runs = lease.schedule("daily", Schedule::every(Duration::from_millis(20))?);
/// while let Some(run) = runs.next().await { // None: the term is over
///     println!("the report that was due at {:?}", run.due());
///     run.done().await?;
///     # break;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Runs {
    term: TermHandle,
    record: String,
    schedule: Schedule,
    policy: Policy,
    open: Option<OpenSchedule>,
}

/// The state read when the term began.
#[derive(Clone, Copy, Debug)]
struct OpenSchedule {
    record: ScheduleRecord,
    /// The last slot claimed under this term. Only the next leader decides whether to rerun it.
    ours: Option<ServerTime>,
    /// A moment at which the store's time was known.
    known: (Moment, ServerTime),
}

impl OpenSchedule {
    fn now(&self) -> ServerTime {
        let (moment, server) = self.known;
        server + SystemClock.now().since(moment)
    }

    /// The record to plan the next run by.
    fn effective_record(&self) -> ScheduleRecord {
        match self.ours {
            Some(ours) => ScheduleRecord { done: self.record.done.max(Some(ours)), ..self.record },
            None => self.record,
        }
    }
}

impl Runs {
    /// Sets what to do about missed runs. By default one run makes up for all.
    #[must_use]
    pub fn catch_up(mut self, choice: CatchUp) -> Self {
        self.policy.catch_up = choice;
        self
    }

    /// Sets what to do about a run whose leader was lost before its end. By default it is run again.
    #[must_use]
    pub fn unfinished(mut self, choice: Unfinished) -> Self {
        self.policy.unfinished = choice;
        self
    }

    /// Waits until the next run is due, and claims it. Returns `None` when the term is over. A run that is dropped
    /// without [`done`](Run::done) counts as unfinished; this term continues with the next one all the same.
    ///
    /// # Cancel safety
    /// A run claimed by a dropped call counts as unfinished.
    pub async fn next(&mut self) -> Option<Run<'_>> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.read().await?,
        };
        let NextRun { slot, .. } = loop {
            let due = next_run(&self.schedule, &open.effective_record(), self.policy, open.now());
            let Some(due) = due else {
                self.term.draining().await;
                return None;
            };
            let left = Duration::from_micros(due.not_before.as_micros().saturating_sub(open.now().as_micros()));
            if left.is_zero() {
                break due;
            }
            if !self.term.wait(left.min(MAX_SLEEP)).await {
                return None;
            }
        };
        open.record.claimed = Some(slot);
        self.write(&open.record).await?;
        open.ours = Some(slot);
        self.open = Some(open);
        Some(Run { slot, runs: self })
    }

    /// Reads the record and the store's time. Retries until they are known or the term is over.
    async fn read(&self) -> Option<OpenSchedule> {
        let shared = &self.term.0;
        let limit = shared.settings.attempt_timeout();
        loop {
            let inspect = LeaseRequest::Inspect { name: shared.name.clone() };
            let read = DocumentRequest::ReadRecord { name: shared.name.clone(), record: self.record.clone() };
            if let Outcome::Answered(Reply::Lease(report)) = call_store(&shared.keeper, inspect, limit).await
                && let Some(since) = report.since
                && let Outcome::Answered(Reply::Record(found)) = call_store(&shared.keeper, read, limit).await
            {
                let known = (shared.times().0, since);
                let found = found.and_then(|record| ScheduleRecord::decode(&record.value));
                let mut open = OpenSchedule { record: ScheduleRecord::new(since), ours: None, known };
                match found {
                    Some(record) => open.record = record,
                    // Remember what becomes due from now on; what was due earlier in this term was not scheduled yet.
                    None => {
                        open.record.since = open.now();
                        self.write(&open.record).await?;
                    }
                }
                return Some(open);
            }
            if !self.term.wait(limit).await {
                return None;
            }
        }
    }

    /// Writes the record, under the token. Retries until the term is over.
    async fn write(&self, record: &ScheduleRecord) -> Option<()> {
        loop {
            match self.term.publish(&self.record, record.encode()).await {
                Ok(()) => return Some(()),
                Err(PublishError::Refused(_)) => return None,
                Err(PublishError::Store(_) | PublishError::Unknown(_)) => {
                    if !self.term.wait(self.term.0.settings.attempt_timeout()).await {
                        return None;
                    }
                }
            }
        }
    }
}

/// A run that is due and claimed.
///
/// A run that is not done is left to the next holder of the lease:
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
/// use tenure::schedule::Schedule;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let (tenure, often) = (Tenure::connect("memory:").await?, Schedule::every(Duration::from_millis(20))?);
/// let lease = tenure.lease("reports").acquire().await?;
/// let due = lease.schedule("daily", often.clone()).next().await.ok_or("the term is over")?.due();
/// lease.release().await?;
///
/// let lease = tenure.lease("reports").acquire().await?;
/// let mut runs = lease.schedule("daily", often);
/// let run = runs.next().await.ok_or("the term is over")?;
/// assert_eq!(run.due(), due);
/// run.done().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a run that is not done counts as unfinished"]
pub struct Run<'a> {
    slot: ServerTime,
    runs: &'a mut Runs,
}

impl Run<'_> {
    /// When it was due, by the store's clock.
    pub fn due(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.slot.as_micros())
    }

    /// Records that the run is done. Retries while the store cannot be reached.
    ///
    /// # Errors
    /// When the term is over before that is recorded. Then the run counts as unfinished.
    ///
    /// # Cancel safety
    /// The end may or may not be recorded.
    pub async fn done(self) -> Result<(), PublishError> {
        let Some(open) = &mut self.runs.open else { return Ok(()) };
        let record = ScheduleRecord { done: Some(self.slot), ..open.record };
        let (term, pause) = (&self.runs.term, self.runs.term.0.settings.attempt_timeout());
        // A short outage of the store does not end the work.
        loop {
            match term.publish(&self.runs.record, record.encode()).await {
                Ok(()) => break,
                Err(error @ PublishError::Refused(_)) => return Err(error),
                Err(error) => {
                    if !term.wait(pause).await {
                        return Err(error);
                    }
                }
            }
        }
        open.record = record;
        Ok(())
    }
}
