//! One term and no more.

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::Election;
use super::campaign::{Ambition, Outcome, campaign};
use super::running::Running;
use crate::keeper::{AcquireError, Mode};
use crate::lease::ReleaseReason;
use crate::tenure::{Lost, TermHandle};

/// A term as leader that was asked for by itself, with [`ElectionBuilder::acquire`](super::ElectionBuilder::acquire). It is renewed until it is
/// [released](Self::release) or dropped; all that can be asked of a term is on its [`TermHandle`].
#[must_use = "dropping it gives up the leadership"]
pub struct Leadership {
    term: TermHandle,
    stop: watch::Sender<Option<ReleaseReason>>,
    over: oneshot::Receiver<()>,
}

impl Leadership {
    pub(super) async fn acquire(election: Election, mode: Mode, limit: Option<Duration>) -> Result<Self, AcquireError> {
        let running = Running::begin(&election.0.office, Ambition::OneTerm { mode, limit });
        let (stop, stopped) = watch::channel(None);
        let (elect, elected) = oneshot::channel();
        let (end, over) = oneshot::channel();
        tokio::spawn(async move {
            let mut elect = Some(elect);
            let mut hold = |term: TermHandle| {
                // Whoever asked may have left; then there is nobody who could tell us to go on, either.
                let _ = elect.take().map(|elect| elect.send(Ok(term)));
                std::future::pending::<Result<(), Infallible>>()
            };
            let outcome = campaign(running, stopped, &mut hold).await;
            let error = match outcome {
                Outcome::NotElected(error) => error,
                Outcome::Failed(never) => match never {},
                Outcome::Stopped | Outcome::ShutDown => AcquireError::ShutDown,
            };
            let _ = elect.map(|elect| elect.send(Err(error)));
            let _ = end.send(());
        });
        let term = elected.await.unwrap_or(Err(AcquireError::ShutDown))?;
        Ok(Self { term, stop, over })
    }

    /// Stops the work, waits until it is gone, and gives up the leadership.
    ///
    /// # Errors
    /// When it was lost before.
    ///
    /// # Cancel safety
    /// Safe: it goes on without anybody waiting.
    pub async fn release(self) -> Result<(), Lost> {
        self.stop.send_replace(Some(ReleaseReason::Voluntary));
        // A runtime that has ended tells nothing, and runs nothing.
        let _ = self.over.await;
        self.term.let_go_of()
    }
}

impl Deref for Leadership {
    type Target = TermHandle;

    fn deref(&self) -> &TermHandle {
        &self.term
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leadership({:?})", self.term)
    }
}
