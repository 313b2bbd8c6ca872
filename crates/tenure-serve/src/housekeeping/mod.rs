//! Work that an elected instance does for the fleet: `janitor` removes the records of deleted sessions, `aggregator`
//! adds up the statistics.

pub mod totals;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tenure::election::ElectionError;
use tenure::fleet::InstanceRecord;
use tenure::{Election, RequestError, Tenure, TermHandle};
use tokio::task::AbortHandle;

use crate::keys::KeyPrefixes;
use crate::poll::poller::RESULTS_LOG;
use crate::poll_stats::PollStats;
use crate::session_repo::documents;
use totals::Totals;

/// Role that removes the records of deleted sessions.
pub const JANITOR: &str = "janitor";
/// Role that adds up the statistics of the fleet.
pub const AGGREGATOR: &str = "aggregator";

/// Name of an instance's own statistics in its heartbeat record.
pub(crate) const STATS_FIELD: &str = "stats";

/// Name of the aggregator's record.
const TOTALS_RECORD: &str = "totals";

/// Name of the list with the last statistics of stopped instances.
const FINAL_STATS_LIST: &str = "final-stats";

/// Number of aggregator periods in one janitor period.
const AGGREGATIONS_PER_CLEANUP: u32 = 6;

/// Timeout of one wait for leadership.
const LEADERSHIP_WAIT: Duration = Duration::from_secs(3_600);

/// Delay between the end of a term and the next candidacy.
const NEXT_TERM_DELAY: Duration = Duration::from_secs(1);

/// The ttl of a term, and the time without progress after which it ends, if any.
pub(crate) type TermSettings = (Duration, Option<Duration>);

/// The elections of the service, by role.
#[derive(Clone, Debug)]
pub(crate) struct Housekeeping {
    elections: BTreeMap<&'static str, Election>,
    tasks: Arc<Vec<AbortHandle>>,
}

impl Housekeeping {
    /// Becomes a candidate for all roles.
    pub(crate) fn start(
        tenure: &Tenure,
        keys: &KeyPrefixes,
        (ttl, stall_after): TermSettings,
        period: Duration,
    ) -> Result<Self, ElectionError> {
        let campaign = |role: &'static str| {
            let election = election(tenure, keys, (ttl, stall_after), role)?;
            election.start();
            Ok::<_, ElectionError>((role, election))
        };
        let (janitor, aggregator) = (campaign(JANITOR)?, campaign(AGGREGATOR)?);
        let janitor_task = tokio::spawn({
            let (tenure, keys, election) = (tenure.clone(), keys.clone(), janitor.1.clone());
            run_while_leader(election, period.saturating_mul(AGGREGATIONS_PER_CLEANUP), stall_after, move |_| {
                let (tenure, keys) = (tenure.clone(), keys.clone());
                async move { remove_deleted_sessions(&tenure, &keys, ttl).await }
            })
        });
        let aggregator_task = tokio::spawn({
            let (tenure, election) = (tenure.clone(), aggregator.1.clone());
            run_while_leader(election, period, stall_after, move |term| {
                let tenure = tenure.clone();
                async move { aggregate(&tenure, &term).await }
            })
        });
        let tasks = Arc::new(vec![janitor_task.abort_handle(), aggregator_task.abort_handle()]);
        Ok(Self { elections: [janitor, aggregator].into_iter().collect(), tasks })
    }

    /// Returns whether this instance leads a role, or `None` if it is not a candidate.
    pub(crate) fn is_leader(&self, role: &str) -> Option<bool> {
        self.elections.get(role).map(Election::is_leader)
    }

    /// Returns the roles that it is a candidate for.
    pub(crate) fn elections(&self) -> impl Iterator<Item = (&'static str, &Election)> {
        self.elections.iter().map(|(role, election)| (*role, election))
    }

    /// Releases all leaderships.
    pub(crate) async fn stop(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        for election in self.elections.values() {
            election.stop().await;
        }
    }
}

/// Checks the settings of the elections.
pub(crate) fn check(tenure: &Tenure, keys: &KeyPrefixes, terms: TermSettings) -> Result<(), ElectionError> {
    [JANITOR, AGGREGATOR].into_iter().try_for_each(|role| election(tenure, keys, terms, role).map(drop))
}

