//! Decides whether this instance can poll at all. Pure.
//!
//! A target that refuses connections, does not reply or has no address is the target's problem. A lack of files, memory
//! or ports is this instance's problem: another instance should hold its targets.

use std::time::{Duration, Instant};

use tenure_core::backoff::Backoff;

/// Time without files or completed polls before the instance counts as unable, and time with files before it is able
/// again.
const CONFIRM_AFTER: Duration = Duration::from_secs(5);

/// Number of polls that must have failed by then for lack of a resource, if none has completed.
const MIN_FAILED_POLLS: u32 = 3;

/// Shortest time that an instance stays unable, and the longest after repeated failures.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(5 * 60));

/// An instance that has been able for this long starts with the shortest pause again.
const PAUSE_RESET_AFTER: Duration = Duration::from_secs(10 * 60);

/// What an instance can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// The instance can poll.
    Able,
    /// Some polls fail for lack of resources; the most expensive ones are skipped.
    Strained,
    /// The instance cannot poll, and should hold nothing.
    Unable,
}

/// Tracks the ability of an instance from poll outcomes and file probes.
#[derive(Debug)]
pub struct AbilityTracker {
    state: AbilityState,
    /// Number of pauses in a row.
    pauses: u32,
    /// When the instance last became able again.
    recovered_at: Option<Instant>,
}

#[derive(Debug)]
enum AbilityState {
    Able,
    Strained {
        since: Instant,
        /// When a poll last failed because of this instance.
        failed_at: Instant,
        /// Number of polls that failed for lack of a resource.
        failed_polls: u32,
        /// Whether any poll has completed: it succeeded, or failed because of the target.
        has_success: bool,
        /// Since when no file could be opened.
        no_files_since: Option<Instant>,
    },
    Unable {
        until: Instant,
        /// Since when files can be opened.
        files_since: Option<Instant>,
    },
}

impl Default for AbilityTracker {
    fn default() -> Self {
        Self { state: AbilityState::Able, pauses: 0, recovered_at: None }
    }
}

impl AbilityTracker {
    /// Returns what the instance can do.
    pub fn ability(&self) -> Ability {
        match self.state {
            AbilityState::Able => Ability::Able,
            AbilityState::Strained { .. } => Ability::Strained,
            AbilityState::Unable { .. } => Ability::Unable,
        }
    }

    /// Records a poll that succeeded, or failed because of the target.
    pub fn record_completed(&mut self, now: Instant) {
        match &mut self.state {
            AbilityState::Able => {}
            AbilityState::Strained { has_success, .. } => *has_success = true,
            AbilityState::Unable { files_since, .. } => {
                if files_since.is_some_and(|since| now.duration_since(since) >= CONFIRM_AFTER) {
                    self.recover(now);
                }
            }
        }
    }

    /// Records a poll that failed because this instance lacks a resource.
    pub fn record_shortage(&mut self, now: Instant) {
        self.mark_strained(now, 1);
    }

    /// Records a poll that got no permit, because other polls take long. It does not count as failed: those polls will
    /// end.
    pub fn record_saturation(&mut self, now: Instant) {
        self.mark_strained(now, 0);
    }

    fn mark_strained(&mut self, now: Instant, more: u32) {
        match &mut self.state {
            AbilityState::Able => {
                let (since, failed_at, failed_polls) = (now, now, more);
                self.state =
                    AbilityState::Strained { since, failed_at, failed_polls, has_success: false, no_files_since: None };
            }
            AbilityState::Strained { failed_at, failed_polls, .. } => {
                *failed_at = now;
                *failed_polls = failed_polls.saturating_add(more);
            }
            AbilityState::Unable { .. } => {}
        }
    }

    /// Records whether a few files could be opened. Call it once or twice a second, unless the instance is able.
    pub fn record_probe(&mut self, now: Instant, has_files: bool) {
        let lasts = |since: Instant| now.duration_since(since) >= CONFIRM_AFTER;
        match &mut self.state {
            AbilityState::Able => {}
            AbilityState::Strained { since, failed_at, failed_polls, has_success, no_files_since } => {
                *no_files_since = if has_files { None } else { Some(no_files_since.unwrap_or(now)) };
                let is_short = no_files_since.is_some_and(lasts);
                let nothing_works = !*has_success && *failed_polls >= MIN_FAILED_POLLS && lasts(*since);
                if is_short || nothing_works {
                    self.become_unable(now);
                } else if has_files && lasts(*failed_at) {
                    self.state = AbilityState::Able;
                }
            }
            AbilityState::Unable { until, files_since } => {
                *files_since = if has_files { Some(files_since.unwrap_or(now)) } else { None };
                if now >= *until && files_since.is_some_and(lasts) {
                    self.recover(now);
                }
            }
        }
    }

