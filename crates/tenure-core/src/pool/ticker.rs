//! The ticks of one target while one instance holds it: when one is due, how it is claimed, and what becomes of one that
//! was claimed and not worked on.
//!
//! | Rule | |
//! |---|---|
//! | a tick is claimed in the store before work on it begins | two holders never work on the same one |
//! | a claim whose outcome is unknown is repeated | it may be ours already |
//! | the next tick may be claimed ahead, with an entry of a log | only if this one and the one after it are due before another instance could hold the lease |
//! | no work begins while the lease is uncertain | a tick claimed ahead waits |
//! | a tick that was claimed and not begun is given back before the lease is released | the next holder works on it |
//! | a tick whose holder died is not repeated | its work may have begun |

use std::time::Duration;

use crate::time::ServerTime;

use super::{Mark, last_tick, next_due, phase};

/// The longest uninterrupted sleep: clocks may be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// How long a tick that was put back waits at least: work may put one back for a reason of its own, again and again.
const PUT_BACK_DELAY: Duration = Duration::from_millis(50);

/// The state of the term, as its holder sees it now.
#[derive(Clone, Copy, Debug)]
pub struct TermView {
    /// The store's time.
    pub now: ServerTime,
    /// How long the lease lasts without another renewal.
    pub remaining: Duration,
    /// Whether work may begin only after a renewal succeeds.
    pub is_uncertain: bool,
    /// Whether the lease is to be released or handed over when its work has ended.
    pub is_draining: bool,
    /// Whether work must stop.
    pub must_stop: bool,
    /// Whether the term is over.
    pub is_over: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickerStep {
    /// Read the mark, and pass it to [`Ticker::mark_read`] or report [`Ticker::failed`].
    ReadMark,
    /// Write this mark, and pass the outcome to [`Ticker::written`].
    Write(Mark),
    /// Wait for the reply to the append, and pass it to [`Ticker::appended`].
    AwaitAppend,
    /// Wait this long, or until the term begins to drain or is over.
    Sleep(Duration),
    /// Wait until the lease is certain, or the term drains or is over.
    AwaitCertainty,
    /// Work on the tick that was due then.
    Work(ServerTime),
    /// There will be no other tick.
    End,
}

/// The outcome of a write under the term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It was written.
    Done,
    /// It was refused: the term is over.
    Refused,
    /// It may have been written. Repeating it is safe.
    Unknown,
    /// It was not written, and repeating it will not help.
    Failed,
}

/// The ticks of one target in one term.
#[derive(Debug)]
pub struct Ticker {
    interval: Duration,
    /// Where its ticks are in each interval.
    phase: u64,
    /// How long to wait before a read or a write is repeated.
    retry_after: Duration,
    /// The last tick that was worked on, here or by the previous holder. `None` until it is read.
    last: Option<ServerTime>,
    /// The tick before that.
    before: Option<ServerTime>,
    /// The tick that is being claimed, or being given back.
    writing: Option<Writing>,
    /// The tick that an append claims ahead, if it does, until its reply.
    appending: Option<Option<ServerTime>>,
    /// The tick that was claimed ahead.
    ahead: Option<ServerTime>,
    /// The tick that is claimed, until it is passed on.
    ready: Option<ServerTime>,
    /// Whether the store may have a claim of a tick that was not worked on.
    has_claim: bool,
    pause: Option<Duration>,
    is_ending: bool,
    is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    Claim(ServerTime),
    GiveBack,
}

impl Ticker {
    /// The ticks of a target, at this interval.
    pub fn new(target: &str, interval: Duration, retry_after: Duration) -> Self {
        let interval = interval.max(Duration::from_millis(1));
        Self {
            interval,
            phase: phase(target, interval),
            retry_after,
            last: None,
            before: None,
            writing: None,
            appending: None,
            ahead: None,
            ready: None,
            has_claim: false,
            pause: None,
            is_ending: false,
            is_over: false,
        }
    }

