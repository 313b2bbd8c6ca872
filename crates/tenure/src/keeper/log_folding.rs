//! Many failures of one kind become one line of the log: an outage of the store is one thing, however many leases there
//! are. Pure. Listeners and streams have every event.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::event::{Event, Happening};
use crate::name::InstanceId;

/// Events of one kind in a row that each have a line.
const MAX_SINGLE_LINES: u64 = 10;

/// A row of events has ended when no other has followed for this long.
const ROW_ENDS_AFTER: Duration = Duration::from_secs(3);

/// A row that does not end has a line this often.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Events of one kind, one after the other.
#[derive(Debug)]
struct Row {
    instance: InstanceId,
    seen: u64,
    last_at: Duration,
    /// The ones without a line of their own, and when the first of them came.
    folded: u64,
    folded_since: Duration,
    last: Happening,
}

/// Decides which events have a line of their own. Times are counted from any fixed moment.
#[derive(Debug, Default)]
pub(super) struct LogFolding(BTreeMap<&'static str, Row>);

impl LogFolding {
    /// Whether this event has a line of its own. Otherwise it is part of a line that [`take_due`](Self::take_due) returns.
    pub(super) fn has_own_line(&mut self, now: Duration, event: &Event) -> bool {
        if !is_foldable(&event.what) {
            return true;
        }
        let row = self.0.entry(event.what.name()).or_insert_with(|| Row {
            instance: event.instance.clone(),
            seen: 0,
            last_at: now,
            folded: 0,
            folded_since: now,
            last: event.what.clone(),
        });
        row.seen += 1;
        row.last_at = now;
        if row.seen <= MAX_SINGLE_LINES {
            return true;
        }
        if row.folded == 0 {
            row.folded_since = now;
        }
        row.folded += 1;
        row.last = event.what.clone();
        false
    }

    /// The lines that are due, each for many events, in the order in which these events began.
    pub(super) fn take_due(&mut self, now: Duration) -> Vec<Event> {
        let mut lines = Vec::new();
        self.0.retain(|_, row| {
            let has_ended = now >= row.last_at + ROW_ENDS_AFTER;
            if row.folded > 0 && (has_ended || now >= row.folded_since + LINE_EVERY) {
                lines.push((row.folded_since, row.line()));
                row.folded = 0;
            }
            !has_ended
        });
        lines.sort_by_key(|(since, _)| *since);
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// When [`take_due`](Self::take_due) is to be called next.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.0.values().map(|row| (row.last_at + ROW_ENDS_AFTER).min(row.line_due())).min()
    }
}

impl Row {
    fn line_due(&self) -> Duration {
        if self.folded > 0 { self.folded_since + LINE_EVERY } else { Duration::MAX }
    }

    fn line(&self) -> Event {
        let detail = match &self.last {
            Happening::RenewFailed { error }
            | Happening::Uncertain { error }
            | Happening::ReleaseFailed { error }
            | Happening::AcquireFailed { error: Some(error), .. } => Some(("error", error.clone())),
            Happening::Lost(loss) => Some(("reason", loss.word().to_owned())),
            _ => None,
        };
        let what = Happening::Folded { name: self.last.name(), level: self.last.level(), count: self.folded, detail };
        Event { instance: self.instance.clone(), lease: None, token: None, what }
    }
}

/// Whether it is a failure that comes to many leases at once.
fn is_foldable(what: &Happening) -> bool {
    matches!(
        what,
        Happening::RenewFailed { .. }
            | Happening::Uncertain { .. }
            | Happening::Recovered
            | Happening::Lost(_)
            | Happening::ReleaseFailed { .. }
            | Happening::AcquireFailed { error: Some(_), .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Loss;

    fn event(what: Happening) -> Event {
        Event { instance: InstanceId::new("api-1").unwrap(), lease: None, token: None, what }
    }

    #[test]
    fn an_outage_with_a_thousand_leases_is_a_few_lines() {
        let mut folding = LogFolding::default();
        let lost = event(Happening::Lost(Loss::Unreachable));
        let at = |n: u64| Duration::from_millis(n * 10);
        let single = (0..1_000).filter(|n| folding.has_own_line(at(*n), &lost)).count();
        assert_eq!(single, 10);
        assert!(folding.take_due(at(1_000)).is_empty(), "the row has not ended");
        let due = folding.next_due().unwrap();
        let lines = folding.take_due(due);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].to_string(), "lease.lost instance_id=api-1 count=990 reason=unreachable");
        assert_eq!(lines[0].what.level(), lost.what.level());
        assert!(folding.next_due().is_none(), "nothing is left");
        assert!(folding.has_own_line(due, &lost), "the next outage begins with single lines");
    }

    #[test]
    fn lines_that_are_due_together_are_in_the_order_of_their_events() {
        let mut folding = LogFolding::default();
        let error = String::from("timeout");
        let outage = [Happening::Uncertain { error }, Happening::Recovered, Happening::Lost(Loss::Expired)];
        for (second, what) in (0..).zip(outage) {
            let event = event(what);
            (0..20).for_each(|_| _ = folding.has_own_line(Duration::from_secs(second), &event));
        }
        let lines = folding.take_due(Duration::from_secs(10));
        let names: Vec<&str> = lines.iter().map(|line| line.what.name()).collect();
        assert_eq!(names, ["lease.uncertain", "lease.recovered", "lease.lost"]);
    }

    #[test]
    fn changes_have_a_line_each_however_many() {
        let mut folding = LogFolding::default();
        let acquired = event(Happening::Acquired { ttl: Duration::from_secs(30) });
        assert!((0..1_000).all(|_| folding.has_own_line(Duration::ZERO, &acquired)));
    }
}
