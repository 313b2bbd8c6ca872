//! Generates random sequences: the same seed gives the same sequence.

use std::time::Duration;

use crate::sequence::{
    CLIENTS, ENTRIES, FOREIGN_HOLDERS, LONG_SPANS, MemoryTemplate, Operation, RECORDS, RequestTemplate, SHORT_SPAN,
    TermTemplate, TokenTemplate, VALUES,
};

/// Maximum number of operations in a sequence.
const MAX_OPERATIONS: usize = 40;

/// Generates sequences.
pub(crate) struct SequenceGenerator(fastrand::Rng);

impl SequenceGenerator {
    pub(crate) fn sequence(seed: u64) -> Vec<Operation> {
        let mut generator = Self(fastrand::Rng::with_seed(seed));
        let length = generator.0.usize(5..=MAX_OPERATIONS);
        // Most sequences use one lease, so that more happens to it.
        let leases = if generator.0.u8(..4) == 0 { 3 } else { 1 };
        let fresh_namespace = if generator.0.u8(..4) == 0 { Self::fresh_namespace() } else { Vec::new() };
        fresh_namespace.into_iter().chain((0..length).map(|_| generator.operation(leases))).collect()
    }

    /// A namespace with short ttls only, so that everything expires soon.
    fn fresh_namespace() -> Vec<Operation> {
        let attach = |client| Operation::Attach {
            client,
            memory: MemoryTemplate::Nothing,
            max_ttl: SHORT_SPAN,
            bootstrap: true,
            durable: false,
            observer: false,
            stamp: 9,
        };
        [Operation::Flush].into_iter().chain((0..CLIENTS).map(attach)).collect()
    }

    fn operation(&mut self, leases: usize) -> Operation {
        match self.0.u8(..100) {
            0..8 => Operation::Attach {
                client: self.0.usize(..CLIENTS),
                memory: self.memory(),
                max_ttl: self.attach_ttl(),
                bootstrap: self.0.u8(..3) == 0,
                durable: self.0.u8(..3) == 0,
                observer: self.0.u8(..6) == 0,
                stamp: self.0.u64(..3),
            },
            8..10 => Operation::Flush,
            10..15 => Operation::WriteForeign {
                lease: self.0.usize(..leases),
                holder: self.0.usize(..FOREIGN_HOLDERS.len()),
                ttl: match self.0.u8(..3) {
                    0 => None,
                    _ => Some(self.ttl()),
                },
            },
            15..18 => Operation::DeleteForeign { lease: self.0.usize(..leases) },
            18..21 => Operation::Wait,
            _ => {
                let count = if self.0.u8(..4) == 0 { self.0.usize(2..=5) } else { 1 };
                let mut batch: Vec<RequestTemplate> = (0..count).map(|_| self.request(leases)).collect();
                // Heartbeats travel with the preceding requests.
                if self.0.u8(..6) == 0 {
                    batch.insert(self.0.usize(1..=batch.len()), self.beat());
                }
                Operation::Submit { client: self.0.usize(..CLIENTS), batch }
            }
        }
    }

    /// The ttl for an attach, which must not be close to the server's uptime.
    fn attach_ttl(&mut self) -> Duration {
        [SHORT_SPAN, SHORT_SPAN, LONG_SPANS[1], LONG_SPANS[2], LONG_SPANS[3]][self.0.usize(..5)]
    }

    fn memory(&mut self) -> MemoryTemplate {
        match self.0.u8(..10) {
            0..2 => MemoryTemplate::Nothing,
            2..6 => MemoryTemplate::Everything,
            _ => MemoryTemplate::False {
                older: self.0.u8(..4) == 0,
                newer: self.0.u8(..8) == 0,
                stamp: self.0.u8(..4) == 0,
                token: (self.0.u8(..2) == 0).then(|| self.token()),
                max_ttl: (self.0.u8(..2) == 0).then(|| self.attach_ttl()),
            },
        }
    }

    fn ttl(&mut self) -> Duration {
        if self.0.u8(..8) == 0 { SHORT_SPAN } else { LONG_SPANS[self.0.usize(..LONG_SPANS.len())] }
    }

