//! What comes of what is asked of a pool.

use std::time::{Duration, SystemTime};

use thiserror::Error;

use super::Target;
use crate::lease::LeaseState;
use crate::name::InstanceId;
use crate::store::{Quarantine, StoreError};
use crate::token::Token;

/// Why a target was not acquired or not released.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The pool has no such target. Nothing was changed.
    #[error("not a target of this pool")]
    NotATarget,
    /// Another instance holds it. Nothing was changed; trying again later is safe.
    #[error("held by {holder}{}", remaining.map(|left| format!(" for another {left:?} without renewal")).unwrap_or_default())]
    Held {
        /// Its holder.
        holder: InstanceId,
        /// How long it is theirs without renewal, when that is known.
        remaining: Option<Duration>,
    },
    /// This instance does not hold it, so it cannot release it. Nothing was changed.
    #[error("not held by this instance")]
    NotHeld,
    /// This instance gives its targets away and takes none. Nothing was changed.
    #[error("this instance is draining")]
    Draining,
    /// The store grants nothing for now. Nothing was changed; trying again later is safe.
    #[error("{0}")]
    Quarantined(Quarantine),
    /// The store could not be asked. The target may be granted all the same, and is held then; trying again is safe.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pool has stopped. Nothing was changed.
    #[error("the pool has stopped")]
    Stopped,
}

/// What one instance knows of a target and its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetInfo {
    /// Which target.
    pub target: Target,
    /// The lease, as this instance sees it: `Owned` or `Uncertain` when it holds it, `Other` when another does, `Unknown` when none is known to.
    pub state: LeaseState,
    /// Its holder, as far as is known.
    pub holder: Option<InstanceId>,
    /// The token of the term, when it is this instance's.
    pub token: Option<Token>,
    /// When the term began, when it is this instance's.
    pub acquired_at: Option<SystemTime>,
    /// When it was last renewed, when it is this instance's.
    pub last_renewed_at: Option<SystemTime>,
    /// The instance that should hold it.
    pub preferred: Option<InstanceId>,
    /// For how long no instance has held it, if none does.
    pub unheld_for: Option<Duration>,
}

/// What came of stopping a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// Targets that no other instance took over: they were released, or their leases expire within the ttl.
    pub not_handed_over: Vec<Target>,
}
