//! How many targets each instance should hold.

use crate::name::InstanceId;

use super::InstanceScore;

/// The weight of an instance that counts like any other. Half of it means half of the targets.
pub const FULL_WEIGHT: u32 = 1_000;

/// How an instance takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Presence {
    /// It takes what it should have.
    Ready,
    /// It did not take what it was last offered, so it is offered no more than it holds.
    Stuck,
    /// It is leaving: it should hold nothing.
    Draining,
    /// It cannot work at present: it should hold nothing, unless no other instance can take it.
    Unable,
    /// It takes what it likes, or may come back for what it had: what it holds is its share, and nothing is given to it or expected of it.
    Apart,
}

/// An instance, as the others see it.
///
/// ```
/// use tenure::InstanceId;
/// use tenure::placement::{Peer, Presence, shares};
///
/// let peer = |name, held| Ok(Peer { held, ..Peer::new(InstanceId::new(name)?) });
/// let peers: Vec<Peer> = [("a", 5), ("b", 5), ("c", 0)].map(|(n, h)| peer(n, h)).into_iter().collect::<Result<_, _>>()?;
/// let mut shares = shares(&peers, 0);
/// shares.sort();
/// assert_eq!(shares, [3, 3, 4]);
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who.
    pub instance: InstanceId,
    /// Its weight, in thousandths of [one that counts fully](FULL_WEIGHT).
    pub weight: u32,
    /// How many targets it holds.
    pub held: usize,
    /// How it takes part.
    pub presence: Presence,
}

impl Peer {
    /// One that is ready, counts fully and holds nothing.
    pub fn new(instance: InstanceId) -> Self {
        Self { instance, weight: FULL_WEIGHT, held: 0, presence: Presence::Ready }
    }

    /// Whether it may be given anything at all.
    pub(crate) fn takes_part(&self) -> bool {
        matches!(self.presence, Presence::Ready | Presence::Stuck) && self.weight > 0
    }
}

/// How many targets each instance should hold, when so many are unheld besides. Every share is the exact one by weight, rounded down or
/// up; among those that could be rounded up, they are who thereby keep what they hold, so that the fewest targets move.
///
/// When everybody is draining, all shares are zero.
pub fn shares(peers: &[Peer], unheld: usize) -> Vec<usize> {
    let apart = |peer: &Peer| peer.presence == Presence::Apart;
    let others = peers.iter().filter(|peer| !apart(peer));
    let total = others.fold(unheld, |total, peer| total.saturating_add(peer.held));
    let mut shares: Vec<usize> = peers.iter().map(|peer| if apart(peer) { peer.held } else { 0 }).collect();
    let (mut open, mut left): (Vec<usize>, usize) =
        ((0..peers.len()).filter(|at| peers[*at].takes_part()).collect(), total);
    // Whoever is stuck gets no more than it has; what that leaves over is for the others, of whom more may be stuck.
    loop {
        let round = apportion(peers, &open, left);
        let capped: Vec<(usize, usize)> = open
            .iter()
            .zip(&round)
            .filter(|(at, share)| peers[**at].presence == Presence::Stuck && **share > peers[**at].held)
            .map(|(at, _)| (*at, peers[*at].held))
            .collect();
        // With nobody else to take them, the stuck have to.
        if capped.is_empty() || capped.len() == open.len() {
            for (at, share) in open.into_iter().zip(round) {
                shares[at] = share;
            }
            return shares;
        }
        for (at, held) in capped {
            shares[at] = held;
            left = left.saturating_sub(held);
            open.retain(|other| *other != at);
        }
    }
}

