//! Which instances crash soon after they are given work: one that does should not be given everything again at once.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Moment;

/// For how long a crash is remembered.
const CRASH_MEMORY: Duration = Duration::from_secs(600);

/// The longest that a restarted instance waits for its share.
const MAX_CRASH_DELAY: Duration = Duration::from_secs(30);

/// How often instances have crashed soon after they were given work, by their explicit names: a process that was restarted is
/// another instance of the same name.
///
/// ```
/// use std::time::Duration;
/// use tenure::fleet::CrashHistory;
/// use tenure::time::Moment;
///
/// let (mut crash_history, now, step) = (CrashHistory::default(), Moment::ZERO, Duration::from_secs(3));
/// assert_eq!(crash_history.eligible_at(now, "api-1", step), now);
/// crash_history.record_crash(now, "api-1");
/// assert_eq!(crash_history.eligible_at(now, "api-1", step), now + step * 2);
/// crash_history.record_crash(now, "api-1");
/// assert_eq!(crash_history.eligible_at(now, "api-1", step), now + step * 4);
/// assert_eq!(crash_history.crashes(now, "api-1"), 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct CrashHistory {
    names: BTreeMap<String, (u32, Moment)>,
}

impl CrashHistory {
    /// An instance of this name has crashed: its heartbeat is there, and late.
    pub fn record_crash(&mut self, now: Moment, name: &str) {
        self.names.retain(|_, (_, last)| now.since(*last) < CRASH_MEMORY);
        let (count, last) = self.names.entry(name.to_owned()).or_insert((0, now));
        (*count, *last) = (count.saturating_add(1), now);
    }

    /// The instance was only late: it is here again, and its heartbeat never ended.
    pub fn retract_crash(&mut self, name: &str) {
        if let Some((count, _)) = self.names.get_mut(name) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.names.remove(name);
            }
        }
    }

    /// How often an instance of this name has crashed lately.
    pub fn crashes(&self, now: Moment, name: &str) -> u32 {
        self.names.get(name).filter(|(_, last)| now.since(*last) < CRASH_MEMORY).map_or(0, |(count, _)| *count)
    }

    /// From when on an instance of this name that comes now is given targets: at once, unless it has crashed lately; then after two
    /// steps, and twice as many for each further crash.
    pub fn eligible_at(&self, now: Moment, name: &str, step: Duration) -> Moment {
        now + Self::delay(self.crashes(now, name), step)
    }

    /// How long an instance waits for targets after so many crashes.
    pub(crate) fn delay(crashes: u32, step: Duration) -> Duration {
        match crashes {
            0 => Duration::ZERO,
            count => step.saturating_mul(1 << count.min(16)).min(MAX_CRASH_DELAY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_crashes_are_forgotten_and_the_delay_is_at_most_half_a_minute() {
        let (mut crash_history, start, step) = (CrashHistory::default(), Moment::ZERO, Duration::from_secs(3));
        (0..40).for_each(|_| crash_history.record_crash(start, "api-1"));
        assert_eq!(crash_history.eligible_at(start, "api-1", step), start + Duration::from_secs(30));
        assert_eq!(crash_history.eligible_at(start, "api-2", step), start, "another is another");
        let later = start + CRASH_MEMORY;
        assert_eq!(crash_history.eligible_at(later, "api-1", step), later);
        crash_history.record_crash(later, "api-1");
        assert_eq!(crash_history.eligible_at(later, "api-1", step), later + step * 2, "it begins anew");
        crash_history.retract_crash("api-1");
        assert_eq!(crash_history.eligible_at(later, "api-1", step), later, "it was not away");
    }
}
