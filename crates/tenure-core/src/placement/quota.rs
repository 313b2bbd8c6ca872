//! How many targets each instance should hold.

use crate::name::InstanceId;

use super::InstanceScore;

/// The weight of an ordinary instance. Half of it means half as many targets.
pub const FULL_WEIGHT: u32 = 1_000;

/// How an instance takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Presence {
    /// It accepts targets up to its quota.
    Ready,
    /// It did not accept its last offer or is in crash backoff, so it is offered no more than it holds.
    Capped,
    /// It is leaving: it should hold nothing.
    Draining,
    /// It cannot work at present: it should hold nothing, unless no other instance can take its targets.
    Unable,
    /// It takes any target it likes, or may come back for its targets. Its quota is what it holds; it is offered
    /// nothing, and nothing is expected of it.
    Excluded,
}

/// An instance, as the others see it.
///
/// ```
/// use tenure::InstanceId;
/// use tenure_core::placement::{InstanceLoad, Presence, quotas};
///
/// let load = |name, held| Ok(InstanceLoad { held, ..InstanceLoad::new(InstanceId::new(name)?) });
/// let loads: Vec<InstanceLoad> = [("a", 5), ("b", 5), ("c", 0)].map(|(n, h)| load(n, h)).into_iter().collect::<Result<_, _>>()?;
/// let mut quotas = quotas(&loads, 0);
/// quotas.sort();
/// assert_eq!(quotas, [3, 3, 4]);
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceLoad {
    /// The instance.
    pub instance: InstanceId,
    /// Its weight, in thousandths of [`FULL_WEIGHT`].
    pub weight: u32,
    /// Number of targets it holds.
    pub held: usize,
    /// How it takes part.
    pub presence: Presence,
}

impl InstanceLoad {
    /// An instance that is ready, has full weight and holds nothing.
    pub fn new(instance: InstanceId) -> Self {
        Self { instance, weight: FULL_WEIGHT, held: 0, presence: Presence::Ready }
    }

    /// Whether it may get any target.
    pub fn is_eligible(&self) -> bool {
        matches!(self.presence, Presence::Ready | Presence::Capped) && self.weight > 0
    }
}

/// How many targets each instance should hold, given the number of unheld ones. Every quota is the exact one by weight,
/// rounded down or up. Those are rounded up first that thereby keep a target, so that the fewest targets move.
///
/// When all instances are draining, all quotas are zero.
pub fn quotas(loads: &[InstanceLoad], unheld: usize) -> Vec<usize> {
    let is_excluded = |load: &InstanceLoad| load.presence == Presence::Excluded;
    let others = loads.iter().filter(|load| !is_excluded(load));
    let total = others.fold(unheld, |total, load| total.saturating_add(load.held));
    let mut quotas: Vec<usize> = loads.iter().map(|load| if is_excluded(load) { load.held } else { 0 }).collect();
    let (mut open, mut left): (Vec<usize>, usize) =
        ((0..loads.len()).filter(|at| loads[*at].is_eligible()).collect(), total);
    // A capped instance gets no more than it has. The rest is for the others, of which more may then be capped.
    loop {
        let round = apportion(loads, &open, left);
        let capped: Vec<(usize, usize)> = open
            .iter()
            .zip(&round)
            .filter(|(at, quota)| loads[**at].presence == Presence::Capped && **quota > loads[**at].held)
            .map(|(at, _)| (*at, loads[*at].held))
            .collect();
        // With no other instance left, the capped ones take the rest.
        if capped.is_empty() || capped.len() == open.len() {
            for (at, quota) in open.into_iter().zip(round) {
                quotas[at] = quota;
            }
            return quotas;
        }
        for (at, held) in capped {
            quotas[at] = held;
            left = left.saturating_sub(held);
            open.retain(|other| *other != at);
        }
    }
}

