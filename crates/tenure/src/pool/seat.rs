//! One target that is held: its work, from the grant until everything of it is over.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::Target;
use crate::lease::{ReleaseReason, Wish};
use crate::name::InstanceId;
use crate::tenure::{Term, TermHandle};

/// The first and the longest pause before work that has ended is begun again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What is done with each target.
pub(super) type Work = Arc<dyn Fn(Target, TermHandle) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Why a target is let go of that is none any more.
pub(super) type RemovedBecause = Arc<dyn Fn(&str) -> ReleaseReason + Send + Sync>;

/// What becomes of a target that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Release(ReleaseReason),
    HandOver(InstanceId, ReleaseReason),
    /// Now, without waiting for the work that runs.
    Stop(ReleaseReason),
}

/// Keeps a target until it is let go of, handed over or lost. Ends when everything is over.
pub(super) async fn keep(target: Target, term: Term, work: Work, mut orders: mpsc::UnboundedReceiver<Order>) {
    let handle = (*term).clone();
    let mut working = std::pin::pin!(work_on(target, handle.clone(), work));
    let (mut works, mut listens) = (true, true);
    while works || listens {
        tokio::select! {
            () = &mut working, if works => works = false,
            order = orders.recv(), if listens => match order {
                Some(Order::Release(reason)) => term.drain(Wish::Drain(reason)),
                Some(Order::HandOver(to, reason)) => term.drain(Wish::DrainTo(to, reason)),
                Some(Order::Stop(reason)) => term.drain(Wish::Release(reason)),
                // Nobody is left who could say when to stop.
                None => {
                    listens = false;
                    term.drain(Wish::Release(ReleaseReason::Shutdown));
                }
            },
            () = handle.over() => return,
        }
    }
    handle.over().await;
}

/// Works for as long as the term lasts. Work that ends before is begun again after a while.
async fn work_on(target: Target, term: TermHandle, work: Work) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = tokio::time::Instant::now();
        // Work that panics has ended, and hurts nobody else.
        let (work, target, lease) = (work.clone(), target.clone(), term.clone());
        let once = CatchPanic(AssertUnwindSafe(Box::pin(async move { work(target, lease).await })));
        if term.run(once).await.is_err() || term.is_leaving() {
            return;
        }
        pause = if began.elapsed() < pause { (pause * 2).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = term.leaving() => return,
        }
    }
}

/// A future whose panic is its end.
struct CatchPanic(AssertUnwindSafe<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Future for CatchPanic {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| self.0.0.as_mut().poll(context)));
        polled.unwrap_or(std::task::Poll::Ready(()))
    }
}
