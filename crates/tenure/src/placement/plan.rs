//! The plan for a whole fleet, with reasons. Nobody needs it to act; people want to see it.

use std::collections::BTreeMap;
use std::fmt;

use crate::name::InstanceId;

use super::{InstanceScore, Peer, Presence, TargetScore, shares, surrender};

/// A target, and who holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which target.
    pub target: String,
    /// Who holds it. Somebody who is not among the peers is gone.
    pub holder: Option<InstanceId>,
}

/// A target that should have another holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which target.
    pub target: String,
    /// Who holds it.
    pub from: Option<InstanceId>,
    /// Who should.
    pub to: InstanceId,
    /// Why.
    pub reason: Reason,
}

impl Move {
    /// Words for the record that stands beside the lease, which [`decode`](Self::decode) reads and people can.
    pub fn encode(&self) -> String {
        let from = self.from.as_ref().map_or("", |from| from.as_str());
        let counts = match self.reason {
            Reason::Surplus { held, share } => format!(" held={held} share={share}"),
            _ => String::new(),
        };
        format!("from={from} to={} why={}{counts}", self.to, self.reason.word())
    }

    /// Reads what [`encode`](Self::encode) wrote of this target; `None` for anything else.
    ///
    /// ```
    /// use tenure::InstanceId;
    /// use tenure::placement::{Move, Reason};
    ///
    /// let (from, to) = (Some(InstanceId::new("api-1")?), InstanceId::new("api-2")?);
    /// let moved = Move { target: "eu-1".to_owned(), from, to, reason: Reason::Surplus { held: 5, share: 3 } };
    /// assert_eq!(Move::decode("eu-1", &moved.encode()), Some(moved));
    /// # Ok::<(), tenure::NameError>(())
    /// ```
    pub fn decode(target: &str, text: &str) -> Option<Self> {
        let words: BTreeMap<&str, &str> = text.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        let number = |word: &str| words.get(word)?.parse().ok();
        let reason = match *words.get("why")? {
            "unheld" => Reason::Unheld,
            "gone" => Reason::HolderGone,
            "draining" => Reason::Draining,
            "unable" => Reason::Unable,
            "hand_back" => Reason::HandBack,
            "surplus" => Reason::Surplus { held: number("held")?, share: number("share")? },
            _ => return None,
        };
        let from = words.get("from").filter(|from| !from.is_empty()).map(|from| InstanceId::foreign(from));
        Some(Self { target: target.to_owned(), from, to: InstanceId::foreign(words.get("to")?), reason })
    }
}

/// Why a target should have another holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Nobody holds it.
    Unheld,
    /// Whoever holds it is gone, and its lease will run out.
    HolderGone,
    /// Whoever holds it is leaving.
    Draining,
    /// Its holder cannot work at present.
    Unable,
    /// The instance that held it before has been restarted.
    HandBack,
    /// Whoever holds it holds more than its share.
    Surplus {
        /// How many it holds.
        held: usize,
        /// How many it should.
        share: usize,
    },
}

impl Reason {
    /// The word for interfaces.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Unheld => "unheld",
            Self::HolderGone => "gone",
            Self::Draining => "draining",
            Self::Unable => "unable",
            Self::HandBack => "hand_back",
            Self::Surplus { .. } => "surplus",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unheld => f.write_str("nobody holds it"),
            Self::HolderGone => f.write_str("its holder is gone"),
            Self::Draining => f.write_str("its holder is leaving"),
            Self::Unable => f.write_str("its holder cannot work"),
            Self::HandBack => f.write_str("the instance that held it before is back"),
            Self::Surplus { held, share } => write!(f, "its holder has {held}, and {share} is its share"),
        }
    }
}

/// Who should hold what.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// How many each instance should hold.
    pub shares: BTreeMap<InstanceId, usize>,
    /// What should move; all else stays where it is.
    pub moves: Vec<Move>,
    owners: BTreeMap<String, InstanceId>,
}

impl Plan {
    /// Who should hold a target: who holds it, unless it should move. `None` when there is nobody, or no such target.
    pub fn owner(&self, target: &str) -> Option<&InstanceId> {
        self.owners.get(target)
    }

    /// The move of a target, if it should move.
    pub fn move_of(&self, target: &str) -> Option<&Move> {
        self.moves.iter().find(|found| found.target == target)
    }
}

