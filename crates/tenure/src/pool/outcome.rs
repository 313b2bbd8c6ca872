//! Results of requests to a pool.

use std::time::{Duration, SystemTime};

use thiserror::Error;

use super::TargetName;
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
    /// Another instance holds it. Nothing was changed; a retry later is safe.
    #[error("held by {holder}{}", remaining.map(|left| format!(" for another {left:?} without renewal")).unwrap_or_default())]
    Held {
        /// Its holder.
        holder: InstanceId,
        /// How long it is held without renewal, if known.
        remaining: Option<Duration>,
    },
    /// This instance does not hold it, so it cannot release it. Nothing was changed.
    #[error("not held by this instance")]
    NotHeld,
    /// This instance hands over its targets and claims none. Nothing was changed.
    #[error("this instance is draining")]
    Draining,
    /// The namespace is in quarantine. Nothing was changed; a retry later is safe.
    #[error("{0}")]
    Quarantined(Quarantine),
    /// The store could not be reached or refused the request. The target may be granted all the same, and is held then;
    /// a retry is safe.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pool has stopped. Nothing was changed.
    #[error("the pool has stopped")]
    Stopped,
}

/// What one instance knows about a target and its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetInfo {
    /// The target.
    pub target: TargetName,
    /// The lease, as this instance sees it: `Owned` or `Uncertain` when it holds it, `Other` when another instance
    /// does, `Unknown` when no holder is known.
    pub state: LeaseState,
    /// Its holder, as far as known.
    pub holder: Option<InstanceId>,
    /// The token of the term, if this instance holds it.
    pub token: Option<Token>,
    /// When the term began, if this instance holds it.
    pub acquired_at: Option<SystemTime>,
    /// When it was last renewed, if this instance holds it.
    pub last_renewed_at: Option<SystemTime>,
    /// The instance that should hold it.
    pub preferred: Option<InstanceId>,
    /// For how long it has been unheld, if it is.
    pub unheld_for: Option<Duration>,
}

/// The result of stopping a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// Targets that no other instance accepted: they were released, or their leases expire within the ttl.
    pub not_handed_over: Vec<TargetName>,
}