    /// What to do next. A step that was not carried out is returned again.
    pub fn next(&mut self, term: &TermView) -> TickerStep {
        if let Some(due) = self.ready.take() {
            return TickerStep::Work(due);
        }
        if self.is_over || term.is_over {
            return TickerStep::End;
        }
        if term.is_draining || self.is_ending {
            return self.give_back();
        }
        if term.must_stop {
            return TickerStep::End;
        }
        if let Some(pause) = self.pause.take() {
            return TickerStep::Sleep(pause);
        }
        let Some(last) = self.last else { return TickerStep::ReadMark };
        let last = last_tick(term.now, last, self.interval, self.phase);
        self.last = Some(last);
        let due = next_due(term.now, last, self.interval, self.phase);
        let left = span(term.now, due);
        if !left.is_zero() {
            return TickerStep::Sleep(left.min(MAX_SLEEP));
        }
        // No work begins while the lease is uncertain, even if the tick was claimed before.
        if term.is_uncertain {
            return TickerStep::AwaitCertainty;
        }
        if self.appending.is_some() {
            return TickerStep::AwaitAppend;
        }
        if self.ahead.take() == Some(due) {
            self.begin(due);
            return TickerStep::Work(due);
        }
        (self.has_claim, self.writing) = (true, Some(Writing::Claim(due)));
        TickerStep::Write(Mark { worked: due, ahead: None })
    }

    /// Gives back a tick that was claimed and not worked on.
    fn give_back(&mut self) -> TickerStep {
        if self.appending.is_some() {
            return TickerStep::AwaitAppend;
        }
        let Some(worked) = self.last.filter(|_| self.has_claim) else {
            self.is_over = true;
            return TickerStep::End;
        };
        if let Some(pause) = self.pause.take() {
            return TickerStep::Sleep(pause);
        }
        self.writing = Some(Writing::GiveBack);
        TickerStep::Write(Mark { worked, ahead: None })
    }

    /// The mark that the store has; one that cannot be read counts as none.
    pub fn mark_read(&mut self, now: ServerTime, mark: Option<Mark>) {
        // Without a mark, the first tick is the next slot.
        self.last = Some(mark.map_or(now, |mark| mark.last(now)));
    }

    /// The mark could not be read.
    pub fn failed(&mut self) {
        self.pause = Some(self.retry_after);
    }

    /// The outcome of writing the last mark that was returned.
    pub fn written(&mut self, outcome: WriteOutcome) {
        match (self.writing.take(), outcome) {
            (_, WriteOutcome::Refused) => self.is_over = true,
            (Some(Writing::Claim(due)), WriteOutcome::Done) => {
                self.begin(due);
                self.ready = Some(due);
            }
            // If it is refused for good, the tick given back is skipped.
            (Some(Writing::GiveBack), WriteOutcome::Done | WriteOutcome::Failed) => self.has_claim = false,
            (Some(_), WriteOutcome::Unknown | WriteOutcome::Failed) => self.pause = Some(self.retry_after),
            (None, _) => {}
        }
    }

    fn begin(&mut self, due: ServerTime) {
        (self.before, self.last, self.has_claim) = (self.last, Some(due), false);
    }

    /// Puts back the last tick, whose work was not begun. It is returned again here when the lease is certain, or by the
    /// next holder.
    pub fn put_back(&mut self, tick: ServerTime) {
        if self.last == Some(tick)
            && let Some(before) = self.before.take()
        {
            (self.last, self.has_claim, self.pause) = (Some(before), true, Some(PUT_BACK_DELAY));
        }
    }

    /// Begins an append. Returns the mark to write in the same step, if that claims the next tick ahead.
    pub fn begin_append(&mut self, term: &TermView) -> Option<Mark> {
        let mark = self.last.and_then(|worked| {
            let due = next_due(term.now, worked, self.interval, self.phase);
            // If the holder dies before it is due, no other instance could have run it either, and the next holder makes
            // up for the tick after it.
            let is_safe = span(term.now, due) + self.interval <= term.remaining && !term.is_draining;
            is_safe.then_some(Mark { worked, ahead: Some(due) })
        });
        self.has_claim |= mark.is_some();
        self.appending = Some(mark.and_then(|mark| mark.ahead));
        mark
    }

