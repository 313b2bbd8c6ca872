//! The moves of one instance: which targets it hands over to which instance, and when it claims unheld ones. It uses
//! the counts of other instances and its own targets, but not the targets of others.

use std::cmp::Reverse;
use std::time::Duration;

use crate::name::InstanceId;

use super::{InstanceLoad, InstanceScore, TargetScore};

/// A target that an instance should hand over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handoff {
    /// The index of the target among its own.
    pub target: usize,
    /// The index of the receiver among the loads.
    pub to: usize,
}

/// The handoffs of an instance: its surplus above its quota, to instances below theirs. It picks the targets with the
/// highest preference for the receiver. Among those it picks the ones that score highest for the receiver and lowest
/// for itself.
///
/// Every instance lines up all surpluses and all deficits in the same order, and takes its own stretch of the line, so
/// that no two instances fill the same gap.
pub fn plan_handoffs(
    me: &InstanceId,
    loads: &[InstanceLoad],
    quotas: &[usize],
    mine: &[TargetScore],
    preference: impl Fn(usize, usize) -> u8,
) -> Vec<Handoff> {
    let Some(at) = loads.iter().position(|load| load.instance == *me) else { return Vec::new() };
    let surplus = |n: usize| loads[n].held.saturating_sub(quotas[n]);
    let deficit = |n: usize| quotas[n].saturating_sub(loads[n].held);
    let mut line: Vec<usize> = (0..loads.len()).collect();
    line.sort_by_cached_key(|n| (InstanceScore::of(&loads[*n].instance), loads[*n].instance.clone()));
    let before = line.iter().take_while(|n| **n != at).fold(0, |sum: usize, n| sum.saturating_add(surplus(*n)));
    let (mut start, end) = (before, before.saturating_add(surplus(at)));

    let own = InstanceScore::of(me);
    let mut left: Vec<(usize, TargetScore)> = mine.iter().copied().enumerate().collect();
    let (mut handoffs, mut position) = (Vec::new(), 0_usize);
    for to in line {
        let gap = position..position.saturating_add(deficit(to));
        position = gap.end;
        if gap.end <= start {
            continue;
        }
        if gap.start >= end || left.is_empty() {
            break;
        }
        let count = (gap.end.min(end) - start).min(left.len());
        start += count;
        let theirs = InstanceScore::of(&loads[to].instance);
        let gain = |target: TargetScore| i128::from(theirs.with(target)) - i128::from(own.with(target));
        if count < left.len() && count > 0 {
            left.select_nth_unstable_by_key(count - 1, |(place, target)| {
                (Reverse((preference(*place, to), gain(*target))), *place)
            });
        }
        handoffs.extend(left.drain(..count).map(|(target, _)| Handoff { target, to }));
    }
    handoffs
}

/// The rank of one instance among the eligible ones, by target.
///
/// ```
/// use tenure::InstanceId;
/// use tenure_core::placement::{InstanceLoad, Ranking, TargetScore};
///
/// let ids = [InstanceId::new("api-1")?, InstanceId::new("api-2")?, InstanceId::new("api-3")?];
/// let loads = ids.clone().map(InstanceLoad::new);
/// let mut ranks = ids.map(|id| Ranking::new(&id, &loads).rank(TargetScore::of("eu-1")));
/// ranks.sort();
/// assert_eq!(ranks, [0, 1, 2]); // every instance computes the same order
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ranking {
    me: (InstanceScore, InstanceId),
    others: Vec<(InstanceScore, InstanceId)>,
}

impl Ranking {
    /// Hashes each instance once.
    pub fn new(me: &InstanceId, loads: &[InstanceLoad]) -> Self {
        let hashed = |instance: &InstanceId| (InstanceScore::of(instance), instance.clone());
        let others = loads.iter().filter(|load| load.is_eligible() && load.instance != *me);
        Self { me: hashed(me), others: others.map(|load| hashed(&load.instance)).collect() }
    }

    /// Number of other instances that score higher for a target than this one.
    pub fn rank(&self, target: TargetScore) -> usize {
        let own = self.me.0.with(target);
        let better =
            |(score, instance): &&(InstanceScore, InstanceId)| (score.with(target), instance) > (own, &self.me.1);
        self.others.iter().filter(better).count()
    }
}

