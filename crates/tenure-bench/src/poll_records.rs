//! The polls that a target received, and the check that every session was polled once in each slot.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// A poll, as the target received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollRecord {
    /// Number of the session.
    pub session: usize,
    /// Due time, in milliseconds since 1970.
    pub due: u64,
    /// Time of arrival, in microseconds since 1970.
    pub came: u64,
}

impl PollRecord {
    pub fn encode(&self) -> String {
        format!("{} {} {}\n", self.session, self.due, self.came)
    }

    pub fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        Some(Self { session: usize::try_from(next()?).ok()?, due: next()?, came: next()? })
    }

    /// Delay after the due time, in milliseconds.
    pub fn late(&self) -> f64 {
        self.came as f64 / 1e3 - self.due as f64
    }
}

/// A time in milliseconds since 1970.
pub fn unix_millis(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Number of slots that were polled more than once, and of slots that were not polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    pub polled_twice: u64,
    pub skipped: u64,
}

/// Counts the slots between two times, in milliseconds since 1970. A poll that was due shortly before one of these
/// times may have arrived after it.
pub fn count_slots(
    poll_records: &[PollRecord],
    sessions: usize,
    interval: Duration,
    from: u64,
    until: u64,
) -> SlotCounts {
    let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1);
    let grace = interval / 5;
    let mut dues: BTreeMap<usize, Vec<u64>> = (0..sessions).map(|session| (session, Vec::new())).collect();
    for record in poll_records {
        dues.entry(record.session).or_default().push(record.due);
    }
    let mut slots = SlotCounts::default();
    for mut dues in dues.into_values() {
        dues.sort_unstable();
        let asked = dues.len();
        // The same slot may be recorded with due times a millisecond apart.
        dues.dedup_by(|later, earlier| *later - *earlier < interval / 2);
        slots.polled_twice += (asked - dues.len()) as u64;
        // Treat the ends like polls just before and just after.
        let ends = [from.saturating_sub(grace), until + grace];
        let all: Vec<u64> = [&ends[..1], &dues, &ends[1..]].concat();
        for (n, pair) in all.windows(2).enumerate() {
            let gap = pair[1].saturating_sub(pair[0]);
            let inside = n > 0 && n < dues.len();
            // Between two polls, a gap of one interval is right. At the ends, any gap up to one interval plus the grace
            // is right.
            let missed =
                if inside { (gap + interval / 2) / interval - 1 } else { gap.saturating_sub(grace * 2) / interval };
            slots.skipped += missed;
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn counted(dues: &[&[u64]]) -> (u64, u64) {
        let poll_records: Vec<PollRecord> = dues
            .iter()
            .enumerate()
            .flat_map(|(session, dues)| {
                dues.iter().map(move |due| PollRecord { session, due: *due, came: due * 1_000 })
            })
            .collect();
        let slots = count_slots(&poll_records, dues.len(), INTERVAL, 100_000, 130_000);
        (slots.polled_twice, slots.skipped)
    }

    #[test]
    fn one_poll_in_each_slot_is_right_at_any_phase() {
        assert_eq!(counted(&[&[100_000, 110_000, 120_000], &[109_999, 119_999, 129_999]]), (0, 0));
        assert_eq!(counted(&[&[99_900, 109_900, 119_900], &[99_900, 109_900, 119_900, 129_900]]), (0, 0));
        assert_eq!(counted(&[&[104_000, 114_000, 124_000]]), (0, 0));
    }

    #[test]
    fn double_and_missing_polls_are_counted() {
        assert_eq!(counted(&[&[104_000, 104_001, 114_000, 124_000]]), (1, 0));
        assert_eq!(counted(&[&[104_000, 124_000]]), (0, 1));
        assert_eq!(counted(&[&[118_000, 128_000]]), (0, 1));
        assert_eq!(counted(&[&[102_000, 112_000]]), (0, 1));
        assert_eq!(counted(&[&[]]), (0, 3));
    }

    #[test]
    fn a_poll_record_is_parsed_as_it_was_encoded() {
        let record = PollRecord { session: 7, due: 1_736_598_400_000, came: 1_736_598_400_001_234 };
        assert_eq!(PollRecord::parse(record.encode().trim_end()), Some(record));
        assert!((record.late() - 1.234).abs() < 0.001);
        assert_eq!(PollRecord::parse("7 x 1"), None);
    }
}
