//! What can be asked of a store.

use std::time::Duration;

use crate::lease::Ending;
use crate::name::{Group, InstanceId, LeaseName};
use crate::token::{Nonce, Token};

use super::{Announcement, EntryId, Generation, TermNote};

/// Who wants a lease, and by which attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which lease.
    pub name: LeaseName,
    /// Who wants it.
    pub holder: InstanceId,
    /// The attempt: repeating a claim with the same nonce is the same attempt.
    pub nonce: Nonce,
    /// For how long.
    pub ttl: Duration,
}

/// A term as its holder names it. Requests about a term are refused unless holder *and* token are the current ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Which lease.
    pub name: LeaseName,
    /// Who holds it.
    pub holder: InstanceId,
    /// Which term.
    pub token: Token,
}

/// Something asked of a holder. It is stored, so that it reaches a holder that did not hear the announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Let go of the lease, in favour of the named instance if there is one.
    StepDown {
        /// Who should have it next.
        to: Option<InstanceId>,
    },
}

impl Ask {
    /// A few words, which [`decode`](Self::decode) reads.
    pub fn encode(&self) -> String {
        match self {
            Self::StepDown { to: None } => "step_down".to_owned(),
            Self::StepDown { to: Some(to) } => format!("step_down {to}"),
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` for anything else.
    pub fn decode(text: &str) -> Option<Self> {
        let (what, to) = text.split_once(' ').map_or((text, None), |(what, to)| (what, Some(to)));
        let to = to.map(InstanceId::new).transpose().ok()?;
        (what == "step_down").then_some(Self::StepDown { to })
    }
}

/// What any program may write, without putting it into an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignKind {
    /// Heartbeats of the fleet.
    Nodes,
    /// Sessions.
    Sessions,
}

/// One request. All of them are safe to repeat, and no lease is harmed when one arrives late. (A late heartbeat keeps
/// a member for its ttl, and a late entry stays in its index until somebody takes it out.)
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Grant the lease if it is free, if this very claim already has it, or if it was handed to this holder.
    Acquire {
        /// Who asks.
        claim: Claim,
        /// A term of this holder that its process has ended: if the store still lists it, it may be replaced.
        ended: Option<Token>,
    },
    /// Grant the lease although its holder still renews it, if that holder has reported no progress for too long.
    TakeOver {
        /// Who asks.
        claim: Claim,
        /// The term to be ended.
        victim: Token,
        /// How long without progress is too long.
        stale_after: Duration,
    },
    /// Let the term go on for a whole ttl from now.
    Renew {
        /// The term.
        holding: Holding,
        /// For how long.
        ttl: Duration,
        /// Whether its work has made progress since the last renewal.
        progressed: bool,
    },
    /// End the term; its work is over.
    Release {
        /// The term.
        holding: Holding,
        /// How it ended.
        ending: Ending,
    },
    /// Clean up after a claim whose outcome was never learned.
    Abandon {
        /// Which lease.
        name: LeaseName,
        /// Who claimed it.
        holder: InstanceId,
        /// The attempt.
        nonce: Nonce,
    },
    /// End the term in favour of another instance, which must [acquire](Request::Acquire) the lease within the window.
    HandOver {
        /// The term.
        holding: Holding,
        /// Who should have it.
        to: InstanceId,
        /// How long it is kept for them.
        window: Duration,
    },
    /// End a term by force. The lease stays taken until its holder has let go of it or the ttl has passed.
    Revoke {
        /// Which lease.
        name: LeaseName,
        /// The term, so that a late request does not end the next one.
        token: Token,
    },
    /// Ask something of the holder of a term.
    Ask {
        /// Which lease.
        name: LeaseName,
        /// The term it is asked of.
        token: Token,
        /// What.
        ask: Ask,
    },
    /// Tell what is known about a lease.
    Inspect {
        /// Which lease.
        name: LeaseName,
    },
    /// Tell what is known about the namespace.
    InspectNamespace,
    /// End the quarantine by an operator's word. Nothing is done when the namespace is of another generation.
    Reopen {
        /// The generation whose quarantine the operator has seen.
        generation: Generation,
    },
    /// Tell who has each of these leases, and nothing else: for whoever looks at many.
    Holders {
        /// Which leases, at least one.
        names: Vec<LeaseName>,
    },
    /// Write a record beside the lease, unless the term is over.
    Publish {
        /// The term.
        holding: Holding,
        /// Which record.
        record: String,
        /// What to write.
        value: Vec<u8>,
        /// Whether others should be told.
        announced: bool,
    },
    /// Read a record beside a lease.
    Read {
        /// Which lease.
        name: LeaseName,
        /// Which record.
        record: String,
    },
    /// Add an entry to a log beside a lease, unless the term is over. An entry that is the last one already is not added again.
    Append {
        /// The term.
        holding: Holding,
        /// Which log.
        log: String,
        /// The entry.
        value: Vec<u8>,
        /// How many of the latest are kept; one at least.
        kept: usize,
        /// Records beside the lease that are written with it, and what to write.
        records: Vec<(String, Vec<u8>)>,
    },
    /// Read a log, the oldest entry first: the latest ones, or the first ones after one that is known.
    ReadLog {
        /// Which lease.
        name: LeaseName,
        /// Which log.
        log: String,
        /// The one that is known.
        after: Option<EntryId>,
        /// At most so many.
        limit: usize,
    },
    /// Forget everything about the lease of a session that is gone: its last term, its records and its logs; and that it is gone. Tokens go
    /// on growing all the same.
    Forget {
        /// Which lease.
        name: LeaseName,
        /// Its logs.
        logs: Vec<String>,
        /// Not unless its last term began this long ago: what was sent in it must have arrived.
        idle_for: Duration,
        /// The session. Not while it is there, or the lease is held.
        session: String,
    },
    /// Make a session what it should be, or nothing, if it still is what its writer has seen of it or is so already. A change is announced.
    /// One that is deleted stands in the index of those that are gone.
    WriteSession {
        /// Which session.
        id: String,
        /// What its writer has seen; nothing when there was none.
        expected: Option<Vec<u8>>,
        /// What it should be; nothing to delete it.
        value: Option<Vec<u8>>,
        /// Not while anything is left of one with this id that was deleted.
        fresh: bool,
    },
    /// Read sessions.
    ReadSessions {
        /// Which ones.
        ids: Vec<String>,
    },
    /// Tell everybody who listens.
    Announce(Announcement),
    /// Say that an instance is alive. The first beat announces that it joined.
    Heartbeat {
        /// Among whom.
        group: Group,
        /// Who is alive.
        instance: InstanceId,
        /// For how long that may be believed.
        ttl: Duration,
        /// What it says about itself.
        record: Vec<u8>,
    },
    /// Say that an instance is leaving.
    Leave {
        /// Whom it leaves.
        group: Group,
        /// Who leaves.
        instance: InstanceId,
    },
    /// List the instances that are alive.
    Instances {
        /// Of whom.
        group: Group,
    },
    /// Count somebody among those who are alive, for as long as it has a heartbeat: a program that is not Tenure's. This is announced as if it had joined.
    Adopt {
        /// Among whom.
        group: Group,
        /// What stands after the prefix of its heartbeat.
        name: String,
    },
    /// Look for what any program may have written, a piece at a time. Whatever is there from the first piece to the last is found.
    Scan {
        /// What is looked for.
        kind: ForeignKind,
        /// Where the last piece ended; 0 at the beginning.
        cursor: u64,
    },
    /// Put an entry into an index.
    IndexAdd {
        /// Which index.
        index: String,
        /// The entry.
        entry: String,
        /// Whether others should be told.
        announced: bool,
    },
    /// Take an entry out of an index.
    IndexRemove {
        /// Which index.
        index: String,
        /// The entry.
        entry: String,
        /// Whether others should be told.
        announced: bool,
    },
    /// List the entries of an index.
    IndexList {
        /// Which index.
        index: String,
    },
    /// Write something down about a term. Only so many notes are kept.
    Note(TermNote),
    /// List the latest notes.
    Notes {
        /// At most so many.
        limit: usize,
    },
}

#[cfg(feature = "redis")]
impl Request {
    /// Whether nothing is changed by it.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(
            self,
            Self::Inspect { .. }
                | Self::InspectNamespace
                | Self::Holders { .. }
                | Self::Read { .. }
                | Self::ReadLog { .. }
                | Self::ReadSessions { .. }
                | Self::Instances { .. }
                | Self::Scan { .. }
                | Self::IndexList { .. }
                | Self::Notes { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ask_reads_back_as_it_was_written() {
        for to in [None, Some(InstanceId::new("api-2").unwrap())] {
            let ask = Ask::StepDown { to };
            assert_eq!(Ask::decode(&ask.encode()), Some(ask));
        }
        for bad in ["", "step_up", "step_down ", "step_down a b"] {
            assert_eq!(Ask::decode(bad), None, "{bad:?}");
        }
    }
}