/// Works out who should hold what. The fewest targets move that can: those that nobody holds, and what is held beyond shares.
///
/// ```
/// use tenure::InstanceId;
/// use tenure::placement::{Held, Peer, plan};
///
/// let (one, two) = (InstanceId::new("api-1")?, InstanceId::new("api-2")?);
/// let held: Vec<Held> =
///     (0..4).map(|n| Held { target: format!("eu-{n}"), holder: Some(one.clone()) }).collect();
/// let plan = plan(&[Peer::new(one), Peer::new(two.clone())], &held);
/// assert_eq!(plan.moves.len(), 2);
/// assert!(plan.moves.iter().all(|planned| planned.to == two));
/// # Ok::<(), tenure::NameError>(())
/// ```
pub fn plan(peers: &[Peer], targets: &[Held]) -> Plan {
    let places: BTreeMap<&InstanceId, usize> = peers.iter().enumerate().map(|(n, peer)| (&peer.instance, n)).collect();
    let mut table = Table { peers: peers.to_vec(), mine: vec![Vec::new(); peers.len()], unheld: Vec::new() };
    for (at, held) in targets.iter().enumerate() {
        match held.holder.as_ref().and_then(|holder| places.get(holder)) {
            Some(place) => table.mine[*place].push(at),
            None => table.unheld.push(at),
        }
    }
    table.count();
    let scores: Vec<TargetScore> = targets.iter().map(|held| TargetScore::of(&held.target)).collect();
    let mut moves = Vec::new();

    // First what nobody holds, each to whom it suits best among those who have room.
    let room = shares(&table.peers, table.unheld.len());
    for at in std::mem::take(&mut table.unheld) {
        let suits = |n: &usize| (InstanceScore::of(&peers[*n].instance).with(scores[at]), &peers[*n].instance);
        let free = (0..peers.len()).filter(|n| table.mine[*n].len() < room[*n]).max_by_key(suits);
        if let Some(to) = free {
            table.mine[to].push(at);
            let from = targets[at].holder.clone();
            let reason = if from.is_some() { Reason::HolderGone } else { Reason::Unheld };
            moves.push(Move { target: targets[at].target.clone(), from, to: peers[to].instance.clone(), reason });
        }
    }
    table.count();

    // Then what is held beyond shares, as everybody would give it away by itself.
    let shares = shares(&table.peers, 0);
    let mut given = Vec::new();
    for (n, peer) in table.peers.iter().enumerate() {
        let mine: Vec<TargetScore> = table.mine[n].iter().map(|at| scores[*at]).collect();
        for gift in surrender(&peer.instance, &table.peers, &shares, &mine, |_, _| 0) {
            given.push((n, table.mine[n][gift.target], gift.to));
        }
    }
    let mut owners: BTreeMap<String, InstanceId> = BTreeMap::new();
    for (n, mine) in table.mine.iter().enumerate() {
        owners.extend(mine.iter().map(|at| (targets[*at].target.clone(), peers[n].instance.clone())));
    }
    for (from, at, to) in given {
        let peer = &table.peers[from];
        let reason = match peer.presence {
            Presence::Draining => Reason::Draining,
            Presence::Unable => Reason::Unable,
            _ => Reason::Surplus { held: peer.held, share: shares[from] },
        };
        let (target, to) = (targets[at].target.clone(), peers[to].instance.clone());
        owners.insert(target.clone(), to.clone());
        moves.push(Move { target, from: Some(peer.instance.clone()), to, reason });
    }
    let shares = peers.iter().map(|peer| peer.instance.clone()).zip(shares).collect();
    Plan { shares, moves, owners }
}

/// Who holds which targets, by their places.
struct Table {
    peers: Vec<Peer>,
    mine: Vec<Vec<usize>>,
    unheld: Vec<usize>,
}