/// The instance that takes over each of these unheld targets: the highest-ranked one with room left, by its index among
/// the loads. `None` when no instance has room.
///
/// All instances with the same loads and targets compute the same result. So each claims its own part at once, and none
/// conflicts with another.
///
/// ```
/// use tenure::InstanceId;
/// use tenure_core::placement::{InstanceLoad, TargetScore, successors};
///
/// let loads = [InstanceLoad::new(InstanceId::new("api-1")?), InstanceLoad::new(InstanceId::new("api-2")?)];
/// let targets: Vec<TargetScore> = (0..10).map(|n| TargetScore::of(&format!("endpoint-{n}"))).collect();
/// let successors = successors(&loads, &[6, 4], &targets);
/// assert_eq!(successors.iter().filter(|successor| **successor == Some(0)).count(), 6); // no more than its quota
/// # Ok::<(), tenure::NameError>(())
/// ```
pub fn successors(loads: &[InstanceLoad], quotas: &[usize], targets: &[TargetScore]) -> Vec<Option<usize>> {
    let mut open: Vec<(InstanceScore, usize, usize)> = loads
        .iter()
        .zip(quotas)
        .enumerate()
        .filter(|(_, (load, quota))| load.is_eligible() && load.held < **quota)
        .map(|(at, (load, quota))| (InstanceScore::of(&load.instance), quota - load.held, at))
        .collect();
    // Sorted by the targets themselves, because the lists of other instances may differ in length.
    let mut order: Vec<usize> = (0..targets.len()).collect();
    order.sort_by_key(|n| (targets[*n], *n));
    let mut successors = vec![None; targets.len()];
    for n in order {
        let best = (0..open.len()).max_by_key(|place| {
            let (score, _, at) = open[*place];
            (score.with(targets[n]), &loads[at].instance)
        });
        let Some(place) = best else { break };
        let (_, room, at) = &mut open[place];
        successors[n] = Some(*at);
        *room -= 1;
        if *room == 0 {
            open.swap_remove(place);
        }
    }
    successors
}

/// How long an instance of this rank waits before it claims an unheld target: zero for the highest rank, and never
/// longer than `longest`. An instance without room waits longest, so that all instances with room go first. But it does
/// claim, because an unheld target is worse than an uneven placement.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::placement::claim_delay;
///
/// let second = Duration::from_secs(1);
/// assert_eq!(claim_delay(0, true, second), Duration::ZERO);
/// assert!(claim_delay(1, true, second) < claim_delay(2, true, second));
/// assert_eq!(claim_delay(0, false, second), second);
/// ```
pub fn claim_delay(rank: usize, has_room: bool, longest: Duration) -> Duration {
    match (has_room, u32::try_from(rank)) {
        (true, Ok(rank)) => longest.mul_f64(f64::from(rank) / f64::from(rank.saturating_add(1))),
        _ => longest,
    }
}

#[cfg(test)]
mod tests {
    use super::super::quotas;
    use super::*;

    fn id(n: usize) -> InstanceId {
        InstanceId::new(&format!("api-{n}")).unwrap()
    }

    fn fleet(held: &[usize]) -> Vec<InstanceLoad> {
        held.iter().enumerate().map(|(n, held)| InstanceLoad { held: *held, ..InstanceLoad::new(id(n)) }).collect()
    }

    fn targets(count: usize) -> Vec<TargetScore> {
        (0..count).map(|n| TargetScore::of(&format!("endpoint-{n}"))).collect()
    }

    #[test]
    fn every_surplus_is_handed_off_and_every_deficit_filled_once() {
        for held in [&[9, 0, 0][..], &[5, 5, 0], &[7, 1, 4, 0, 8], &[100, 0, 3, 50, 0, 0, 7], &[1, 1, 1]] {
            let fleet = fleet(held);
            let quotas = quotas(&fleet, 0);
            let mut counts = held.to_vec();
            let mut moves = 0;
            for (n, held) in held.iter().enumerate() {
                for handoff in plan_handoffs(&id(n), &fleet, &quotas, &targets(*held), |_, _| 0) {
                    counts[n] -= 1;
                    counts[handoff.to] += 1;
                    moves += 1;
                }
            }
            assert_eq!(counts, quotas, "{held:?}");
            let surplus: usize = held.iter().zip(&quotas).map(|(h, s)| h.saturating_sub(*s)).sum();
            assert_eq!(moves, surplus, "the fewest moves");
        }
    }

