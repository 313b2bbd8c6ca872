//! Tokens of a lease strictly increase across expiry, release, hand-over, flush, restart and restore, and two holders
//! never have the same token.
//!
//! Known limits: (1) the store lost data, its clock is behind, and no process that knows the token has attached since;
//! (2) the store lost the expiry of an offer and its clock was set back before it, so that the receiver accepts the
//! offer after all.

use std::collections::BTreeMap;

use tenure_core::Token;

use super::Invariant;
use crate::faults::Fault;
use crate::observation::{LeaseIndex, Observation, TermId};
use crate::promise::Promise;
use crate::timeline::SimTime;

#[derive(Debug, Default)]
pub(super) struct TokensIncrease {
    highest: BTreeMap<LeaseIndex, HighestTerm>,
    /// When each term was granted first.
    granted: BTreeMap<TermId, GrantedAt>,
    data_losses: u32,
    clock_steps_back: u32,
    /// The highest token that a process has reported to the store since its last data loss.
    reported_since_loss: Option<Token>,
}

/// The numbers of data losses and clock steps back before a grant.
#[derive(Clone, Copy, Debug)]
struct GrantedAt {
    data_losses: u32,
    clock_steps_back: u32,
}

/// The term with the highest token of a lease.
#[derive(Debug)]
struct HighestTerm {
    term: TermId,
    granted_at: GrantedAt,
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
                    // A token is at least the time of the clock that minted it: the clock was ahead then or is behind
                    // now.
                    let was_lost = self.data_losses > highest.granted_at.data_losses;
                    if was_lost && self.reported_since_loss < Some(highest.term.token) {
                        promise.count("tokens that went back (clock behind, data lost, not reported by a process)");
                        return Ok(());
                    }
                    let was_set_back = |before: &GrantedAt| self.clock_steps_back > before.clock_steps_back;
                    if was_lost && self.granted.get(term).is_some_and(was_set_back) {
                        promise.count("offers accepted after their expiry (clock set back, data lost)");
                        return Ok(());
                    }
                    return Err(format!("{term} was granted after {}", highest.term));
                }
                let granted_at = GrantedAt { data_losses: self.data_losses, clock_steps_back: self.clock_steps_back };
                self.granted.entry(*term).or_insert(granted_at);
                self.highest.insert(term.lease, HighestTerm { term: *term, granted_at });
            }
            _ => {}
        }
        Ok(())
    }
}
