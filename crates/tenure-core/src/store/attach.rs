//! Attaching to a namespace: how a process detects that the store's data is not the data it knew.
//!
//! A store can lose everything (a flush, a restart without persistence), lose the last writes (a failover), or go back
//! in time (a restored backup). Holders that have not noticed may still rely on leases granted before then. So the
//! namespace has a record with a *generation*. An instance that finds the record missing, or older than it remembers,
//! writes a new generation and begins a *quarantine*: nothing is granted until every lease from before has expired. An
//! instance that finds a newer generation adopts it and never overwrites it with its own memory.

use std::time::Duration;

use super::{Announcement, DEFAULT_TTL, Generation, Lineage, MAX_TTL, Quarantine, QuarantineReason, Reply, ServerRun};
use crate::time::ServerTime;
use crate::token::Token;

/// What a process sends when it attaches.
///
/// The default is for a process without a memory, with leases of the default ttl and a random stamp.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::memory::MemoryStore;
/// use tenure::store::{AttachRequest, NamespaceMemory, Store};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = MemoryStore::default();
/// let first = AttachRequest { max_ttl: Duration::from_secs(60), ..AttachRequest::new(fastrand::u64(..)) };
/// let connection = store.attach(first.clone()).await?;
/// let memory = NamespaceMemory::new(connection.attached());
///
/// // On every later connection of the same process:
/// let connection = store.attach(AttachRequest { memory: Some(memory), ..first }).await?;
/// assert!(!connection.attached().minted);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// What the process remembers; `None` if it is new.
    pub memory: Option<NamespaceMemory>,
    /// A random number, which becomes the stamp of the generation if this request mints one.
    pub stamp: u64,
    /// The longest ttl of the process's own leases; without a memory, also the longest ttl that it assumes others to
    /// rely on. A quarantine that this request begins lasts at least this long. It has no other effect.
    pub max_ttl: Duration,
    /// The operator states that the server is new: a namespace without a record need not wait until the server is old
    /// enough.
    pub bootstrap: bool,
    /// The operator states that a restart loses nothing: a restart begins no quarantine.
    pub durable: bool,
    /// Only observes: writes nothing, and can acquire nothing.
    pub observer: bool,
    /// How long to wait for an obstacle to go away. A store that knows the obstacle reports it then.
    pub timeout: Duration,
}

impl AttachRequest {
    /// A request of a new process, with this random number as its stamp.
    pub fn new(stamp: u64) -> Self {
        Self {
            memory: None,
            stamp,
            max_ttl: DEFAULT_TTL,
            bootstrap: false,
            durable: false,
            observer: false,
            timeout: Duration::from_secs(5),
        }
    }

    /// The longest ttl that holders may rely on, as far as this process knows.
    pub fn known_ttl(&self) -> Duration {
        self.memory.as_ref().map_or(Duration::ZERO, |memory| memory.max_ttl).max(self.max_ttl).min(MAX_TTL)
    }
}

/// What an attach found.
///
/// ```
/// use tenure::store::memory::MemoryStore;
/// use tenure::store::{AttachRequest, NamespaceMemory, QuarantineReason, Store};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = MemoryStore::default();
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// assert!(connection.attached().minted && connection.attached().quarantine.is_none());
///
/// let memory = NamespaceMemory::new(connection.attached());
/// store.faults().flush();
/// let connection = store.attach(AttachRequest { memory: Some(memory), ..AttachRequest::new(fastrand::u64(..)) }).await?;
/// assert_eq!(connection.attached().new_quarantine_reason(), Some(QuarantineReason::RecordMissing));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The generation of the data; the default one when an observer found no record.
    pub generation: Generation,
    /// Whether this request wrote that generation.
    pub minted: bool,
    /// The run of the server.
    pub run: ServerRun,
    /// The history of its data.
    pub lineage: Lineage,
    /// The store's time.
    pub server: ServerTime,
    /// The longest ttl that can still be relied on.
    pub max_ttl: Duration,
    /// The store grants no token up to this one any more.
    pub token_floor: Token,
    /// Whether the store has lost a token that this process remembers.
    pub rolled_back: bool,
    /// The quarantine, if there is one.
    pub quarantine: Option<Quarantine>,
    /// Whether this request began that quarantine.
    pub began_quarantine: bool,
    /// Why the store announces nothing, if so. Leases work, but a waiter notices a release only when the ttl ends.
    pub publish_error: Option<String>,
}

