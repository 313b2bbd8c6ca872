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
use crate::observation::{LeaseId, Observation, TermId};
use crate::promise::Promise;
use crate::timeline::TrueTime;

#[derive(Debug, Default)]
pub(super) struct TokensIncrease {
    highest: BTreeMap<LeaseId, Highest>,
    granted: BTreeSet<TermId>,
    times_data_was_lost: u32,
    times_clock_was_set_back: u32,
    /// The highest token that any process has told the store of since it last lost data.
    told_since_loss: Option<Token>,
}

/// The term of a lease with the highest token, and how often data had been lost and the clock set back when it was granted.
#[derive(Debug)]
struct Highest {
    term: TermId,
    times_data_was_lost: u32,
    times_clock_was_set_back: u32,
}

impl Invariant for TokensIncrease {
    fn name(&self) -> &'static str {
        "tokens strictly increase"
    }

    fn observe(&mut self, _now: TrueTime, seen: &Observation, promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::Fault(fault) if fault.loses_data() => {
                self.times_data_was_lost += 1;
                self.told_since_loss = None;
            }
            Observation::Fault(Fault::ServerClockStep { micros }) if *micros < 0 => self.times_clock_was_set_back += 1,
            Observation::Entered { high_water } => self.told_since_loss = self.told_since_loss.max(*high_water),
            Observation::Granted(term) => {
                if let Some(highest) = self.highest.get(&term.lease)
                    && term.token <= highest.term.token
                {
                    // A token is not less than the time of the clock it was minted by: it was ahead then, or is behind now.
                    let was_lost = self.times_data_was_lost > highest.times_data_was_lost;
                    let was_set_back = self.times_clock_was_set_back > highest.times_clock_was_set_back;
                    if was_lost && self.told_since_loss < Some(highest.term.token) {
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
                let (times_data_was_lost, times_clock_was_set_back) =
                    (self.times_data_was_lost, self.times_clock_was_set_back);
                let highest = Highest { term: *term, times_data_was_lost, times_clock_was_set_back };
                self.highest.insert(term.lease, highest);
            }
            _ => {}
        }
        Ok(())
    }
}
