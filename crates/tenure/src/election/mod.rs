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

mod admin;
mod backoff;
mod builder;
mod campaign;
mod candidate_state;
mod candidates;
mod event;
mod handle;
mod lead;
mod leader_only;
mod leadership;
mod listeners;
mod observer;
mod registry;

pub use backoff::{Backoff, BackoffReason};
pub use candidate_state::{CandidateInput, CandidateState};
pub use event::{ElectionEvent, ElectionEventKind};

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
pub(crate) use registry::CampaignRegistry;
