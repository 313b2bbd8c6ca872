//! The ttls that holders can still rely on, and until when.
//!
//! After a loss of data nothing may be granted until the last lease from before has expired, so the namespace has to
//! know how long that can take. It keeps one class per ttl in use. A grant adds a lease to its class, and a release
//! removes it. A class lapses when none of its leases was granted or renewed for so long that all must have expired.
//! This may count too much (the lease of a crashed holder counts until its class lapses) and never too little.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::json;
use crate::store::MAX_TTL;
use crate::time::ServerTime;

/// With this many classes, further ttls share classes with longer ones.
const MAX_EXACT_CLASSES: usize = 16;

/// A class is extended by this fraction of its ttl more than needed, so that not every renewal has to write it.
const CLASS_SLACK_DIVISOR: u32 = 8;

/// The ttls of a namespace's leases that holders may still rely on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveTtls {
    /// The classes, by ttl.
    #[serde(with = "json::pairs")]
    pub classes: BTreeMap<Duration, TtlClass>,
}

/// The leases of one ttl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TtlClass {
    /// No lease of the class that was granted or renewed until now can be relied on after this time.
    pub until: ServerTime,
    /// The number of leases. `None` when it is not known: then only time ends the class.
    pub leases: Option<u64>,
}

/// How a lease extends its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extension {
    /// It joins the class.
    Granted,
    /// It is already in the class, and continues.
    Renewed,
}

impl LiveTtls {
    /// The longest ttl that can still be relied on.
    pub(super) fn longest(&self, now: ServerTime) -> Duration {
        let live = self.classes.iter().rev().find(|(_, class)| class.until > now);
        live.map_or(Duration::ZERO, |(ttl, _)| *ttl)
    }

    /// The longest ttl on record, lapsed or not: after a loss of data it is unknown which renewals were lost with it.
    pub(super) fn longest_on_record(&self) -> Duration {
        self.classes.last_key_value().map_or(Duration::ZERO, |(ttl, _)| *ttl)
    }

    /// The class for leases of this ttl: that ttl, or a little more when there are many classes.
    pub(super) fn class_of(&self, ttl: Duration) -> Duration {
        let exact = class_ttl(ttl);
        if self.classes.contains_key(&exact) || self.classes.len() < MAX_EXACT_CLASSES {
            exact
        } else {
            coarse_ttl(exact)
        }
    }

    /// Whether leases of this ttl may be in this class.
    pub(super) fn is_in_class(ttl: Duration, class: Duration) -> bool {
        let exact = class_ttl(ttl);
        class == exact || class == coarse_ttl(exact)
    }

    /// Counts a granted or renewed lease of this class. Returns whether anything has changed.
    pub(super) fn extend(&mut self, now: ServerTime, class: Duration, extension: Extension) -> bool {
        let leases = (extension == Extension::Granted).then_some(0);
        let entry = self.classes.entry(class).or_insert(TtlClass { until: now, leases });
        if entry.until <= now {
            // All leases counted here have expired.
            entry.leases = leases;
        }
        if extension == Extension::Granted {
            entry.leases = entry.leases.map(|leases| leases + 1);
        }
        let is_due = entry.until < now + class || entry.until > furthest_end(now, class);
        if is_due {
            entry.until = furthest_end(now, class);
        }
        is_due || extension == Extension::Granted
    }

    /// Removes a lease of this class whose holder has released it.
    pub(super) fn release(&mut self, class: Duration) {
        if let Some(entry) = self.classes.get_mut(&class)
            && let Some(leases) = &mut entry.leases
        {
            *leases = leases.saturating_sub(1);
            if *leases == 0 {
                self.classes.remove(&class);
            }
        }
    }

    /// Removes the classes that have lapsed.
    pub(super) fn expire(&mut self, now: ServerTime) {
        self.classes.retain(|ttl, class| {
            // A class cannot have more time left than this, unless the server's clock was set back.
            class.until = class.until.min(furthest_end(now, *ttl));
            class.until > now
        });
    }
}

fn furthest_end(now: ServerTime, ttl: Duration) -> ServerTime {
    now + ttl + Duration::from_micros(u64::try_from((ttl / CLASS_SLACK_DIVISOR).as_micros()).unwrap_or(u64::MAX))
}

