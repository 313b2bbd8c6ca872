//! Makes sequences by chance: the same seed, the same sequence.

use std::time::Duration;

use crate::sequence::{CLIENTS, ENTRIES, FOREIGN, LONG, Memory, Operation, RECORDS, SHORT, Term, VALUES, Which, Wish};

/// How many operations a sequence has at most.
const LONGEST_SEQUENCE: usize = 40;

/// Makes sequences.
pub(crate) struct Author(fastrand::Rng);

impl Author {
    pub(crate) fn sequence(seed: u64) -> Vec<Operation> {
        let mut author = Self(fastrand::Rng::with_seed(seed));
        let length = author.0.usize(5..=LONGEST_SEQUENCE);
        // Most sequences are about one lease: then there is more to say about it.
        let leases = if author.0.u8(..4) == 0 { 3 } else { 1 };
        let anew = if author.0.u8(..4) == 0 { Self::anew() } else { Vec::new() };
        anew.into_iter().chain((0..length).map(|_| author.operation(leases))).collect()
    }

    /// A namespace that knows short ttls only, so that everything ends soon.
    fn anew() -> Vec<Operation> {
        let enter = |client| Operation::Enter {
            client,
            memory: Memory::Nothing,
            max_ttl: SHORT,
            bootstrap: true,
            durable: false,
            observer: false,
            stamp: 9,
        };
        [Operation::Flush].into_iter().chain((0..CLIENTS).map(enter)).collect()
    }

    fn operation(&mut self, leases: usize) -> Operation {
        match self.0.u8(..100) {
            0..8 => Operation::Enter {
                client: self.0.usize(..CLIENTS),
                memory: self.memory(),
                max_ttl: self.entry_ttl(),
                bootstrap: self.0.u8(..3) == 0,
                durable: self.0.u8(..3) == 0,
                observer: self.0.u8(..6) == 0,
                stamp: self.0.u64(..3),
            },
            8..10 => Operation::Flush,
            10..15 => Operation::WriteForeign {
                lease: self.0.usize(..leases),
                holder: self.0.usize(..FOREIGN.len()),
                ttl: match self.0.u8(..3) {
                    0 => None,
                    _ => Some(self.ttl()),
                },
            },
            15..18 => Operation::DeleteForeign { lease: self.0.usize(..leases) },
            18..21 => Operation::Wait,
            _ => {
                let count = if self.0.u8(..4) == 0 { self.0.usize(2..=5) } else { 1 };
                let mut batch: Vec<Wish> = (0..count).map(|_| self.request(leases)).collect();
                // Heartbeats travel with what was asked just before.
                if self.0.u8(..6) == 0 {
                    batch.insert(self.0.usize(1..=batch.len()), self.beat());
                }
                Operation::Submit { client: self.0.usize(..CLIENTS), batch }
            }
        }
    }

    /// The server's uptime must not be near it.
    fn entry_ttl(&mut self) -> Duration {
        [SHORT, SHORT, LONG[1], LONG[2], LONG[3]][self.0.usize(..5)]
    }

    fn memory(&mut self) -> Memory {
        match self.0.u8(..10) {
            0..2 => Memory::Nothing,
            2..6 => Memory::Everything,
            _ => Memory::False {
                older: self.0.u8(..4) == 0,
                newer: self.0.u8(..8) == 0,
                stamp: self.0.u8(..4) == 0,
                token: (self.0.u8(..2) == 0).then(|| self.token()),
                max_ttl: (self.0.u8(..2) == 0).then(|| self.entry_ttl()),
            },
        }
    }

    fn ttl(&mut self) -> Duration {
        if self.0.u8(..8) == 0 { SHORT } else { LONG[self.0.usize(..LONG.len())] }
    }

    fn token(&mut self) -> Which {
        match self.0.u8(..40) {
            0 => Which::Zero,
            1 => Which::Last(self.0.u64(..4)),
            2 => Which::Above(self.0.usize(..3)),
            3 => Which::Below(self.0.usize(..3)),
            4..14 => Which::Seen(self.0.usize(1..4)),
            _ => Which::Seen(0),
        }
    }

    fn term(&mut self, leases: usize) -> Term {
        let right = self.0.u8(..4) > 0;
        Term { token: self.token(), right, lease: self.0.usize(..leases), holder: self.holder() }
    }

    fn holder(&mut self) -> usize {
        [0, 0, 0, 1, 1, 2][self.0.usize(..6)]
    }

    fn beat(&mut self) -> Wish {
        let (group, instance) = (self.0.usize(..3), self.holder());
        Wish::Beat { group, instance, ttl: self.ttl(), record: self.0.usize(..VALUES.len()) }
    }

    fn nonce(&mut self) -> u8 {
        self.0.u8(..5)
    }

    fn request(&mut self, leases: usize) -> Wish {
        let lease = self.0.usize(..leases);
        match self.0.u8(..100) {
            0..20 => Wish::Acquire {
                lease,
                holder: self.holder(),
                nonce: self.nonce(),
                ttl: self.ttl(),
                ended: (self.0.u8(..3) == 0).then(|| self.token()),
            },
            20..32 => Wish::TakeOver {
                lease,
                holder: self.holder(),
                nonce: self.nonce(),
                ttl: self.ttl(),
                victim: self.token(),
                stale_after: [Duration::ZERO, SHORT, LONG[0]][self.0.usize(..3)],
            },
            32..42 => Wish::Renew { term: self.term(leases), ttl: self.ttl(), progressed: self.0.bool() },
            42..49 => Wish::Release { term: self.term(leases), ending: self.0.usize(..4) },
            49..52 => Wish::Abandon { lease, holder: self.holder(), nonce: self.nonce() },
            52..60 => Wish::HandOver { term: self.term(leases), to: self.holder(), window: self.ttl() },
            60..64 => Wish::Revoke { lease, token: self.token() },
            64..68 => {
                let to = (self.0.bool()).then(|| self.holder());
                Wish::StepDown { lease, token: self.token(), to }
            }
            68..72 => Wish::Inspect { lease },
            72 => Wish::InspectNamespace,
            73 => Wish::Reopen { right: self.0.u8(..4) > 0 },
            74 => Wish::Holder { lease },
            75 => Wish::Forget { lease, idle_for: if self.0.bool() { Duration::ZERO } else { LONG[0] } },
            76..79 => Wish::Publish {
                term: self.term(leases),
                record: self.0.usize(..RECORDS.len()),
                value: self.0.usize(..VALUES.len()),
            },
            79..82 => Wish::Read { lease, record: self.0.usize(..RECORDS.len()) },
            82 => Wish::Announce { lease, token: self.token() },
            83..86 => self.beat(),
            86..88 => Wish::Leave { group: self.0.usize(..3), instance: self.holder() },
            88..91 => Wish::Members { group: self.0.usize(..3) },
            91..93 => {
                let (index, entry) = (self.0.usize(..2), self.0.usize(..ENTRIES.len()));
                Wish::IndexAdd { index, entry, announced: self.0.bool() }
            }
            93 => {
                let (index, entry) = (self.0.usize(..2), self.0.usize(..ENTRIES.len()));
                Wish::IndexRemove { index, entry, announced: self.0.bool() }
            }
            94 => Wish::IndexList { index: self.0.usize(..2) },
            95..98 => Wish::Note { term: self.term(leases), ending: (self.0.bool()).then(|| self.0.usize(..4)) },
            _ => Wish::Notes { limit: [0, 1, 3, 100][self.0.usize(..4)] },
        }
    }
}
