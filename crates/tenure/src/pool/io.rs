//! What goes into the engine of a pool, and what comes out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::lease::{Ending, ReleaseReason};
use crate::name::InstanceId;
use crate::placement::MoveReason;
use crate::store::LiveInstance;
use crate::time::Moment;

/// A target, by its label.
pub type Target = Arc<str>;

/// The numbers of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// How long targets that nobody holds may wait for whom they suit best.
    pub max_claim_delay: Duration,
    /// How long all must be quiet before anything moves for balance.
    pub settle: Duration,
    /// How long that is waited for at most.
    pub max_settle: Duration,
    /// How long a target that was handed over waits for its receiver.
    pub accept_window: Duration,
    /// How often heartbeats are read, although nothing was heard.
    pub read_every: Duration,
    /// How long after a reading of heartbeats the next may follow because somebody is late.
    pub late_recheck_every: Duration,
    /// How often the scout sees whether a target is held by nobody.
    pub reconcile_every: Duration,
    /// For how long whoever is not back after an outage counts as there.
    pub outage_grace: Duration,
    /// Whether a restarted instance gets back what it had. Otherwise it gets what becomes unheld or is given away by others that stop.
    pub hand_back: bool,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum PoolInput {
    /// These are the targets now.
    Targets(BTreeSet<Target>),
    /// These are all heartbeats.
    Instances(Vec<LiveInstance>),
    /// They could not be read.
    ReadFailed,
    /// Who holds these.
    Holders(Vec<(Target, Option<InstanceId>)>),
    /// Who holds this one, and when its lease ends without renewal. Without an end it is not known.
    Report {
        /// Which target.
        target: Target,
        /// Who holds it, and until when.
        held: Option<(InstanceId, Option<Moment>)>,
    },
    /// What an instance held when it was last heard of.
    PreviouslyHeld {
        /// Who.
        instance: InstanceId,
        /// What it held.
        targets: Vec<Target>,
    },
    /// A target was let go of.
    Released(Target),
    /// Nobody holds a target, says the scout.
    Unheld(Target),
    /// A target is kept for an instance.
    HandedOver {
        /// Which target.
        target: Target,
        /// Who should have it.
        to: InstanceId,
    },
    /// This target is wanted at once, whosever turn it is.
    ClaimNow(Target),
    /// Somebody has joined or left.
    FleetChanged,
    /// Anything may have happened.
    Gap,
    /// A claim was granted.
    Granted(Target),
    /// A target that was granted is one that an earlier life of this instance had.
    HandedBack(Target),
    /// Somebody else has what was claimed.
    Refused {
        /// Which target.
        target: Target,
        /// Who has it.
        holder: InstanceId,
        /// How long it is theirs without renewal, when that is known.
        remaining: Option<Duration>,
    },
    /// A claim could not be decided; it may be made again after a while.
    Failed {
        /// Which target.
        target: Target,
        /// After how long.
        retry_after: Duration,
    },
    /// A term is over, and everything of it.
    TermEnded {
        /// Which target.
        target: Target,
        /// How it ended.
        ending: Ending,
    },
    /// This instance leaves: it gives everything away.
    Drain,
    /// It stays after all.
    Undrain,
    /// Whether this instance can work. While it cannot, it gives everything to those who can.
    Able(bool),
    /// Whether this instance looks at all targets for everybody.
    Reconciler(bool),
    /// Time has passed.
    Tick,
}

/// What a term that ends with a hand-over for this reason is said to have ended for.
pub fn release_reason(reason: MoveReason) -> ReleaseReason {
    match reason {
        MoveReason::Unable => ReleaseReason::Unable,
        MoveReason::Surplus { .. } | MoveReason::HandBack => ReleaseReason::Rebalance,
        _ => ReleaseReason::HandedOver,
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolAction {
    /// Read all heartbeats.
    ReadInstances,
    /// See who holds these.
    QueryHolders(Vec<Target>),
    /// See who holds this one, and for how long.
    Inspect(Target),
    /// See what an instance held.
    QueryHeldIndex(InstanceId),
    /// Ask for a target.
    Claim(Target),
    /// Let go of a target, when its work is done.
    Release {
        /// Which target.
        target: Target,
        /// Why.
        reason: ReleaseReason,
    },
    /// Give a target to somebody, when its work is done.
    HandOver {
        /// Which target.
        target: Target,
        /// Who should have it.
        to: InstanceId,
        /// Why.
        reason: MoveReason,
    },
    /// Write down why a target that was taken up had to be.
    RecordTakeover {
        /// Which target.
        target: Target,
        /// Who held it.
        from: InstanceId,
    },
    /// Tell everybody that nobody holds this one.
    AnnounceUnheld(Target),
    /// A target that stands among what an instance held is not held by it.
    Forget {
        /// Who.
        instance: InstanceId,
        /// Which target.
        target: Target,
    },
    /// Tell the others how many are held now.
    PublishRecord,
}