impl Attached {
    /// How long nothing is granted.
    pub fn quarantine_remaining(&self) -> Duration {
        self.quarantine.map_or(Duration::ZERO, |quarantine| quarantine.remaining)
    }

    /// Why this request began a quarantine, if it did.
    pub fn new_quarantine_reason(&self) -> Option<QuarantineReason> {
        self.quarantine.filter(|_| self.began_quarantine).map(|quarantine| quarantine.reason)
    }
}

/// How the data found at a reattach relates to the leases that a process holds.
///
/// ```
/// use tenure::store::memory::{MemoryStore, Survival};
/// use tenure::store::{AttachRequest, Continuity, NamespaceMemory, Store};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = MemoryStore::default();
/// let mut memory = NamespaceMemory::new(store.attach(AttachRequest::new(fastrand::u64(..))).await?.attached());
/// store.faults().restart(Survival::All);
/// let request = AttachRequest { memory: Some(memory.clone()), ..AttachRequest::new(fastrand::u64(..)) };
/// match memory.reattach(store.attach(request).await?.attached()) {
///     Continuity::Same => println!("every held lease continues"),
///     Continuity::Changed => println!("renew every held lease before new work starts"),
///     Continuity::Reset => println!("every held lease is lost"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// The same data in the same run: every held lease continues, with its old deadline.
    Same,
    /// Perhaps not the same data: every held lease must be verified by a renewal before new work starts.
    Changed,
    /// Other data: every held lease is lost.
    Reset,
}

/// How much older than the last reply a reply may be and still count as late. Beyond that, the store's clock was set
/// back.
const MAX_REPLY_LATENESS: Duration = Duration::from_secs(60);

/// What a process remembers about a namespace between connections.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, Claim, Keyspace, NamespaceMemory, Outcome, LeaseRequest, open};
/// use tenure::{InstanceId, LeaseName, Nonce};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// let mut memory = NamespaceMemory::new(connection.attached());
/// let (name, holder) = (LeaseName::lease("report")?, InstanceId::new("api-1")?);
/// let claim = Claim { name, holder, nonce: Nonce::new(fastrand::u128(..)), ttl: Duration::from_secs(30) };
/// for outcome in connection.submit(vec![LeaseRequest::Acquire { claim, ended: None }.into()], Duration::from_secs(1)).await {
///     if let Outcome::Answered(reply) = outcome {
///         memory.learn(&reply); // every reply
///     }
/// }
/// assert!(memory.high_water > connection.attached().token_floor);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceMemory {
    /// The generation last attached to.
    pub generation: Generation,
    /// The server run last attached to.
    pub run: ServerRun,
    /// The id of the data's history at the last attach.
    pub lineage: u128,
    /// The highest token ever seen, over all leases.
    pub high_water: Token,
    /// The longest ttl that can still be relied on, as the store last reported.
    pub max_ttl: Duration,
    /// The store's time of that report.
    as_of: ServerTime,
    /// The store's time of its last reply as of this generation.
    answered_at: ServerTime,
    /// Set when an older report had a longer ttl: that report came late, or the store's clock was set back.
    ttl_in_doubt: bool,
}

impl NamespaceMemory {
    /// Creates the memory of a process that has attached for the first time.
    pub fn new(attached: &Attached) -> Self {
        Self {
            generation: attached.generation,
            run: attached.run,
            lineage: attached.lineage.id,
            high_water: attached.token_floor,
            max_ttl: attached.max_ttl,
            as_of: attached.server,
            answered_at: attached.server,
            ttl_in_doubt: false,
        }
    }

    /// The store's time when it last reported the longest ttl.
    pub fn as_of(&self) -> ServerTime {
        self.as_of
    }

    /// The store's time of its last reply as of this generation.
    pub fn answered_at(&self) -> ServerTime {
        self.answered_at
    }

    /// Whether the longest ttl may have become too long since the last call. If so, the caller must ask the store.
    pub fn take_ttl_doubt(&mut self) -> bool {
        std::mem::take(&mut self.ttl_in_doubt)
    }

