//! Events, in the vocabulary that logs, `watch` and the event stream share.

use std::fmt;
use std::time::Duration;

use crate::ending::{Ending, Loss, ReleaseReason};
use crate::name::{InstanceId, LeaseKind, LeaseName};
use crate::store::Quarantine;
use crate::token::Token;

/// The severity of an event.
///
/// ```
/// use tenure::lease::Loss;
/// use tenure::{EventKind, Level};
///
/// let kind = EventKind::Lost(Loss::Revoked);
/// if kind.level() >= Level::Warn {
///     println!("{} {}", kind.level().as_str(), kind.name()); // warn lease.lost
/// }
/// assert!(EventKind::StoreAttached.level() < Level::Warn);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Detail for debugging.
    Debug,
    /// Normal operation.
    Info,
    /// A condition that should not last.
    Warn,
}

impl Level {
    /// All levels.
    pub const ALL: [Self; 3] = [Self::Debug, Self::Info, Self::Warn];

    /// The name used in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state of a candidate in an election.
///
/// ```
/// use std::time::Duration;
/// use tenure::{ElectionState, Tenure};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let election = tenure
///     .election("cleanup")
///     .on_state_changed(|from, to| println!("{} became {}", from.as_str(), to.as_str()))
///     .build()?;
/// assert_eq!(election.state(), ElectionState::Follower);
/// election.start();
/// election.wait_for_leadership(Duration::from_secs(10)).await?;
/// assert_eq!(election.state(), ElectionState::Leader);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElectionState {
    /// Another candidate leads.
    Follower,
    /// Acquiring leadership.
    Candidate,
    /// Leading.
    Leader,
}

impl ElectionState {
    /// The name used in logs and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Leader => "leader",
        }
    }
}

impl fmt::Display for ElectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Something that happened to an instance. The listener adds the time.
///
/// ```
/// use tenure::lease::Loss;
/// use tenure::{Event, EventKind, InstanceId, LeaseName, Token};
///
/// let event = Event {
///     instance: InstanceId::new("api-1")?,
///     lease: Some(LeaseName::role("cleanup")?),
///     token: Token::new(42),
///     kind: EventKind::Lost(Loss::Missing),
/// };
/// assert_eq!(event.to_string(), "lease.lost instance_id=api-1 role=cleanup token=42 reason=missing");
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The instance that it happened to.
    pub instance: InstanceId,
    /// The lease concerned.
    pub lease: Option<LeaseName>,
    /// The token of the term concerned.
    pub token: Option<Token>,
    /// What happened.
    pub kind: EventKind,
}

/// What happened, by event name.
///
/// ```
/// use tenure::{EventKind, Tenure};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let mut events = tenure.events();
/// tenure.lease("report").acquire().await?.release().await?;
/// while let Some(event) = events.next().await {
///     match event.kind {
///         EventKind::Acquired { ttl } => println!("held for {ttl:?}"),
///         EventKind::Lost(loss) => println!("stopped: {loss}"),
///         EventKind::Released(reason) => {
///             assert_eq!(reason.as_str(), "voluntary");
///             break;
///         }
///         kind => println!("{}", kind.name()),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A term began.
    Acquired {
        /// The time to live of the lease.
        ttl: Duration,
    },
    /// The lease was not acquired.
    AcquireFailed {
        /// Its holder, if it has one.
        owner: Option<InstanceId>,
        /// The error, if there was one.
        error: Option<String>,
        /// Whether the caller waits for the lease. Then another holder is not a failure.
        is_waiting: bool,
    },
    /// A term was renewed.
    Renewed {
        /// The time to live of the lease.
        ttl: Duration,
    },
    /// A renewal did not succeed.
    RenewFailed {
        /// The cause.
        error: String,
    },
    /// No new work starts until a renewal succeeds.
    Uncertain {
        /// The cause.
        error: String,
    },
    /// A renewal succeeded after a failure.
    Recovered,
    /// A term was released: the store has confirmed it, or the lease has expired while the store could not be reached.
    Released(ReleaseReason),
    /// A release failed. It is retried until the lease has expired.
    ReleaseFailed {
        /// The cause.
        error: String,
    },
    /// A term was lost.
    Lost(Loss),
    /// A lease was acquired whose previous holder did not release it.
    TakenOver {
        /// The previous holder.
        owner: InstanceId,
    },
    /// A candidate's state changed. Emitted before the two events below.
    StateChanged {
        /// The previous state.
        from: ElectionState,
        /// The new state.
        to: ElectionState,
    },
    /// A candidate became the leader.
    LeadershipAcquired,
    /// A candidate is no longer the leader.
    LeadershipLost {
        /// Why: its term was released or lost.
        reason: Ending,
    },
    /// An election could not run.
    ElectionFailed {
        /// The cause.
        error: String,
    },
    /// The store was attached: leases can be acquired.
    StoreAttached,
    /// The store cannot be reached. Emitted once, not with every attempt.
    StoreLost {
        /// The cause.
        error: String,
    },
    /// The store is in quarantine: it grants nothing until every lease from before has expired.
    StoreQuarantined(Quarantine),
    /// Announcements are neither sent nor received: a waiter learns of a release only when the ttl ends.
    StoreSilent {
        /// The cause.
        error: String,
    },
    /// The store refuses writes that no caller waits for: heartbeats, or the records of terms. Emitted once.
    StoreRefused {
        /// The cause.
        error: String,
    },
    /// An instance that was not alive is alive now, as this instance sees it.
    Joined {
        /// The instance that joined.
        instance: InstanceId,
    },
    /// An instance is no longer alive: it has left, or its heartbeat is late.
    Left {
        /// The instance that left.
        instance: InstanceId,
    },
    /// The work of a pool's target returned an error or panicked. It is restarted after a backoff.
    WorkFailed {
        /// The error, or the message of the panic.
        error: String,
        /// Whether it panicked.
        is_panic: bool,
    },
    /// An event that a program defines.
    Program(ProgramEvent),
    /// Many events of one kind within a short time, as one log line. Event streams carry each of them.
    Folded {
        /// The event name they share.
        name: &'static str,
        /// Their level.
        level: Level,
        /// Their number.
        count: u64,
        /// The reason or the error of the last one.
        detail: Option<(&'static str, String)>,
    },
    /// A result was not published because its term was over.
    PublishRefused {
        /// The current holder, if there is one.
        owner: Option<InstanceId>,
    },
}

