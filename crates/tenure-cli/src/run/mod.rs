//! `tenure run ROLE -- CMD`: a command that runs only while this machine leads.
//!
//! ```text
//!   tenure run ── renews the lease, tells each deadline ──▶ guardian ── starts, ends, kills ──▶ command
//! ```
//!
//! The guardian is a process of its own, so that the command ends in time also when `tenure run` hangs, is stopped or is killed.

pub mod guardian;
mod guardian_handle;
mod once;
mod processes;
mod protocol;
mod signals;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use guardian_handle::GuardianHandle;
use protocol::{Order, Report, now};
use signals::Signals;
use tenure::election::{ElectionBuilder, Leadership};
use tenure::lease::LeaseSettings;
use tenure::{AcquireError, Tenure, TermHandle};

use crate::arguments::{Run, StoreArguments};
use crate::exit::{self, Failure};

/// The first and the longest pause before a command is run again.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long the kernel may take to end what was killed: kills are sent this long before the lease can be anybody else's.
const DYING: Duration = Duration::from_millis(100);

pub async fn run(store: &StoreArguments, arguments: Run) -> Result<u8, Failure> {
    let settings = settings(&arguments)?;
    let name = store.role(&arguments.role)?;
    processes::adopt_orphans();
    let tenure = store.builder(arguments.name.as_deref())?.longest_ttl(settings.ttl()).share_events().start()?;
    if std::io::stderr().is_terminal() {
        tokio::spawn(say_why_nothing_is_granted(tenure.clone()));
    }
    let mut signals = Signals::new().map_err(Failure::system("cannot listen to signals"))?;
    let mut pause = FIRST_PAUSE;
    let code = loop {
        let election = tenure
            .election_named(name.clone())
            .ttl(settings.ttl())
            .stop_budget(settings.stop_budget())
            .heartbeat_prefix(&store.keys().heartbeats(&arguments.role));
        let acquired = tokio::select! {
            acquired = acquire(election, &arguments) => acquired,
            signal = signals.fatal() => break Ok(128 + signal),
        };
        let term = match acquired {
            Ok(term) => term,
            Err(error) => break Err(Failure::from(error)),
        };
        let began = Instant::now();
        let ended = one_term(&tenure, term, settings, &arguments, &mut signals).await;
        let code = match ended {
            Ok(code) => code,
            Err(failure) => break Err(failure),
        };
        if !arguments.restart || signals.were_fatal() {
            break Ok(code);
        }
        // One that ends as soon as it begins is not begun all the time.
        pause = if began.elapsed() < pause { (pause * 2).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            signal = signals.fatal() => break Ok(128 + signal),
        }
    };
    tenure.shutdown().await;
    code
}

/// Tells the person at the terminal that a quarantine is what is being waited for.
async fn say_why_nothing_is_granted(tenure: Tenure) {
    // When the store cannot be asked, that is said elsewhere.
    if let Ok(Some(quarantine)) = tenure.inspect_namespace().await.map(|report| report.quarantine) {
        eprintln!("tenure: {quarantine}");
    }
}

fn settings(arguments: &Run) -> Result<LeaseSettings, Failure> {
    let mut settings = LeaseSettings::builder().ttl(arguments.ttl);
    if let Some(budget) = arguments.stop_timeout {
        settings = settings.stop_budget(budget);
    }
    settings.build().map_err(|error| Failure::Usage(error.to_string()))
}

async fn acquire(election: ElectionBuilder, arguments: &Run) -> Result<Leadership, AcquireError> {
    match arguments.wait {
        _ if arguments.no_wait => election.try_acquire().await,
        Some(limit) => election.limit(limit).acquire().await,
        None => election.acquire().await,
    }
}

/// Runs the command under a term, and lets go when nothing of it is left.
async fn one_term(
    tenure: &Tenure,
    term: Leadership,
    settings: LeaseSettings,
    arguments: &Run,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    if let Some(period) = arguments.once_per
        && once::was_done(tenure, &term, period).await?
    {
        let _ = term.release().await;
        return Ok(exit::DONE);
    }
    let ended = watch(tenure, &term, settings, arguments, signals).await?;
    if arguments.once_per.is_some() && matches!(ended, Ended::ByItself(_)) {
        once::write_down(tenure, &term).await;
    }
    // A term that was lost is over all the same.
    let _ = term.release().await;
    Ok(match ended {
        Ended::ByItself(code) => code,
        Ended::NotStarted { code, why } => {
            eprintln!("tenure: {why}");
            code
        }
        Ended::LeaseLost => exit::LOST,
    })
}

enum Ended {
    ByItself(u8),
    NotStarted { code: u8, why: String },
    LeaseLost,
}

/// Has the command watched over, until nothing of it is left.
async fn watch(
    tenure: &Tenure,
    term: &TermHandle,
    settings: LeaseSettings,
    arguments: &Run,
    signals: &mut Signals,
) -> Result<Ended, Failure> {
    // Counted: the lease is not let go of while this lives.
    let Ok(work) = term.begin().await else { return Ok(Ended::LeaseLost) };
    let environment = [
        ("TENURE_ROLE", arguments.role.clone()),
        ("TENURE_INSTANCE", tenure.instance().to_string()),
        ("TENURE_TOKEN", term.token().to_string()),
    ];
    let guardian = GuardianHandle::start(&arguments.command, &environment);
    let mut guardian = guardian.map_err(Failure::system("cannot start a guardian"))?;
    guardian.tell(deadline(term, settings)).await;
    let mut looks = tokio::time::interval((settings.renew_every() / 8).min(Duration::from_millis(250)));
    let (mut told_to_end, mut ended) = (false, None);
    loop {
        tokio::select! {
            report = guardian.report() => match report {
                Some(Report::Ended { code }) => {
                    // Whether it was told to or not, it has ended while the lease was ours.
                    ended = Some(if work.is_valid() { Ended::ByItself(code) } else { Ended::LeaseLost });
                }
                Some(Report::NotStarted { code, why }) => ended = Some(Ended::NotStarted { code, why }),
                Some(Report::Gone) | None => break,
            },
            _ = term.lost(), if !told_to_end => {
                told_to_end = true;
                guardian.tell(Order::End).await;
            }
            signal = signals.next() => {
                guardian.tell(Order::Signal(signal)).await;
                if signals::stops(signal) {
                    signals::stop_ourselves();
                }
            }
            _ = looks.tick(), if !told_to_end => guardian.tell(deadline(term, settings)).await,
        }
    }
    guardian.gone().await;
    drop(work);
    Ok(ended.unwrap_or(Ended::LeaseLost))
}

/// When the command must be told to end and be gone, as things stand now.
fn deadline(term: &TermHandle, settings: LeaseSettings) -> Order {
    let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let (before, left) = (now(), term.remaining());
    let gone_by = before.saturating_add(nanos(left));
    let budget = settings.stop_budget();
    let dying = DYING.min(budget / 2);
    Order::Deadline { end_at: gone_by.saturating_sub(nanos(budget)), kill_at: gone_by.saturating_sub(nanos(dying)) }
}
