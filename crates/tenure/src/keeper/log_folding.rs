//! Folds many failures of one kind into one log line: an outage of the store is one incident, however many leases there
//! are. Pure. Listeners and streams receive every event.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::event::{Event, EventKind};
use crate::name::InstanceId;

/// Number of events of one kind in a burst that each have a line.
const MAX_SINGLE_LINES: u64 = 10;

/// A burst has ended when no event has followed for this long.
const BURST_ENDS_AFTER: Duration = Duration::from_secs(3);

/// A burst that does not end has a folded line this often.
const FOLDED_LINE_EVERY: Duration = Duration::from_secs(30);

/// A burst of events of one kind.
#[derive(Debug)]
struct Burst {
    instance: InstanceId,
    seen: u64,
    last_at: Duration,
    /// The number of events without their own line, and the time of the first of them.
    folded: u64,
    folded_since: Duration,
    last: EventKind,
}

/// Decides which events have their own line. Times are counted from any fixed moment.
#[derive(Debug, Default)]
pub(super) struct LogFolding(BTreeMap<&'static str, Burst>);

impl LogFolding {
    /// Whether this event has its own line. Otherwise it is part of a line that [`take_due`](Self::take_due) returns.
    pub(super) fn has_own_line(&mut self, now: Duration, event: &Event) -> bool {
        if !is_foldable(&event.kind) {
            return true;
        }
        let burst = self.0.entry(event.kind.name()).or_insert_with(|| Burst {
            instance: event.instance.clone(),
            seen: 0,
            last_at: now,
            folded: 0,
            folded_since: now,
            last: event.kind.clone(),
        });
        burst.seen += 1;
        burst.last_at = now;
        if burst.seen <= MAX_SINGLE_LINES {
            return true;
        }
        if burst.folded == 0 {
            burst.folded_since = now;
        }
        burst.folded += 1;
        burst.last = event.kind.clone();
        false
    }

    /// The folded lines that are due, in the order in which their events began.
    pub(super) fn take_due(&mut self, now: Duration) -> Vec<Event> {
        let mut lines = Vec::new();
        self.0.retain(|_, burst| {
            let has_ended = now >= burst.last_at + BURST_ENDS_AFTER;
            if burst.folded > 0 && (has_ended || now >= burst.folded_since + FOLDED_LINE_EVERY) {
                lines.push((burst.folded_since, burst.line()));
                burst.folded = 0;
            }
            !has_ended
        });
        lines.sort_by_key(|(since, _)| *since);
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// When to call [`take_due`](Self::take_due) next.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.0.values().map(|burst| (burst.last_at + BURST_ENDS_AFTER).min(burst.line_due())).min()
    }
}

impl Burst {
    fn line_due(&self) -> Duration {
        if self.folded > 0 { self.folded_since + FOLDED_LINE_EVERY } else { Duration::MAX }
    }

    fn line(&self) -> Event {
        let detail = match &self.last {
            EventKind::RenewFailed { error }
            | EventKind::Uncertain { error }
            | EventKind::ReleaseFailed { error }
            | EventKind::StoreRefused { error }
            | EventKind::AcquireFailed { error: Some(error), .. } => Some(("error", error.clone())),
            EventKind::Lost(loss) => Some(("reason", loss.as_str().to_owned())),
            _ => None,
        };
        let kind = EventKind::Folded { name: self.last.name(), level: self.last.level(), count: self.folded, detail };
        Event { instance: self.instance.clone(), lease: None, token: None, kind }
    }
}

/// Whether the event is one that an outage causes for many leases at once.
fn is_foldable(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::RenewFailed { .. }
            | EventKind::Uncertain { .. }
            | EventKind::Recovered
            | EventKind::Lost(_)
            | EventKind::ReleaseFailed { .. }
            | EventKind::AcquireFailed { .. }
            | EventKind::StoreRefused { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Loss;

    fn event(kind: EventKind) -> Event {
        Event { instance: InstanceId::new("api-1").unwrap(), lease: None, token: None, kind }
    }

    #[test]
    fn an_outage_of_a_thousand_leases_takes_a_few_lines() {
        let mut folding = LogFolding::default();
        let lost = event(EventKind::Lost(Loss::Unreachable));
        let at = |n: u64| Duration::from_millis(n * 10);
        let single = (0..1_000).filter(|n| folding.has_own_line(at(*n), &lost)).count();
        assert_eq!(single, 10);
        assert!(folding.take_due(at(1_000)).is_empty(), "the burst has not ended");
        let due = folding.next_due().unwrap();
        let lines = folding.take_due(due);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].to_string(), "lease.lost instance_id=api-1 count=990 reason=unreachable");
        assert_eq!(lines[0].kind.level(), lost.kind.level());
        assert!(folding.next_due().is_none(), "nothing is left");
        assert!(folding.has_own_line(due, &lost), "the next outage begins with single lines");
    }

    #[test]
    fn folded_lines_keep_the_order_of_their_events() {
        let mut folding = LogFolding::default();
        let error = String::from("timeout");
        let outage = [EventKind::Uncertain { error }, EventKind::Recovered, EventKind::Lost(Loss::Expired)];
        for (second, kind) in (0..).zip(outage) {
            let event = event(kind);
            (0..20).for_each(|_| _ = folding.has_own_line(Duration::from_secs(second), &event));
        }
        let lines = folding.take_due(Duration::from_secs(10));
        let names: Vec<&str> = lines.iter().map(|line| line.kind.name()).collect();
        assert_eq!(names, ["lease.uncertain", "lease.recovered", "lease.lost"]);
    }

    #[test]
    fn changes_are_never_folded() {
        let mut folding = LogFolding::default();
        let acquired = event(EventKind::Acquired { ttl: Duration::from_secs(30) });
        assert!((0..1_000).all(|_| folding.has_own_line(Duration::ZERO, &acquired)));
    }
}
