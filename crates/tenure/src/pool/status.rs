//! What an instance knows of a pool, for whoever asks: it changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::engine::Engine;
use super::io::Target;
use super::table::{TargetEntry, TargetState};
use crate::name::InstanceId;
use crate::placement::{self, InstanceLoad, InstanceScore, Presence};
use crate::time::Moment;

/// How it stands with a pool, as far as one instance knows.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Who counts as there, with how many targets; this instance last.
    pub loads: Vec<InstanceLoad>,
    /// How many targets there are.
    pub targets: usize,
    /// How many of them nobody holds.
    pub unheld: usize,
    /// For how long that has been so with the one that nobody has held for the longest.
    pub longest_unheld: Duration,
}

impl PoolStatus {
    /// How many targets more whoever holds most has than whoever holds least, of those who take part.
    pub fn spread(&self) -> usize {
        let ready = || self.loads.iter().filter(|load| load.presence == Presence::Ready).map(|load| load.held);
        ready().max().unwrap_or(0) - ready().min().unwrap_or(0)
    }
}

/// How it stands with one target, as far as one instance knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    /// Who should hold it: who holds it, unless it should move; whom it suits best among those who have room, when nobody does.
    pub preferred: Option<InstanceId>,
    /// For how long nobody has held it, if nobody does.
    pub unheld_for: Option<Duration>,
}

/// What all targets are judged by, worked out once.
struct StatusView {
    loads: Vec<InstanceLoad>,
    /// What is to be given away, and to whom.
    moves: BTreeMap<Target, InstanceId>,
    /// Who has room.
    with_room: Vec<(InstanceId, InstanceScore)>,
}

impl Engine {
    /// How it stands with the pool, as far as is known.
    pub fn status(&self, now: Moment) -> PoolStatus {
        let wanted = self.targets.iter().filter(|(_, entry)| entry.wanted);
        let unheld: Vec<Moment> = wanted.filter_map(|(_, entry)| entry.unheld_since()).collect();
        PoolStatus {
            loads: self.loads(now),
            targets: self.targets.len(),
            unheld: unheld.len(),
            longest_unheld: unheld.into_iter().min().map(|since| now.since(since)).unwrap_or_default(),
        }
    }

    /// How it stands with a target, as far as is known. `None` when there is no such target.
    pub fn target_status(&self, now: Moment, target: &str) -> Option<TargetStatus> {
        let entry = self.targets.get(target)?;
        Some(self.status_of(now, &self.view(now), target, entry))
    }

    /// The same of every target.
    pub fn target_statuses(&self, now: Moment) -> BTreeMap<Target, TargetStatus> {
        let view = self.view(now);
        let status =
            |(target, entry): (&Target, &TargetEntry)| (target.clone(), self.status_of(now, &view, target, entry));
        self.targets.iter().map(status).collect()
    }

    fn view(&self, now: Moment) -> StatusView {
        let loads = self.loads(now);
        let quotas = placement::quotas(&loads, self.unheld_count(&loads));
        // Worked out only if there is anything to give.
        let has_surplus = quotas.last().is_some_and(|quota| self.targets.held() > *quota);
        let moves = if has_surplus { self.planned_moves(now, usize::MAX) } else { Vec::new() };
        let free = loads.iter().zip(&quotas).filter(|(load, quota)| load.held < **quota);
        let free = free.map(|(load, _)| (load.instance.clone(), InstanceScore::of(&load.instance))).collect();
        StatusView { moves: moves.into_iter().collect(), with_room: free, loads }
    }

    fn status_of(&self, now: Moment, view: &StatusView, target: &str, entry: &TargetEntry) -> TargetStatus {
        let is_there = |holder: &InstanceId| view.loads.iter().any(|load| load.instance == *holder);
        let preferred = match entry.state() {
            TargetState::HeldByOther { holder } if is_there(holder) => Some(holder.clone()),
            TargetState::Releasing { to: Some(to) } => Some(to.clone()),
            TargetState::Held => Some(view.moves.get(target).unwrap_or(&self.me).clone()),
            _ => view
                .with_room
                .iter()
                .max_by_key(|(_, score)| score.with(entry.score))
                .map(|(instance, _)| instance.clone()),
        };
        TargetStatus { preferred, unheld_for: entry.unheld_since().map(|since| now.since(since)) }
    }
}