impl Table {
    /// What the table says is what counts, whatever the peers said.
    fn count(&mut self) {
        for (peer, mine) in self.peers.iter_mut().zip(&self.mine) {
            peer.held = mine.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::placement::FULL_WEIGHT;

    fn id(n: usize) -> InstanceId {
        InstanceId::new(&format!("api-{n}")).unwrap()
    }

    fn fleet(count: usize) -> Vec<Peer> {
        (0..count).map(|n| Peer::new(id(n))).collect()
    }

    fn unheld(targets: impl IntoIterator<Item = String>) -> Vec<Held> {
        targets.into_iter().map(|target| Held { target, holder: None }).collect()
    }

    /// The targets after a plan was carried out.
    fn carried_out(plan: &Plan, targets: &[Held]) -> Vec<Held> {
        let after = |held: &Held| Held { target: held.target.clone(), holder: plan.owner(&held.target).cloned() };
        targets.iter().map(after).collect()
    }

    fn counts(peers: &[Peer], targets: &[Held]) -> Vec<usize> {
        let count = |peer: &Peer| targets.iter().filter(|held| held.holder.as_ref() == Some(&peer.instance)).count();
        peers.iter().map(count).collect()
    }

    #[test]
    fn every_fleet_up_to_twenty_shares_up_to_two_hundred_targets_within_one() {
        let uuid = |n: usize| {
            let hash = xxhash_rust::xxh3::xxh3_128(&n.to_le_bytes());
            format!(
                "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
                hash >> 96,
                (hash >> 80) & 0xffff,
                (hash >> 64) & 0xfff,
                (hash >> 48) & 0xfff,
                hash & 0xffff_ffff_ffff
            )
        };
        let last = |n: usize| format!("5f0f2e4a-8d0c-4b9e-9c57-1b6f1f6ea{n:03x}");
        let styles: [&dyn Fn(usize) -> String; 4] =
            [&uuid, &last, &|n| format!("endpoint-{n}"), &|n| format!("10.0.{}.{}:9100", n / 250, n % 250)];
        for style in styles {
            for instances in 1..=20 {
                let peers = fleet(instances);
                for count in 0..=200 {
                    let targets = unheld((0..count).map(style));
                    let after = counts(&peers, &carried_out(&plan(&peers, &targets), &targets));
                    let (least, most) = (after.iter().min().unwrap(), after.iter().max().unwrap());
                    assert!(
                        most - least <= 1 && after.iter().sum::<usize>() == count,
                        "{instances} share {count}: {after:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn reasons_are_given() {
        let mut peers = fleet(3);
        peers[2].presence = Presence::Draining;
        let holder = |n: usize| match n {
            0..4 => Some(id(0)),
            4 => Some(id(2)),
            5 => Some(id(77)),
            _ => None,
        };
        let targets: Vec<Held> = (0..7).map(|n| Held { target: format!("t-{n}"), holder: holder(n) }).collect();
        let plan = plan(&peers, &targets);
        let reason = |n: usize| plan.move_of(&format!("t-{n}")).map(|found| found.reason);
        assert_eq!(reason(6), Some(Reason::Unheld));
        assert_eq!(reason(5), Some(Reason::HolderGone));
        assert_eq!(reason(4), Some(Reason::Draining));
        assert_eq!(plan.moves.len(), 3, "{plan:?}");
        assert!(plan.owner("t-4").is_some_and(|owner| *owner != id(2)));
        assert_eq!(plan.owner("t-8"), None);
    }

    #[test]
    fn with_nobody_to_take_them_targets_stay_where_they_are() {
        let mut peers = fleet(2);
        let targets = unheld(["a".to_owned(), "b".to_owned()]);
        assert_eq!(plan(&[], &targets).moves, []);
        peers.iter_mut().for_each(|peer| peer.presence = Presence::Draining);
        let held: Vec<Held> = targets.iter().map(|t| Held { target: t.target.clone(), holder: Some(id(0)) }).collect();
        let plan = plan(&peers, &held);
        assert_eq!((plan.moves.len(), plan.owner("a")), (0, Some(&id(0))));
    }

    proptest! {
        /// Joins, leaves, crashes, drains and weights, one after the other.
        #[test]
        fn through_any_change_the_fewest_targets_move_and_then_none(
            start in 1..6_usize,
            count in 0..60_usize,
            changes in prop::collection::vec((0..5_u8, 0..8_usize), 1..12),
        ) {
            let mut peers = fleet(start);
            let mut targets = unheld((0..count).map(|n| format!("endpoint-{n}")));
            let mut next = start;
            for (what, whom) in changes {
                let whom = whom % peers.len().max(1);
                match what {
                    0 => { peers.push(Peer::new(id(next))); next += 1; }
                    1 if peers.len() > 1 => { peers.remove(whom); }
                    2 => if let Some(peer) = peers.get_mut(whom) { peer.presence = Presence::Draining; },
                    3 => if let Some(peer) = peers.get_mut(whom) { peer.weight = FULL_WEIGHT * 3 - peer.weight; },
                    _ => peers.retain(|peer| peer.presence != Presence::Draining),
                }
                let plan = plan(&peers, &targets);
                let after = carried_out(&plan, &targets);
                let ready = peers.iter().any(Peer::takes_part);
                if ready {
                    // Whatever is not held by its own share's worth of keepers has to move, and nothing else does.
                    let (before, now) = (counts(&peers, &targets), counts(&peers, &after));
                    let kept: usize = before.iter().zip(&now).map(|(b, n)| *b.min(n)).sum();
                    prop_assert_eq!(plan.moves.len(), count - kept);
                    let shares: Vec<usize> = peers.iter().map(|peer| plan.shares[&peer.instance]).collect();
                    prop_assert_eq!(now, shares);
                    prop_assert_eq!(super::plan(&peers, &after).moves, []);
                }
                targets = after;
            }
        }
    }
}
