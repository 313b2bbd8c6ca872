//! The status of a pool, as one instance knows it. Reading it changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::engine::Engine;
use super::io::TargetName;
use super::table::{TargetEntry, TargetState};
use crate::name::InstanceId;
use crate::placement::{self, InstanceLoad, InstanceScore, Presence};
use crate::time::Moment;

/// The status of a pool, as far as one instance knows.
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
/// let status = pool.status().await.ok_or("the pool has stopped")?;
/// println!("{} of {} targets are unheld, for {:?} at most", status.unheld, status.targets, status.longest_unheld);
/// for load in &status.loads {
///     println!("{} holds {}", load.instance, load.held);
/// }
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// The loads of all instances that count as present, this instance last.
    pub loads: Vec<InstanceLoad>,
    /// Number of targets.
    pub targets: usize,
    /// Number of unheld targets.
    pub unheld: usize,
    /// How long the target that has been unheld for longest has been unheld.
    pub longest_unheld: Duration,
}

impl PoolStatus {
    /// Difference between the largest and smallest number of targets held by a participating instance.
    pub fn spread(&self) -> usize {
        let ready = || self.loads.iter().filter(|load| load.presence == Presence::Ready).map(|load| load.held);
        ready().max().unwrap_or(0) - ready().min().unwrap_or(0)
    }
}

/// The status of one target, as far as one instance knows.
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
/// for (target, status) in pool.target_statuses().await {
///     if let Some(unheld_for) = status.unheld_for {
///         println!("{target} is unheld for {unheld_for:?}; {:?} should acquire it", status.preferred);
///     }
/// }
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    /// The instance that should hold it: its holder, unless it should move; when unheld, the highest-ranked instance
    /// with room.
    pub preferred: Option<InstanceId>,
    /// For how long it has been unheld, if it is.
    pub unheld_for: Option<Duration>,
}

/// The view that all targets are judged by, computed once.
struct StatusView {
    loads: Vec<InstanceLoad>,
    /// The targets to hand over, and their receivers.
    moves: BTreeMap<TargetName, InstanceId>,
    /// The instances with room.
    with_room: Vec<(InstanceId, InstanceScore)>,
}

impl Engine {
    /// The status of the pool, as far as known.
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

    /// The status of a target, as far as known. `None` when there is no such target.
    pub fn target_status(&self, now: Moment, target: &str) -> Option<TargetStatus> {
        let entry = self.targets.get(target)?;
        Some(self.status_of(now, &self.view(now), target, entry))
    }

    /// The status of every target.
    pub fn target_statuses(&self, now: Moment) -> BTreeMap<TargetName, TargetStatus> {
        let view = self.view(now);
        let status =
            |(target, entry): (&TargetName, &TargetEntry)| (target.clone(), self.status_of(now, &view, target, entry));
        self.targets.iter().map(status).collect()
    }

    fn view(&self, now: Moment) -> StatusView {
        let loads = self.loads(now);
        let quotas = placement::quotas(&loads, self.unheld_count(&loads));
        // Computed only if there is a surplus.
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
