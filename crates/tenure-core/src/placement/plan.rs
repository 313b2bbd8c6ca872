//! The plan for a whole fleet, with reasons. No instance needs it to act; it is for people.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::json;
use crate::name::InstanceId;

use super::{InstanceLoad, InstanceScore, Presence, TargetScore, plan_handoffs, quotas};

/// A target and its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The target.
    pub target: String,
    /// Its holder. A holder that is not among the loads is gone.
    pub holder: Option<InstanceId>,
}

/// A target that should have another holder.
///
/// ```
/// use tenure::Tenure;
///
/// # async fn poll(_: tenure::pool::Target, term: tenure::TermHandle) -> Result<(), tenure::WorkError> {
/// #     term.draining().await;
/// #     Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = tenure.pool("poll").targets(["eu-1"]).run(poll).start()?;
/// if let Some((moved, at)) = pool.last_move("eu-1").await? {
///     println!("moved to {} at {at:?}: {}", moved.to, moved.reason);
/// }
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The target.
    #[serde(skip)]
    pub target: String,
    /// Its holder.
    pub from: Option<InstanceId>,
    /// The instance that should hold it.
    pub to: InstanceId,
    /// Why.
    pub reason: MoveReason,
}

impl Move {
    /// Encodes the move for the record beside the lease, for [`decode`](Self::decode).
    pub fn encode(&self) -> String {
        json::encode(self)
    }

    /// Decodes the output of [`encode`](Self::encode) for this target; `None` for anything else.
    ///
    /// ```
    /// use tenure::InstanceId;
    /// use tenure_core::placement::{Move, MoveReason};
    ///
    /// let (from, to) = (Some(InstanceId::new("api-1")?), InstanceId::new("api-2")?);
    /// let moved = Move { target: "eu-1".to_owned(), from, to, reason: MoveReason::Surplus { held: 5, quota: 3 } };
    /// assert_eq!(moved.encode(), r#"{"from":"api-1","to":"api-2","reason":{"surplus":{"held":5,"quota":3}}}"#);
    /// assert_eq!(Move::decode("eu-1", &moved.encode()), Some(moved));
    /// # Ok::<(), tenure::NameError>(())
    /// ```
    pub fn decode(target: &str, text: &str) -> Option<Self> {
        Some(Self { target: target.to_owned(), ..json::decode(text.as_bytes())? })
    }
}

/// Why a target should have another holder.
///
/// ```
/// use tenure::pool::MoveReason;
///
/// let reason = MoveReason::Surplus { held: 5, quota: 3 }; // as in `Pool::last_move`
/// assert_eq!(reason.as_str(), "surplus");
/// assert_eq!(reason.to_string(), "its holder has 5, and its quota is 3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MoveReason {
    /// It is unheld.
    Unheld,
    /// Its holder is gone, and its lease will expire.
    HolderGone,
    /// Its holder is leaving.
    Draining,
    /// Its holder cannot work at present.
    Unable,
    /// The instance that held it before was restarted.
    HandBack,
    /// Its holder holds more than its quota.
    Surplus {
        /// Number of targets it holds.
        held: usize,
        /// Its quota.
        quota: usize,
    },
}

impl MoveReason {
    /// The word used in interfaces.
    pub fn as_str(&self) -> &'static str {
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

impl fmt::Display for MoveReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unheld => f.write_str("no instance holds it"),
            Self::HolderGone => f.write_str("its holder is gone"),
            Self::Draining => f.write_str("its holder is leaving"),
            Self::Unable => f.write_str("its holder cannot work"),
            Self::HandBack => f.write_str("the instance that held it before is back"),
            Self::Surplus { held, quota } => write!(f, "its holder has {held}, and its quota is {quota}"),
        }
    }
}

/// Which instance should hold which target.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementPlan {
    /// The quota of each instance.
    pub quotas: BTreeMap<InstanceId, usize>,
    /// The targets that should move; all others stay.
    pub moves: Vec<Move>,
    holders: BTreeMap<String, InstanceId>,
}

impl PlacementPlan {
    /// The instance that should hold a target: its holder, unless it should move. `None` when there is no such instance
    /// or target.
    pub fn holder(&self, target: &str) -> Option<&InstanceId> {
        self.holders.get(target)
    }

    /// The move of a target, if it should move.
    pub fn move_of(&self, target: &str) -> Option<&Move> {
        self.moves.iter().find(|found| found.target == target)
    }
}

