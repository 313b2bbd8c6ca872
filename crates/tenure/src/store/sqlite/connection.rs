//! One connection: a thread that owns the open file, since SQLite blocks its caller.

use std::fmt;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use super::file::DatabaseFile;
use super::rows::Rows;
use super::{FileConfig, failure};
use crate::store::{
    AttachRequest, Attached, BoxFuture, Connection, ErrorKind, Generation, Outcome, Request, StoreError,
};

/// The part of the timeout for which the thread waits for other writers.
const LOCK_WAIT_FRACTION: f64 = 0.75;

/// Interval at which an unused connection checks that its files are in place: others of this process may wait for it
/// to end.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A connection that has attached.
pub(super) struct SqliteConnection {
    location: String,
    attached: Attached,
    jobs: mpsc::Sender<Job>,
    closed: watch::Receiver<bool>,
}

/// A batch for the thread.
struct Job {
    batch: Vec<Request>,
    until: Instant,
    outcomes: oneshot::Sender<Vec<Outcome>>,
}

impl SqliteConnection {
    pub(super) async fn attach(config: FileConfig, request: AttachRequest) -> Result<Self, StoreError> {
        let location = config.location.clone();
        let (report, reported) = oneshot::channel();
        let (jobs, queue) = mpsc::channel();
        let (closing, closed) = watch::channel(false);
        std::thread::Builder::new()
            .name("tenure-sqlite".to_owned())
            .spawn(move || {
                match attach(&config, &request) {
                    Ok((mut file, attached)) => {
                        let generation = attached.generation;
                        // When the caller has stopped waiting, the queue has ended, too.
                        let _ = report.send(Ok(attached));
                        serve(&mut file, &config, generation, &queue);
                    }
                    Err(error) => {
                        let _ = report.send(Err(error));
                    }
                }
                closing.send_replace(true);
            })
            .map_err(|error| StoreError::new(ErrorKind::Unavailable, format!("{location}: no thread: {error}")))?;
        let ended = || StoreError::new(ErrorKind::Unreachable, format!("{location}: the store's thread has ended"));
        let attached = reported.await.map_err(|_| ended())??;
        Ok(Self { location, attached, jobs, closed })
    }
}

impl Connection for SqliteConnection {
    fn attached(&self) -> &Attached {
        &self.attached
    }

    fn submit(&self, batch: Vec<Request>, timeout: Duration) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let count = batch.len();
            let error = |why: &str| StoreError::new(ErrorKind::Unreachable, format!("{}: {why}", self.location));
            let (outcomes, done) = oneshot::channel();
            // The thread gives up first, so that it can report what blocks it.
            let until = Instant::now() + timeout.mul_f64(LOCK_WAIT_FRACTION);
            if self.jobs.send(Job { batch, until, outcomes }).is_err() {
                return vec![Outcome::Failed(error("the connection was closed; attach again")); count];
            }
            match tokio::time::timeout(timeout, done).await {
                Ok(Ok(outcomes)) => outcomes,
                Ok(Err(_)) => vec![Outcome::Unknown(error("the store's thread has ended")); count],
                Err(_) => vec![Outcome::Unknown(error(&format!("no answer within {timeout:.0?}"))); count],
            }
        })
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        let mut closed = self.closed.clone();
        Box::pin(async move {
            // A thread that ended without reporting is closed, too.
            let _ = closed.wait_for(|closed| *closed).await;
        })
    }
}

impl fmt::Debug for SqliteConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteConnection({})", self.location)
    }
}

fn attach(config: &FileConfig, request: &AttachRequest) -> Result<(DatabaseFile, Attached), StoreError> {
    let failed = |error: rusqlite::Error| failure::from_sqlite(&config.path, &error);
    let until = Instant::now() + request.timeout;
    let mut file = config.open(until)?;
    let (clock, orphaned) = (file.clock(), file.orphaned);
    let tx = file.write(until)?;
    let now = clock.now();
    let mut rows = Rows::load(&tx, &config.namespace).map_err(failed)?;
    let lost_writes = config.observed().lost_companions;
    let attached = rows.attach(now, request, orphaned, lost_writes).map_err(failed)?;
    rows.save().map_err(failed)?;
    tx.commit().map_err(failed)?;
    if lost_writes {
        config.observed().lost_companions = false;
    }
    Ok((file, attached))
}

fn serve(file: &mut DatabaseFile, config: &FileConfig, generation: Generation, queue: &mpsc::Receiver<Job>) {
    loop {
        let Job { batch, until, outcomes } = match queue.recv_timeout(CHECK_EVERY) {
            Ok(job) => job,
            Err(mpsc::RecvTimeoutError::Timeout) if file.is_in_place() => continue,
            Err(_) => break,
        };
        let answers = if Instant::now() >= until {
            let why = "the store was too busy to begin in time; nothing was done";
            let error = StoreError::new(ErrorKind::Unavailable, format!("{}: {why}", config.location));
            vec![Outcome::Failed(error); batch.len()]
        } else {
            carry_out(file, config, generation, &batch, until)
                .unwrap_or_else(|failure| vec![failure.outcome(); batch.len()])
        };
        // The caller may have given up.
        let _ = outcomes.send(answers);
        file.truncate_wal();
        if !file.is_in_place() {
            break;
        }
    }
    if file.has_lost_companions() {
        config.observed().lost_companions = true;
    }
}

/// Why no request of a batch was answered.
enum BatchFailure {
    /// Nothing was done.
    NotApplied(StoreError),
    /// The batch may have been carried out.
    MaybeApplied(StoreError),
}

impl BatchFailure {
    fn outcome(self) -> Outcome {
        match self {
            Self::NotApplied(error) => Outcome::Failed(error),
            Self::MaybeApplied(error) => Outcome::Unknown(error),
        }
    }
}

/// Carries out a batch in one transaction: its requests are independent, but they are written together.
fn carry_out(
    file: &mut DatabaseFile,
    config: &FileConfig,
    generation: Generation,
    batch: &[Request],
    until: Instant,
) -> Result<Vec<Outcome>, BatchFailure> {
    let failed = |error: rusqlite::Error| BatchFailure::NotApplied(failure::from_sqlite(&config.path, &error));
    let clock = file.clock();
    let tx = file.write(until).map_err(BatchFailure::NotApplied)?;
    // Read after taking the lock: a batch that waited for it happens now.
    let now = clock.now();
    let mut rows = Rows::load(&tx, &config.namespace).map_err(failed)?;
    let mut outcomes = Vec::with_capacity(batch.len());
    for request in batch {
        outcomes.push(match rows.apply(now, generation, request) {
            Ok(reply) => Outcome::Answered(reply),
            // An error of one request, which does not affect the others.
            Err(error) if failure::is_content_error(&error) => {
                Outcome::Failed(failure::from_sqlite(&config.path, &error))
            }
            Err(error) => return Err(failed(error)),
        });
    }
    rows.save().map_err(failed)?;
    tx.commit().map_err(|error| {
        let store_error = failure::from_sqlite(&config.path, &error);
        if failure::is_commit_unknown(&error) {
            BatchFailure::MaybeApplied(store_error)
        } else {
            BatchFailure::NotApplied(store_error)
        }
    })?;
    Ok(outcomes)
}
