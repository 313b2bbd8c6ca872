//! The handle of a running pool.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};

use tenure_core::pool::MOVE_RECORD;

use super::Naming;
use super::TargetError;
use super::driver::{HeldTerms, PoolCommand};
use super::outcome::{StopReport, TargetInfo};
use super::reconciler::ReconcilerTerm;
use super::source::Rejected;
use super::target::Payloads;
use super::{IntoTarget, PoolStats, PoolStatus, Target, TargetName, TargetStatus};
use crate::event::EventKind;
use crate::lease::LeaseState;
use crate::name::{InstanceId, LeaseName, NameError};
use crate::placement::Move;
use crate::store::StoreError;
use crate::tenure::{EventStream, Tenure, TermHandle};
use crate::time::ServerTime;

/// A running pool of targets with payloads of type `T`. Clones are the same pool. When the last is dropped, all targets
/// are released.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # async fn poll(_: tenure::pool::Target, term: tenure::TermHandle) -> Result<(), tenure::WorkError> {
/// #     term.draining().await;
/// #     Ok(())
/// # }
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = tenure.pool("poll").targets(["eu-1", "us-1"]).run(poll).start()?;
/// while pool.owned().len() < 2 {
///     tokio::time::sleep(Duration::from_millis(5)).await;
/// }
/// assert!(pool.is_owned("us-1")); // computed from the deadline at every call
/// pool.retarget(["eu-1", "ap-1"])?; // us-1 is released, ap-1 is acquired
/// pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pool<T = ()> {
    tenure: Tenure,
    naming: Naming,
    commands: mpsc::UnboundedSender<PoolCommand>,
    payloads: Payloads<T>,
    held: HeldTerms,
    live: watch::Receiver<Vec<InstanceId>>,
    rejected: watch::Receiver<Rejected>,
    stats: Arc<PoolStats>,
    reconciler_term: ReconcilerTerm,
}

/// The views of a pool that a handle reads without a request.
pub(super) struct Views {
    pub(super) held: HeldTerms,
    pub(super) live: watch::Receiver<Vec<InstanceId>>,
    pub(super) rejected: watch::Receiver<Rejected>,
    pub(super) stats: Arc<PoolStats>,
    pub(super) reconciler_term: ReconcilerTerm,
}

impl<T> Clone for Pool<T> {
    fn clone(&self) -> Self {
        Self {
            tenure: self.tenure.clone(),
            naming: self.naming.clone(),
            commands: self.commands.clone(),
            payloads: self.payloads.clone(),
            held: self.held.clone(),
            live: self.live.clone(),
            rejected: self.rejected.clone(),
            stats: self.stats.clone(),
            reconciler_term: self.reconciler_term.clone(),
        }
    }
}

impl<T> Pool<T> {
    pub(super) fn new(
        tenure: Tenure,
        naming: Naming,
        commands: mpsc::UnboundedSender<PoolCommand>,
        payloads: Payloads<T>,
        views: Views,
    ) -> Self {
        let Views { held, live, rejected, stats, reconciler_term } = views;
        Self { tenure, naming, commands, payloads, held, live, rejected, stats, reconciler_term }
    }

    /// Whether this instance holds a target, computed from the deadline at every call. Check it before every unit of
    /// work.
    pub fn is_owned(&self, target: &str) -> bool {
        self.lease(target).is_some_and(|term| term.is_valid())
    }

    /// The name of a target's lease.
    ///
    /// # Errors
    /// When the target is not a valid name.
    pub fn lease_name(&self, target: &str) -> Result<LeaseName, NameError> {
        self.naming.lease(target)
    }

    /// The term of a target, while this instance holds it.
    pub fn lease(&self, target: &str) -> Option<TermHandle> {
        self.held.read().unwrap_or_else(PoisonError::into_inner).get(target).cloned()
    }

