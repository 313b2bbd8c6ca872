//! Sources of a pool's targets.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::mpsc::{self, WeakUnboundedSender};
use tokio::sync::watch;

use super::Target;
use super::driver::PoolCommand;
use super::naming::Naming;
use crate::name::NameError;
use crate::store::{Announcement, Reply, Request, SESSIONS, SubscriptionItem};
use crate::tenure::Tenure;

/// How often to read the list without an announcement: announcements are hints.
const READ_SESSIONS_EVERY: Duration = Duration::from_secs(10);

/// The delay before the list is read, so that many changes cause one read.
const CHANGE_DEBOUNCE: Duration = Duration::from_millis(20);

/// A stream of sets of targets.
pub(super) type TargetSource = Pin<Box<dyn Stream<Item = Vec<String>> + Send>>;

/// Names that are not valid targets, and why.
pub(super) type Rejected = Vec<(String, NameError)>;

/// Forwards the sets of a source until it or the pool ends. When the source ends, its last set stays.
pub(super) async fn follow_source(
    mut source: TargetSource,
    naming: Naming,
    commands: WeakUnboundedSender<PoolCommand>,
    rejected: watch::Sender<Rejected>,
) {
    while let Some(names) = poll_fn(|context| source.as_mut().poll_next(context)).await {
        let (mut targets, mut unusable) = (BTreeSet::new(), Vec::new());
        for name in names {
            match naming.lease(&name) {
                Ok(_) => drop(targets.insert(Target::from(name))),
                Err(error) => unusable.push((name, error)),
            }
        }
        rejected.send_replace(unusable);
        let Some(commands) = commands.upgrade() else { return };
        if commands.send(PoolCommand::Targets(targets)).is_err() {
            return;
        }
    }
}

impl Tenure {
    /// The sessions of the store, for [`targets_from`](super::PoolBuilder::targets_from): all of them now, and again
    /// after every change.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn sessions(&self) -> Sessions {
        let (send, sets) = mpsc::channel(1);
        let (tenure, mut announcements) = (self.clone(), self.announcements());
        tokio::spawn(async move {
            loop {
                if let Ok(Reply::Index(entries)) = tenure.call(Request::IndexList { index: SESSIONS.to_owned() }).await
                    && send.send(entries.into_iter().collect()).await.is_err()
                {
                    return;
                }
                let changed = async {
                    loop {
                        match announcements.next().await {
                            SubscriptionItem::Announced(Announcement::IndexChanged { index }) if index == SESSIONS => {
                                return true;
                            }
                            SubscriptionItem::Announced(Announcement::SessionChanged { .. })
                            | SubscriptionItem::Gap => return true,
                            SubscriptionItem::Closed => return false,
                            SubscriptionItem::Announced(_) => {}
                        }
                    }
                };
                tokio::select! {
                    goes_on = changed => {
                        if !goes_on {
                            return;
                        }
                        // Many sessions may change at once.
                        tokio::time::sleep(CHANGE_DEBOUNCE).await;
                        announcements.skip();
                    }
                    () = tokio::time::sleep(READ_SESSIONS_EVERY) => {}
                    () = send.closed() => return,
                }
            }
        });
        Sessions(sets)
    }
}

/// A stream of the sessions of a store.
#[derive(Debug)]
pub struct Sessions(mpsc::Receiver<BTreeSet<String>>);

impl Stream for Sessions {
    type Item = BTreeSet<String>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// Converts a stream of sets into sets of names.
pub(super) struct Names<S>(pub(super) Pin<Box<S>>);

impl<S> Stream for Names<S>
where
    S: Stream,
    S::Item: IntoIterator,
    <S::Item as IntoIterator>::Item: AsRef<str>,
{
    type Item = Vec<String>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let names = |set: S::Item| set.into_iter().map(|name| name.as_ref().to_owned()).collect();
        self.0.as_mut().poll_next(context).map(|set| set.map(names))
    }
}
