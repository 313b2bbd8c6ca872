//! Whether this instance can poll at all. Pure.
//!
//! A target that refuses connections, does not answer or has no address says something about the target. No files, no
//! memory, no ports left say something about this instance: then its targets are better off with another.

use std::time::{Duration, Instant};

/// How long nothing may work before the instance counts as unable, and how long it must have files before it is able again.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many polls must have come to nothing by then.
const MANY: u32 = 3;

/// How long an instance stays unable at least, and at most when it happens again and again.
const SHORTEST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// An instance that has been able for so long begins with the shortest pause again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10 * 60);

/// What an instance can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// It polls.
    Able,
    /// Some polls cannot be made for want of resources; what costs most is left out.
    Strained,
    /// It cannot poll, and should hold nothing.
    Unable,
}

/// Judges from what came of polls, and from whether files can be opened.
#[derive(Debug)]
pub struct AbilityJudge {
    state: State,
    /// How long it stays unable the next time.
    pause: Duration,
    /// When it was last able again.
    back_at: Option<Instant>,
}

#[derive(Debug)]
enum State {
    Able,
    Strained {
        since: Instant,
        /// When a poll last came to nothing.
        failed_at: Instant,
        /// How many have.
        fruitless: u32,
        /// Whether any poll came to something.
        any_worked: bool,
        /// Since when no file could be opened.
        short_since: Option<Instant>,
    },
    Unable {
        until: Instant,
        /// Since when files can be opened.
        files_since: Option<Instant>,
    },
}

impl Default for AbilityJudge {
    fn default() -> Self {
        Self { state: State::Able, pause: SHORTEST_PAUSE, back_at: None }
    }
}

impl AbilityJudge {
    /// What the instance can do.
    pub fn ability(&self) -> Ability {
        match self.state {
            State::Able => Ability::Able,
            State::Strained { .. } => Ability::Strained,
            State::Unable { .. } => Ability::Unable,
        }
    }

    /// A poll succeeded, or failed for a reason of the target's.
    pub fn poll_worked(&mut self, now: Instant) {
        match &mut self.state {
            State::Able => {}
            State::Strained { any_worked, .. } => *any_worked = true,
            State::Unable { files_since, .. } => {
                if files_since.is_some_and(|since| now.duration_since(since) >= PATIENCE) {
                    self.recovers(now);
                }
            }
        }
    }

    /// A poll could not be made, for a reason of this instance's: it is short of something.
    pub fn poll_could_not_be_made(&mut self, now: Instant) {
        self.strained(now, 1);
    }

    /// A poll found no place, because others take long. Of those something will come.
    pub fn poll_found_no_place(&mut self, now: Instant) {
        self.strained(now, 0);
    }

    fn strained(&mut self, now: Instant, more: u32) {
        match &mut self.state {
            State::Able => {
                let (since, failed_at, fruitless) = (now, now, more);
                self.state = State::Strained { since, failed_at, fruitless, any_worked: false, short_since: None };
            }
            State::Strained { failed_at, fruitless, .. } => {
                *failed_at = now;
                *fruitless = fruitless.saturating_add(more);
            }
            State::Unable { .. } => {}
        }
    }

    /// Whether a few files could be opened. To be told about once or twice a second, unless the instance is able.
    pub fn probed(&mut self, now: Instant, has_files: bool) {
        let lasts = |since: Instant| now.duration_since(since) >= PATIENCE;
        match &mut self.state {
            State::Able => {}
            State::Strained { since, failed_at, fruitless, any_worked, short_since } => {
                *short_since = if has_files { None } else { Some(short_since.unwrap_or(now)) };
                let is_short = short_since.is_some_and(lasts);
                let nothing_works = !*any_worked && *fruitless >= MANY && lasts(*since);
                if is_short || nothing_works {
                    self.gives_up(now);
                } else if has_files && lasts(*failed_at) {
                    self.state = State::Able;
                }
            }
            State::Unable { until, files_since } => {
                *files_since = if has_files { Some(files_since.unwrap_or(now)) } else { None };
                if now >= *until && files_since.is_some_and(lasts) {
                    self.recovers(now);
                }
            }
        }
    }

