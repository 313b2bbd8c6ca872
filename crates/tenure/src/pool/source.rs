//! Sources of a pool's targets.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use futures_util::StreamExt;
use tokio::sync::mpsc::{self, WeakUnboundedSender};
use tokio::sync::watch;

use super::Naming;
use super::TargetName;
use super::driver::PoolCommand;
use super::target::Payloads;
use crate::name::NameError;
use crate::store::{Announcement, SubscriptionItem};
use crate::tenure::{Documents, RequestError};

/// How often to read the list without an announcement: announcements are hints.
const READ_IDS_EVERY: Duration = Duration::from_secs(10);

/// The delay before the list is read, so that many changes cause one read.
const CHANGE_DEBOUNCE: Duration = Duration::from_millis(20);

/// A stream of sets of targets.
pub(super) type TargetSource<T> = Pin<Box<dyn Stream<Item = Vec<(TargetName, T)>> + Send>>;

/// Names that are not valid targets, and why.
pub(super) type Rejected = Vec<(String, NameError)>;

/// Forwards the sets of a source until it or the pool ends. When the source ends, its last set stays.
pub(super) async fn follow_source<T>(
    mut source: TargetSource<T>,
    payloads: Payloads<T>,
    naming: Naming,
    commands: WeakUnboundedSender<PoolCommand>,
    rejected: watch::Sender<Rejected>,
) {
    while let Some(set) = source.next().await {
        let (mut targets, mut unusable) = (Vec::new(), Vec::new());
        for (name, payload) in set {
            match naming.lease(&name) {
                Ok(_) => targets.push((name, payload)),
                Err(error) => unusable.push((name.to_string(), error)),
            }
        }
        rejected.send_replace(unusable);
        let Some(commands) = commands.upgrade() else { return };
        if payloads.replace(targets, |names| commands.send(PoolCommand::Targets(names))).is_err() {
            return;
        }
    }
}

impl Documents {
    /// The ids of the documents, for [`targets_from`](super::PoolBuilder::targets_from): all of them now, and again
    /// after every change. The stream ends if the name of the collection is not valid.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn follow(&self) -> DocumentIds {
        let (send, sets) = mpsc::channel(1);
        let (documents, mut announcements) = (self.clone(), self.tenure.announcements());
        tokio::spawn(async move {
            let Ok(collection) = documents.collection.clone() else { return };
            let concerns = |announcement: &Announcement| match announcement {
                Announcement::IndexChanged { index } => *index == collection,
                Announcement::DocumentChanged { document } => document.collection == collection,
                _ => false,
            };
            loop {
                if let Ok::<_, RequestError>(ids) = documents.ids().await
                    && send.send(ids.into_iter().collect()).await.is_err()
                {
                    return;
                }
                let changed = async {
                    loop {
                        match announcements.next().await {
                            SubscriptionItem::Announced(announcement) if concerns(&announcement) => return true,
                            SubscriptionItem::Announced(_) => {}
                            SubscriptionItem::Gap => return true,
                            SubscriptionItem::Closed => return false,
                        }
                    }
                };
                tokio::select! {
                    goes_on = changed => {
                        if !goes_on {
                            return;
                        }
                        // Many documents may change at once.
                        tokio::time::sleep(CHANGE_DEBOUNCE).await;
                        announcements.skip();
                    }
                    () = tokio::time::sleep(READ_IDS_EVERY) => {}
                    () = send.closed() => return,
                }
            }
        });
        DocumentIds(sets)
    }
}

/// A stream of the ids of a collection's documents.
///
/// ```
/// use futures_util::StreamExt;
/// use tenure::Tenure;
///
/// # async fn poll(_: tenure::pool::Target, term: tenure::TermHandle) -> Result<(), tenure::WorkError> {
/// #     term.draining().await;
/// #     Ok(())
/// # }
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// tenure.documents("servers").create("eu-1", b"10.0.0.7").await?;
/// let mut ids = tenure.documents("servers").follow();
/// assert!(ids.next().await.is_some_and(|ids| ids.contains("eu-1")));
///
/// let european = ids.map(|ids| ids.into_iter().filter(|id| id.starts_with("eu-")).collect::<Vec<_>>());
/// let pool = tenure.pool("poll").targets_from(european).run(poll).start()?;
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DocumentIds(mpsc::Receiver<BTreeSet<String>>);

impl Stream for DocumentIds {
    type Item = BTreeSet<String>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
