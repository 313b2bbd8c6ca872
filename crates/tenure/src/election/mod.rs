//! Elections: a role is a lease that candidates keep asking for.
//!
//! ```text
//!   Follower ──nobody leads──▶ Candidate ──granted──▶ Leader
//!      ▲                           │                     │
//!      └────── somebody else ──────┴──── lost, let go ───┘
//! ```
//!
//! [`ElectionBuilder::lead`] runs work for each term and is all that most programs need. An [`Election`] that is
//! [started](Election::start) campaigns beside the program, which asks it or listens to it.
//! [`Candidacy`] and [`Pace`] decide, without I/O; all else drives them.

#[cfg(feature = "keeper")]
mod builder;
#[cfg(feature = "keeper")]
mod campaign;
mod candidacy;
#[cfg(feature = "keeper")]
mod candidates;
#[cfg(feature = "keeper")]
mod lead;
#[cfg(feature = "keeper")]
mod leadership;
#[cfg(feature = "keeper")]
mod listeners;
mod news;
#[cfg(feature = "keeper")]
mod observer;
#[cfg(feature = "keeper")]
mod once;
mod pace;
#[cfg(feature = "keeper")]
mod running;
#[cfg(feature = "keeper")]
mod started;
#[cfg(feature = "keeper")]
mod steering;

pub use candidacy::{Candidacy, Turn};
pub use news::{ElectionEvent, ElectionNews};
pub use pace::{Pace, Setback};

#[cfg(feature = "keeper")]
pub use self::{
    builder::{ElectionBuilder, ElectionError},
    candidates::Candidate,
    lead::{Lead, LeadError},
    leadership::Leadership,
    listeners::Registration,
    observer::{Observer, Seen},
    once::{NotDone, install, installed},
    started::{Election, NotLeader, Standings},
    steering::Leader,
};
#[cfg(feature = "keeper")]
pub(crate) use running::Elections;
