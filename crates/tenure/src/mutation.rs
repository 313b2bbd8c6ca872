//! Deliberate mistakes, for the simulator's own test: a checker that has never caught anything proves nothing.
//!
//! Each stands at the very line that gets it right. Without the `mutations` feature none of them can be planted.

/// A mistake that lease clients really make.
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
    /// A term that was lost goes on being renewed, and works again when a renewal succeeds.
    RenewAfterLost,
    /// Tokens are counted from one, as `INCR` would.
    SequentialTokens,
    /// A loss of data does not close the namespace.
    NoQuarantine,
    /// What was released or has expired is waited for after a loss of data, however long ago that was.
    MaxTtlNeverFalls,
    /// A publication is accepted by the token alone, although the lease has expired or is gone.
    PublishAfterExpiry,
    /// A waiter goes by announcements alone and does not come back when the ttl has run out.
    AnnouncementsOnly,
}

/// The mistake that was planted, if any.
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
