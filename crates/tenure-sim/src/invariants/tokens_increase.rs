//! Tokens of a lease strictly increase, across expiry, release, hand-over, flush, restart and restore, and no two holders have
//! the same.
//!
//! The stated limits: data was lost, on a clock that is behind, and no process that has seen the token has told the store of
//! it since; and data was lost, and with it that an offer had expired, and the clock was set back to before that: then the
//! offer is taken up after all, by whom it was for.

use std::collections::{BTreeMap, BTreeSet};

use tenure::Token;

use super::Invariant;
use crate::faults::Fault;
use crate::observation::{LeaseIndex, Observation, TermId};
use crate::promise::Promise;
use crate::timeline::SimTime;

#[derive(Debug, Default)]
pub(super) struct TokensIncrease {
    highest: BTreeMap<LeaseIndex, HighestTerm>,
    granted: BTreeSet<TermId>,
    data_losses: u32,
    clock_steps_back: u32,
    /// The highest token that any process has told the store of since it last lost data.
    reported_since_loss: Option<Token>,
}

/// The term of a lease with the highest token, and how often data had been lost and the clock set back when it was granted.
#[derive(Debug)]
struct HighestTerm {
    term: TermId,
    data_losses: u32,
    clock_steps_back: u32,
}

impl Invariant for TokensIncrease {
    fn name(&self) -> &'static str {
        "tokens strictly increase"
    }

    fn observe(&mut self, _now: SimTime, seen: &Observation, promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::Fault(fault) if fault.is_data_loss() => {
                self.data_losses += 1;
                self.reported_since_loss = None;
            }
            Observation::Fault(Fault::ServerClockStep { micros }) if *micros < 0 => self.clock_steps_back += 1,
            Observation::Attached { high_water } => {
                self.reported_since_loss = self.reported_since_loss.max(*high_water)
            }
            Observation::Granted(term) => {
                if let Some(highest) = self.highest.get(&term.lease)
                    && term.token <= highest.term.token
                {
                    // A token is not less than the time of the clock it was minted by: it was ahead then, or is behind now.
                    let was_lost = self.data_losses > highest.data_losses;
                    let was_set_back = self.clock_steps_back > highest.clock_steps_back;
                    if was_lost && self.reported_since_loss < Some(highest.term.token) {
                        promise.count("tokens that went back (clock behind, data lost, and no process told)");
                        return Ok(());
                    }
                    if was_lost && was_set_back && self.granted.contains(term) {
                        promise.count("offers that came back (clock set back, data lost)");
                        return Ok(());
                    }
                    return Err(format!("{term} was granted after {}", highest.term));
                }
                self.granted.insert(*term);
                let (data_losses, clock_steps_back) = (self.data_losses, self.clock_steps_back);
                let highest = HighestTerm { term: *term, data_losses, clock_steps_back };
                self.highest.insert(term.lease, highest);
            }
            _ => {}
        }
        Ok(())
    }
}