/// Divides a number of targets among these instances by weight.
fn apportion(loads: &[InstanceLoad], among: &[usize], total: usize) -> Vec<usize> {
    let weights: u128 = among.iter().map(|at| u128::from(loads[*at].weight)).sum();
    if weights == 0 {
        return vec![0; among.len()];
    }
    let exact = |at: usize| total as u128 * u128::from(loads[at].weight);
    let mut quotas: Vec<usize> =
        among.iter().map(|at| usize::try_from(exact(*at) / weights).unwrap_or(usize::MAX)).collect();
    let mut left = total - quotas.iter().sum::<usize>();
    // A quota that is exact is not rounded.
    let mut rounded: Vec<usize> = (0..among.len()).filter(|n| exact(among[*n]) % weights != 0).collect();
    rounded.sort_by_cached_key(|n| {
        let load = &loads[among[*n]];
        let keeps_one_more = load.held > quotas[*n];
        let remainder = exact(among[*n]) % weights;
        // First instances that keep one more target, then those that lose most by rounding down; then by a hash that is
        // the same for all.
        std::cmp::Reverse((keeps_one_more, remainder, InstanceScore::of(&load.instance), load.instance.clone()))
    });
    for n in rounded {
        if left == 0 {
            break;
        }
        quotas[n] += 1;
        left -= 1;
    }
    quotas
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn loads(held: &[usize]) -> Vec<InstanceLoad> {
        let load = |(n, held): (usize, &usize)| InstanceLoad { held: *held, ..InstanceLoad::new(id(n)) };
        held.iter().enumerate().map(load).collect()
    }

    fn id(n: usize) -> InstanceId {
        InstanceId::new(&format!("api-{n}")).unwrap()
    }

    #[test]
    fn nine_targets_on_three_instances_are_three_each_and_ten_are_four_three_three() {
        assert_eq!(quotas(&loads(&[0, 0, 0]), 9), [3, 3, 3]);
        assert_eq!(quotas(&loads(&[5, 5, 0]), 0).iter().sum::<usize>(), 10);
        let third_joins = quotas(&loads(&[5, 5, 0]), 0);
        assert!(third_joins[2] == 3 && third_joins.contains(&4), "{third_joins:?}");
        assert_eq!(quotas(&loads(&[4, 3, 3]), 0), [4, 3, 3], "a balanced fleet stays as it is");
        assert_eq!(quotas(&loads(&[3, 4, 3]), 0), [3, 4, 3]);
    }

    #[test]
    fn weights_scale_quotas() {
        let mut fleet = loads(&[0, 0, 0]);
        fleet[0].weight = 2 * FULL_WEIGHT;
        assert_eq!(quotas(&fleet, 8), [4, 2, 2]);
        fleet[1].weight = 0;
        assert_eq!(quotas(&fleet, 9), [6, 0, 3]);
    }

    #[test]
    fn draining_instances_get_no_quota_and_capped_ones_keep_what_they_hold() {
        let mut fleet = loads(&[3, 3, 3]);
        fleet[0].presence = Presence::Draining;
        assert_eq!(quotas(&fleet, 0).iter().sum::<usize>(), 9);
        assert_eq!(quotas(&fleet, 0)[0], 0);
        fleet[0].presence = Presence::Capped;
        fleet[0].held = 1;
        assert_eq!(quotas(&fleet, 5), [1, 6, 5].map(|n| n.min(6)), "the rest goes to the others");
        for load in &mut fleet {
            load.presence = Presence::Draining;
        }
        assert_eq!(quotas(&fleet, 5), [0, 0, 0]);
    }

    proptest! {
        #[test]
        fn quotas_add_up_are_rounded_fairly_and_keep_a_balanced_fleet(
            fleet in prop::collection::vec((0..40_usize, 0..4_u32, 0..10_u8), 1..12),
            unheld in 0..60_usize,
        ) {
            let fleet: Vec<InstanceLoad> = fleet.iter().enumerate().map(|(n, (held, weight, presence))| InstanceLoad {
                instance: id(n),
                weight: weight * FULL_WEIGHT / 2,
                held: *held,
                presence: if *presence == 0 { Presence::Draining } else { Presence::Ready },
            }).collect();
            let total = unheld + fleet.iter().map(|load| load.held).sum::<usize>();
            let quotas = quotas(&fleet, unheld);
            let weights: u128 = fleet.iter().filter(|load| load.is_eligible()).map(|load| u128::from(load.weight)).sum();
            if weights == 0 {
                prop_assert!(quotas.iter().all(|quota| *quota == 0));
                return Ok(());
            }
            prop_assert_eq!(quotas.iter().sum::<usize>(), total);
            for (load, quota) in fleet.iter().zip(&quotas) {
                let exact = if load.is_eligible() { total as u128 * u128::from(load.weight) } else { 0 };
                let (down, up) = (exact / weights, exact.div_ceil(weights));
                prop_assert!((down..=up).contains(&(*quota as u128)), "{} of {}", quota, exact as f64 / weights as f64);
            }
            // Once every instance has its quota, the quotas stay the same.
            let settled: Vec<InstanceLoad> =
                fleet.iter().zip(&quotas).map(|(load, quota)| InstanceLoad { held: *quota, ..load.clone() }).collect();
            prop_assert_eq!(super::quotas(&settled, 0), quotas);
        }

        /// Tries every way of rounding.
        #[test]
        fn no_other_rounding_moves_fewer_targets(
            held in prop::collection::vec(0..12_usize, 1..8),
            unheld in 0..12_usize,
        ) {
            let fleet = loads(&held);
            let total = unheld + held.iter().sum::<usize>();
            let (base, extra) = (total / held.len(), total % held.len());
            let kept = |quotas: &[usize]| held.iter().zip(quotas).map(|(h, s)| *h.min(s)).sum::<usize>();
            let ours = kept(&quotas(&fleet, unheld));
            let best = (0_u32..1 << held.len())
                .filter(|ups| ups.count_ones() as usize == extra)
                .map(|ups| kept(&(0..held.len()).map(|n| base + (ups >> n & 1) as usize).collect::<Vec<_>>()))
                .max();
            prop_assert_eq!(Some(ours), best);
        }
    }
}
