//! Elections: a role is a lease that candidates keep trying to acquire.
//!
//! ```text
//!   Follower ───unheld───▶ Candidate ───granted───▶ Leader
//!      ▲                       │                       │
//!      └──held by another──────┴───lost, released──────┘
//! ```
//!
//! [`ElectionBuilder::lead`] runs work for each term and is all that most programs need. A [started](Election::start)
//! [`Election`] campaigns in the background; the program queries it or listens to it. [`ElectionBuilder::acquire`] and
//! [`Tenure::run_as_leader`](crate::Tenure::run_as_leader) lead for one piece of work.
//!
//! ```
//! use std::time::Duration;
//! use tenure::Tenure;
//!
//! # #[cfg(feature = "memory")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let tenure = Tenure::connect("memory:").await?;
//! let election = tenure.election("cleanup").metadata("10.0.0.7:8080").build()?;
//! election.start();
//! let term = election.wait_for_leadership(Duration::from_secs(10)).await?;
//! println!("{} leads under token {}", election.id(), term.token());
//! election.stop().await; // another candidate may lead now
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
mod campaign;
mod candidates;
mod handle;
mod lead;
mod leader_only;
mod leaders;
mod leadership;
mod observer;
mod registry;

pub(crate) use tenure_core::election::{BackoffReason, CampaignBackoff, CandidateInput, CandidateState};

pub use self::{
    builder::{ElectionBuilder, ElectionError},
    candidates::Candidate,
    handle::{Election, ElectionWatch, NotLeader},
    lead::{Lead, LeadError},
    leader_only::{LeaderOnlyError, install, run_leader_only},
    leaders::Leader,
    leadership::Leadership,
    observer::{LeaderStatus, Observer},
};
pub(crate) use registry::CampaignRegistry;
