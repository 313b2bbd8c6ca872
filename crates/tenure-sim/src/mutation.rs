//! Mistakes that can be planted, to see that they are found.

use tenure::mutation::Mutation;

/// A mistake in the library's core, or in how a program uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimMutation {
    /// One of the core's own.
    Core(Mutation),
    /// Work goes by what it was told last and does not look at the deadline.
    CachedBoolean,
    /// A candidate whose term is over does not say so.
    SilentDemotion,
}
