//! Elections: the state of a candidate, and when it campaigns again.

mod backoff;
mod candidate_state;

pub use backoff::{BackoffReason, CampaignBackoff};
pub use candidate_state::{CandidateInput, CandidateState};