/// Computes which instance should hold which target. The fewest targets possible move: unheld ones and surpluses.
///
/// ```
/// use tenure::InstanceId;
/// use tenure_core::placement::{Assignment, InstanceLoad, plan};
///
/// let (one, two) = (InstanceId::new("api-1")?, InstanceId::new("api-2")?);
/// let held: Vec<Assignment> =
///     (0..4).map(|n| Assignment { target: format!("eu-{n}"), holder: Some(one.clone()) }).collect();
/// let plan = plan(&[InstanceLoad::new(one), InstanceLoad::new(two.clone())], &held);
/// assert_eq!(plan.moves.len(), 2);
/// assert!(plan.moves.iter().all(|planned| planned.to == two));
/// # Ok::<(), tenure::NameError>(())
/// ```
pub fn plan(loads: &[InstanceLoad], targets: &[Assignment]) -> PlacementPlan {
    let places: BTreeMap<&InstanceId, usize> = loads.iter().enumerate().map(|(n, load)| (&load.instance, n)).collect();
    let mut table = Assignments { loads: loads.to_vec(), mine: vec![Vec::new(); loads.len()], unheld: Vec::new() };
    for (at, held) in targets.iter().enumerate() {
        match held.holder.as_ref().and_then(|holder| places.get(holder)) {
            Some(place) => table.mine[*place].push(at),
            None => table.unheld.push(at),
        }
    }
    table.count();
    let scores: Vec<TargetScore> = targets.iter().map(|held| TargetScore::of(&held.target)).collect();
    let mut moves = Vec::new();

    // First the unheld targets, each to the highest-ranked instance with room.
    let room = quotas(&table.loads, table.unheld.len());
    for at in std::mem::take(&mut table.unheld) {
        let suits = |n: &usize| (InstanceScore::of(&loads[*n].instance).with(scores[at]), &loads[*n].instance);
        let free = (0..loads.len()).filter(|n| table.mine[*n].len() < room[*n]).max_by_key(suits);
        if let Some(to) = free {
            table.mine[to].push(at);
            let from = targets[at].holder.clone();
            let reason = if from.is_some() { MoveReason::HolderGone } else { MoveReason::Unheld };
            moves.push(Move { target: targets[at].target.clone(), from, to: loads[to].instance.clone(), reason });
        }
    }
    table.count();

    // Then the surpluses, as every instance would hand them over by itself.
    let quotas = quotas(&table.loads, 0);
    let mut given = Vec::new();
    for (n, load) in table.loads.iter().enumerate() {
        let mine: Vec<TargetScore> = table.mine[n].iter().map(|at| scores[*at]).collect();
        for handoff in plan_handoffs(&load.instance, &table.loads, &quotas, &mine, |_, _| 0) {
            given.push((n, table.mine[n][handoff.target], handoff.to));
        }
    }
    let mut holders: BTreeMap<String, InstanceId> = BTreeMap::new();
    for (n, mine) in table.mine.iter().enumerate() {
        holders.extend(mine.iter().map(|at| (targets[*at].target.clone(), loads[n].instance.clone())));
    }
    for (from, at, to) in given {
        let load = &table.loads[from];
        let reason = match load.presence {
            Presence::Draining => MoveReason::Draining,
            Presence::Unable => MoveReason::Unable,
            _ => MoveReason::Surplus { held: load.held, quota: quotas[from] },
        };
        let (target, to) = (targets[at].target.clone(), loads[to].instance.clone());
        holders.insert(target.clone(), to.clone());
        moves.push(Move { target, from: Some(load.instance.clone()), to, reason });
    }
    let quotas = loads.iter().map(|load| load.instance.clone()).zip(quotas).collect();
    PlacementPlan { quotas, moves, holders }
}

/// The targets of each instance, by index.
struct Assignments {
    loads: Vec<InstanceLoad>,
    mine: Vec<Vec<usize>>,
    unheld: Vec<usize>,
}