fn election(
    tenure: &Tenure,
    keys: &KeyPrefixes,
    (ttl, stall_after): TermSettings,
    role: &str,
) -> Result<Election, ElectionError> {
    let election = tenure.election(role).key(&format!("{}{role}", keys.leader));
    let election = election.heartbeat_prefix(&keys.heartbeats(role)).ttl(ttl);
    match stall_after {
        Some(limit) => election.stall_after(limit).build(),
        None => election.build(),
    }
}

/// Runs a duty periodically in every term of this instance.
async fn run_while_leader<D, F>(election: Election, every: Duration, stall_after: Option<Duration>, duty: D)
where
    D: Fn(TermHandle) -> F,
    F: Future<Output = ()>,
{
    loop {
        let Ok(term) = election.wait_for_leadership(LEADERSHIP_WAIT).await else { continue };
        let rounds = async {
            loop {
                duty(term.clone()).await;
                // Waiting for the next round counts as progress.
                let next = tokio::time::Instant::now() + every;
                while tokio::time::Instant::now() < next {
                    term.progress();
                    let left = next.saturating_duration_since(tokio::time::Instant::now());
                    if !term.wait(left.min(stall_after.unwrap_or(every) / 3)).await {
                        return;
                    }
                }
            }
        };
        // The future is dropped before another instance may lead.
        let _ = term.run_infallible(rounds).await;
        // A leader that was asked to step down still leads for a moment.
        tokio::time::sleep(NEXT_TERM_DELAY).await;
    }
}

/// Removes the records of deleted sessions, after every request sent about them must have arrived.
async fn remove_deleted_sessions(tenure: &Tenure, keys: &KeyPrefixes, ttl: Duration) {
    // A failed removal is retried in the next round.
    let _ = documents(tenure).purge_deleted(|id| keys.session(id).ok(), &[RESULTS_LOG], ttl.saturating_mul(2)).await;
}

async fn aggregate(tenure: &Tenure, term: &TermHandle) {
    let Ok(members) = tenure.fleet().instances().await else { return };
    let before = match tenure.read(term.name(), TOTALS_RECORD).await {
        Ok(before) => before,
        Err(error) if error.is_retryable() => return,
        // A foreign program has damaged the record: start anew.
        Err(_) => None,
    };
    let now = Timestamp::now();
    let mut totals = before.and_then(|record| Totals::read(&record.value)).unwrap_or_else(|| Totals::new(now));
    let told = members.iter().filter_map(|member| {
        let record = InstanceRecord::decode(&member.record)?;
        Some((member.instance.to_string(), PollStats::read(record.annotations.get(STATS_FIELD)?)?))
    });
    let mut told: BTreeMap<String, PollStats> = told.collect();
    let words = tenure.fleet().list_entries(FINAL_STATS_LIST).await.unwrap_or_default();
    told.extend(words.iter().filter_map(|word| {
        let (instance, stats) = word.split_once(' ')?;
        Some((instance.to_owned(), PollStats::read(stats)?))
    }));
    totals.add(now, &told);
    // If the term has ended, another leader has added it up.
    if term.publish(TOTALS_RECORD, totals.to_record()).await.is_ok() {
        for word in words {
            // A second count has no effect.
            let _ = tenure.fleet().remove_from_list(FINAL_STATS_LIST, &word).await;
        }
    }
}

/// Stores the last statistics of an instance that is about to stop.
pub(crate) async fn record_final_stats(tenure: &Tenure, stats: &PollStats) {
    let _ = tenure.fleet().add_to_list(FINAL_STATS_LIST, &format!("{} {}", tenure.instance(), stats.to_record())).await;
}

/// Reads the totals of the fleet, as last added up.
pub(crate) async fn totals(tenure: &Tenure, keys: &KeyPrefixes) -> Result<Option<Totals>, RequestError> {
    let Ok(name) = keys.role(AGGREGATOR) else { return Ok(None) };
    Ok(tenure.read(&name, TOTALS_RECORD).await?.and_then(|record| Totals::read(&record.value)))
}