/// An event that a program defines, for its log and for everything else that receives events.
///
/// ```
/// use tenure::{Level, ProgramEvent, Tenure};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let mut events = tenure.events().filter(|event| event.kind.name() == "backup.finished");
/// let fields = vec![("bytes", "1024".to_owned())];
/// tenure.emit(ProgramEvent { name: "backup.finished", level: Level::Info, is_routine: false, fields });
/// let event = events.next().await.ok_or("no event")?;
/// assert!(event.to_string().starts_with("backup.finished instance_id="));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramEvent {
    /// Its name, such as `backup.finished`.
    pub name: &'static str,
    /// Its severity.
    pub level: Level,
    /// Whether it only confirms normal operation. [Notable](crate::EventKind::is_routine) streams leave it out.
    pub is_routine: bool,
    /// Its fields.
    pub fields: Vec<(&'static str, String)>,
}

impl From<ProgramEvent> for EventKind {
    fn from(event: ProgramEvent) -> Self {
        Self::Program(event)
    }
}

impl EventKind {
    /// The event's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Acquired { .. } => "lease.acquired",
            Self::AcquireFailed { error: None, is_waiting: true, .. } => "lease.waiting",
            Self::AcquireFailed { .. } => "lease.acquire_failed",
            Self::Renewed { .. } => "lease.renewed",
            Self::RenewFailed { .. } => "lease.renew_failed",
            Self::Uncertain { .. } => "lease.uncertain",
            Self::Recovered => "lease.recovered",
            Self::Released(_) => "lease.released",
            Self::ReleaseFailed { .. } => "lease.release_failed",
            Self::Lost(_) => "lease.lost",
            Self::TakenOver { .. } => "lease.taken_over",
            Self::StateChanged { .. } => "election.state_changed",
            Self::LeadershipAcquired => "election.leadership_acquired",
            Self::LeadershipLost { .. } => "election.leadership_lost",
            Self::ElectionFailed { .. } => "election.failed",
            Self::StoreAttached => "store.attached",
            Self::StoreLost { .. } => "store.lost",
            Self::StoreQuarantined(_) => "store.quarantined",
            Self::StoreSilent { .. } => "store.silent",
            Self::StoreRefused { .. } => "store.refused",
            Self::Joined { .. } => "fleet.joined",
            Self::Left { .. } => "fleet.left",
            Self::WorkFailed { is_panic: false, .. } => "work.failed",
            Self::WorkFailed { is_panic: true, .. } => "work.panicked",
            Self::Program(event) => event.name,
            Self::PublishRefused { .. } => "publish.refused",
            Self::Folded { name, .. } => name,
        }
    }

    /// Whether the event only confirms normal operation: renewals, and what a program calls routine.
    pub fn is_routine(&self) -> bool {
        match self {
            Self::Renewed { .. } => true,
            Self::Program(event) => event.is_routine,
            _ => false,
        }
    }

    /// The severity of the event.
    pub fn level(&self) -> Level {
        match self {
            Self::Renewed { .. } => Level::Debug,
            Self::Program(event) => event.level,
            Self::AcquireFailed { error: None, is_waiting: true, .. } => Level::Debug,
            Self::AcquireFailed { error: None, is_waiting: false, .. } => Level::Info,
            Self::Folded { level, .. } => *level,
            Self::AcquireFailed { .. }
            | Self::RenewFailed { .. }
            | Self::ReleaseFailed { .. }
            | Self::Uncertain { .. }
            | Self::Lost(_)
            | Self::ElectionFailed { .. }
            | Self::StoreLost { .. }
            | Self::StoreQuarantined(_)
            | Self::StoreSilent { .. }
            | Self::StoreRefused { .. }
            | Self::WorkFailed { .. }
            | Self::PublishRefused { .. } => Level::Warn,
            _ => Level::Info,
        }
    }
}

