//! Deliberate mistakes, for the simulator's own test: a checker that has never caught anything proves nothing.
//!
//! Each stands at the very line that gets it right. Without the `flaws` feature none of them can be planted.

/// A mistake that lease clients really make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// The deadline is counted from when the reply arrived, not from when the request was sent.
    DeadlineFromReceipt,
    /// The lease is released before its work has ended.
    ReleaseBeforeJoin,
    /// The store compares holders and not tokens.
    CompareByHolderOnly,
    /// A newer generation is overwritten with the remembered one.
    RestampingGeneration,
    /// A term that was lost goes on being renewed, and works again when a renewal succeeds.
    RenewAfterLost,
    /// Tokens are counted from one, as `INCR` would.
    CountedTokens,
    /// A loss of data does not close the namespace.
    NoQuarantine,
    /// What was released or has expired is waited for after a loss of data, however long ago that was.
    TtlsNeverFall,
    /// A publication is accepted by the token alone, although the lease has expired or is gone.
    ExpiredPublishes,
    /// A waiter goes by announcements alone and does not come back when the ttl has run out.
    WaitsToBeTold,
}

/// The mistake that was planted, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Planted(Option<Flaw>);

impl Planted {
    #[cfg(feature = "flaws")]
    pub(crate) fn plant(&mut self, flaw: Flaw) {
        self.0 = Some(flaw);
    }

    pub(crate) fn has(self, flaw: Flaw) -> bool {
        cfg!(feature = "flaws") && self.0 == Some(flaw)
    }
}
