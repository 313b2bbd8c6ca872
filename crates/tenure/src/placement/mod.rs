//! Who *should* hold what: pure functions of who is there and what they hold. Never the truth: only the lease decides who may act.
//!
//! Every instance gets its share of the targets, ⌊M/N⌋ or ⌈M/N⌉ of them, or by weight. Holders keep what they hold up to their share, so
//! that only the surplus moves: the fewest moves that there can be. Which of its targets an instance gives away, and who takes
//! up what nobody holds, is decided by [scores](score()): a number for each pair of instance and target that everybody works out alike.
//!
//! There is no coordinator. An instance needs how many targets each of the others holds, and its own; from these it knows its
//! [share](quotas), what it [gives away](plan_handoffs) and to whom, and [how long to wait](claim_delay) before it takes up what is unheld. All that look at
//! the same numbers come to the same result and act on their own part of it; different numbers cost extra moves, never a second holder.
//!
//! | file | what it decides |
//! |---|---|
//! | `score.rs` | who suits a target best |
//! | `quota.rs` | how many each should hold |
//! | `moves.rs` | what one instance does: what it gives away, when it takes up what is unheld |
//! | `plan.rs` | all of that for a whole fleet, with reasons: for `why` and `what-if` |

mod moves;
mod plan;
mod quota;
mod score;

pub use moves::{Handoff, Ranking, claim_delay, plan_handoffs, successors};
pub use plan::{Assignment, Move, MoveReason, PlacementPlan, plan};
pub use quota::{FULL_WEIGHT, InstanceLoad, Presence, quotas};
pub use score::{InstanceScore, TargetScore, score};