    /// Remembers a token, unless it is implausible: one corrupt record must not exhaust all tokens.
    pub fn learn_token(&mut self, token: Token) {
        if token.is_credible(self.as_of) {
            self.high_water = self.high_water.max(token);
        }
    }

    /// Remembers the tokens in a reply, the process's own and those of others, and the longest ttl. The caller must
    /// pass every reply: what no process remembers cannot be restored after a loss.
    pub fn learn(&mut self, reply: &Reply) {
        match reply {
            Reply::Granted(grant) => {
                self.update_longest_ttl(grant.max_ttl, grant.server);
                self.answered_at = grant.server;
                self.learn_token(grant.token);
            }
            Reply::Renewed { max_ttl, server, .. } => {
                // The renewed lease can be relied on: zero means that another program has deleted the record.
                if !max_ttl.is_zero() {
                    self.update_longest_ttl(*max_ttl, *server);
                }
                self.answered_at = *server;
            }
            Reply::Held(held) => {
                self.update_longest_ttl(held.max_ttl, held.server);
                self.answered_at = held.server;
                held.token.into_iter().for_each(|token| self.learn_token(token));
            }
            Reply::HandedOver { token } => self.learn_token(*token),
            Reply::Lease(report) => report.last.iter().for_each(|last| self.learn_token(last.token)),
            // A report of another generation is of no use before we have attached to it.
            Reply::Namespace(report) if report.generation == Some(self.generation) => {
                self.update_longest_ttl(report.max_ttl, report.server);
                self.answered_at = report.server;
            }
            _ => {}
        }
    }

    /// Updates the longest ttl with a report of this store time.
    fn update_longest_ttl(&mut self, max_ttl: Duration, server: ServerTime) {
        let is_late = server < self.as_of && self.as_of.since(server) < MAX_REPLY_LATENESS;
        if !is_late {
            (self.max_ttl, self.as_of) = (max_ttl, server);
        } else if max_ttl > self.max_ttl {
            self.max_ttl = max_ttl;
            self.ttl_in_doubt = true;
        }
    }

    /// Remembers the longest ttl in an announcement.
    pub fn learn_announcement(&mut self, announcement: &Announcement) {
        if let Announcement::LongestTtl { ttl, server } = announcement {
            self.update_longest_ttl(*ttl, *server);
        }
    }

    /// Whether an announcement shows that the namespace has another generation: attach again.
    pub fn is_outdated_by(&self, announcement: &Announcement) -> bool {
        matches!(announcement, Announcement::GenerationMinted { generation } if *generation != self.generation)
    }

