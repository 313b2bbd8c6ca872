//! Which instances crash soon after they get work: such an instance should not get all its targets again at once.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::time::Moment;

/// How long a crash is remembered.
const CRASH_MEMORY: Duration = Duration::from_secs(600);

/// The longest crash backoff of a restarted instance.
const MAX_CRASH_DELAY: Duration = Duration::from_secs(30);

/// How often instances have crashed soon after they got work, by their explicit names: a restarted process is another
/// instance of the same name.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::fleet::CrashHistory;
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
    /// Records that an instance of this name has crashed: its heartbeat is listed, but late.
    pub fn record_crash(&mut self, now: Moment, name: &str) {
        self.names.retain(|_, (_, last)| now.since(*last) < CRASH_MEMORY);
        let (count, last) = self.names.entry(name.to_owned()).or_insert((0, now));
        (*count, *last) = (count.saturating_add(1), now);
    }

    /// Retracts a crash: the instance was only late, and its heartbeat never expired.
    pub fn retract_crash(&mut self, name: &str) {
        if let Some((count, _)) = self.names.get_mut(name) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.names.remove(name);
            }
        }
    }

    /// Forgets the crashes of a name: an instance of it has left the fleet regularly, so it does not crash in a loop.
    pub fn forgive(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// How often an instance of this name has crashed lately.
    pub fn crashes(&self, now: Moment, name: &str) -> u32 {
        self.names.get(name).filter(|(_, last)| now.since(*last) < CRASH_MEMORY).map_or(0, |(count, _)| *count)
    }

    /// When an instance of this name that joins now may get targets: at once, unless it has crashed lately. Then after
    /// two steps, and twice as many for each further crash.
    pub fn eligible_at(&self, now: Moment, name: &str, step: Duration) -> Moment {
        now + Self::delay(self.crashes(now, name), step)
    }

    /// The crash backoff after so many crashes.
    pub(crate) fn delay(crashes: u32, step: Duration) -> Duration {
        match crashes {
            0 => Duration::ZERO,
            count => Backoff::new(step.saturating_mul(2), MAX_CRASH_DELAY).after(count),
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
        assert_eq!(crash_history.eligible_at(start, "api-2", step), start, "crashes count by name");
        let later = start + CRASH_MEMORY;
        assert_eq!(crash_history.eligible_at(later, "api-1", step), later);
        crash_history.record_crash(later, "api-1");
        assert_eq!(crash_history.eligible_at(later, "api-1", step), later + step * 2, "the count starts again");
        crash_history.retract_crash("api-1");
        assert_eq!(crash_history.eligible_at(later, "api-1", step), later, "the crash was retracted");
        (0..3).for_each(|_| crash_history.record_crash(later, "api-1"));
        crash_history.forgive("api-1");
        assert_eq!(crash_history.eligible_at(later, "api-1", step), later, "it has left regularly since");
    }
}
