//! Watching the leader of a role without being a candidate.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Leader;
use super::leaders::leader_of;
use crate::fleet::Fleet;
use crate::keeper::Command;
use crate::name::{LeaseName, LeaseRef, NameError};
use crate::store::StoreError;
use crate::tenure::Tenure;

/// The default and the smallest interval of checks without an announcement.
const DEFAULT_RECHECK_EVERY: Duration = Duration::from_secs(15);
const MIN_RECHECK_EVERY: Duration = Duration::from_millis(100);

/// The delay after the expiry of a lease before the next check.
const EXPIRY_MARGIN: Duration = Duration::from_millis(25);

/// The leader of a role, as last seen.
///
/// ```
/// use tenure::Tenure;
/// use tenure::election::LeaderStatus;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let mut observer = tenure.fleet().observe("cleanup")?;
/// match observer.changed().await {
///     LeaderStatus::Leader(leader) => println!("{} leads", leader.instance),
///     LeaderStatus::NoLeader => println!("no leader"),
///     LeaderStatus::Unknown(error) => println!("not known: {error}"), // the last leader may still lead
///     _ => {}
/// }
/// assert_eq!(observer.status(), Some(&LeaderStatus::NoLeader));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaderStatus {
    /// The role has this leader.
    Leader(Leader),
    /// The role has no leader.
    NoLeader,
    /// The store cannot be reached or refused the request.
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

    /// Whether this is a change worth reporting.
    fn differs_from(&self, before: &Self) -> bool {
        match (self, before) {
            // A renewal is not a change; a new term is.
            (Self::Leader(now), Self::Leader(then)) => {
                (&now.instance, now.token, &now.metadata) != (&then.instance, then.token, &then.metadata)
            }
            (Self::Unknown(now), Self::Unknown(then)) => now.kind() != then.kind(),
            (Self::NoLeader, Self::NoLeader) => false,
            _ => true,
        }
    }

    /// When to check again without an announcement.
    fn recheck_after(&self, interval: Duration) -> Duration {
        match self {
            Self::Leader(Leader { remaining: Some(left), .. }) => (*left + EXPIRY_MARGIN).min(interval),
            Self::Leader(_) | Self::NoLeader => interval,
            Self::Unknown(_) => interval.min(Duration::from_secs(1)),
        }
    }
}

/// Watches the leader of a role, or the holder of any lease, for a process that is not a candidate. The store announces
/// most changes. The observer also checks periodically, because three changes are not announced: a leader that dies, a
/// lease of a program that is not Tenure's, and the acquisition of a plain lease.
///
/// ```
/// use tenure::Tenure;
/// use tenure::election::LeaderStatus;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let mut observer = tenure.fleet().observe("cleanup")?;
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
    /// When to check again; `None` means now.
    next_recheck_at: Option<Instant>,
}

impl Observer {
    /// Sets how often to check without an announcement. The default is 15 s, the minimum 100 ms.
    #[must_use]
    pub fn recheck_every(mut self, interval: Duration) -> Self {
        self.recheck_every = interval.max(MIN_RECHECK_EVERY);
        self
    }

    /// The status last seen.
    pub fn status(&self) -> Option<&LeaderStatus> {
        self.status.as_ref()
    }

    /// Waits until the status differs from the last one. The first call checks at once.
    ///
    /// # Cancel safety
    /// Safe: a status that was not returned is returned by the next call.
    pub async fn changed(&mut self) -> LeaderStatus {
        loop {
            if let Some(at) = self.next_recheck_at {
                // A hint that arrived during the check is not lost.
                let _ = tokio::time::timeout_at(at, self.hint.notified()).await;
                // A check is due until one has completed, however often the future is dropped.
                self.next_recheck_at = None;
            }
            let now = LeaderStatus::from_lookup(leader_of(&self.tenure, &self.name).await);
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

impl Fleet {
    /// Watches the leader of a role, or the holder of any lease, without being a candidate.
    ///
    /// # Errors
    /// When the name is not valid.
    pub fn observe(&self, role: impl Into<LeaseRef>) -> Result<Observer, NameError> {
        let (name, hint) = (role.into().role()?, Arc::new(Notify::new()));
        self.0.keeper().send(Command::Observe(name.clone(), Arc::downgrade(&hint)));
        Ok(Observer {
            tenure: self.0.clone(),
            name,
            recheck_every: DEFAULT_RECHECK_EVERY,
            hint,
            status: None,
            next_recheck_at: None,
        })
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
            "an unknown leader is not the same as no leader"
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
