//! Tokens of a lease strictly increase, across expiry, release, hand-over, flush, restart and restore.
//!
//! The stated limit: data lost, on a clock that is behind, and nobody left who has seen the token.

use std::collections::BTreeMap;

use tenure::Token;

use super::Invariant;
use crate::faults::Fault;
use crate::observation::{LeaseId, Observation};
use crate::promise::Promise;
use crate::timeline::TrueTime;

#[derive(Debug, Default)]
pub(super) struct TokensIncrease {
    highest: BTreeMap<LeaseId, Highest>,
    clock_shift: i64,
    /// The furthest ahead that the server's clock has ever been set.
    furthest_shift: i64,
    times_data_was_lost: u32,
}

/// The highest token of a lease, and how often data had been lost when it was granted.
#[derive(Debug)]
struct Highest {
    token: Token,
    times_data_was_lost: u32,
}

impl Invariant for TokensIncrease {
    fn name(&self) -> &'static str {
        "tokens strictly increase"
    }

    fn observe(&mut self, _now: TrueTime, seen: &Observation, promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::Fault(Fault::ServerClockStep { micros }) => {
                self.clock_shift += micros;
                self.furthest_shift = self.furthest_shift.max(self.clock_shift);
            }
            Observation::Fault(fault) if fault.loses_data() => self.times_data_was_lost += 1,
            Observation::Granted(term) => {
                if let Some(highest) = self.highest.get(&term.lease)
                    && term.token <= highest.token
                {
                    let behind = self.clock_shift < self.furthest_shift;
                    let lost = self.times_data_was_lost > highest.times_data_was_lost;
                    if behind && lost {
                        promise.count("tokens that went back (clock behind, data lost)");
                        return Ok(());
                    }
                    return Err(format!("{term} was granted after token {}", highest.token));
                }
                let highest = Highest { token: term.token, times_data_was_lost: self.times_data_was_lost };
                self.highest.insert(term.lease, highest);
            }
            _ => {}
        }
        Ok(())
    }
}
