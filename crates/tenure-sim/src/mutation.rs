//! Mutations (planted bugs), which prove that the invariants can fail.

use tenure_core::mutation::Mutation;

/// A mutation of the library's core or of the program that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimMutation {
    /// A mutation of the core.
    Core(Mutation),
    /// Work relies on the last permission that it got and does not check the deadline.
    CachedBoolean,
    /// A candidate whose term has ended does not report it.
    SilentDemotion,
}
