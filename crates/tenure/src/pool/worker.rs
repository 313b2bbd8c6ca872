//! The worker of a held target: runs its work from the grant until the term has ended.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::Target;
use crate::lease::{Intent, ReleaseReason};
use crate::name::InstanceId;
use crate::tenure::{Term, TermHandle};

/// The first and the longest backoff before ended work is restarted.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// The work for each target.
pub(super) type PoolWork = Arc<dyn Fn(Target, TermHandle) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// The release reason of a removed target.
pub(super) type RemovalReason = Arc<dyn Fn(&str) -> ReleaseReason + Send + Sync>;

/// A command to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WorkerCommand {
    Release(ReleaseReason),
    HandOver(InstanceId, ReleaseReason),
    /// Releases the target now, without waiting for running work.
    Stop(ReleaseReason),
}

/// Holds a target until it is released, handed over or lost. Returns when the term has ended.
pub(super) async fn run_worker(
    target: Target,
    term: Term,
    work: PoolWork,
    mut commands: mpsc::UnboundedReceiver<WorkerCommand>,
) {
    let handle = (*term).clone();
    let mut working = std::pin::pin!(run_work(target, handle.clone(), work));
    let (mut works, mut listens) = (true, true);
    while works || listens {
        tokio::select! {
            () = &mut working, if works => works = false,
            command = commands.recv(), if listens => match command {
                Some(WorkerCommand::Release(reason)) => term.drain(Intent::Drain(reason)),
                Some(WorkerCommand::HandOver(to, reason)) => term.drain(Intent::DrainTo(to, reason)),
                Some(WorkerCommand::Stop(reason)) => term.drain(Intent::Release(reason)),
                // The driver is gone, so no command can come.
                None => {
                    listens = false;
                    term.drain(Intent::Release(ReleaseReason::Shutdown));
                }
            },
            () = handle.ended() => return,
        }
    }
    handle.ended().await;
}

/// Runs the work for as long as the term lasts. Work that ends earlier is restarted after a backoff.
async fn run_work(target: Target, term: TermHandle, work: PoolWork) {
    let mut backoff = INITIAL_BACKOFF;
    loop {
        let began = tokio::time::Instant::now();
        // A panic ends the work and affects nothing else.
        let (work, target, lease) = (work.clone(), target.clone(), term.clone());
        let once = CatchPanic(AssertUnwindSafe(Box::pin(async move { work(target, lease).await })));
        if term.run(once).await.is_err() || term.is_draining() {
            return;
        }
        backoff = if began.elapsed() < backoff { (backoff * 2).min(MAX_BACKOFF) } else { INITIAL_BACKOFF };
        tokio::select! {
            () = tokio::time::sleep(backoff) => {}
            () = term.draining() => return,
        }
    }
}

/// A future that completes when it panics.
struct CatchPanic(AssertUnwindSafe<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Future for CatchPanic {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| self.0.0.as_mut().poll(context)));
        polled.unwrap_or(std::task::Poll::Ready(()))
    }
}