    #[test]
    fn targets_that_score_highest_for_the_receiver_move_first() {
        let fleet = fleet(&[10, 0]);
        let mine = targets(10);
        let given = plan_handoffs(&id(0), &fleet, &quotas(&fleet, 0), &mine, |_, _| 0);
        assert_eq!(given.len(), 5);
        let gain = |n: usize| {
            i128::from(InstanceScore::of(&id(1)).with(mine[n])) - i128::from(InstanceScore::of(&id(0)).with(mine[n]))
        };
        let worst_given = given.iter().map(|handoff| gain(handoff.target)).min().unwrap();
        let best_kept = (0..10).filter(|n| given.iter().all(|handoff| handoff.target != *n)).map(gain).max().unwrap();
        assert!(worst_given > best_kept);
    }

    #[test]
    fn targets_the_receiver_held_before_move_first() {
        let fleet = fleet(&[10, 0, 0]);
        let mine = targets(10);
        // The third instance held the first three before, the second instance the next three.
        let home = |target: usize| match target {
            0..3 => Some(2),
            3..6 => Some(1),
            _ => None,
        };
        let preference = |target: usize, to: usize| match home(target) {
            Some(home) if home == to => 2,
            Some(_) => 0,
            None => 1,
        };
        let given = plan_handoffs(&id(0), &fleet, &quotas(&fleet, 0), &mine, preference);
        for handoff in &given {
            assert!(home(handoff.target).is_none_or(|home| home == handoff.to), "{handoff:?}");
        }
        assert_eq!(given.iter().filter(|handoff| home(handoff.target).is_some()).count(), 6);
    }

    #[test]
    fn every_target_ranks_one_instance_first_and_never_a_draining_one() {
        let mut fleet = fleet(&[0; 7]);
        for target in targets(50) {
            let mut ranks: Vec<usize> = (0..7).map(|n| Ranking::new(&id(n), &fleet).rank(target)).collect();
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3, 4, 5, 6]);
        }
        fleet[3].presence = super::super::Presence::Draining;
        for target in targets(50) {
            assert_eq!((0..7).filter(|n| *n != 3 && Ranking::new(&id(*n), &fleet).rank(target) == 0).count(), 1);
        }
    }

    #[test]
    fn unheld_targets_go_to_instances_with_room_and_all_agree() {
        let mut fleet = fleet(&[10, 7, 10, 3, 0]);
        fleet[4].presence = super::super::Presence::Draining;
        let targets = targets(20);
        let quotas = quotas(&fleet, targets.len());
        let taken = successors(&fleet, &quotas, &targets);
        for (n, load) in fleet.iter().enumerate() {
            let count = taken.iter().filter(|successor| **successor == Some(n)).count();
            let room = if n == 4 { 0 } else { quotas[n] - load.held };
            assert_eq!(count, room, "{load:?}");
        }
        // In another order, as seen by another instance.
        let mut backwards = targets.clone();
        backwards.reverse();
        let mut again = successors(&fleet, &quotas, &backwards);
        again.reverse();
        assert_eq!(again, taken);
        // Without quotas it is the instance with the highest score.
        let free = successors(&fleet, &[100; 5], &targets);
        for (target, successor) in targets.iter().zip(free) {
            let best = (0..4).find(|n| Ranking::new(&id(*n), &fleet).rank(*target) == 0);
            assert_eq!(successor, best);
        }
    }

    #[test]
    fn an_unlisted_instance_hands_off_nothing() {
        let fleet = fleet(&[9, 0]);
        assert_eq!(plan_handoffs(&id(7), &fleet, &quotas(&fleet, 0), &targets(9), |_, _| 0), []);
    }
}
