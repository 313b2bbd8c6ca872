//! The connection to the store, as far as it is decided: when to make one, how long an attempt may take, and when to try
//! again.

use std::time::Duration;

use crate::backoff::{Backoff, jittered};
use crate::lease::LeaseSettings;
use crate::store::StoreError;
use crate::time::Moment;

use super::LinkId;

/// The backoff between two attempts to attach. No work begins until the longest one has passed after an outage, so it is
/// short.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(40), Duration::from_secs(1));

/// A connection that is lost sooner than this may never have worked.
const MIN_HEALTHY_LIFETIME: Duration = Duration::from_secs(1);

/// The backoff after an error that needs an operator.
const FATAL_ERROR_BACKOFF: Duration = Duration::from_secs(5);

/// The shortest and the longest timeout of an attempt to attach.
const MIN_ATTACH_TIMEOUT: Duration = Duration::from_millis(250);
const MAX_ATTACH_TIMEOUT: Duration = Duration::from_secs(5);

/// By how much the timeout of an attempt grows at most.
const MAX_TIMEOUT_DOUBLINGS: u32 = 5;

/// The connection, or the attempt to make one.
#[derive(Debug)]
pub(super) struct Link {
    /// Counts connections and losses, so that reports of an abandoned one are recognised.
    id: LinkId,
    state: LinkState,
    /// The number of failures in a row.
    failures: u32,
    up_since: Moment,
}

#[derive(Debug, PartialEq, Eq)]
enum LinkState {
    Down { retry_at: Moment },
    Attaching,
    Up,
}

impl Link {
    /// A link whose first attempt is due at once.
    pub(super) fn new() -> Self {
        let state = LinkState::Down { retry_at: Moment::ZERO };
        Self { id: LinkId::default(), state, failures: 0, up_since: Moment::ZERO }
    }

    pub(super) fn id(&self) -> LinkId {
        self.id
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == LinkState::Up
    }

    pub(super) fn is_attaching(&self) -> bool {
        self.state == LinkState::Attaching
    }

