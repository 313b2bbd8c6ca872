//! Inputs and actions of a pool's engine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::ending::{Ending, ReleaseReason};
use crate::name::InstanceId;
use crate::placement::MoveReason;
use crate::store::LiveInstance;
use crate::time::Moment;

/// The name of a target.
///
/// ```
/// use tenure::Tenure;
/// use tenure::pool::TargetName;
///
/// # async fn poll(_: tenure::pool::Target, term: tenure::TermHandle) -> Result<(), tenure::WorkError> {
/// #     term.draining().await;
/// #     Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = tenure.pool("poll").targets(["eu-1", "us-1"]).run(poll).start()?;
/// let names: Vec<TargetName> = pool.target_statuses().await.into_keys().collect();
/// assert_eq!(names, [TargetName::from("eu-1"), TargetName::from("us-1")]);
/// pool.retarget(names.into_iter().filter(|name| name.starts_with("eu-")))?;
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type TargetName = Arc<str>;

/// The settings of a pool's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// The longest delay with which an unheld target is left to higher-ranked instances.
    pub max_claim_delay: Duration,
    /// How long the pool must be quiet before it rebalances.
    pub settle: Duration,
    /// How long to wait for such a quiet period at most.
    pub max_settle: Duration,
    /// How long a handed-over target waits for its receiver to accept.
    pub accept_window: Duration,
    /// The interval of heartbeat reads without an announcement.
    pub read_every: Duration,
    /// The minimum time between two reads of heartbeats because an instance is late.
    pub late_recheck_every: Duration,
    /// The interval at which the reconciler looks for unheld targets.
    pub reconcile_every: Duration,
    /// How long an instance that is not back after an outage counts as present.
    pub outage_grace: Duration,
    /// Whether a restarted instance gets its targets back. Otherwise it gets targets that become unheld, or that
    /// stopping instances hand over.
    pub hand_back: bool,
}

/// An input of the engine.
#[derive(Clone, Debug)]
pub enum PoolInput {
    /// The current set of targets.
    Targets(BTreeSet<TargetName>),
    /// All heartbeats.
    Instances(Vec<LiveInstance>),
    /// The heartbeats could not be read.
    ReadFailed,
    /// The holders of these targets.
    Holders(Vec<(TargetName, Option<InstanceId>)>),
    /// The holder of one target, and when its lease expires without renewal. `None` as the end: not known.
    Report {
        /// The target.
        target: TargetName,
        /// Its holder, and until when.
        held: Option<(InstanceId, Option<Moment>)>,
    },
    /// The targets that an instance held when it was last seen.
    PreviouslyHeld {
        /// The instance.
        instance: InstanceId,
        /// Its targets.
        targets: Vec<TargetName>,
    },
    /// A target was released.
    Released(TargetName),
    /// The reconciler announced an unheld target.
    Unheld(TargetName),
    /// A target was handed over to an instance.
    HandedOver {
        /// The target.
        target: TargetName,
        /// The receiver.
        to: InstanceId,
    },
    /// A caller wants this target at once, whichever instance should hold it.
    ClaimNow(TargetName),
    /// An instance has joined or left.
    FleetChanged,
    /// Announcements may have been missed.
    Gap,
    /// A claim was granted.
    Granted(TargetName),
    /// A granted target is one that an earlier instance of the same name held.
    HandedBack(TargetName),
    /// A claim was refused: another instance holds the target.
    Refused {
        /// The target.
        target: TargetName,
        /// Its holder.
        holder: InstanceId,
        /// How long it is held without renewal, if known.
        remaining: Option<Duration>,
    },
    /// A claim failed; it may be retried later.
    Failed {
        /// The target.
        target: TargetName,
        /// The time until the retry.
        retry_after: Duration,
    },
    /// A term and its work have ended.
    TermEnded {
        /// The target.
        target: TargetName,
        /// How it ended.
        ending: Ending,
    },
    /// This instance is leaving: it hands over all targets.
    Drain,
    /// This instance stays after all.
    Undrain,
    /// Whether this instance can work. While it cannot, it hands over all targets to instances that can.
    Able(bool),
    /// Whether this instance is the reconciler.
    Reconciler(bool),
    /// Time has passed.
    Tick,
}

/// The release reason of a term that ends with a move for this reason.
pub fn release_reason(reason: MoveReason) -> ReleaseReason {
    match reason {
        MoveReason::Unable => ReleaseReason::Unable,
        MoveReason::Surplus { .. } | MoveReason::HandBack => ReleaseReason::Rebalance,
        _ => ReleaseReason::HandedOver,
    }
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolAction {
    /// Read all heartbeats.
    ReadInstances,
    /// Query the holders of these targets.
    QueryHolders(Vec<TargetName>),
    /// Query the holder of this target, and for how long it holds it.
    Inspect(TargetName),
    /// Read the list of targets that an instance held.
    QueryHeldIndex(InstanceId),
    /// Claim a target.
    Claim(TargetName),
    /// Release a target when its work has ended.
    Release {
        /// The target.
        target: TargetName,
        /// Why.
        reason: ReleaseReason,
    },
    /// Hand a target over to an instance when its work has ended.
    HandOver {
        /// The target.
        target: TargetName,
        /// The receiver.
        to: InstanceId,
        /// Why.
        reason: MoveReason,
    },
    /// Record why a target was taken over.
    RecordTakeover {
        /// The target.
        target: TargetName,
        /// Its last holder.
        from: InstanceId,
    },
    /// Announce that this target is unheld.
    AnnounceUnheld(TargetName),
    /// Remove a target from the list of an instance that does not hold it.
    Forget {
        /// The instance.
        instance: InstanceId,
        /// The target.
        target: TargetName,
    },
    /// Publish the number of held targets.
    PublishRecord,
}
