//! No publication is accepted outside its term: it has the lease in the store just then, by holder and token, it has not
//! expired, and nothing that was seen from outside has ended it.

use std::collections::BTreeMap;

use tenure::Token;

use super::Invariant;
use crate::observation::{LeaseId, Observation, TermId};
use crate::promise::Promise;
use crate::timeline::TrueTime;

#[derive(Debug, Default)]
pub(super) struct PublicationsFenced {
    current: BTreeMap<LeaseId, Current>,
}

#[derive(Debug)]
struct Current {
    token: Token,
    over: bool,
}

impl Invariant for PublicationsFenced {
    fn name(&self) -> &'static str {
        "no publication outside its term"
    }

    fn observe(&mut self, _now: TrueTime, seen: &Observation, _promise: &mut Promise) -> Result<(), String> {
        match seen {
            Observation::Granted(TermId { lease, token, .. }) => {
                self.current.insert(*lease, Current { token: *token, over: false });
            }
            Observation::Touched { term, ended: true, .. } => {
                if let Some(current) = self.current.get_mut(&term.lease)
                    && current.token == term.token
                {
                    current.over = true;
                }
            }
            Observation::Revoked(lease) => {
                if let Some(current) = self.current.get_mut(lease) {
                    current.over = true;
                }
            }
            // A store that went back in time can have an older term for the current one, until it grants another: that the
            // lease is that term's in the store, and has not expired, is judged all the same.
            Observation::Fault(fault) if fault.loses_data() => self.current.clear(),
            Observation::Published { term, is_current: false, .. } => {
                return Err(format!("{term} published without having the lease"));
            }
            Observation::Published { term, is_alive: false, .. } => {
                return Err(format!("{term} published after it had expired"));
            }
            Observation::Published { term, .. } => {
                if let Some(current) = self.current.get(&term.lease)
                    && (current.token != term.token || current.over)
                {
                    return Err(format!("{term} published while current was {current:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
