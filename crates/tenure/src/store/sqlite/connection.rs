//! One connection: a thread that owns the open file, since SQLite blocks whoever calls it.

use std::fmt;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use super::file::File;
use super::rows::Rows;
use super::{Place, failure};
use crate::store::{BoxFuture, Connection, Entered, Entry, ErrorKind, Generation, Outcome, Request, StoreError};

/// The part of the limit for which the thread waits for others.
const PATIENCE: f64 = 0.75;

/// A connection that has entered.
pub(super) struct SqliteConnection {
    location: String,
    entered: Entered,
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
    pub(super) async fn enter(place: Place, entry: Entry) -> Result<Self, StoreError> {
        let location = place.location.clone();
        let (report, reported) = oneshot::channel();
        let (jobs, queue) = mpsc::channel();
        let (closing, closed) = watch::channel(false);
        std::thread::Builder::new()
            .name("tenure-sqlite".to_owned())
            .spawn(move || {
                match enter(&place, &entry) {
                    Ok((mut file, entered)) => {
                        let generation = entered.generation;
                        // When nobody waits any more the queue has ended, too.
                        let _ = report.send(Ok(entered));
                        serve(&mut file, &place, generation, &queue);
                    }
                    Err(error) => {
                        let _ = report.send(Err(error));
                    }
                }
                closing.send_replace(true);
            })
            .map_err(|error| StoreError::new(ErrorKind::Unavailable, format!("{location}: no thread: {error}")))?;
        let ended = || StoreError::new(ErrorKind::Unreachable, format!("{location}: the store's thread has ended"));
        let entered = reported.await.map_err(|_| ended())??;
        Ok(Self { location, entered, jobs, closed })
    }
}

impl Connection for SqliteConnection {
    fn entered(&self) -> &Entered {
        &self.entered
    }

    fn submit(&self, batch: Vec<Request>, limit: Duration) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let count = batch.len();
            let error = |why: &str| StoreError::new(ErrorKind::Unreachable, format!("{}: {why}", self.location));
            let (outcomes, done) = oneshot::channel();
            // The thread gives up first, so that it can say what is in its way.
            let until = Instant::now() + limit.mul_f64(PATIENCE);
            if self.jobs.send(Job { batch, until, outcomes }).is_err() {
                return vec![Outcome::Failed(error("the connection was closed; enter the store again")); count];
            }
            match tokio::time::timeout(limit, done).await {
                Ok(Ok(outcomes)) => outcomes,
                Ok(Err(_)) => vec![Outcome::Unknown(error("the store's thread has ended")); count],
                Err(_) => vec![Outcome::Unknown(error(&format!("no answer within {limit:?}"))); count],
            }
        })
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        let mut closed = self.closed.clone();
        Box::pin(async move {
            // A thread that ended without a word is closed, too.
            let _ = closed.wait_for(|closed| *closed).await;
        })
    }
}

impl fmt::Debug for SqliteConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqliteConnection({})", self.location)
    }
}

fn enter(place: &Place, entry: &Entry) -> Result<(File, Entered), StoreError> {
    let failed = |error: rusqlite::Error| failure::from_sqlite(&place.path, &error);
    let until = Instant::now() + entry.patience;
    let mut file = place.open(until)?;
    let (clock, orphaned) = (file.clock(), file.orphaned);
    let tx = file.write(until)?;
    let now = clock.now();
    let mut rows = Rows::load(&tx, &place.namespace).map_err(failed)?;
    let entered = rows.enter(now, entry, orphaned).map_err(failed)?;
    rows.save().map_err(failed)?;
    tx.commit().map_err(failed)?;
    Ok((file, entered))
}

fn serve(file: &mut File, place: &Place, generation: Generation, queue: &mpsc::Receiver<Job>) {
    while let Ok(Job { batch, until, outcomes }) = queue.recv() {
        let answers = if Instant::now() >= until {
            let why = "the store was too busy to begin in time; nothing was done";
            let error = StoreError::new(ErrorKind::Unavailable, format!("{}: {why}", place.location));
            vec![Outcome::Failed(error); batch.len()]
        } else {
            carry_out(file, place, generation, &batch, until)
                .unwrap_or_else(|failure| vec![failure.outcome(); batch.len()])
        };
        // Whoever asked may have given up.
        let _ = outcomes.send(answers);
        file.tidy_log();
        if !file.is_in_place() {
            return;
        }
    }
}

/// Why nothing of a batch was answered.
enum Failure {
    /// Nothing was done.
    Not(StoreError),
    /// It may have been.
    Perhaps(StoreError),
}

impl Failure {
    fn outcome(self) -> Outcome {
        match self {
            Self::Not(error) => Outcome::Failed(error),
            Self::Perhaps(error) => Outcome::Unknown(error),
        }
    }
}

/// Carries out a batch in one transaction: its requests stand by themselves, but they are written together.
fn carry_out(
    file: &mut File,
    place: &Place,
    generation: Generation,
    batch: &[Request],
    until: Instant,
) -> Result<Vec<Outcome>, Failure> {
    let failed = |error: rusqlite::Error| Failure::Not(failure::from_sqlite(&place.path, &error));
    let clock = file.clock();
    let tx = file.write(until).map_err(Failure::Not)?;
    // Not before the lock is ours: what waited for it happens now.
    let now = clock.now();
    let mut rows = Rows::load(&tx, &place.namespace).map_err(failed)?;
    let mut outcomes = Vec::with_capacity(batch.len());
    for request in batch {
        outcomes.push(match rows.apply(now, generation, request) {
            Ok(reply) => Outcome::Answered(reply),
            // Of one request; the others are none the worse for it.
            Err(error) if failure::is_about_contents(&error) => {
                Outcome::Failed(failure::from_sqlite(&place.path, &error))
            }
            Err(error) => return Err(failed(error)),
        });
    }
    rows.save().map_err(failed)?;
    tx.commit().map_err(|error| {
        let told = failure::from_sqlite(&place.path, &error);
        if failure::is_doubtful(&error) { Failure::Perhaps(told) } else { Failure::Not(told) }
    })?;
    Ok(outcomes)
}