    /// When to retry, while there is no connection or attempt.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        match self.state {
            LinkState::Down { retry_at } => Some(retry_at),
            LinkState::Attaching | LinkState::Up => None,
        }
    }

    /// Begins an attempt to attach.
    pub(super) fn begin_attach(&mut self) -> LinkId {
        self.id.0 += 1;
        self.state = LinkState::Attaching;
        self.id
    }

    /// The timeout of the next attempt, for these leases: time for several round trips, and more after each failure, but
    /// no longer than leases last. What the network has swallowed is not waited for.
    /// Without leases it is for leases of the assumed ttl.
    pub(super) fn attach_timeout<'a>(
        &self,
        assumed_ttl: Duration,
        leases: impl Iterator<Item = &'a LeaseSettings>,
    ) -> Duration {
        let shortest = leases.map(|settings| (settings.attempt_timeout(), settings.ttl()));
        let shortest = shortest.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)));
        let (attempt_timeout, ttl) = shortest.unwrap_or((LeaseSettings::default().attempt_timeout(), assumed_ttl));
        let factor = 1 << self.failures.min(MAX_TIMEOUT_DOUBLINGS);
        let longest = ttl.clamp(MIN_ATTACH_TIMEOUT, MAX_ATTACH_TIMEOUT);
        (attempt_timeout * 2).max(MIN_ATTACH_TIMEOUT).saturating_mul(factor).min(longest)
    }

    /// Starts to use a connection that has attached.
    pub(super) fn connected(&mut self, now: Moment) {
        self.up_since = now;
        self.state = LinkState::Up;
    }

    /// Schedules a retry after a failed attach.
    pub(super) fn attach_failed(&mut self, now: Moment, error: &StoreError, rng: &mut fastrand::Rng) {
        self.failures = self.failures.saturating_add(1);
        let longest = if error.is_retryable() { BACKOFF.after(self.failures) } else { FATAL_ERROR_BACKOFF };
        self.state = LinkState::Down { retry_at: now + jittered(longest, rng.f64()) };
    }

    /// Resets the failures after a reply on a connection that has lasted. A read-only replica replies to every read,
    /// and closes the connection at the first write.
    pub(super) fn confirm_working(&mut self, now: Moment) {
        if now.since(self.up_since) >= MIN_HEALTHY_LIFETIME {
            self.failures = 0;
        }
    }

    /// Abandons the connection and everything in flight. Retries at once, unless this connection never worked.
    pub(super) fn disconnect(&mut self, now: Moment, rng: &mut fastrand::Rng) {
        self.id.0 += 1;
        let short_lived = now.since(self.up_since) < MIN_HEALTHY_LIFETIME;
        self.failures = if short_lived { self.failures.saturating_add(1) } else { 0 };
        let backoff = if self.failures > 1 { BACKOFF.jittered(self.failures, rng.f64()) } else { Duration::ZERO };
        self.state = LinkState::Down { retry_at: now + backoff };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    fn at(millis: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(millis)
    }

    fn wait(link: &Link, now: Moment) -> Duration {
        link.retry_at().expect("there is no connection").since(now)
    }

    #[test]
    fn a_connection_that_worked_is_replaced_at_once_and_one_that_did_not_with_backoff() {
        let (mut link, mut rng) = (Link::new(), fastrand::Rng::with_seed(1));
        assert_eq!(link.retry_at(), Some(Moment::ZERO), "the first attempt is due at once");
        let first = link.begin_attach();
        link.connected(at(0));
        link.disconnect(at(60_000), &mut rng);
        assert_ne!(link.id(), first, "what is reported of it has no effect");
        assert_eq!(wait(&link, at(60_000)), Duration::ZERO);
        let mut longest = Duration::ZERO;
        for round in 0..20 {
            link.begin_attach();
            link.connected(at(60_000));
            link.disconnect(at(60_001), &mut rng);
            let backoff = wait(&link, at(60_001));
            assert!(round == 0 || backoff >= BACKOFF.first / 2, "{backoff:?}");
            longest = longest.max(backoff);
        }
        assert!(longest > BACKOFF.longest / 2 && longest <= BACKOFF.longest, "{longest:?}");
    }

    #[test]
    fn an_error_that_needs_an_operator_is_retried_slowly() {
        let (mut link, mut rng) = (Link::new(), fastrand::Rng::with_seed(1));
        let refused = StoreError::new(ErrorKind::Configuration, "wrong password");
        let down = StoreError::new(ErrorKind::Unreachable, "connection refused");
        link.begin_attach();
        link.attach_failed(at(0), &down, &mut rng);
        assert!(wait(&link, at(0)) <= BACKOFF.first);
        link.attach_failed(at(0), &refused, &mut rng);
        assert!(wait(&link, at(0)) >= FATAL_ERROR_BACKOFF / 2);
    }

    #[test]
    fn a_reply_ends_the_backoff_only_on_a_connection_that_has_lasted() {
        let (mut link, mut rng) = (Link::new(), fastrand::Rng::with_seed(1));
        for _ in 0..5 {
            link.connected(at(0));
            link.disconnect(at(1), &mut rng);
        }
        link.connected(at(1));
        link.confirm_working(at(2));
        assert_eq!(link.failures, 5, "a replica that only reads replies, too");
        link.confirm_working(at(1_001));
        assert_eq!(link.failures, 0);
    }

    #[test]
    fn the_timeout_of_an_attempt_grows_with_the_failures() {
        let (mut link, mut rng) = (Link::new(), fastrand::Rng::with_seed(1));
        let down = StoreError::new(ErrorKind::Unreachable, "connection refused");
        let settings = |millis| LeaseSettings::builder().ttl(Duration::from_millis(millis)).build().unwrap();
        let (short, long) = (settings(400), settings(15_000));
        let timeout = |link: &Link, leases: &[&LeaseSettings]| {
            link.attach_timeout(Duration::from_secs(3), leases.iter().copied())
        };
        let timeouts = |link: &Link| [timeout(link, &[&short, &long]), timeout(link, &[&long])];
        assert_eq!(timeouts(&link), [MIN_ATTACH_TIMEOUT, Duration::from_secs(2)]);
        link.attach_failed(at(0), &down, &mut rng);
        assert_eq!(timeouts(&link), [short.ttl(), Duration::from_secs(4)], "no longer than the shortest lease lasts");
        link.attach_failed(at(0), &down, &mut rng);
        assert_eq!(timeouts(&link), [short.ttl(), MAX_ATTACH_TIMEOUT]);
        assert_eq!(timeout(&link, &[]), Duration::from_secs(3), "without leases");
    }
}
