//! What a target has seen, and whether that was right: every session once in each of its slots.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// A poll, as the target saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The number of the session.
    pub session: usize,
    /// When it was due, in milliseconds since 1970.
    pub due: u64,
    /// When it came, in microseconds since 1970.
    pub came: u64,
}

impl Visit {
    pub fn written(&self) -> String {
        format!("{} {} {}\n", self.session, self.due, self.came)
    }

    pub fn read(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        Some(Self { session: usize::try_from(next()?).ok()?, due: next()?, came: next()? })
    }

    /// In milliseconds.
    pub fn late(&self) -> f64 {
        self.came as f64 / 1e3 - self.due as f64
    }
}

/// A moment in milliseconds since 1970.
pub fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Slots that were polled more than once, and slots that were not polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    pub twice: u64,
    pub left_out: u64,
}

/// Looks at what came between two moments, in milliseconds since 1970. A poll that was due shortly before one of them may have come after it.
pub fn slots(visits: &[Visit], sessions: usize, interval: Duration, from: u64, until: u64) -> Slots {
    let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1);
    let grace = interval / 5;
    let mut dues: BTreeMap<usize, Vec<u64>> = (0..sessions).map(|session| (session, Vec::new())).collect();
    for visit in visits {
        dues.entry(visit.session).or_default().push(visit.due);
    }
    let mut slots = Slots::default();
    for mut dues in dues.into_values() {
        dues.sort_unstable();
        let asked = dues.len();
        // The same slot may be written down a millisecond apart.
        dues.dedup_by(|later, earlier| *later - *earlier < interval / 2);
        slots.twice += (asked - dues.len()) as u64;
        // As if it had been polled just before, and were polled just after.
        let ends = [from.saturating_sub(grace), until + grace];
        let all: Vec<u64> = [&ends[..1], &dues, &ends[1..]].concat();
        for (n, pair) in all.windows(2).enumerate() {
            let gap = pair[1].saturating_sub(pair[0]);
            let inside = n > 0 && n < dues.len();
            // Inside, a gap of one interval is right; at the ends it is any up to one, and what the grace gives away.
            let missed =
                if inside { (gap + interval / 2) / interval - 1 } else { gap.saturating_sub(grace * 2) / interval };
            slots.left_out += missed;
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn looked_at(dues: &[&[u64]]) -> (u64, u64) {
        let visits: Vec<Visit> = dues
            .iter()
            .enumerate()
            .flat_map(|(session, dues)| dues.iter().map(move |due| Visit { session, due: *due, came: due * 1_000 }))
            .collect();
        let slots = slots(&visits, dues.len(), INTERVAL, 100_000, 130_000);
        (slots.twice, slots.left_out)
    }

    #[test]
    fn once_in_each_slot_is_right_wherever_the_slots_are() {
        assert_eq!(looked_at(&[&[100_000, 110_000, 120_000], &[109_999, 119_999, 129_999]]), (0, 0));
        assert_eq!(looked_at(&[&[99_900, 109_900, 119_900], &[99_900, 109_900, 119_900, 129_900]]), (0, 0));
        assert_eq!(looked_at(&[&[104_000, 114_000, 124_000]]), (0, 0));
    }

    #[test]
    fn what_is_polled_twice_or_not_at_all_is_counted() {
        assert_eq!(looked_at(&[&[104_000, 104_001, 114_000, 124_000]]), (1, 0));
        assert_eq!(looked_at(&[&[104_000, 124_000]]), (0, 1));
        assert_eq!(looked_at(&[&[118_000, 128_000]]), (0, 1));
        assert_eq!(looked_at(&[&[102_000, 112_000]]), (0, 1));
        assert_eq!(looked_at(&[&[]]), (0, 3));
    }

    #[test]
    fn a_visit_is_read_as_it_was_written() {
        let visit = Visit { session: 7, due: 1_736_598_400_000, came: 1_736_598_400_001_234 };
        assert_eq!(Visit::read(visit.written().trim_end()), Some(visit));
        assert!((visit.late() - 1.234).abs() < 0.001);
        assert_eq!(Visit::read("7 x 1"), None);
    }
}