    /// Takes in the result of a later attach, and returns what it means for held leases.
    pub fn reattach(&mut self, attached: &Attached) -> Continuity {
        let continuity = if attached.minted {
            Continuity::Changed
        } else if attached.generation != self.generation {
            Continuity::Reset
        } else if attached.run != self.run || attached.rolled_back || !attached.lineage.is_continuation_of(self.lineage)
        {
            Continuity::Changed
        } else {
            Continuity::Same
        };
        // The floor covers every remembered token except implausible ones.
        *self = Self::new(attached);
        continuity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::InstanceId;
    use crate::store::Held;

    const NOW: ServerTime = ServerTime::from_micros(1_700_000_000_000_000);

    fn attached(number: u64, minted: bool, run: u128) -> Attached {
        Attached {
            generation: Generation { number, stamp: 1 },
            minted,
            run: ServerRun(run),
            lineage: Lineage { id: 1, before: None },
            server: NOW,
            max_ttl: Duration::from_secs(30),
            token_floor: Token::new(NOW.as_micros()).unwrap(),
            rolled_back: false,
            quarantine: None,
            began_quarantine: false,
            publish_error: None,
        }
    }

    #[test]
    fn a_reattach_says_whether_held_leases_survive() {
        let replaced = Lineage { id: 3, before: Some(2) };
        let replicated = Lineage { id: 3, before: None };
        let resumed = Lineage { id: 3, before: Some(1) };
        let cases = [
            ("nothing happened", attached(5, false, 1), Continuity::Same),
            ("restarted, another instance noticed first", attached(5, false, 2), Continuity::Changed),
            ("lost, we wrote the new generation", attached(6, true, 1), Continuity::Changed),
            ("lost, another instance did", attached(6, false, 1), Continuity::Reset),
            (
                "lost, another instance wrote a generation with the same number",
                Attached { generation: Generation { number: 5, stamp: 2 }, ..attached(5, false, 1) },
                Continuity::Reset,
            ),
            ("lost and restarted, another instance wrote", attached(9, false, 2), Continuity::Reset),
            ("tokens went back", Attached { rolled_back: true, ..attached(5, false, 1) }, Continuity::Changed),
            ("data replaced", Attached { lineage: replaced, ..attached(5, false, 1) }, Continuity::Changed),
            ("a replica attached", Attached { lineage: replicated, ..attached(5, false, 1) }, Continuity::Same),
            ("promoted with the same data", Attached { lineage: resumed, ..attached(5, false, 1) }, Continuity::Same),
        ];
        for (case, later, expected) in cases {
            let mut memory = NamespaceMemory::new(&attached(5, true, 1));
            assert_eq!(memory.reattach(&later), expected, "{case}");
            assert_eq!(memory.generation, later.generation, "{case}");
        }
    }

    #[test]
    fn an_implausible_token_is_not_learned() {
        let mut memory = NamespaceMemory::new(&attached(5, true, 1));
        let day = 24 * 3_600 * 1_000_000;
        let tomorrow = Token::new(NOW.as_micros() + day).unwrap();
        memory.learn_token(tomorrow);
        assert_eq!(memory.high_water, tomorrow, "a server clock may have been ahead");
        memory.learn_token(Token::new(NOW.as_micros() + 370 * day).unwrap());
        memory.learn(&Reply::HandedOver { token: Token::MAX });
        assert_eq!(memory.high_water, tomorrow);
    }

    #[test]
    fn the_longest_ttl_rises_and_falls_as_the_store_says_and_late_answers_only_raise_it() {
        let mut memory = NamespaceMemory::new(&attached(5, true, 1));
        let seconds = Duration::from_secs;
        let held = |ttl, server| {
            let holder = InstanceId::foreign("api-2");
            Reply::Held(Held { holder, token: None, remaining: None, idle: None, max_ttl: seconds(ttl), server })
        };
        memory.learn(&held(3, NOW + seconds(1)));
        assert_eq!(memory.max_ttl, seconds(3), "a released lease no longer counts");
        memory.learn_announcement(&Announcement::LongestTtl { ttl: seconds(60), server: NOW + seconds(3) });
        memory.learn(&held(3, NOW + seconds(2)));
        assert_eq!(memory.max_ttl, seconds(60), "an earlier reply does not lower it");
        assert!(!memory.take_ttl_doubt());
        memory.learn_announcement(&Announcement::LongestTtl { ttl: seconds(3), server: NOW + seconds(5) });
        assert_eq!(memory.max_ttl, seconds(3));
        memory.learn(&held(60, NOW + seconds(4)));
        assert_eq!(memory.max_ttl, seconds(60), "the clock may have been set back a little");
        assert!(memory.take_ttl_doubt(), "the reply is more likely late");
        memory.learn(&held(60, NOW + seconds(4)));
        assert!(!memory.take_ttl_doubt(), "the store is asked once");
        memory.learn(&held(3, NOW + seconds(6)));
        assert_eq!(memory.max_ttl, seconds(3));
        memory.learn(&held(9, ServerTime::from_micros(5)));
        assert_eq!(memory.max_ttl, seconds(9), "the store's clock was set back");
    }

    #[test]
    fn a_renewal_without_a_namespace_record_does_not_lower_the_longest_ttl() {
        let mut memory = NamespaceMemory::new(&attached(5, true, 1));
        let renewed = |max_ttl, seconds| {
            let server = NOW + Duration::from_secs(seconds);
            Reply::Renewed { server, max_ttl: Duration::from_secs(max_ttl), asked: None }
        };
        memory.learn(&renewed(3, 1));
        memory.learn(&renewed(0, 2));
        assert_eq!(memory.max_ttl, Duration::from_secs(3));
    }
}
