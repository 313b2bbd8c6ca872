//! Finds the smallest world that fails like a given one: with as few faults and processes as possible.

use std::collections::BTreeSet;
use std::fmt;

use crate::world::WorldOutcome;

/// The most worlds that are tried.
const MAX_TRIALS: usize = 3_000;

/// What takes part in a world. Everything else is as the seed decides, so that a smaller world still resembles the whole
/// one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reduction {
    /// The faults that happen, by their numbers. `None` for all.
    pub faults: Option<BTreeSet<usize>>,
    /// The processes that run, by their numbers. `None` for all.
    pub processes: Option<BTreeSet<usize>>,
    /// Whether users only acquire and work: they do not hang, hand over, revoke or give up.
    pub plain_users: bool,
}

impl Reduction {
    /// Whether this fault happens.
    pub fn has_fault(&self, number: usize) -> bool {
        self.faults.as_ref().is_none_or(|faults| faults.contains(&number))
    }

    /// Whether this process runs.
    pub fn has_process(&self, number: usize) -> bool {
        self.processes.as_ref().is_none_or(|processes| processes.contains(&number))
    }
}

/// As flags of the command line.
impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (flag, numbers) in [("--faults", &self.faults), ("--processes", &self.processes)] {
            if let Some(numbers) = numbers {
                let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
                write!(f, " {flag} {}", if numbers.is_empty() { "none".to_owned() } else { numbers.join(",") })?;
            }
        }
        if self.plain_users { write!(f, " --plain-users") } else { Ok(()) }
    }
}

/// The smallest world found.
#[derive(Debug)]
pub struct Smallest {
    /// What takes part in it.
    pub reduction: Reduction,
    /// Number of worlds tried.
    pub trials: usize,
}

/// Leaves out whatever is not needed for the same invariant to be violated.
pub fn reduce(whole: &WorldOutcome, run: impl Fn(&Reduction) -> WorldOutcome) -> Smallest {
    let mut smallest = Smallest { reduction: Reduction::default(), trials: 0 };
    let Some(violated) = whole.violation.as_ref().map(|violation| violation.invariant) else { return smallest };
    let mut still_fails = |reduction: &Reduction| {
        smallest.trials += 1;
        let is_same = |outcome: WorldOutcome| outcome.violation.is_some_and(|found| found.invariant == violated);
        smallest.trials <= MAX_TRIALS && is_same(run(reduction))
    };
    let mut reduction = Reduction::default();
    // A fleet has no users, only workers.
    if whole.processes > 0 {
        reduction.plain_users = still_fails(&Reduction { plain_users: true, ..Reduction::default() });
    }
    for process in (0..whole.processes).rev() {
        let mut fewer = reduction.clone();
        fewer.processes.get_or_insert_with(|| (0..whole.processes).collect()).remove(&process);
        if still_fails(&fewer) {
            reduction = fewer;
        }
    }
    let mut kept: Vec<usize> = (0..whole.faults).collect();
    let mut len = kept.len();
    while len > 0 {
        let (mut at, mut has_removed) = (0, false);
        while at < kept.len() {
            let fewer: Vec<usize> = [&kept[..at], &kept[(at + len).min(kept.len())..]].concat();
            let trial = Reduction { faults: Some(fewer.iter().copied().collect()), ..reduction.clone() };
            if still_fails(&trial) {
                (kept, has_removed) = (fewer, true);
                reduction = trial;
            } else {
                at += len;
            }
        }
        // What was needed at first may not be any more.
        len = if len == 1 && has_removed { 1 } else { len / 2 };
    }
    smallest.reduction = reduction;
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::SimTime;
    use crate::world::Violation;

    /// A world that fails if these faults happen while process 2 runs.
    fn outcome(reduction: &Reduction, needed: &[usize]) -> WorldOutcome {
        let fails = reduction.has_process(2) && needed.iter().all(|fault| reduction.has_fault(*fault));
        let violation = Violation { invariant: "no overlap", message: String::new(), at: SimTime::default() };
        WorldOutcome { violation: fails.then_some(violation), faults: 90, processes: 4, ..WorldOutcome::default() }
    }

    #[test]
    fn only_what_is_needed_is_kept() {
        for needed in [&[][..], &[0], &[17, 63], &[88, 89]] {
            let smallest = reduce(&outcome(&Reduction::default(), needed), |reduction| outcome(reduction, needed));
            let expected = Reduction {
                faults: Some(needed.iter().copied().collect()),
                processes: Some([2].into()),
                plain_users: true,
            };
            assert_eq!(smallest.reduction, expected);
            assert!(smallest.trials < 300, "{}", smallest.trials);
        }
    }

    #[test]
    fn a_reduction_is_printed_as_flags() {
        let reduction = Reduction { faults: Some([3, 17].into()), processes: Some([].into()), plain_users: true };
        assert_eq!(reduction.to_string(), " --faults 3,17 --processes none --plain-users");
        assert_eq!(Reduction::default().to_string(), "");
    }
}