    /// The outcome of the append.
    pub fn appended(&mut self, outcome: WriteOutcome) {
        match (self.appending.take(), outcome) {
            (Some(ahead), WriteOutcome::Done) => self.ahead = ahead,
            (_, WriteOutcome::Refused) => (self.has_claim, self.is_over) = (false, true),
            (_, WriteOutcome::Done | WriteOutcome::Unknown | WriteOutcome::Failed) => {}
        }
    }

    /// Asks for no other tick: [`next`](Self::next) gives back what was claimed, and ends.
    pub fn end(&mut self) {
        self.is_ending = true;
    }
}

fn span(from: ServerTime, to: ServerTime) -> Duration {
    Duration::from_micros(to.as_micros().saturating_sub(from.as_micros()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);
    const RETRY: Duration = Duration::from_secs(1);

    /// Ticks whose phase is 0, with a mark at 100 s.
    fn ticker() -> Ticker {
        let mut ticker = Ticker { phase: 0, ..Ticker::new("target", INTERVAL, RETRY) };
        assert_eq!(ticker.next(&at(103)), TickerStep::ReadMark);
        ticker.mark_read(at(103).now, Some(claim(100)));
        ticker
    }

    /// A term that lasts for a minute, at this second.
    fn at(second: u64) -> TermView {
        TermView {
            now: time(second),
            remaining: Duration::from_secs(60),
            is_uncertain: false,
            is_draining: false,
            must_stop: false,
            is_over: false,
        }
    }

    fn time(second: u64) -> ServerTime {
        ServerTime::from_micros(second * 1_000_000)
    }

    fn claim(worked: u64) -> Mark {
        Mark { worked: time(worked), ahead: None }
    }

    /// Works on the tick of 110 s.
    fn worked() -> Ticker {
        let mut ticker = ticker();
        assert_eq!(ticker.next(&at(110)), TickerStep::Write(claim(110)));
        ticker.written(WriteOutcome::Done);
        assert_eq!(ticker.next(&at(110)), TickerStep::Work(time(110)));
        ticker
    }

    #[test]
    fn a_tick_is_claimed_when_it_is_due_and_worked_on_when_that_is_confirmed() {
        let mut ticker = ticker();
        assert_eq!(ticker.next(&at(103)), TickerStep::Sleep(Duration::from_secs(7)));
        assert_eq!(ticker.next(&at(110)), TickerStep::Write(claim(110)));
        ticker.written(WriteOutcome::Unknown);
        assert_eq!(ticker.next(&at(110)), TickerStep::Sleep(RETRY));
        assert_eq!(ticker.next(&at(111)), TickerStep::Write(claim(110)), "it may be claimed: claim the same one");
        ticker.written(WriteOutcome::Done);
        // Whatever the lease does meanwhile: it is claimed, and the work checks the lease itself.
        assert_eq!(ticker.next(&TermView { is_draining: true, ..at(111) }), TickerStep::Work(time(110)));
    }

    #[test]
    fn a_mark_that_cannot_be_read_is_read_again() {
        let mut ticker = Ticker::new("target", INTERVAL, RETRY);
        assert_eq!(ticker.next(&at(1)), TickerStep::ReadMark);
        ticker.failed();
        assert_eq!(ticker.next(&at(1)), TickerStep::Sleep(RETRY));
        assert_eq!(ticker.next(&at(2)), TickerStep::ReadMark);
        assert_eq!(ticker.next(&TermView { is_draining: true, ..at(3) }), TickerStep::End, "nothing was claimed");
    }

    #[test]
    fn a_refused_claim_is_the_end() {
        let mut ticker = ticker();
        ticker.next(&at(110));
        ticker.written(WriteOutcome::Refused);
        assert_eq!(ticker.next(&at(110)), TickerStep::End);
    }

    #[test]
    fn no_tick_begins_while_the_lease_is_uncertain_or_must_stop() {
        let mut ticker = ticker();
        assert_eq!(ticker.next(&TermView { is_uncertain: true, ..at(110) }), TickerStep::AwaitCertainty);
        assert_eq!(ticker.next(&TermView { must_stop: true, ..at(110) }), TickerStep::End);
        assert_eq!(ticker.next(&at(121)), TickerStep::Write(claim(120)), "one tick makes up for the missed one");
    }

    #[test]
    fn a_tick_claimed_ahead_needs_no_other_write() {
        let mut ticker = worked();
        let mark = ticker.begin_append(&at(112)).unwrap();
        assert_eq!(mark, Mark { worked: time(110), ahead: Some(time(120)) });
        assert_eq!(ticker.next(&at(120)), TickerStep::AwaitAppend);
        ticker.appended(WriteOutcome::Done);
        assert_eq!(ticker.next(&TermView { is_uncertain: true, ..at(120) }), TickerStep::AwaitCertainty);
        assert_eq!(ticker.next(&at(120)), TickerStep::Work(time(120)));
    }

    #[test]
    fn an_append_whose_outcome_is_unknown_claims_nothing_that_is_relied_on() {
        let mut ticker = worked();
        ticker.begin_append(&at(112)).unwrap();
        ticker.appended(WriteOutcome::Unknown);
        assert_eq!(ticker.next(&at(120)), TickerStep::Write(claim(120)));
    }

    #[test]
    fn nothing_is_claimed_ahead_that_another_holder_could_miss() {
        let short = TermView { remaining: Duration::from_secs(17), ..at(112) };
        assert_eq!(worked().begin_append(&short), None, "the tick of 130 s would be the next holder's");
        assert_eq!(worked().begin_append(&TermView { is_draining: true, ..at(112) }), None);
    }

    #[test]
    fn a_tick_claimed_ahead_is_given_back_before_the_release() {
        let mut ticker = worked();
        ticker.begin_append(&at(112)).unwrap();
        let draining = TermView { is_draining: true, must_stop: true, ..at(113) };
        assert_eq!(ticker.next(&draining), TickerStep::AwaitAppend);
        ticker.appended(WriteOutcome::Unknown);
        assert_eq!(ticker.next(&draining), TickerStep::Write(claim(110)), "the claim may have arrived");
        ticker.written(WriteOutcome::Unknown);
        assert_eq!(ticker.next(&draining), TickerStep::Sleep(RETRY));
        assert_eq!(ticker.next(&draining), TickerStep::Write(claim(110)));
        ticker.written(WriteOutcome::Done);
        assert_eq!(ticker.next(&draining), TickerStep::End);
    }

    #[test]
    fn a_tick_that_was_put_back_is_given_out_again_or_given_back() {
        let mut ticker = worked();
        ticker.put_back(time(110));
        assert_eq!(ticker.next(&at(110)), TickerStep::Sleep(PUT_BACK_DELAY));
        assert_eq!(ticker.next(&at(110)), TickerStep::Write(claim(110)));
        ticker.written(WriteOutcome::Done);
        assert_eq!(ticker.next(&at(110)), TickerStep::Work(time(110)));
        ticker.put_back(time(110));
        ticker.put_back(time(110));
        ticker.end();
        assert_eq!(ticker.next(&at(110)), TickerStep::Sleep(PUT_BACK_DELAY));
        assert_eq!(ticker.next(&at(110)), TickerStep::Write(claim(100)), "the next holder works on it");
        ticker.written(WriteOutcome::Failed);
        assert_eq!(ticker.next(&at(110)), TickerStep::End);
    }

    #[test]
    fn nothing_is_given_back_when_the_term_is_over() {
        let mut ticker = worked();
        ticker.put_back(time(110));
        assert_eq!(ticker.next(&TermView { is_over: true, ..at(110) }), TickerStep::End);
        let mut ticker = worked();
        ticker.begin_append(&at(112)).unwrap();
        ticker.appended(WriteOutcome::Refused);
        assert_eq!(ticker.next(&at(113)), TickerStep::End);
    }
}
