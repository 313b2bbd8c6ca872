//! Planted bugs for the simulator's self-test: a checker that has never caught anything proves nothing.
//!
//! Each is planted at the line that gets it right. Without the `mutations` feature none of them can be planted.

/// A bug that real lease clients have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// The deadline is counted from when the reply arrived, not from when the request was sent.
    DeadlineFromReceipt,
    /// The lease is released before its work has ended.
    ReleaseBeforeJoin,
    /// The store compares holders and not tokens.
    CompareByHolderOnly,
    /// A newer generation is overwritten with the remembered one.
    OverwriteNewerGeneration,
    /// A lost term keeps renewing, and works again when a renewal succeeds.
    RenewAfterLost,
    /// Tokens are counted from one, as `INCR` would.
    SequentialTokens,
    /// A loss of data does not start a quarantine.
    NoQuarantine,
    /// After a loss of data the quarantine also waits for leases that were released or have expired, however long ago.
    MaxTtlNeverFalls,
    /// A publication is accepted by the token alone, although the lease has expired or is gone.
    PublishAfterExpiry,
    /// A grant does not notice that the data behind an open connection was replaced.
    IgnoreLineage,
    /// An attempt to attach waits for longer than leases last.
    LongAttachTimeout,
    /// A waiter relies on announcements alone and does not retry when the ttl has passed.
    AnnouncementsOnly,
    /// After an outage, instances count as present for a ttl from its beginning, not from its end.
    OutageFromLoss,
    /// A rebalance goes by a read that took as long as an outage.
    RebalanceByOldRead,
}

/// The planted bug, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mutations(Option<Mutation>);

impl Mutations {
    #[cfg(feature = "mutations")]
    pub(crate) fn plant(&mut self, mutation: Mutation) {
        self.0 = Some(mutation);
    }

    pub(crate) fn has(self, mutation: Mutation) -> bool {
        cfg!(feature = "mutations") && self.0 == Some(mutation)
    }
}