    fn token(&mut self) -> TokenTemplate {
        match self.0.u8(..40) {
            0 => TokenTemplate::Zero,
            1 => TokenTemplate::Last(self.0.u64(..4)),
            2 => TokenTemplate::Above(self.0.usize(..3)),
            3 => TokenTemplate::Below(self.0.usize(..3)),
            4..14 => TokenTemplate::Seen(self.0.usize(1..4)),
            _ => TokenTemplate::Seen(0),
        }
    }

    fn term(&mut self, leases: usize) -> TermTemplate {
        let right = self.0.u8(..4) > 0;
        TermTemplate { token: self.token(), right, lease: self.0.usize(..leases), holder: self.holder() }
    }

    fn holder(&mut self) -> usize {
        [0, 0, 0, 1, 1, 2][self.0.usize(..6)]
    }

    fn beat(&mut self) -> RequestTemplate {
        let (group, instance) = (self.0.usize(..3), self.holder());
        RequestTemplate::Heartbeat { group, instance, ttl: self.ttl(), record: self.0.usize(..VALUES.len()) }
    }

    fn nonce(&mut self) -> u8 {
        self.0.u8(..5)
    }

    fn request(&mut self, leases: usize) -> RequestTemplate {
        let lease = self.0.usize(..leases);
        match self.0.u8(..100) {
            0..20 => RequestTemplate::Acquire {
                lease,
                holder: self.holder(),
                nonce: self.nonce(),
                ttl: self.ttl(),
                ended: (self.0.u8(..3) == 0).then(|| self.token()),
            },
            20..32 => RequestTemplate::TakeOver {
                lease,
                holder: self.holder(),
                nonce: self.nonce(),
                ttl: self.ttl(),
                victim: self.token(),
                stale_after: [Duration::ZERO, SHORT_SPAN, LONG_SPANS[0]][self.0.usize(..3)],
            },
            32..42 => RequestTemplate::Renew { term: self.term(leases), ttl: self.ttl(), progressed: self.0.bool() },
            42..49 => RequestTemplate::Release { term: self.term(leases), ending: self.0.usize(..4) },
            49..52 => RequestTemplate::Abandon { lease, holder: self.holder(), nonce: self.nonce() },
            52..60 => RequestTemplate::HandOver { term: self.term(leases), to: self.holder(), window: self.ttl() },
            60..64 => RequestTemplate::Revoke { lease, token: self.token() },
            64..68 => {
                let to = (self.0.bool()).then(|| self.holder());
                RequestTemplate::StepDown { lease, token: self.token(), to }
            }
            68..72 => RequestTemplate::Inspect { lease },
            72 => RequestTemplate::InspectNamespace,
            73 => RequestTemplate::Reopen { right: self.0.u8(..4) > 0 },
            74 => RequestTemplate::Holder { lease },
            75 => {
                RequestTemplate::Forget { lease, idle_for: if self.0.bool() { Duration::ZERO } else { LONG_SPANS[0] } }
            }
            76..79 => RequestTemplate::Publish {
                term: self.term(leases),
                record: self.0.usize(..RECORDS.len()),
                value: self.0.usize(..VALUES.len()),
            },
            79..82 => RequestTemplate::Read { lease, record: self.0.usize(..RECORDS.len()) },
            82 => RequestTemplate::Announce { lease, token: self.token() },
            83..86 => self.beat(),
            86..88 => RequestTemplate::Leave { group: self.0.usize(..3), instance: self.holder() },
            88..91 => RequestTemplate::Instances { group: self.0.usize(..3) },
            91..93 => {
                let (index, entry) = (self.0.usize(..2), self.0.usize(..ENTRIES.len()));
                RequestTemplate::IndexAdd { index, entry, announced: self.0.bool() }
            }
            93 => {
                let (index, entry) = (self.0.usize(..2), self.0.usize(..ENTRIES.len()));
                RequestTemplate::IndexRemove { index, entry, announced: self.0.bool() }
            }
            94 => RequestTemplate::IndexList { index: self.0.usize(..2) },
            95..98 => {
                RequestTemplate::Note { term: self.term(leases), ending: (self.0.bool()).then(|| self.0.usize(..4)) }
            }
            _ => RequestTemplate::Notes { limit: [0, 1, 3, 100][self.0.usize(..4)] },
        }
    }
}
