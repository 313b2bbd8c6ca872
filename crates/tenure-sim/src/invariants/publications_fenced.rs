//! The store accepts a publication only within its term: that term holds the lease in the store, by holder and token;
//! it has not expired; and no observed request has ended it.

use std::collections::BTreeMap;

use tenure_core::Token;

use super::Invariant;
use crate::observation::{LeaseIndex, Observation, TermId};
use crate::promise::Promise;
use crate::timeline::SimTime;

#[derive(Debug, Default)]
pub(super) struct PublicationsFenced {
    current: BTreeMap<LeaseIndex, CurrentTerm>,
}

#[derive(Debug)]
struct CurrentTerm {
    token: Token,
    is_ended: bool,
}

impl Invariant for PublicationsFenced {
    fn name(&self) -> &'static str {
        "no publication outside its term"
    }

    fn observe(&mut self, _now: SimTime, seen: &Observation, _promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::Granted(TermId { lease, token, .. }) => {
                self.current.insert(*lease, CurrentTerm { token: *token, is_ended: false });
            }
            Observation::RequestApplied { term, ended: true, .. } => {
                if let Some(current) = self.current.get_mut(&term.lease)
                    && current.token == term.token
                {
                    current.is_ended = true;
                }
            }
            Observation::Revoked(lease) => {
                if let Some(current) = self.current.get_mut(lease) {
                    current.is_ended = true;
                }
            }
            // A store that went back in time may take an older term for the current one until it grants another. The
            // checks against the store's own lease and its expiry still apply.
            Observation::Fault(fault) if fault.is_data_loss() => self.current.clear(),
            Observation::Published { term, is_current: false, .. } => {
                return Err(format!("{term} published without holding the lease"));
            }
            Observation::Published { term, is_alive: false, .. } => {
                return Err(format!("{term} published after it had expired"));
            }
            Observation::Published { term, .. } => {
                if let Some(current) = self.current.get(&term.lease)
                    && (current.token != term.token || current.is_ended)
                {
                    return Err(format!("{term} published while current was {current:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
