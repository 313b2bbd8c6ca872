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
const LOOK_EVERY: Duration = Duration::from_secs(15);
const NOT_MORE_OFTEN_THAN: Duration = Duration::from_millis(100);

/// Just after a lease has run out.
const AFTER_THE_END: Duration = Duration::from_millis(25);

/// Who leads, as far as it can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Seen {
    /// Somebody does.
    Leads(Leader),
    /// Nobody does.
    Nobody,
    /// The store cannot be asked.
    Unknown(StoreError),
}

impl Seen {
    fn of(look: Result<Option<Leader>, StoreError>) -> Self {
        match look {
            Ok(Some(leader)) => Self::Leads(leader),
            Ok(None) => Self::Nobody,
            Err(error) => Self::Unknown(error),
        }
    }

    /// Whether this is news to whoever has seen that.
    fn differs_from(&self, before: &Self) -> bool {
        match (self, before) {
            // A lease that goes on is no news; a term that does not is.
            (Self::Leads(now), Self::Leads(then)) => {
                (&now.instance, now.token, &now.metadata) != (&then.instance, then.token, &then.metadata)
            }
            (Self::Unknown(now), Self::Unknown(then)) => now.kind() != then.kind(),
            (Self::Nobody, Self::Nobody) => false,
            _ => true,
        }
    }

    /// When to look again if nothing is heard.
    fn next_look(&self, interval: Duration) -> Duration {
        match self {
            Self::Leads(Leader { remaining: Some(left), .. }) => (*left + AFTER_THE_END).min(interval),
            Self::Leads(_) | Self::Nobody => interval,
            Self::Unknown(_) => interval.min(Duration::from_secs(1)),
        }
    }
}

/// Watches who leads a role, or holds any lease, for a process that is no candidate. It is told of changes, and looks by itself
/// where nobody tells: a leader that dies, a program that is not Tenure's, and a plain lease that somebody acquires.
///
/// ```
/// use tenure::election::Seen;
/// use tenure::{LeaseName, Tenure};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let mut observer = tenure.observe(&LeaseName::role("cleanup")?);
/// assert_eq!(observer.changed().await, Seen::Nobody);
///
/// let leadership = tenure.election("cleanup").metadata("10.0.0.7:8080").acquire().await?;
/// while let Seen::Nobody = observer.changed().await {}
/// # leadership.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Observer {
    tenure: Tenure,
    name: LeaseName,
    look_every: Duration,
    hint: Arc<Notify>,
    seen: Option<Seen>,
    /// When to look; `None` is now.
    look_at: Option<Instant>,
}

impl Observer {
    /// Looks this often although nothing was heard, 15 s by default and 100 ms at least.
    #[must_use]
    pub fn look_every(mut self, interval: Duration) -> Self {
        self.look_every = interval.max(NOT_MORE_OFTEN_THAN);
        self
    }

    /// What was last seen.
    pub fn seen(&self) -> Option<&Seen> {
        self.seen.as_ref()
    }

    /// Waits until there is something else to be seen than before; the first time, looks.
    ///
    /// # Cancel safety
    /// Safe: what was not returned is news the next time.
    pub async fn changed(&mut self) -> Seen {
        loop {
            if let Some(at) = self.look_at {
                // A hint that came while we looked is not lost.
                let _ = tokio::time::timeout_at(at, self.hint.notified()).await;
                // Until a look has been taken, one is due, however often we are interrupted.
                self.look_at = None;
            }
            let now = Seen::of(self.tenure.leader_of(&self.name).await);
            self.look_at = Some(Instant::now() + now.next_look(self.look_every));
            let news = self.seen.as_ref().is_none_or(|before| now.differs_from(before));
            self.seen = Some(now.clone());
            if news {
                return now;
            }
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observer({}: {:?})", self.name, self.seen)
    }
}

impl Tenure {
    /// Watches who leads a role, or holds any lease, without standing for it.
    pub fn observe(&self, lease: &LeaseName) -> Observer {
        let hint = Arc::new(Notify::new());
        self.door().tell(Command::Observe(lease.clone(), Arc::downgrade(&hint)));
        Observer { tenure: self.clone(), name: lease.clone(), look_every: LOOK_EVERY, hint, seen: None, look_at: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::InstanceId;
    use crate::store::ErrorKind;
    use crate::token::Token;

    fn leader(id: &str, token: u64, remaining: u64) -> Seen {
        let instance = InstanceId::new(id).unwrap();
        let remaining = Some(Duration::from_millis(remaining));
        Seen::Leads(Leader {
            instance,
            token: Token::new(token),
            remaining,
            is_revoked: false,
            in_office: true,
            metadata: None,
        })
    }

    #[test]
    fn a_renewal_is_no_news_and_another_term_is() {
        assert!(!leader("a", 1, 900).differs_from(&leader("a", 1, 100)));
        assert!(leader("a", 2, 900).differs_from(&leader("a", 1, 900)));
        assert!(leader("b", 2, 900).differs_from(&Seen::Nobody));
        let unknown = |kind| Seen::Unknown(StoreError::new(kind, "gone"));
        assert!(unknown(ErrorKind::Unreachable).differs_from(&Seen::Nobody), "not knowing is not the same as nobody");
        assert!(!unknown(ErrorKind::Unreachable).differs_from(&unknown(ErrorKind::Unreachable)));
    }

    #[test]
    fn it_looks_when_the_lease_has_run_out_and_now_and_then() {
        let interval = Duration::from_secs(15);
        assert_eq!(leader("a", 1, 900).next_look(interval), Duration::from_millis(925));
        assert_eq!(leader("a", 1, 30_000).next_look(interval), interval);
        assert_eq!(Seen::Nobody.next_look(interval), interval);
    }
}