/// A ttl in whole milliseconds, the unit of the stores.
fn class_ttl(ttl: Duration) -> Duration {
    let millis = ttl.min(MAX_TTL).as_micros().div_ceil(1_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// A ttl rounded up, by an eighth at most, so that few different ones remain.
fn coarse_ttl(ttl: Duration) -> Duration {
    let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let mut step = 1;
    while step * 16 <= millis {
        step *= 2;
    }
    Duration::from_millis(millis.div_ceil(step) * step).min(MAX_TTL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(24);
    const LONG: Duration = Duration::from_secs(3_600);

    fn at(seconds: u64) -> ServerTime {
        ServerTime::from_micros(1_700_000_000_000_000) + Duration::from_secs(seconds)
    }

    #[test]
    fn a_released_lease_no_longer_counts() {
        let mut ttls = LiveTtls::default();
        ttls.extend(at(0), TTL, Extension::Granted);
        ttls.extend(at(0), LONG, Extension::Granted);
        ttls.extend(at(0), LONG, Extension::Granted);
        assert_eq!(ttls.longest(at(1)), LONG);
        ttls.release(LONG);
        assert_eq!(ttls.longest(at(1)), LONG, "one is left");
        ttls.release(LONG);
        assert_eq!(ttls.longest(at(1)), TTL);
    }

    #[test]
    fn an_expired_lease_no_longer_counts_and_a_renewed_one_does() {
        let mut ttls = LiveTtls::default();
        ttls.extend(at(0), TTL, Extension::Granted);
        for second in [8, 16, 24, 32] {
            ttls.extend(at(second), TTL, Extension::Renewed);
            assert_eq!(ttls.longest(at(second + 24)), TTL, "for a whole ttl from every renewal");
        }
        assert_eq!(ttls.longest(at(32 + 27)), Duration::ZERO, "and for an eighth more at most");
        assert_eq!(ttls.longest_on_record(), TTL, "until the class is removed");
        ttls.expire(at(32 + 27));
        assert_eq!(ttls.longest_on_record(), Duration::ZERO);
    }

    #[test]
    fn a_lease_that_was_not_counted_ends_its_class_by_time_alone() {
        let mut ttls = LiveTtls::default();
        // Renewed although its class had lapsed: another program removed its expiry.
        ttls.extend(at(0), TTL, Extension::Renewed);
        ttls.extend(at(0), TTL, Extension::Granted);
        ttls.release(TTL);
        assert_eq!(ttls.longest(at(1)), TTL, "it is unknown which of the two was released");
        assert_eq!(ttls.longest(at(28)), Duration::ZERO);
    }

    #[test]
    fn a_class_that_lapsed_is_counted_anew() {
        let mut ttls = LiveTtls::default();
        ttls.extend(at(0), TTL, Extension::Granted);
        ttls.extend(at(60), TTL, Extension::Granted);
        ttls.release(TTL);
        assert_eq!(ttls.longest(at(60)), Duration::ZERO, "the first one had expired");
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_keep_a_class() {
        let mut ttls = LiveTtls::default();
        ttls.extend(at(3_600), TTL, Extension::Granted);
        ttls.expire(at(0));
        assert_eq!(ttls.longest(at(24)), TTL);
        assert_eq!(ttls.longest(at(27)), Duration::ZERO);
    }

    #[test]
    fn many_different_ttls_share_classes_with_longer_ones() {
        let mut ttls = LiveTtls::default();
        for millis in 10_000..12_000 {
            let ttl = Duration::from_millis(millis);
            let class = ttls.class_of(ttl);
            assert!(class >= ttl && class <= ttl + ttl / 8, "{ttl:?} in {class:?}");
            assert!(LiveTtls::is_in_class(ttl, class));
            ttls.extend(at(0), class, Extension::Granted);
        }
        assert!(ttls.classes.len() <= 2 * MAX_EXACT_CLASSES, "{}", ttls.classes.len());
        assert_eq!(coarse_ttl(MAX_TTL), MAX_TTL);
    }
}