    /// All targets that this instance holds, in order.
    pub fn owned(&self) -> Vec<Target<T>> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let valid = held.iter().filter(|(_, term)| term.is_valid());
        // A target that was removed has no payload any more, and is released in a moment.
        let mut owned: Vec<Target<T>> = valid.filter_map(|(target, _)| self.payloads.target(target)).collect();
        owned.sort_unstable();
        owned
    }

    /// What this instance knows about a target, whichever instance holds it. `None` when there is no such target.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lease_info(&self, target: &str) -> Option<TargetInfo> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(PoolCommand::Inspect(TargetName::from(target), reply)).ok()?;
        let mut info = answer.await.ok()??;
        if let Some(ours) = self.lease(target).map(|term| term.info()) {
            info.state = ours.state;
            info.holder = Some(ours.holder);
            info.token = Some(ours.token);
            info.acquired_at = Some(ours.acquired_at);
            info.last_renewed_at = Some(ours.last_renewed_at);
        }
        Some(info)
    }

    /// The instances that count as alive, including this one.
    pub fn live_instances(&self) -> Vec<InstanceId> {
        self.live.borrow().clone()
    }

    /// The names in the last set of the [source](super::PoolBuilder::targets_from) that are not valid targets, and why.
    pub fn rejected(&self) -> Vec<(String, NameError)> {
        self.rejected.borrow().clone()
    }

    /// Why a target last moved to another holder, and when, by the store's clock. `None` when it never moved, or when
    /// that is not known.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn last_move(&self, target: &str) -> Result<Option<(Move, ServerTime)>, StoreError> {
        let Ok(name) = self.lease_name(target) else { return Ok(None) };
        let Some(record) = self.tenure.read_record(&name, MOVE_RECORD).await? else { return Ok(None) };
        let text = String::from_utf8(record.value).ok();
        Ok(text.and_then(|text| Move::decode(target, &text)).map(|made| (made, record.at)))
    }

    /// Subscribes to all events of this pool's leases and fleet from now on, as this instance sees them.
    pub fn events(&self) -> EventStream {
        let naming = self.naming.clone();
        self.tenure.events().filter(move |event| match &event.lease {
            Some(lease) => naming.target(lease).is_some(),
            None => matches!(event.kind, EventKind::Joined { .. } | EventKind::Left { .. }),
        })
    }

    /// Acquires a target at once, whichever instance should hold it. Returns its term, even when this instance already
    /// held it.
    ///
    /// # Errors
    /// When another instance holds it, the store cannot be reached or refuses, this instance is draining, or there is
    /// no such target.
    ///
    /// # Cancel safety
    /// The target may or may not be acquired.
    pub async fn try_acquire(&self, target: &str) -> Result<TermHandle, TargetError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(PoolCommand::TryAcquire(TargetName::from(target), reply));
        sent.map_err(|_| TargetError::Stopped)?;
        answer.await.unwrap_or(Err(TargetError::Stopped))
    }

    /// The instance that should hold a target: its holder, unless it should move; the highest-ranked instance when it
    /// is unheld. `None` when there is no such target.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn preferred_owner(&self, target: &str) -> Option<InstanceId> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(PoolCommand::TargetStatus(TargetName::from(target), reply)).ok()?;
        answer.await.ok()??.preferred
    }

    /// The status of the pool. `None` when it has stopped.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn status(&self) -> Option<PoolStatus> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(PoolCommand::PoolStatus(reply)).ok()?;
        answer.await.ok()
    }

    /// The status of each target. Empty when the pool has stopped.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn target_statuses(&self) -> BTreeMap<TargetName, TargetStatus> {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(PoolCommand::TargetStatuses(reply)).is_err() {
            return BTreeMap::new();
        }
        answer.await.unwrap_or_default()
    }

    /// The role of the pool's reconciler.
    pub fn reconciler_role(&self) -> String {
        format!("{}-reconciler", self.naming.pool())
    }

    /// The term of the reconciler role, while this instance has it.
    pub fn reconciler_term(&self) -> Option<TermHandle> {
        self.reconciler_term.term()
    }

    /// Number of held targets whose lease is not certain.
    pub fn uncertain(&self) -> usize {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        held.values().filter(|term| term.state() == LeaseState::Uncertain).count()
    }

    /// Numbers of this pool on this instance: how long moves took, and how often work failed.
    pub fn stats(&self) -> &PoolStats {
        &self.stats
    }

    /// The id of this instance.
    pub fn instance_id(&self) -> &InstanceId {
        self.tenure.instance()
    }

    /// Replaces the targets: new ones are acquired, and removed ones are released. A target that stays gets its new
    /// payload [in place](Target::changed): its work goes on.
    ///
    /// # Errors
    /// When one of them is not a valid name. Then the targets stay as they are.
    pub fn retarget<I>(&self, targets: impl IntoIterator<Item = I>) -> Result<(), NameError>
    where
        I: IntoTarget<Payload = T>,
    {
        let targets: Vec<(TargetName, T)> = targets.into_iter().map(IntoTarget::into_target).collect();
        for (target, _) in &targets {
            self.naming.lease(target)?;
        }
        let _ = self.payloads.replace(targets, |names| self.commands.send(PoolCommand::Targets(names)));
        Ok(())
    }

    /// Releases a target when its work has ended, and waits for that. It moves to the highest-ranked instance, which
    /// may be this one.
    ///
    /// # Errors
    /// When this instance does not hold it, or there is no such target.
    ///
    /// # Cancel safety
    /// The target is released all the same.
    pub async fn release(&self, target: &str) -> Result<(), TargetError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(PoolCommand::Release(TargetName::from(target), reply));
        sent.map_err(|_| TargetError::Stopped)?;
        answer.await.unwrap_or(Err(TargetError::Stopped))
    }

    /// Hands over all targets and claims no more, until [`undrain`](Self::undrain).
    pub fn drain(&self) {
        let _ = self.commands.send(PoolCommand::Drain(true));
    }

    /// Claims targets again.
    pub fn undrain(&self) {
        let _ = self.commands.send(PoolCommand::Drain(false));
    }

    /// Sets whether this instance can work on its targets: holding a target without working on it is worse than not
    /// holding it. While it cannot, it hands its targets over to instances that can, and claims no more. Without such
    /// an instance it keeps them. It stays in the fleet.
    pub fn set_able(&self, able: bool) {
        let _ = self.commands.send(PoolCommand::Able(able));
    }

    /// Hands over all targets, each when its work is idle, and leaves the fleet. Targets that no instance accepts
    /// within the drain timeout are released. Returns the targets that were not handed over.
    ///
    /// # Cancel safety
    /// Safe: it continues in the background.
    pub async fn stop(&self) -> StopReport {
        let (done, over) = oneshot::channel();
        if self.commands.send(PoolCommand::Stop(done)).is_ok() {
            over.await.unwrap_or_default()
        } else {
            StopReport::default()
        }
    }
}

impl<T> fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {})", self.naming.pool(), self.tenure.instance())
    }
}
