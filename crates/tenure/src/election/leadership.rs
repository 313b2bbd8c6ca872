//! One term and no more.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::Election;
use super::campaign::{Ambition, Office, Stand, introduce, win};
use super::candidacy::Turn;
use super::running::Running;
use crate::keeper::{AcquireError, Mode};
use crate::lease::{Ending, ReleaseReason};
use crate::tenure::{Lost, Term, TermHandle};

/// A term as leader that was asked for by itself, with [`ElectionBuilder::acquire`](super::ElectionBuilder::acquire). It is renewed until it is
/// [released](Self::release) or dropped; all that can be asked of a term is on its [`TermHandle`].
#[must_use = "dropping it gives up the leadership"]
pub struct Leadership {
    // Dropped in this order: what tells of the end, the lease, and then the candidacy.
    told: Telling,
    term: Term,
    stand: Arc<Mutex<Stand>>,
}

/// Tells of the end of a term, once: when it is lost, or when it is given up.
struct Telling {
    stand: Arc<Mutex<Stand>>,
    term: TermHandle,
    watcher: Option<AbortHandle>,
}

impl Drop for Telling {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
        let ending = self.term.ended_by().unwrap_or(Ending::Released(ReleaseReason::Voluntary));
        self.stand.lock().unwrap_or_else(PoisonError::into_inner).tell(Turn::Ended(ending));
    }
}

impl Leadership {
    pub(super) async fn acquire(election: Election, mode: Mode, limit: Option<Duration>) -> Result<Self, AcquireError> {
        let ambition = Ambition::OneTerm { mode, limit };
        let mut stand = Stand::new(Running::begin(&election.0.office, ambition));
        let term = match win(&mut stand).await {
            Ok(term) => term,
            Err(error) => {
                stand.tell(Turn::Failed(error.to_string()));
                return Err(error);
            }
        };
        let handle = (*term).clone();
        stand.leads(&handle);
        let stand = Arc::new(Mutex::new(stand));
        // Without a runtime there is nobody to watch: then the end is told when it is given up.
        let watching = watch(Arc::downgrade(&stand), election.0.office.clone(), handle.clone());
        let watcher = Handle::try_current().ok().map(|runtime| runtime.spawn(watching).abort_handle());
        Ok(Self { told: Telling { stand: stand.clone(), term: handle, watcher }, term, stand })
    }

    /// Stops the work, waits until it is gone, and gives up the leadership.
    ///
    /// # Errors
    /// When it was lost before.
    ///
    /// # Cancel safety
    /// Safe: it goes on without anybody waiting.
    pub async fn release(self) -> Result<(), Lost> {
        let Self { told, term, stand } = self;
        // Whoever looks must not see a leader while the store is being told.
        drop(told);
        let released = term.release().await;
        drop(stand);
        released
    }
}

/// Tells who leads, and that it does no more.
async fn watch(stand: Weak<Mutex<Stand>>, office: Arc<Office>, term: TermHandle) {
    let lost = tokio::select! {
        lost = term.lost() => lost,
        never = introduce(&office, &term) => match never {},
    };
    if let Some(stand) = stand.upgrade() {
        stand.lock().unwrap_or_else(PoisonError::into_inner).tell(Turn::Ended(lost.reason));
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
