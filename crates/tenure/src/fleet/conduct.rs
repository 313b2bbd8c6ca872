//! Which instances crash soon after they are given work: one that does should not be given everything again at once.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Moment;

/// For how long a crash is remembered.
const MEMORY: Duration = Duration::from_secs(600);

/// The longest that a restarted instance waits for its share.
const LONGEST: Duration = Duration::from_secs(30);

/// How often instances have crashed soon after they were given work, by their explicit names: a process that was restarted is
/// another instance of the same name.
///
/// ```
/// use std::time::Duration;
/// use tenure::fleet::Conduct;
/// use tenure::time::Moment;
///
/// let (mut conduct, now, step) = (Conduct::default(), Moment::ZERO, Duration::from_secs(3));
/// assert_eq!(conduct.trusted_from(now, "api-1", step), now);
/// conduct.vanished(now, "api-1");
/// assert_eq!(conduct.trusted_from(now, "api-1", step), now + step * 2);
/// conduct.vanished(now, "api-1");
/// assert_eq!(conduct.trusted_from(now, "api-1", step), now + step * 4);
/// assert_eq!(conduct.crashes(now, "api-1"), 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Conduct {
    names: BTreeMap<String, (u32, Moment)>,
}

impl Conduct {
    /// An instance of this name has crashed: its heartbeat is there, and late.
    pub fn vanished(&mut self, now: Moment, name: &str) {
        self.names.retain(|_, (_, last)| now.since(*last) < MEMORY);
        let (count, last) = self.names.entry(name.to_owned()).or_insert((0, now));
        (*count, *last) = (count.saturating_add(1), now);
    }

    /// The instance was only late: it is here again, and its heartbeat never ended.
    pub fn was_late(&mut self, name: &str) {
        if let Some((count, _)) = self.names.get_mut(name) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.names.remove(name);
            }
        }
    }

    /// How often an instance of this name has crashed lately.
    pub fn crashes(&self, now: Moment, name: &str) -> u32 {
        self.names.get(name).filter(|(_, last)| now.since(*last) < MEMORY).map_or(0, |(count, _)| *count)
    }

    /// From when on an instance of this name that comes now is given targets: at once, unless it has crashed lately; then after two
    /// steps, and twice as many for each further crash.
    pub fn trusted_from(&self, now: Moment, name: &str, step: Duration) -> Moment {
        now + Self::wait(self.crashes(now, name), step)
    }

    /// How long an instance waits for targets after so many crashes.
    pub(crate) fn wait(crashes: u32, step: Duration) -> Duration {
        match crashes {
            0 => Duration::ZERO,
            count => step.saturating_mul(1 << count.min(16)).min(LONGEST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_long_ago_is_forgiven_and_no_instance_waits_for_more_than_half_a_minute() {
        let (mut conduct, start, step) = (Conduct::default(), Moment::ZERO, Duration::from_secs(3));
        (0..40).for_each(|_| conduct.vanished(start, "api-1"));
        assert_eq!(conduct.trusted_from(start, "api-1", step), start + Duration::from_secs(30));
        assert_eq!(conduct.trusted_from(start, "api-2", step), start, "another is another");
        let later = start + MEMORY;
        assert_eq!(conduct.trusted_from(later, "api-1", step), later);
        conduct.vanished(later, "api-1");
        assert_eq!(conduct.trusted_from(later, "api-1", step), later + step * 2, "it begins anew");
        conduct.was_late("api-1");
        assert_eq!(conduct.trusted_from(later, "api-1", step), later, "it was not away");
    }
}
