//! Watching who leads, without standing for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Leader;
use crate::keeper::Command;
use crate::name::LeaseName;
use crate::store::StoreError;
use crate::tenure::Tenure;

/// How often is looked although nothing was heard, as long as nobody says otherwise; and how often at most.
const DEFAULT_RECHECK_EVERY: Duration = Duration::from_secs(15);
const MIN_RECHECK_EVERY: Duration = Duration::from_millis(100);

/// Just after a lease has run out.
const EXPIRY_MARGIN: Duration = Duration::from_millis(25);

/// Who leads, as far as it can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaderStatus {
    /// Somebody does.
    Leader(Leader),
    /// Nobody does.
    NoLeader,
    /// The store cannot be asked.
    Unknown(StoreError),
}

impl LeaderStatus {
    fn from_lookup(look: Result<Option<Leader>, StoreError>) -> Self {
        match look {
            Ok(Some(leader)) => Self::Leader(leader),
            Ok(None) => Self::NoLeader,
            Err(error) => Self::Unknown(error),
        }
    }

    /// Whether this is news to whoever has seen that.
    fn differs_from(&self, before: &Self) -> bool {
        match (self, before) {
            // A lease that goes on is no news; a term that does not is.
            (Self::Leader(now), Self::Leader(then)) => {
                (&now.instance, now.token, &now.metadata) != (&then.instance, then.token, &then.metadata)
            }
            (Self::Unknown(now), Self::Unknown(then)) => now.kind() != then.kind(),
            (Self::NoLeader, Self::NoLeader) => false,
            _ => true,
        }
    }

    /// When to look again if nothing is heard.
    fn recheck_after(&self, interval: Duration) -> Duration {
        match self {
            Self::Leader(Leader { remaining: Some(left), .. }) => (*left + EXPIRY_MARGIN).min(interval),
            Self::Leader(_) | Self::NoLeader => interval,
            Self::Unknown(_) => interval.min(Duration::from_secs(1)),
        }
    }
}

/// Watches who leads a role, or holds any lease, for a process that is no candidate. It is told of changes, and looks by itself
/// where nobody tells: a leader that dies, a program that is not Tenure's, and a plain lease that somebody acquires.
///
/// ```
/// use tenure::election::LeaderStatus;
/// use tenure::{LeaseName, Tenure};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let mut observer = tenure.observe(&LeaseName::role("cleanup")?);
/// assert_eq!(observer.changed().await, LeaderStatus::NoLeader);
///
/// let leadership = tenure.election("cleanup").metadata("10.0.0.7:8080").acquire().await?;
/// while let LeaderStatus::NoLeader = observer.changed().await {}
/// # leadership.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Observer {
    tenure: Tenure,
    name: LeaseName,
    recheck_every: Duration,
    hint: Arc<Notify>,
    status: Option<LeaderStatus>,
    /// When to look; `None` is now.
    next_recheck_at: Option<Instant>,
}

impl Observer {
    /// Looks this often although nothing was heard, 15 s by default and 100 ms at least.
    #[must_use]
    pub fn recheck_every(mut self, interval: Duration) -> Self {
        self.recheck_every = interval.max(MIN_RECHECK_EVERY);
        self
    }

    /// What was last seen.
    pub fn status(&self) -> Option<&LeaderStatus> {
        self.status.as_ref()
    }

    /// Waits until there is something else to be seen than before; the first time, looks.
    ///
    /// # Cancel safety
    /// Safe: what was not returned is news the next time.
    pub async fn changed(&mut self) -> LeaderStatus {
        loop {
            if let Some(at) = self.next_recheck_at {
                // A hint that came while we looked is not lost.
                let _ = tokio::time::timeout_at(at, self.hint.notified()).await;
                // Until a look has been taken, one is due, however often we are interrupted.
                self.next_recheck_at = None;
            }
            let now = LeaderStatus::from_lookup(self.tenure.leader_of(&self.name).await);
            self.next_recheck_at = Some(Instant::now() + now.recheck_after(self.recheck_every));
            let is_new = self.status.as_ref().is_none_or(|before| now.differs_from(before));
            self.status = Some(now.clone());
            if is_new {
                return now;
            }
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observer({}: {:?})", self.name, self.status)
    }
}

impl Tenure {
    /// Watches who leads a role, or holds any lease, without standing for it.
    pub fn observe(&self, lease: &LeaseName) -> Observer {
        let hint = Arc::new(Notify::new());
        self.keeper().send(Command::Observe(lease.clone(), Arc::downgrade(&hint)));
        Observer {
            tenure: self.clone(),
            name: lease.clone(),
            recheck_every: DEFAULT_RECHECK_EVERY,
            hint,
            status: None,
            next_recheck_at: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::InstanceId;
    use crate::store::ErrorKind;
    use crate::token::Token;

    fn leader(id: &str, token: u64, remaining: u64) -> LeaderStatus {
        let instance = InstanceId::new(id).unwrap();
        let remaining = Some(Duration::from_millis(remaining));
        LeaderStatus::Leader(Leader {
            instance,
            token: Token::new(token),
            remaining,
            is_revoked: false,
            is_confirmed: true,
            metadata: None,
        })
    }

    #[test]
    fn a_renewal_is_not_a_change_but_a_new_term_is() {
        assert!(!leader("a", 1, 900).differs_from(&leader("a", 1, 100)));
        assert!(leader("a", 2, 900).differs_from(&leader("a", 1, 900)));
        assert!(leader("b", 2, 900).differs_from(&LeaderStatus::NoLeader));
        let unknown = |kind| LeaderStatus::Unknown(StoreError::new(kind, "gone"));
        assert!(
            unknown(ErrorKind::Unreachable).differs_from(&LeaderStatus::NoLeader),
            "not knowing is not the same as nobody"
        );
        assert!(!unknown(ErrorKind::Unreachable).differs_from(&unknown(ErrorKind::Unreachable)));
    }

    #[test]
    fn the_observer_looks_after_expiry_and_at_every_interval() {
        let interval = Duration::from_secs(15);
        assert_eq!(leader("a", 1, 900).recheck_after(interval), Duration::from_millis(925));
        assert_eq!(leader("a", 1, 30_000).recheck_after(interval), interval);
        assert_eq!(LeaderStatus::NoLeader.recheck_after(interval), interval);
    }
}
