//! Requests for leases.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Tenure, Term};
use crate::keeper::{
    AcquireError, AcquireMode, Command, Heartbeat, KeeperHandle, PendingAcquire, StatusSender, TermGuard, WaiterId,
};
use crate::lease::{LeaseSettings, LeaseSettingsBuilder, SettingsError};
use crate::name::{LeaseName, NameError};

/// A request for a lease. Settings not given here follow from the ttl, which is 30 s by default.
///
/// ```
/// use std::time::Duration;
/// use tenure::{AcquireError, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let first = tenure.lease("import").ttl(Duration::from_secs(10)).try_acquire().await?;
/// let second = tenure.lease("import").timeout(Duration::from_millis(20)).acquire().await;
/// assert!(matches!(second, Err(AcquireError::TimedOut { .. })));
/// # drop(first);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct LeaseBuilder {
    tenure: Tenure,
    name: Result<LeaseName, NameError>,
    /// The single settings, once one was given.
    settings: Option<LeaseSettingsBuilder>,
    checked: Option<LeaseSettings>,
    timeout: Option<Duration>,
}

impl LeaseBuilder {
    pub(super) fn new(tenure: Tenure, name: Result<LeaseName, NameError>) -> Self {
        Self { tenure, name, settings: None, checked: None, timeout: None }
    }

    /// Sets the ttl of the lease.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings = Some(self.settings.unwrap_or_default().ttl(ttl));
        self
    }

    /// Sets the time that cancelled work has to end before the lease can expire.
    pub fn stop_budget(mut self, budget: Duration) -> Self {
        self.settings = Some(self.settings.unwrap_or_default().stop_budget(budget));
        self
    }

    /// Ends the term as stalled, by stopping renewals, after this long without [progress](super::TermHandle::progress).
    pub fn stall_after(mut self, timeout: Duration) -> Self {
        self.settings = Some(self.settings.unwrap_or_default().stall_after(timeout));
        self
    }

    /// While waiting, takes the lease over from a holder that renews but has made no progress for this long.
    pub fn take_over_after(mut self, timeout: Duration) -> Self {
        self.settings = Some(self.settings.unwrap_or_default().take_over_after(timeout));
        self
    }

    /// Sets all settings at once. With one of the settings above as well, the request fails.
    pub fn settings(mut self, settings: LeaseSettings) -> Self {
        self.checked = Some(settings);
        self
    }

    /// Limits the time to wait.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Acquires the lease, and waits for it if necessary. A waiter is notified of the release and does not poll. Tasks that
    /// wait on clones of one [`Tenure`] take turns; among instances the order is not defined. While the
    /// store cannot be reached, it waits for that, too. A task that acquires a lease it already holds waits until it
    /// releases it.
    ///
    /// # Errors
    /// When the name or the settings are not valid, the timeout has passed, the store refuses for a reason that waiting
    /// does not fix, or Tenure was shut down.
    ///
    /// # Cancel safety
    /// Safe: dropping the future stops waiting, and a lease granted meanwhile is released.
    pub async fn acquire(self) -> Result<Term, AcquireError> {
        self.acquire_with(AcquireMode::Wait, None, None).await
    }

    /// Like [`acquire`](Self::acquire), for a candidate: reports its status and sends heartbeats while waiting.
    pub(crate) async fn acquire_as_candidate(
        self,
        mode: AcquireMode,
        status_sender: StatusSender,
        heartbeat: Arc<Heartbeat>,
    ) -> Result<Term, AcquireError> {
        self.acquire_with(mode, Some(status_sender), Some(heartbeat)).await
    }

    /// Acquires the lease if it is unheld.
    ///
    /// # Errors
    /// [`AcquireError::Held`] when another holder has it, even another task of this process. Otherwise as for
    /// [`acquire`](Self::acquire), and when the store cannot be reached.
    ///
    /// # Cancel safety
    /// Safe: dropping the future stops the attempt, and a lease granted meanwhile is released.
    pub async fn try_acquire(self) -> Result<Term, AcquireError> {
        self.acquire_with(AcquireMode::Try, None, None).await
    }

    async fn acquire_with(
        self,
        mode: AcquireMode,
        status_sender: Option<StatusSender>,
        heartbeat: Option<Arc<Heartbeat>>,
    ) -> Result<Term, AcquireError> {
        let name = self.name?;
        let settings = match (self.checked, self.settings) {
            (Some(_), Some(_)) => return Err(SettingsError::SetTwice.into()),
            (Some(settings), None) => settings,
            (None, single) => single.unwrap_or_default().build()?,
        };
        let settings = self.tenure.share_settings(settings);
        // `try_acquire` waits no longer than one reply and a new connection may take.
        let try_timeout = (settings.attempt_timeout() * 2).max(Duration::from_secs(1));
        let timeout = if mode == AcquireMode::Try { Some(self.timeout.unwrap_or(try_timeout)) } else { self.timeout };
        let keeper = self.tenure.keeper().clone();
        if keeper.is_forked() {
            return Err(AcquireError::ShutDown);
        }
        let (reply, answer) = oneshot::channel();
        let waiter = keeper.new_waiter_id();
        let mut waiting = WaitGuard { keeper: &keeper, waiter, is_waiting: true };
        let pending = PendingAcquire { waiter, name, settings, mode, timeout, heartbeat, reply, status_sender };
        keeper.send(Command::Acquire(pending));
        let answer: Result<TermGuard, AcquireError> = answer.await.unwrap_or(Err(AcquireError::ShutDown));
        waiting.is_waiting = false;
        answer.map(Term::new)
    }
}

/// A waiter, which gives up when dropped.
struct WaitGuard<'a> {
    keeper: &'a KeeperHandle,
    waiter: WaiterId,
    is_waiting: bool,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        if self.is_waiting {
            self.keeper.send(Command::GiveUp(self.waiter));
        }
    }
}