    fn become_unable(&mut self, now: Instant) {
        if self.recovered_at.is_none_or(|back| now.duration_since(back) >= PAUSE_RESET_AFTER) {
            self.pauses = 0;
        }
        self.pauses += 1;
        self.state = AbilityState::Unable { until: now + PAUSES.after(self.pauses), files_since: None };
    }

    fn recover(&mut self, now: Instant) {
        self.recovered_at = Some(now);
        self.state = AbilityState::Able;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tracker, and its clock in seconds.
    struct AbilityFixture(AbilityTracker, Instant, u64);

    impl AbilityFixture {
        fn new() -> Self {
            Self(AbilityTracker::default(), Instant::now(), 0)
        }

        fn now(&self) -> Instant {
            self.1 + Duration::from_secs(self.2)
        }

        /// Runs for this many seconds.
        fn run_seconds(&mut self, count: u64, has_files: bool, mut each: impl FnMut(&mut AbilityTracker, Instant)) {
            for _ in 0..count {
                self.2 += 1;
                let now = self.now();
                each(&mut self.0, now);
                self.0.record_probe(now, has_files);
            }
        }

        fn fail(&mut self, count: u64, has_files: bool) -> Ability {
            self.run_seconds(count, has_files, |tracker, now| tracker.record_shortage(now));
            self.0.ability()
        }

        fn idle(&mut self, count: u64, has_files: bool) -> Ability {
            self.run_seconds(count, has_files, |_, _| {});
            self.0.ability()
        }
    }

    #[test]
    fn an_instance_without_files_is_unable_even_if_open_connections_work() {
        let mut fixture = AbilityFixture::new();
        assert_eq!(fixture.fail(1, false), Ability::Strained);
        fixture.run_seconds(10, false, |tracker, now| {
            tracker.record_completed(now);
            tracker.record_shortage(now);
        });
        assert_eq!(fixture.0.ability(), Ability::Unable);
    }

    #[test]
    fn an_instance_with_files_is_unable_only_when_no_poll_works() {
        let mut fixture = AbilityFixture::new();
        assert_eq!(fixture.fail(4, true), Ability::Strained);
        assert_eq!(fixture.fail(4, true), Ability::Unable);
        let mut fixture = AbilityFixture::new();
        fixture.run_seconds(60, true, |tracker, now| {
            tracker.record_shortage(now);
            tracker.record_completed(now);
        });
        assert_eq!(fixture.0.ability(), Ability::Strained);
        assert_eq!(fixture.idle(6, true), Ability::Able);
    }

    #[test]
    fn saturation_strains_an_instance_but_never_makes_it_unable() {
        let mut fixture = AbilityFixture::new();
        fixture.run_seconds(600, true, |tracker, now| tracker.record_saturation(now));
        assert_eq!(fixture.0.ability(), Ability::Strained);
    }

    #[test]
    fn one_failed_poll_does_not_make_an_instance_unable() {
        let mut fixture = AbilityFixture::new();
        assert_eq!(fixture.fail(1, true), Ability::Strained);
        assert_eq!(fixture.idle(60, true), Ability::Able);
    }

    #[test]
    fn recovery_takes_longer_each_time() {
        let mut fixture = AbilityFixture::new();
        let mut away = Vec::new();
        for _ in 0..8 {
            fixture.fail(10, false);
            assert_eq!(fixture.0.ability(), Ability::Unable);
            assert_eq!(fixture.idle(600, false), Ability::Unable, "an instance without files stays unable");
            let begun = fixture.2;
            while fixture.idle(1, true) == Ability::Unable {}
            away.push(fixture.2 - begun);
        }
        assert!(away.iter().all(|seconds| *seconds <= 6), "{away:?}: the pause had ended");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            fixture.fail(8, true);
            let begun = fixture.2;
            while fixture.idle(1, true) == Ability::Unable {}
            pauses.push(fixture.2 - begun);
        }
        assert!(pauses.is_sorted() && pauses.iter().all(|seconds| *seconds <= 301), "{pauses:?}");
        fixture.idle(900, true);
        fixture.fail(8, true);
        let begun = fixture.2;
        while fixture.idle(1, true) == Ability::Unable {}
        assert!(fixture.2 - begun <= 10, "the pause is reset after a long time");
    }

    #[test]
    fn a_completed_poll_ends_the_pause_once_files_are_available() {
        let mut fixture = AbilityFixture::new();
        for _ in 0..6 {
            fixture.fail(8, true);
            while fixture.idle(1, true) == Ability::Unable {}
        }
        assert_eq!(fixture.fail(8, false), Ability::Unable);
        assert_eq!(fixture.idle(8, true), Ability::Unable, "the pause has grown");
        fixture.run_seconds(1, true, AbilityTracker::record_completed);
        assert_eq!(fixture.0.ability(), Ability::Able);
    }
}
