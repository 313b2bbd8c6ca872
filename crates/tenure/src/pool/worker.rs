//! The worker of a held target: runs its work from the grant until the term has ended.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::backoff::Backoff;
use tenure_core::pool::WorkerCommand;
use tokio::sync::mpsc;

use super::{PoolStats, TargetName};
use crate::event::EventKind;
use crate::lease::{Intent, ReleaseReason};
use crate::tenure::{Term, TermHandle, WorkError};

/// The work for each target.
pub(super) type PoolWork = Arc<dyn Fn(TargetName, TermHandle) -> WorkFuture + Send + Sync>;

/// The work for one target in one term.
pub(super) type WorkFuture = Pin<Box<dyn Future<Output = Result<(), WorkError>> + Send>>;

/// The release reason of a removed target.
pub(super) type RemovalReason = Arc<dyn Fn(&str) -> ReleaseReason + Send + Sync>;

/// How long to wait before ended work is restarted, unless the pool has a setting of its own.
pub(super) const RESTART_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// The number of failures in a row, after work that ran for `ran` and was started after `failures` others. It grows while
/// the work ends sooner than it took to start it.
fn count_failures(backoff: Backoff, failures: u32, ran: Duration) -> u32 {
    if failures > 0 && ran < backoff.after(failures) { failures.saturating_add(1) } else { 1 }
}

/// What a worker runs, and how.
#[derive(Clone)]
pub(super) struct WorkSettings {
    pub(super) work: PoolWork,
    pub(super) restart_backoff: Backoff,
    pub(super) stats: Arc<PoolStats>,
}

/// Holds a target until it is released, handed over or lost. Returns when the term has ended.
pub(super) async fn run_worker(
    target: TargetName,
    term: Term,
    settings: WorkSettings,
    commands: mpsc::UnboundedReceiver<WorkerCommand>,
) {
    let (handle, stats) = ((*term).clone(), settings.stats.clone());
    // Cancelled work may panic while it is dropped. That also drops the term, which releases the lease.
    if let Err(panic) = AssertUnwindSafe(hold_target(target, term, settings, commands)).catch_unwind().await {
        report_failure(&handle, &stats, panic_message(&*panic), true);
        handle.wait_until_over().await;
    }
}

async fn hold_target(
    target: TargetName,
    term: Term,
    settings: WorkSettings,
    mut commands: mpsc::UnboundedReceiver<WorkerCommand>,
) {
    let handle = (*term).clone();
    let mut working = std::pin::pin!(run_work(target, handle.clone(), settings));
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
            () = handle.wait_until_over() => return,
        }
    }
    handle.wait_until_over().await;
}

/// Runs the work for as long as the term lasts. Work that ends earlier, however it ends, is restarted after a backoff.
async fn run_work(target: TargetName, term: TermHandle, settings: WorkSettings) {
    let WorkSettings { work, restart_backoff, stats } = settings;
    let mut failures = 0;
    loop {
        let began = tokio::time::Instant::now();
        let (work, target, lease) = (work.clone(), target.clone(), term.clone());
        // Called inside the future, because the call itself may panic. A panic ends the work and affects nothing else.
        let once = AssertUnwindSafe(async move { work(target, lease).await }).catch_unwind();
        let Ok(ended) = term.run_infallible(once).await else { return };
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => report_failure(&term, &stats, error_chain(&*error), false),
            Err(panic) => report_failure(&term, &stats, panic_message(&*panic), true),
        }
        if term.is_draining() {
            return;
        }
        failures = count_failures(restart_backoff, failures, began.elapsed());
        tokio::select! {
            () = tokio::time::sleep(restart_backoff.after(failures)) => {}
            () = term.draining() => return,
        }
    }
}

fn report_failure(term: &TermHandle, stats: &PoolStats, error: String, is_panic: bool) {
    let counter = if is_panic { &stats.work_panics } else { &stats.work_errors };
    counter.fetch_add(1, Ordering::Relaxed);
    term.emit(EventKind::WorkFailed { error, is_panic });
}

/// An error with its causes.
fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The message of a panic, if it has one.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_while_work_ends_soon_and_begins_again_after_it_ran_for_long() {
        let (second, mut failures) = (Duration::from_secs(1), 0);
        let mut delay = |ran| {
            failures = count_failures(RESTART_BACKOFF, failures, ran);
            RESTART_BACKOFF.after(failures).as_secs()
        };
        assert_eq!([(); 7].map(|()| delay(second / 2)), [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(delay(second * 29), 30);
        assert_eq!(delay(second * 31), 1);
    }

    #[test]
    fn errors_are_reported_with_their_causes() {
        let error = anyhow::anyhow!("connection refused").context("cannot poll eu-1");
        let error: WorkError = error.into();
        assert_eq!(error_chain(&*error), "cannot poll eu-1: connection refused");
    }

    #[test]
    fn panics_are_reported_with_their_message() {
        assert_eq!(panic_message(&"static"), "static");
        assert_eq!(panic_message(&"owned".to_owned()), "owned");
        assert_eq!(panic_message(&17), "a panic without a message");
    }
}