    fn gives_up(&mut self, now: Instant) {
        if self.back_at.is_none_or(|back| now.duration_since(back) >= FORGOTTEN_AFTER) {
            self.pause = SHORTEST_PAUSE;
        }
        self.state = State::Unable { until: now + self.pause, files_since: None };
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    fn recovers(&mut self, now: Instant) {
        self.back_at = Some(now);
        self.state = State::Able;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A judge, and the seconds of its clock.
    struct Bench(AbilityJudge, Instant, u64);

    impl Bench {
        fn new() -> Self {
            Self(AbilityJudge::default(), Instant::now(), 0)
        }

        fn now(&self) -> Instant {
            self.1 + Duration::from_secs(self.2)
        }

        /// Goes on for so many seconds.
        fn seconds(&mut self, count: u64, has_files: bool, mut each: impl FnMut(&mut AbilityJudge, Instant)) {
            for _ in 0..count {
                self.2 += 1;
                let now = self.now();
                each(&mut self.0, now);
                self.0.probed(now, has_files);
            }
        }

        fn fails(&mut self, count: u64, has_files: bool) -> Ability {
            self.seconds(count, has_files, |judge, now| judge.poll_could_not_be_made(now));
            self.0.ability()
        }

        fn rests(&mut self, count: u64, has_files: bool) -> Ability {
            self.seconds(count, has_files, |_, _| {});
            self.0.ability()
        }
    }

    #[test]
    fn without_files_it_is_unable_although_some_polls_go_over_open_connections() {
        let mut bench = Bench::new();
        assert_eq!(bench.fails(1, false), Ability::Strained);
        bench.seconds(10, false, |judge, now| {
            judge.poll_worked(now);
            judge.poll_could_not_be_made(now);
        });
        assert_eq!(bench.0.ability(), Ability::Unable);
    }

    #[test]
    fn with_files_it_is_unable_when_nothing_works_and_strained_when_something_does() {
        let mut bench = Bench::new();
        assert_eq!(bench.fails(4, true), Ability::Strained);
        assert_eq!(bench.fails(4, true), Ability::Unable);
        let mut bench = Bench::new();
        bench.seconds(60, true, |judge, now| {
            judge.poll_could_not_be_made(now);
            judge.poll_worked(now);
        });
        assert_eq!(bench.0.ability(), Ability::Strained);
        assert_eq!(bench.rests(6, true), Ability::Able);
    }

    #[test]
    fn polls_that_find_no_place_make_it_strained_for_however_long() {
        let mut bench = Bench::new();
        bench.seconds(600, true, |judge, now| judge.poll_found_no_place(now));
        assert_eq!(bench.0.ability(), Ability::Strained);
    }

    #[test]
    fn one_poll_that_could_not_be_made_says_nothing() {
        let mut bench = Bench::new();
        assert_eq!(bench.fails(1, true), Ability::Strained);
        assert_eq!(bench.rests(60, true), Ability::Able);
    }

    #[test]
    fn it_comes_back_by_itself_and_later_every_time() {
        let mut bench = Bench::new();
        let mut away = Vec::new();
        for _ in 0..8 {
            bench.fails(10, false);
            assert_eq!(bench.0.ability(), Ability::Unable);
            assert_eq!(bench.rests(600, false), Ability::Unable, "not without files");
            let begun = bench.2;
            while bench.rests(1, true) == Ability::Unable {}
            away.push(bench.2 - begun);
        }
        assert!(away.iter().all(|seconds| *seconds <= 6), "{away:?}: the pause was over");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            bench.fails(8, true);
            let begun = bench.2;
            while bench.rests(1, true) == Ability::Unable {}
            pauses.push(bench.2 - begun);
        }
        assert!(pauses.is_sorted() && pauses.iter().all(|seconds| *seconds <= 301), "{pauses:?}");
        bench.rests(900, true);
        bench.fails(8, true);
        let begun = bench.2;
        while bench.rests(1, true) == Ability::Unable {}
        assert!(bench.2 - begun <= 10, "what is long past is forgotten");
    }

    #[test]
    fn a_poll_that_works_ends_the_wait_once_there_are_files() {
        let mut bench = Bench::new();
        for _ in 0..6 {
            bench.fails(8, true);
            while bench.rests(1, true) == Ability::Unable {}
        }
        assert_eq!(bench.fails(8, false), Ability::Unable);
        assert_eq!(bench.rests(8, true), Ability::Unable, "the pause is long by now");
        bench.seconds(1, true, AbilityJudge::poll_worked);
        assert_eq!(bench.0.ability(), Ability::Able);
    }
}
