//! The next run, computed from the record: a pure function.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::slots::Schedule;
use crate::json;
use crate::time::ServerTime;

/// What to do about runs that were missed because there was no leader.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
/// use tenure::schedule::{CatchUp, Schedule};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("market").acquire().await?;
/// let runs = lease.schedule("open", Schedule::every(Duration::from_millis(20))?);
/// let mut runs = runs.catch_up(CatchUp::Skip); // a run that is hours late is of no use
/// let run = runs.next().await.ok_or("the term is over")?;
/// run.done().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// One run makes up for all of them.
    #[default]
    Once,
    /// Skip them. A run that is late by no more than a failover takes does not count as missed.
    Skip,
}

/// What to do about a run whose leader was lost before its end.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
/// use tenure::schedule::{Schedule, Unfinished};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("invoices").acquire().await?;
/// let runs = lease.schedule("mail", Schedule::every(Duration::from_millis(20))?);
/// let mut runs = runs.unfinished(Unfinished::Skip); // better not sent than sent twice
/// let run = runs.next().await.ok_or("the term is over")?;
/// run.done().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unfinished {
    /// The next leader runs it again.
    #[default]
    Rerun,
    /// It counts as done.
    Skip,
}

/// The stored record of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleRecord {
    /// Since when the schedule exists: earlier due times do not count.
    pub since: ServerTime,
    /// The last slot that a leader has claimed.
    pub claimed: Option<ServerTime>,
    /// The last slot that is done.
    pub done: Option<ServerTime>,
}

impl ScheduleRecord {
    /// The record of a schedule that exists from now on.
    pub fn new(now: ServerTime) -> Self {
        Self { since: now, claimed: None, done: None }
    }

    /// Encodes the record as JSON.
    pub fn encode(&self) -> String {
        json::encode(self)
    }

    /// Decodes the output of [`encode`](Self::encode). `None` for anything else.
    pub fn decode(text: &[u8]) -> Option<Self> {
        json::decode(text)
    }
}

/// The next run: its slot, and when it may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextRun {
    /// The slot.
    pub slot: ServerTime,
    /// When it may begin.
    pub not_before: ServerTime,
}

/// What to do about missed and unfinished runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What to do about missed runs.
    pub catch_up: CatchUp,
    /// What to do about a run whose leader was lost before its end.
    pub unfinished: Unfinished,
    /// How late a run may be without counting as missed: as long as a failover takes.
    pub max_lateness: Duration,
}

/// The next run, and when. `None`: never again.
pub fn next_run(schedule: &Schedule, record: &ScheduleRecord, policy: Policy, now: ServerTime) -> Option<NextRun> {
    if let Some(claimed) = record.claimed
        && record.done != Some(claimed)
        && policy.unfinished == Unfinished::Rerun
    {
        return Some(NextRun { slot: claimed, not_before: claimed });
    }
    let last = [Some(record.since), record.claimed, record.done].into_iter().flatten().max()?;
    let next = schedule.after(last)?;
    if next > now {
        return Some(NextRun { slot: next, not_before: next });
    }
    // Some runs were missed. One run makes up for them, if at all.
    let missed = schedule.at_or_before(now).filter(|missed| *missed >= next).unwrap_or(next);
    let late = Duration::from_micros(now.as_micros().saturating_sub(missed.as_micros()));
    if policy.catch_up == CatchUp::Once || late <= policy.max_lateness {
        return Some(NextRun { slot: missed, not_before: missed });
    }
    schedule.after(now).map(|slot| NextRun { slot, not_before: slot })
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    fn at(seconds: u64) -> ServerTime {
        ServerTime::from_micros(seconds * S)
    }

    fn record(since: u64, claimed: Option<u64>, done: Option<u64>) -> ScheduleRecord {
        ScheduleRecord { since: at(since), claimed: claimed.map(at), done: done.map(at) }
    }

    fn policy(catch_up: CatchUp, unfinished: Unfinished) -> Policy {
        Policy { catch_up, unfinished, max_lateness: Duration::from_secs(30) }
    }

    fn slot(record: ScheduleRecord, policy: Policy, now: u64) -> u64 {
        let minutely = Schedule::every(Duration::from_secs(60)).unwrap();
        let due = next_run(&minutely, &record, policy, at(now)).unwrap();
        assert_eq!(due.slot, due.not_before);
        due.slot.as_micros() / S
    }

    #[test]
    fn a_due_slot_runs_once() {
        for policy in [policy(CatchUp::Once, Unfinished::Rerun), policy(CatchUp::Skip, Unfinished::Skip)] {
            assert_eq!(slot(record(1_000, None, None), policy, 1_000), 1_020);
            assert_eq!(slot(record(1_000, Some(1_020), Some(1_020)), policy, 1_021), 1_080);
            // A new leader before the next slot: nothing changes.
            assert_eq!(slot(record(1_000, Some(1_020), Some(1_020)), policy, 1_079), 1_080);
            // A slot that became due without a leader is not forgotten.
            assert_eq!(slot(record(1_000, None, None), policy, 1_025), 1_020);
            assert_eq!(slot(record(1_000, Some(1_020), Some(1_020)), policy, 1_085), 1_080);
        }
    }

    #[test]
    fn an_unfinished_run_is_rerun_or_skipped_as_configured() {
        let unfinished = record(1_000, Some(1_080), Some(1_020));
        assert_eq!(slot(unfinished, policy(CatchUp::Once, Unfinished::Rerun), 1_090), 1_080);
        assert_eq!(slot(unfinished, policy(CatchUp::Once, Unfinished::Skip), 1_090), 1_140);
    }

    #[test]
    fn missed_slots_become_one_run_or_none() {
        let long_ago = record(1_000, Some(1_020), Some(1_020));
        assert_eq!(slot(long_ago, policy(CatchUp::Once, Unfinished::Rerun), 4_660), 4_620);
        assert_eq!(slot(long_ago, policy(CatchUp::Skip, Unfinished::Rerun), 4_660), 4_680);
        // The last of them is only just due.
        assert_eq!(slot(long_ago, policy(CatchUp::Skip, Unfinished::Rerun), 4_625), 4_620);
    }

    #[test]
    fn a_clock_that_went_back_repeats_nothing() {
        let ahead = record(1_000, Some(1_080), Some(1_080));
        assert_eq!(slot(ahead, policy(CatchUp::Once, Unfinished::Rerun), 1_030), 1_140);
    }

    #[test]
    fn records_round_trip_and_anything_else_is_rejected() {
        for record in [record(1, None, None), record(1, Some(2), None), record(1, Some(3), Some(2))] {
            assert_eq!(ScheduleRecord::decode(record.encode().as_bytes()), Some(record));
        }
        for bad in ["", "1", "{}", r#"{"since":"x"}"#, r#"{"since":1,"claimed":-1}"#, "[]"] {
            assert_eq!(ScheduleRecord::decode(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(ScheduleRecord::decode(b"\xff 1 1"), None);
    }
}
