//! Watches whether this instance can poll, and says so to its fleet: holding without polling is worse than not holding.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure::pool::Pool;
use tenure::{Happening, Tenure};
use tokio::sync::Notify;

use super::ability::{Ability, AbilityJudge};
use super::client::PollClient;

/// How often it is tried whether files can be opened, while something is wrong.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// How many files must be there.
const FILES: usize = 8;

/// What polls say about this instance. Clones are the same.
#[derive(Clone, Debug)]
pub struct Supervisor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    judge: Mutex<Judged>,
    strained: Notify,
    client: PollClient,
}

#[derive(Debug, Default)]
struct Judged {
    judge: AbilityJudge,
    /// Why the last poll could not be made.
    why: String,
}

impl Supervisor {
    /// One that nothing was said to yet.
    pub fn new(client: PollClient) -> Self {
        Self(Arc::new(Shared { judge: Mutex::default(), strained: Notify::new(), client }))
    }

    /// What this instance can do.
    pub fn ability(&self) -> Ability {
        self.lock().judge.ability()
    }

    /// A poll succeeded, or failed for a reason of the target's.
    pub fn poll_worked(&self) {
        self.lock().judge.poll_worked(Instant::now());
    }

    /// A poll could not be made, for a reason of this instance's.
    pub fn poll_could_not_be_made(&self, why: &str) {
        self.strained(why, AbilityJudge::poll_could_not_be_made);
    }

    /// A poll found no place, because others take long.
    pub fn poll_found_no_place(&self, why: &str) {
        self.strained(why, AbilityJudge::poll_found_no_place);
    }

    fn strained(&self, why: &str, tell: impl FnOnce(&mut AbilityJudge, Instant)) {
        let mut judged = self.lock();
        tell(&mut judged.judge, Instant::now());
        if judged.why != why {
            why.clone_into(&mut judged.why);
        }
        drop(judged);
        self.0.strained.notify_one();
    }

    /// Gives everything away while this instance cannot poll, and takes part again when it can. Never ends.
    pub async fn watch(self, tenure: Tenure, pool: Pool) {
        let mut known = Ability::Able;
        loop {
            let ability = self.ability();
            if ability != known {
                self.0.client.set_strained(ability != Ability::Able);
                self.tell(&tenure, ability);
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
                self.lock().judge.probed(Instant::now(), has_files);
            }
        }
    }

    fn tell(&self, tenure: &Tenure, ability: Ability) {
        let error = self.lock().why.clone();
        tenure.tell(match ability {
            Ability::Able => Happening::InstanceAble,
            Ability::Strained => Happening::InstanceStrained { error },
            Ability::Unable => Happening::InstanceUnable { error },
        });
    }

    fn lock(&self) -> MutexGuard<'_, Judged> {
        self.0.judge.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a few files can be opened.
fn has_files() -> bool {
    let files: Vec<_> = (0..FILES).map_while(|_| File::open("/dev/null").ok()).collect();
    files.len() == FILES
}
