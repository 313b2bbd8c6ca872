//! Watches whether this instance can poll, and reports it to the fleet: holding without polling is worse than not
//! holding.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure::Tenure;
use tenure::pool::Pool;

use crate::events::ServeEvent;
use tokio::sync::Notify;

use super::ability::{Ability, AbilityTracker};
use super::client::PollClient;

/// Interval of probing whether files can be opened, while the instance is not able.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// Number of files that a probe opens.
const PROBE_FILES: usize = 8;

/// Collects what polls show about this instance. Clones share state.
#[derive(Clone, Debug)]
pub struct AbilityMonitor(Arc<MonitorShared>);

#[derive(Debug)]
struct MonitorShared {
    tracker: Mutex<TrackedAbility>,
    strained: Notify,
    client: PollClient,
}

#[derive(Debug, Default)]
struct TrackedAbility {
    tracker: AbilityTracker,
    /// Why a poll last failed because of this instance.
    error: String,
}

impl AbilityMonitor {
    /// Creates a monitor without observations.
    pub fn new(client: PollClient) -> Self {
        Self(Arc::new(MonitorShared { tracker: Mutex::default(), strained: Notify::new(), client }))
    }

    /// Returns what this instance can do.
    pub fn ability(&self) -> Ability {
        self.lock().tracker.ability()
    }

    /// Records a poll that succeeded, or failed because of the target.
    pub fn record_completed(&self) {
        self.lock().tracker.record_completed(Instant::now());
    }

    /// Records a poll that failed because this instance lacks a resource.
    pub fn record_shortage(&self, error: &str) {
        self.record_strain(error, AbilityTracker::record_shortage);
    }

    /// Records a poll that got no permit, because other polls take long.
    pub fn record_saturation(&self, error: &str) {
        self.record_strain(error, AbilityTracker::record_saturation);
    }

    fn record_strain(&self, error: &str, record: impl FnOnce(&mut AbilityTracker, Instant)) {
        let mut tracked = self.lock();
        record(&mut tracked.tracker, Instant::now());
        if tracked.error != error {
            error.clone_into(&mut tracked.error);
        }
        drop(tracked);
        self.0.strained.notify_one();
    }

    /// Hands over all sessions while this instance cannot poll, and accepts sessions again when it can. Never returns.
    pub async fn watch(self, tenure: Tenure, pool: Pool) {
        let mut known = Ability::Able;
        loop {
            let ability = self.ability();
            if ability != known {
                self.0.client.set_strained(ability != Ability::Able);
                self.emit_ability(&tenure, ability);
                if (known == Ability::Unable) != (ability == Ability::Unable) {
                    pool.set_able(ability != Ability::Unable);
                }
                known = ability;
            }
            if ability == Ability::Able {
                self.0.strained.notified().await;
            } else {
                tokio::time::sleep(PROBE_EVERY).await;
                let has_files = has_files();
                self.lock().tracker.record_probe(Instant::now(), has_files);
            }
        }
    }

    fn emit_ability(&self, tenure: &Tenure, ability: Ability) {
        let error = self.lock().error.clone();
        tenure.emit(match ability {
            Ability::Able => ServeEvent::InstanceAble,
            Ability::Strained => ServeEvent::InstanceStrained { error },
            Ability::Unable => ServeEvent::InstanceUnable { error },
        });
    }

    fn lock(&self) -> MutexGuard<'_, TrackedAbility> {
        self.0.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a few files can be opened.
fn has_files() -> bool {
    let files: Vec<_> = (0..PROBE_FILES).map_while(|_| File::open("/dev/null").ok()).collect();
    files.len() == PROBE_FILES
}