impl Event {
    /// The fields after `timestamp`, `level` and `event`, in the order they are written.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![("instance_id", self.instance.to_string())];
        let mut add = |name, value: String| fields.push((name, value));
        if let Some(lease) = &self.lease {
            let name = match lease.kind() {
                LeaseKind::Lease => "lease",
                LeaseKind::Role => "role",
                LeaseKind::Target => "endpoint_id",
            };
            add(name, lease.label().to_owned());
        }
        if let Some(token) = self.token {
            add("token", token.to_string());
        }
        match &self.kind {
            EventKind::Acquired { ttl } | EventKind::Renewed { ttl } => add("ttl_ms", ttl.as_millis().to_string()),
            EventKind::AcquireFailed { owner, error, .. } => {
                owner.iter().for_each(|owner| add("owner", owner.to_string()));
                error.iter().for_each(|error| add("error", error.clone()));
            }
            EventKind::RenewFailed { error }
            | EventKind::ReleaseFailed { error }
            | EventKind::Uncertain { error }
            | EventKind::ElectionFailed { error }
            | EventKind::StoreLost { error }
            | EventKind::StoreSilent { error }
            | EventKind::StoreRefused { error }
            | EventKind::WorkFailed { error, .. } => add("error", error.clone()),
            EventKind::Program(event) => event.fields.iter().for_each(|(name, value)| add(name, value.clone())),
            EventKind::Released(reason) => add("reason", reason.as_str().to_owned()),
            EventKind::Lost(loss) => {
                add("reason", loss.as_str().to_owned());
                if let Loss::Taken { holder } = loss {
                    add("owner", holder.to_string());
                }
            }
            EventKind::TakenOver { owner } | EventKind::PublishRefused { owner: Some(owner) } => {
                add("owner", owner.to_string());
            }
            EventKind::StateChanged { from, to } => {
                add("from", from.as_str().to_owned());
                add("to", to.as_str().to_owned());
            }
            EventKind::Joined { instance } | EventKind::Left { instance } => add("owner", instance.to_string()),
            EventKind::LeadershipLost { reason } => add("reason", reason.as_str().to_owned()),
            EventKind::Folded { count, detail, .. } => {
                add("count", count.to_string());
                detail.iter().for_each(|(name, text)| add(name, text.clone()));
            }
            EventKind::StoreQuarantined(quarantine) => {
                add("remaining_ms", quarantine.remaining.as_millis().to_string());
                add("reason", quarantine.reason.as_str().to_owned());
                add("error", quarantine.to_string());
            }
            EventKind::Recovered
            | EventKind::StoreAttached
            | EventKind::LeadershipAcquired
            | EventKind::PublishRefused { owner: None } => {}
        }
        fields
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        for (name, value) in self.fields() {
            if value.chars().any(|c| c.is_whitespace() || c.is_control() || c == '"') {
                write!(f, " {name}={value:?}")?;
            } else {
                write!(f, " {name}={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_target_is_an_endpoint_and_text_is_quoted() {
        let event = Event {
            instance: InstanceId::new("api-1").unwrap(),
            lease: Some(LeaseName::target("poll", "eu-1").unwrap()),
            token: Token::new(7),
            kind: EventKind::RenewFailed { error: "no answer within 2s".to_owned() },
        };
        assert_eq!(
            event.to_string(),
            r#"lease.renew_failed instance_id=api-1 endpoint_id=eu-1 token=7 error="no answer within 2s""#
        );
        assert_eq!(event.kind.level(), Level::Warn);
    }
}
