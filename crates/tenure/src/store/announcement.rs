//! Hints that something changed. Nothing breaks when one is lost.

use crate::name::{InstanceId, LeaseName};
use crate::token::Token;

use super::Generation;

/// A change that others may be waiting for, published by whatever made it.
///
/// Announcements are hints: they make things faster and never make them right.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Announcement {
    /// A lease is free: its holder let go of it.
    Released {
        /// Which lease.
        name: LeaseName,
        /// The term that ended.
        token: Token,
    },
    /// A lease has a new holder, who was named by the old one.
    HandedOver {
        /// Which lease.
        name: LeaseName,
        /// The new term.
        token: Token,
        /// The new holder.
        to: InstanceId,
    },
    /// An operator ended a term.
    Revoked {
        /// Which lease.
        name: LeaseName,
        /// The term that ended.
        token: Token,
    },
    /// Something is asked of a holder; what it is stands in the store.
    Asked {
        /// Which lease.
        name: LeaseName,
        /// The term it is asked of.
        token: Token,
    },
    /// A record was published under a lease.
    Published {
        /// Which lease.
        name: LeaseName,
        /// Which record.
        record: String,
        /// The term it was published in.
        token: Token,
    },
    /// The store had lost its data, or the namespace is new. Whoever entered another generation enters again.
    GenerationMinted {
        /// The new generation.
        generation: Generation,
    },
    /// An instance joined.
    Joined {
        /// Who.
        instance: InstanceId,
    },
    /// An instance left.
    Left {
        /// Who.
        instance: InstanceId,
    },
    /// An index changed.
    IndexChanged {
        /// Which index.
        index: String,
    },
}

/// What a subscription hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An announcement.
    Announced(Announcement),
    /// Announcements may have been missed: look again at whatever is being waited for.
    Gap,
    /// The subscription is over; subscribe again.
    Closed,
}
