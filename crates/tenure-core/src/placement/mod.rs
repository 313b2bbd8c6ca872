//! Which instance *should* hold which target: pure functions of the membership and its counts. Placement only proposes:
//! the lease alone decides which instance may work.
//!
//! Every instance has a quota of the targets: ⌊M/N⌋ or ⌈M/N⌉ of them, or by weight. Holders keep their targets up to
//! their quota, so that only the surplus moves: the fewest moves possible. [Scores](score()) decide which targets an
//! instance hands over, and which instance claims an unheld one: a score is a number for each pair of instance and
//! target that all instances compute alike.
//!
//! There is no coordinator. An instance needs the number of targets that each other instance holds, and its own
//! targets. From these it computes its [quota](quotas), its [handoffs](plan_handoffs), and [how long to
//! wait](claim_delay) before it claims an unheld target. All instances with the same numbers compute the same result,
//! and act on their own part of it. Different numbers cost extra moves, never a second holder.
//!
//! | file | what it decides |
//! |---|---|
//! | `score.rs` | which instance ranks highest for a target |
//! | `quota.rs` | how many targets each instance should hold |
//! | `moves.rs` | what one instance does: which targets it hands over, when it claims unheld ones |
//! | `plan.rs` | all of that for a whole fleet, with reasons: for `why` and `what-if` |

mod moves;
mod plan;
mod quota;
mod score;

pub use moves::{Handoff, Ranking, claim_delay, plan_handoffs, successors};
pub use plan::{Assignment, Move, MoveReason, PlacementPlan, plan};
pub use quota::{FULL_WEIGHT, InstanceLoad, Presence, quotas};
pub use score::{InstanceScore, TargetScore, score};
