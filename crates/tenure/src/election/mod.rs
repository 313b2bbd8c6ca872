//! Elections: a role is a lease that candidates keep trying to acquire.
//!
//! ```text
//!   Follower ───unheld───▶ Candidate ───granted───▶ Leader
//!      ▲                       │                       │
//!      └──held by another──────┴───lost, released──────┘
//! ```
//!
//! [`ElectionBuilder::lead`] runs work for each term and is all that most programs need. A [started](Election::start)
//! [`Election`] campaigns in the background; the program queries it or listens to it. [`CandidateState`] and
//! [`Backoff`] decide, without I/O; all other code drives them.

#[cfg(feature = "keeper")]
mod admin;
mod backoff;
#[cfg(feature = "keeper")]
mod builder;
#[cfg(feature = "keeper")]
mod campaign;
mod candidate_state;
#[cfg(feature = "keeper")]
mod candidates;
mod event;
#[cfg(feature = "keeper")]
mod handle;
#[cfg(feature = "keeper")]
mod lead;
#[cfg(feature = "keeper")]
mod leader_only;
#[cfg(feature = "keeper")]
mod leadership;
#[cfg(feature = "keeper")]
mod listeners;
#[cfg(feature = "keeper")]
mod observer;
#[cfg(feature = "keeper")]
mod registry;

pub use backoff::{Backoff, BackoffReason};
pub use candidate_state::{CandidateInput, CandidateState};
pub use event::{ElectionEvent, ElectionEventKind};

#[cfg(feature = "keeper")]
pub use self::{
    admin::Leader,
    builder::{ElectionBuilder, ElectionError},
    candidates::Candidate,
    handle::{Election, ElectionWatch, NotLeader},
    lead::{Lead, LeadError},
    leader_only::{LeaderOnlyError, install, installed},
    leadership::Leadership,
    listeners::Registration,
    observer::{LeaderStatus, Observer},
};
#[cfg(feature = "keeper")]
pub(crate) use registry::CampaignRegistry;