/// Divides a number of targets among these peers by weight.
fn apportion(peers: &[Peer], among: &[usize], total: usize) -> Vec<usize> {
    let weights: u128 = among.iter().map(|at| u128::from(peers[*at].weight)).sum();
    if weights == 0 {
        return vec![0; among.len()];
    }
    let exact = |at: usize| total as u128 * u128::from(peers[at].weight);
    let mut shares: Vec<usize> =
        among.iter().map(|at| usize::try_from(exact(*at) / weights).unwrap_or(usize::MAX)).collect();
    let mut left = total - shares.iter().sum::<usize>();
    // A share that needs no rounding is not rounded.
    let mut rounded: Vec<usize> = (0..among.len()).filter(|n| exact(among[*n]) % weights != 0).collect();
    rounded.sort_by_cached_key(|n| {
        let peer = &peers[among[*n]];
        let keeps_one_more = peer.held > shares[*n];
        let remainder = exact(among[*n]) % weights;
        // Whoever keeps one more comes first, and then whoever misses most by rounding down; then chance that is the same for all.
        std::cmp::Reverse((keeps_one_more, remainder, InstanceScore::of(&peer.instance), peer.instance.clone()))
    });
    for n in rounded {
        if left == 0 {
            break;
        }
        shares[n] += 1;
        left -= 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peers(held: &[usize]) -> Vec<Peer> {
        let peer = |(n, held): (usize, &usize)| Peer { held: *held, ..Peer::new(id(n)) };
        held.iter().enumerate().map(peer).collect()
    }

    fn id(n: usize) -> InstanceId {
        InstanceId::new(&format!("api-{n}")).unwrap()
    }

    #[test]
    fn nine_on_three_is_three_each_and_ten_is_four_three_three() {
        assert_eq!(shares(&peers(&[0, 0, 0]), 9), [3, 3, 3]);
        assert_eq!(shares(&peers(&[5, 5, 0]), 0).iter().sum::<usize>(), 10);
        let third_joins = shares(&peers(&[5, 5, 0]), 0);
        assert!(third_joins[2] == 3 && third_joins.contains(&4), "{third_joins:?}");
        assert_eq!(shares(&peers(&[4, 3, 3]), 0), [4, 3, 3], "a balanced fleet stays as it is");
        assert_eq!(shares(&peers(&[3, 4, 3]), 0), [3, 4, 3]);
    }

    #[test]
    fn weights_count() {
        let mut fleet = peers(&[0, 0, 0]);
        fleet[0].weight = 2 * FULL_WEIGHT;
        assert_eq!(shares(&fleet, 8), [4, 2, 2]);
        fleet[1].weight = 0;
        assert_eq!(shares(&fleet, 9), [6, 0, 3]);
    }

    #[test]
    fn the_leaving_get_nothing_and_the_stuck_no_more() {
        let mut fleet = peers(&[3, 3, 3]);
        fleet[0].presence = Presence::Draining;
        assert_eq!(shares(&fleet, 0).iter().sum::<usize>(), 9);
        assert_eq!(shares(&fleet, 0)[0], 0);
        fleet[0].presence = Presence::Stuck;
        fleet[0].held = 1;
        assert_eq!(shares(&fleet, 5), [1, 6, 5].map(|n| n.min(6)), "what it will not take is for the others");
        for peer in &mut fleet {
            peer.presence = Presence::Draining;
        }
        assert_eq!(shares(&fleet, 5), [0, 0, 0]);
    }

    proptest! {
        #[test]
        fn shares_add_up_are_rounded_fairly_and_leave_what_is_balanced(
            fleet in prop::collection::vec((0..40_usize, 0..4_u32, 0..10_u8), 1..12),
            unheld in 0..60_usize,
        ) {
            let fleet: Vec<Peer> = fleet.iter().enumerate().map(|(n, (held, weight, presence))| Peer {
                instance: id(n),
                weight: weight * FULL_WEIGHT / 2,
                held: *held,
                presence: if *presence == 0 { Presence::Draining } else { Presence::Ready },
            }).collect();
            let total = unheld + fleet.iter().map(|peer| peer.held).sum::<usize>();
            let shares = shares(&fleet, unheld);
            let weights: u128 = fleet.iter().filter(|peer| peer.takes_part()).map(|peer| u128::from(peer.weight)).sum();
            if weights == 0 {
                prop_assert!(shares.iter().all(|share| *share == 0));
                return Ok(());
            }
            prop_assert_eq!(shares.iter().sum::<usize>(), total);
            for (peer, share) in fleet.iter().zip(&shares) {
                let exact = if peer.takes_part() { total as u128 * u128::from(peer.weight) } else { 0 };
                let (down, up) = (exact / weights, exact.div_ceil(weights));
                prop_assert!((down..=up).contains(&(*share as u128)), "{} of {}", share, exact as f64 / weights as f64);
            }
            // Once everybody has its share, everybody keeps it.
            let settled: Vec<Peer> =
                fleet.iter().zip(&shares).map(|(peer, share)| Peer { held: *share, ..peer.clone() }).collect();
            prop_assert_eq!(super::shares(&settled, 0), shares);
        }

        /// By trying every way of rounding.
        #[test]
        fn no_other_way_of_rounding_moves_fewer(
            held in prop::collection::vec(0..12_usize, 1..8),
            unheld in 0..12_usize,
        ) {
            let fleet = peers(&held);
            let total = unheld + held.iter().sum::<usize>();
            let (base, extra) = (total / held.len(), total % held.len());
            let kept = |shares: &[usize]| held.iter().zip(shares).map(|(h, s)| *h.min(s)).sum::<usize>();
            let ours = kept(&shares(&fleet, unheld));
            let best = (0_u32..1 << held.len())
                .filter(|ups| ups.count_ones() as usize == extra)
                .map(|ups| kept(&(0..held.len()).map(|n| base + (ups >> n & 1) as usize).collect::<Vec<_>>()))
                .max();
            prop_assert_eq!(Some(ours), best);
        }
    }
}