impl Assignments {
    /// The counts follow from the table, whatever the loads said.
    fn count(&mut self) {
        for (load, mine) in self.loads.iter_mut().zip(&self.mine) {
            load.held = mine.len();
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

    fn fleet(count: usize) -> Vec<InstanceLoad> {
        (0..count).map(|n| InstanceLoad::new(id(n))).collect()
    }

    fn unheld(targets: impl IntoIterator<Item = String>) -> Vec<Assignment> {
        targets.into_iter().map(|target| Assignment { target, holder: None }).collect()
    }

    /// The targets after a plan was carried out.
    fn carried_out(plan: &PlacementPlan, targets: &[Assignment]) -> Vec<Assignment> {
        let after =
            |held: &Assignment| Assignment { target: held.target.clone(), holder: plan.holder(&held.target).cloned() };
        targets.iter().map(after).collect()
    }

    fn counts(loads: &[InstanceLoad], targets: &[Assignment]) -> Vec<usize> {
        let count =
            |load: &InstanceLoad| targets.iter().filter(|held| held.holder.as_ref() == Some(&load.instance)).count();
        loads.iter().map(count).collect()
    }

    #[test]
    fn up_to_twenty_instances_balance_up_to_two_hundred_targets_within_one() {
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
                let loads = fleet(instances);
                for count in 0..=200 {
                    let targets = unheld((0..count).map(style));
                    let after = counts(&loads, &carried_out(&plan(&loads, &targets), &targets));
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
    fn every_move_has_a_reason() {
        let mut loads = fleet(3);
        loads[2].presence = Presence::Draining;
        let holder = |n: usize| match n {
            0..4 => Some(id(0)),
            4 => Some(id(2)),
            5 => Some(id(77)),
            _ => None,
        };
        let targets: Vec<Assignment> =
            (0..7).map(|n| Assignment { target: format!("t-{n}"), holder: holder(n) }).collect();
        let plan = plan(&loads, &targets);
        let reason = |n: usize| plan.move_of(&format!("t-{n}")).map(|found| found.reason);
        assert_eq!(reason(6), Some(MoveReason::Unheld));
        assert_eq!(reason(5), Some(MoveReason::HolderGone));
        assert_eq!(reason(4), Some(MoveReason::Draining));
        assert_eq!(plan.moves.len(), 3, "{plan:?}");
        assert!(plan.holder("t-4").is_some_and(|owner| *owner != id(2)));
        assert_eq!(plan.holder("t-8"), None);
    }

    #[test]
    fn without_an_eligible_instance_no_target_moves() {
        let mut loads = fleet(2);
        let targets = unheld(["a".to_owned(), "b".to_owned()]);
        assert_eq!(plan(&[], &targets).moves, []);
        loads.iter_mut().for_each(|load| load.presence = Presence::Draining);
        let held: Vec<Assignment> =
            targets.iter().map(|t| Assignment { target: t.target.clone(), holder: Some(id(0)) }).collect();
        let plan = plan(&loads, &held);
        assert_eq!((plan.moves.len(), plan.holder("a")), (0, Some(&id(0))));
    }

    proptest! {
        /// Joins, leaves, crashes, drains and weights, one after the other.
        #[test]
        fn any_change_moves_the_fewest_targets_and_then_none(
            start in 1..6_usize,
            count in 0..60_usize,
            changes in prop::collection::vec((0..5_u8, 0..8_usize), 1..12),
        ) {
            let mut loads = fleet(start);
            let mut targets = unheld((0..count).map(|n| format!("endpoint-{n}")));
            let mut next = start;
            for (what, whom) in changes {
                let whom = whom % loads.len().max(1);
                match what {
                    0 => { loads.push(InstanceLoad::new(id(next))); next += 1; }
                    1 if loads.len() > 1 => { loads.remove(whom); }
                    2 => if let Some(load) = loads.get_mut(whom) { load.presence = Presence::Draining; },
                    3 => if let Some(load) = loads.get_mut(whom) { load.weight = FULL_WEIGHT * 3 - load.weight; },
                    _ => loads.retain(|load| load.presence != Presence::Draining),
                }
                let plan = plan(&loads, &targets);
                let after = carried_out(&plan, &targets);
                let ready = loads.iter().any(InstanceLoad::is_eligible);
                if ready {
                    // Only targets above the quota of their holder, or without one, have to move.
                    let (before, now) = (counts(&loads, &targets), counts(&loads, &after));
                    let kept: usize = before.iter().zip(&now).map(|(b, n)| *b.min(n)).sum();
                    prop_assert_eq!(plan.moves.len(), count - kept);
                    let quotas: Vec<usize> = loads.iter().map(|load| plan.quotas[&load.instance]).collect();
                    prop_assert_eq!(now, quotas);
                    prop_assert_eq!(super::plan(&loads, &after).moves, []);
                }
                targets = after;
            }
        }
    }
}
