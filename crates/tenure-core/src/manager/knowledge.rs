//! What this process knows of the namespace: the data it attached to, the ttls that are relied on, and the store's clock.

use std::time::Duration;

use crate::store::{Announcement, Attached, Continuity, NamespaceMemory, Reply};
use crate::time::{Moment, ServerTime};

use super::server_clock::ServerClock;

/// How old the knowledge of the longest ttl that is relied on may become. It decides how long a quarantine started by
/// this process lasts. Every reply about a lease refreshes it.
const REFRESH_TTLS_EVERY: Duration = Duration::from_secs(15);

/// How long that knowledge is valid while the store cannot be reached. Others may hold longer leases by now.
const TTLS_VALID_FOR: Duration = Duration::from_secs(5 * 60);

/// The knowledge of one process.
#[derive(Debug, Default)]
pub(super) struct Knowledge {
    memory: Option<NamespaceMemory>,
    /// When the store last reported the ttls that are relied on, or was asked to.
    ttls_known_at: Moment,
    server_clock: ServerClock,
    /// Whether the last attach found the quarantine that goes on, if one does.
    knows_quarantine: bool,
}

impl Knowledge {
    /// What the next attach tells the store.
    pub(super) fn memory(&self) -> Option<&NamespaceMemory> {
        self.memory.as_ref()
    }

    /// Learns from an attach. Returns what it means for held leases.
    pub(super) fn attached(&mut self, now: Moment, attached: &Attached) -> Continuity {
        self.ttls_known_at = now;
        self.knows_quarantine = attached.quarantine.is_some();
        match &mut self.memory {
            Some(memory) => memory.reattach(attached),
            None => {
                self.memory = Some(NamespaceMemory::new(attached));
                Continuity::Changed
            }
        }
    }

    /// Whether a reply shows a quarantine that began behind this connection. Then another process has found a loss of
    /// data, perhaps without the tokens and ttls that this one remembers, and an attach tells the store.
    pub(super) fn take_unknown_quarantine(&mut self, reply: &Reply) -> bool {
        match reply {
            Reply::Quarantined(_) => !std::mem::replace(&mut self.knows_quarantine, true),
            Reply::Granted(_) => {
                self.knows_quarantine = false;
                false
            }
            _ => false,
        }
    }

    /// Learns from a reply.
    pub(super) fn learn(&mut self, now: Moment, reply: &Reply) {
        let Some(memory) = &mut self.memory else { return };
        memory.learn(reply);
        if matches!(reply, Reply::Granted(_) | Reply::Renewed { .. } | Reply::Held(_) | Reply::Namespace(_)) {
            self.ttls_known_at = now;
        }
        let server = match reply {
            Reply::Granted(grant) => Some(grant.server),
            Reply::Renewed { server, .. } => Some(*server),
            Reply::Held(held) => Some(held.server),
            Reply::Lease(report) => report.held.as_ref().map(|held| held.server),
            Reply::Namespace(report) => Some(report.server),
            _ => None,
        };
        server.into_iter().for_each(|server| self.server_clock.observe(now, server));
    }

    /// Learns from an announcement. Returns whether it shows that the data is not what this process attached to.
    pub(super) fn learn_announcement(&mut self, announcement: &Announcement) -> bool {
        let Some(memory) = &mut self.memory else { return false };
        if memory.is_outdated_by(announcement) {
            return true;
        }
        memory.learn_announcement(announcement);
        false
    }

    /// Whether to ask for the ttls, because they are doubtful. Replies and announcements use different connections. A
    /// delayed one may carry a ttl that no lease relies on any more, and an idle process would keep it.
    pub(super) fn take_ttl_doubt(&mut self) -> bool {
        self.memory.as_mut().is_some_and(NamespaceMemory::take_ttl_doubt)
    }

    /// When to ask for the ttls again.
    pub(super) fn refresh_at(&self) -> Moment {
        self.ttls_known_at + REFRESH_TTLS_EVERY
    }

    /// Records that the ttls were asked for.
    pub(super) fn ttls_asked(&mut self, now: Moment) {
        self.ttls_known_at = now;
    }

    /// Whether the ttls of the fleet's leases are known: the store has reported them, recently enough.
    pub(super) fn has_recent_ttls(&self, now: Moment) -> bool {
        let is_recent = now.since(self.ttls_known_at) <= TTLS_VALID_FOR;
        is_recent && self.memory.as_ref().is_some_and(|memory| !memory.max_ttl.is_zero())
    }

    /// Server time minus the lease clock, in microseconds.
    pub(super) fn server_offset(&self) -> i64 {
        self.server_clock.offset()
    }

    /// The time of the store's clock at this moment.
    pub(super) fn server_time(&self, moment: Moment) -> ServerTime {
        self.server_clock.at(moment)
    }
}
