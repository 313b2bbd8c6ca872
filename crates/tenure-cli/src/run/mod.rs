//! `tenure run ROLE -- CMD`: runs a command only while this machine leads.
//!
//! ```text
//!   tenure run ── renews the lease, sends each deadline ──▶ guardian ── starts, ends, kills ──▶ command
//! ```
//!
//! The guardian is a separate process, so that the command ends in time even if `tenure run` hangs, is stopped or is
//! killed. When the guardian does not act, `tenure run` ends the command itself.

mod cgroup;
pub mod guardian;
mod guardian_handle;
mod once;
mod processes;
mod progress;
mod protocol;
mod signals;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guardian_handle::GuardianHandle;
use progress::{PROGRESS_VARIABLE, ProgressFile};
use protocol::{Deadline, GuardianOrder, GuardianReport, now};
use signals::{SecondSignal, Signals};
use tenure::election::{ElectionBuilder, Leadership};
use tenure::lease::{Ending, LeaseSettings, Loss};
use tenure::{AcquireError, EventKind, LeaseName, ReleaseError, Tenure, TermHandle};
use tenure_core::backoff::Backoff;
use tokio::time::MissedTickBehavior;

use crate::arguments::{RunArguments, StoreArguments};
use crate::duration::format_duration;
use crate::exit::{self, CliError};
use crate::notice::{self, failure, warning};
use crate::stderr;

/// The delay before a command is run again that ends right after its start.
const RESTART_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// A wait shorter than this may end before the first reply of the store.
const SHORT_WAIT: Duration = Duration::from_secs(1);

/// The interval of retries while a store refuses that was attached before.
const REFUSED_RETRY_EVERY: Duration = Duration::from_secs(1);

/// Time for the kernel to end killed processes: kills are sent this long before the lease can have another holder.
const KILL_LEAD_TIME: Duration = Duration::from_millis(100);

/// Number of checks without a report after which the guardian may be stopped and gets SIGCONT.
const CHECKS_BEFORE_RESUME: u32 = 3;

/// Number of checks, and the time, without a report after which `tenure run` replaces the guardian.
const CHECKS_BEFORE_KILL: u32 = 40;
const MAX_SILENCE: Duration = Duration::from_secs(10);

/// Variable with the store URL, which may contain a password.
const STORE_VARIABLE: &str = "TENURE_STORE";

pub async fn run(store: &StoreArguments, arguments: RunArguments) -> Result<u8, CliError> {
    let settings = settings(&arguments)?;
    let name = store.role(&arguments.role)?;
    if let Err(error) = processes::adopt_orphans() {
        warning!(
            "cannot adopt orphaned processes ({error}): a process that leaves the command's group is not ended with it"
        );
    }
    let was_attached = Arc::new(AtomicBool::new(false));
    let attached = was_attached.clone();
    let tenure = store
        .builder(arguments.name.as_deref())?
        .longest_ttl(settings.ttl())
        .share_events()
        .on_event(move |event| _ = attached.fetch_or(event.kind == EventKind::StoreAttached, Ordering::Relaxed))
        .start()?;
    notice::set_instance(tenure.instance());
    let mut signals = Signals::new().map_err(CliError::system("cannot listen for signals"))?;
    let hides_store = has_credentials(std::env::var_os(STORE_VARIABLE)) && !arguments.pass_store;
    let runner = Runner { tenure: &tenure, settings, arguments: &arguments, hides_store, was_attached };
    let mut failures = 1;
    let code = loop {
        let mut election = tenure
            .election(name.clone())
            .ttl(settings.ttl())
            .stop_budget(settings.stop_budget())
            .heartbeat_prefix(&store.keys().heartbeats(&arguments.role));
        if let Some(limit) = settings.stall_after() {
            election = election.stall_after(limit);
        }
        let acquired = tokio::select! {
            acquired = runner.acquire_when_due(&name, election) => acquired,
            signal = signals.fatal() => break Ok(128 + signal),
        };
        let began = Instant::now();
        let run = match acquired {
            Ok(RunDecision::Leadership(leadership)) => match runner.run_term(leadership, &mut signals).await {
                Ok(Ok(run)) => run,
                // Leave the lease to expire.
                Ok(Err(SecondSignal(signal))) => return Ok(128 + signal),
                Err(failure) => break Err(failure),
            },
            Ok(RunDecision::NotDue(left)) => TermRun { code: None, next_run_in: Some(left) },
            Err(failure) => break Err(failure),
        };
        if let Some(signal) = signals.last_fatal() {
            // A command that ran has received the signal, so its own status counts.
            break Ok(run.code.unwrap_or(128 + signal));
        }
        if !arguments.restart {
            break Ok(run.code.unwrap_or(exit::DONE));
        }
        // Back off if the command ends right after its start.
        failures = if began.elapsed() < RESTART_BACKOFF.after(failures) { failures + 1 } else { 1 };
        let pause = RESTART_BACKOFF.after(failures);
        tokio::select! {
            () = tokio::time::sleep(run.next_run_in.unwrap_or(pause)) => {}
            signal = signals.fatal() => break Ok(128 + signal),
        }
    };
    match signals.or_second_signal(tenure.shutdown()).await {
        Ok(()) => code,
        Err(SecondSignal(signal)) => Ok(128 + signal),
    }
}

/// Returns whether a URL contains a user name or a password.
fn has_credentials(url: Option<OsString>) -> bool {
    url.is_some_and(|url| url.to_string_lossy().contains('@'))
}

fn settings(arguments: &RunArguments) -> Result<LeaseSettings, CliError> {
    let mut settings = LeaseSettings::builder().ttl(arguments.ttl);
    if let Some(budget) = arguments.stop_timeout {
        settings = settings.stop_budget(budget);
    }
    if let Some(limit) = arguments.stall_after {
        settings = settings.stall_after(limit);
    }
    settings.build().map_err(|error| CliError::Usage(error.to_string()))
}

async fn acquire(election: ElectionBuilder, wait: Option<Duration>, no_wait: bool) -> Result<Leadership, AcquireError> {
    match wait {
        _ if no_wait => election.try_acquire().await,
        // An unheld lease is acquired however short the wait is.
        Some(limit) if limit < SHORT_WAIT => match try_for(SHORT_WAIT, election.clone()).await {
            Err(AcquireError::Store(error)) if !error.is_retryable() => Err(AcquireError::Store(error)),
            Err(obstacle @ (AcquireError::Held { .. } | AcquireError::Quarantined(_) | AcquireError::Store(_)))
                if !limit.is_zero() =>
            {
                match election.timeout(limit).acquire().await {
                    // The wait was too short for a reply, but the obstacle is known from the first attempt.
                    Err(AcquireError::TimedOut { holder: None, because: None, .. }) => Err(obstacle),
                    acquired => acquired,
                }
            }
            tried => tried,
        },
        Some(limit) => election.timeout(limit).acquire().await,
        None => election.acquire().await,
    }
}

/// Tries once, and waits for the reply no longer than this.
async fn try_for(timeout: Duration, election: ElectionBuilder) -> Result<Leadership, AcquireError> {
    let unanswered = AcquireError::TimedOut { waited: timeout, holder: None, because: None };
    tokio::time::timeout(timeout, election.try_acquire()).await.unwrap_or(Err(unanswered))
}

/// What a command is run with, for all terms.
struct Runner<'a> {
    tenure: &'a Tenure,
    settings: LeaseSettings,
    arguments: &'a RunArguments,
    hides_store: bool,
    /// Whether the store was ever attached.
    was_attached: Arc<AtomicBool>,
}

/// Result of acquiring the leadership.
enum RunDecision {
    Leadership(Leadership),
    /// With `--once-per`: the command is due after this time, and no acquire was sent.
    NotDue(Duration),
}

/// Result of one term.
struct TermRun {
    /// Exit status of the program; `None` when the command was not run.
    code: Option<u8>,
    /// Time until the command may run again, if not as soon as possible.
    next_run_in: Option<Duration>,
}

/// Silence of the guardian. Checks are counted as well as time: while this process is stopped there are none.
struct GuardianSilence {
    checks: u32,
    since: Instant,
}

impl Default for GuardianSilence {
    fn default() -> Self {
        Self { checks: 0, since: Instant::now() }
    }
}

impl GuardianSilence {
    fn is_final(&self) -> bool {
        self.checks >= CHECKS_BEFORE_KILL && self.since.elapsed() >= MAX_SILENCE
    }
}

enum CommandOutcome {
    Exited(u8),
    NotStarted {
        code: u8,
        why: String,
    },
    LeaseLost,
    /// These processes of the command are still running, as far as visible.
    Stuck(Vec<i32>),
}

impl Runner<'_> {
    /// Acquires the leadership, unless a read without the lease shows that the command is not due.
    async fn acquire_when_due(&self, name: &LeaseName, election: ElectionBuilder) -> Result<RunDecision, CliError> {
        let RunArguments { wait, no_wait, once_per, .. } = *self.arguments;
        let began = Instant::now();
        if let Some(period) = once_per {
            let look = once::time_left_without_lease(self.tenure, name, period);
            let limit = wait.map_or(Duration::MAX, |wait| wait.max(SHORT_WAIT));
            match tokio::time::timeout(limit, look).await {
                Ok(Ok(Some(left))) => return Ok(RunDecision::NotDue(left)),
                Ok(Ok(None)) => {}
                Ok(Err(error)) if no_wait => return Err(error.into()),
                // The acquire waits for the store.
                Ok(Err(_)) => {}
                Err(_) => return Err(AcquireError::TimedOut { waited: limit, holder: None, because: None }.into()),
            }
        }
        loop {
            let left = wait.map(|wait| wait.saturating_sub(began.elapsed()));
            match acquire(election.clone(), left, no_wait).await {
                // A store that was attached before refuses: an operator is replacing a password or a certificate.
                Err(AcquireError::Store(error))
                    if !error.is_retryable()
                        && !no_wait
                        && self.was_attached.load(Ordering::Relaxed)
                        && left.is_none_or(|left| left > REFUSED_RETRY_EVERY) =>
                {
                    tokio::time::sleep(REFUSED_RETRY_EVERY).await;
                }
                acquired => return Ok(RunDecision::Leadership(acquired?)),
            }
        }
    }

    /// Runs the command in a term if it is due, and releases the lease when no process of the command is left.
    async fn run_term(
        &self,
        term: Leadership,
        signals: &mut Signals,
    ) -> Result<Result<TermRun, SecondSignal>, CliError> {
        if let Some(period) = self.arguments.once_per {
            let left = match signals.or_second_signal(once::time_left(self.tenure, &term, period)).await {
                Ok(left) => left?,
                Err(second) => return Ok(Err(second)),
            };
            if let Some(left) = left {
                let released = signals.or_second_signal(term.release()).await;
                return Ok(released.map(|_| TermRun { code: None, next_run_in: Some(left) }));
            }
        }
        let began = Instant::now();
        let (code, is_completed) = match self.run_guarded(&term, signals).await? {
            CommandOutcome::Exited(code) => (code, true),
            CommandOutcome::NotStarted { code, why } => {
                failure!("{why}");
                (code, false)
            }
            CommandOutcome::LeaseLost => {
                failure!("{}", leadership_lost(&self.arguments.role, term.ending().as_ref()));
                (exit::LEASE_LOST, false)
            }
            CommandOutcome::Stuck(pids) => self.leave_to_expire(&pids),
        };
        let period = self.arguments.once_per.filter(|_| is_completed);
        let (validity, ended) = (term.remaining(), Instant::now());
        let finish = async {
            if period.is_some() {
                once::record_completion(self.tenure, &term).await;
            }
            term.release().await
        };
        let finished = signals.or_second_signal(finish).await;
        let next_run_in = period.map(|period| period.saturating_sub(began.elapsed()));
        Ok(finished.map(|released| match released {
            // The store refused although the lease would still last: it was lost while the command ran.
            Err(ReleaseError::Lost(lost)) if is_completed && ended.elapsed() < validity => {
                failure!("the lease of {:?} was lost while the command ran: {lost}", self.arguments.role);
                TermRun { code: Some(exit::LEASE_LOST), next_run_in: None }
            }
            Ok(()) | Err(_) => TermRun { code: Some(code), next_run_in },
        }))
    }

    /// Runs the command under a guardian until no process of it is left.
    async fn run_guarded(&self, term: &TermHandle, signals: &mut Signals) -> Result<CommandOutcome, CliError> {
        // Counted work: the lease is not released while this guard lives.
        let Ok(work) = term.begin().await else { return Ok(CommandOutcome::LeaseLost) };
        let mut environment = vec![
            ("TENURE_ROLE", self.arguments.role.clone()),
            ("TENURE_INSTANCE", self.tenure.instance().to_string()),
            ("TENURE_TOKEN", term.token().to_string()),
        ];
        let mut progress = match self.arguments.stall_after {
            Some(_) => Some(
                ProgressFile::create(term.token())
                    .map_err(CliError::system("cannot create a file for TENURE_PROGRESS"))?,
            ),
            None => None,
        };
        environment.extend(progress.as_ref().map(|file| (PROGRESS_VARIABLE, file.path())));
        let hidden: &[&str] = if self.hides_store { &[STORE_VARIABLE] } else { &[] };
        let guardian = GuardianHandle::start(&self.arguments.command, &environment, hidden);
        let mut guardian = guardian.map_err(CliError::system("cannot start the guardian"))?;
        let mut deadline = self.deadline(term);
        guardian.send(GuardianOrder::Deadline(deadline));
        let mut checks = tokio::time::interval((self.settings.renew_every() / 8).min(Duration::from_millis(250)));
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut told_to_end, mut ended, mut silence) = (false, None, GuardianSilence::default());
        loop {
            // A working guardian has killed the command by then, and reported it.
            let silent_at = deadline.kill_at.saturating_add(nanos(self.kill_lead_time() / 2));
            tokio::select! {
                // Read reports first: this process itself may have been stopped for a while.
                biased;
                report = guardian.next_report() => match report {
                    Some(GuardianReport::Acknowledged) => silence = GuardianSilence::default(),
                    Some(GuardianReport::Ended { code, in_time }) => {
                        // What counts is whether the lease was still valid. If this process was stopped, it may have
                        // expired since.
                        let was_valid = work.is_valid() || in_time && has_lapsed(term.ending().as_ref());
                        ended = Some(if was_valid { CommandOutcome::Exited(code) } else { CommandOutcome::LeaseLost });
                        // Its remaining descendants get the same stop budget.
                        told_to_end = true;
                        deadline.kill_at = deadline.kill_at.min(now().saturating_add(nanos(self.settings.stop_budget())));
                    }
                    Some(GuardianReport::NotStarted { code, why }) => ended = Some(CommandOutcome::NotStarted { code, why }),
                    Some(GuardianReport::TooLate) => ended = Some(CommandOutcome::LeaseLost),
                    Some(GuardianReport::Gone) => break,
                    Some(GuardianReport::Stuck { pids }) => return Ok(CommandOutcome::Stuck(pids)),
                    // The guardian has reported that it started nothing.
                    None if matches!(ended, Some(CommandOutcome::NotStarted { .. } | CommandOutcome::LeaseLost)) && !told_to_end => break,
                    None => return Ok(kill(guardian, deadline, ended).await),
                },
                _ = term.cancelled(), if !told_to_end => {
                    told_to_end = true;
                    deadline.kill_at = deadline.kill_at.min(now().saturating_add(nanos(self.settings.stop_budget())));
                    guardian.send(GuardianOrder::End);
                }
                signal = signals.next() => {
                    guardian.send(GuardianOrder::Signal(signal));
                    if signals::is_stop(signal) {
                        signals::stop_self();
                    }
                }
                () = sleep_until(silent_at) => return Ok(kill(guardian, deadline, ended).await),
                _ = checks.tick() => {
                    if progress.as_mut().is_some_and(ProgressFile::was_touched) {
                        term.progress();
                    }
                    if !told_to_end {
                        deadline = self.deadline(term);
                        // Send a deadline only after the guardian has acknowledged the last one: unread ones must not
                        // pile up.
                        if silence.checks == 0 {
                            guardian.send(GuardianOrder::Deadline(deadline));
                        }
                    }
                    silence.checks += 1;
                    if silence.checks >= CHECKS_BEFORE_RESUME {
                        guardian.resume();
                    }
                    // A guardian that was ordered to end the command has until the deadline.
                    if !told_to_end && silence.is_final() {
                        warning!("the guardian does not respond; ending the command");
                        return Ok(kill(guardian, deadline, ended).await);
                    }
                }
            }
        }
        guardian.wait_exit().await;
        Ok(ended.unwrap_or(CommandOutcome::LeaseLost))
    }

    /// Computes until when the command may run, from the current validity of the term.
    fn deadline(&self, term: &TermHandle) -> Deadline {
        let (before, left) = (now(), term.remaining());
        let gone_by = before.saturating_add(nanos(left));
        let end_at = gone_by.saturating_sub(nanos(self.settings.stop_budget()));
        Deadline { end_at, kill_at: gone_by.saturating_sub(nanos(self.kill_lead_time())), gone_by }
    }

    fn kill_lead_time(&self) -> Duration {
        KILL_LEAD_TIME.min(self.settings.stop_budget() / 2)
    }

    /// Exits without releasing the lease, because processes of the command are still running.
    fn leave_to_expire(&self, pids: &[i32]) -> ! {
        let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
        let pids = if pids.is_empty() { "not visible here".to_owned() } else { pids.join(", ") };
        failure!(
            "cannot end the command: processes still running: {pids}; the lease is not released and expires within {}",
            format_duration(self.settings.ttl())
        );
        stderr::exit(i32::from(exit::LEASE_LOST))
    }
}

/// Returns whether a term has ended, if it has, only because it was not renewed.
fn has_lapsed(ending: Option<&Ending>) -> bool {
    matches!(ending, None | Some(Ending::Lost(Loss::Expired | Loss::Unreachable | Loss::Taken { .. })))
}

/// Says why a command was ended, and what to do.
fn leadership_lost(role: &str, ending: Option<&Ending>) -> String {
    let why = match ending {
        Some(Ending::Lost(loss)) => format!("the lease was lost ({loss})"),
        Some(Ending::Released(reason)) => format!("the term was ended ({reason})"),
        Some(Ending::GivenUp) | None => "the term is over".to_owned(),
    };
    format!("no longer leading {role:?}: {why}; the command was ended: start it again, or use --restart")
}

/// Kills the command in place of a guardian that does not.
async fn kill(guardian: GuardianHandle, deadline: Deadline, ended: Option<CommandOutcome>) -> CommandOutcome {
    match guardian.kill_command(deadline.gone_by).await {
        GuardianReport::Stuck { pids } => CommandOutcome::Stuck(pids),
        _ => ended.unwrap_or(CommandOutcome::LeaseLost),
    }
}

/// Sleeps until a time of the deadline clock, which also advances while the machine sleeps.
async fn sleep_until(at: u64) {
    while now() < at {
        tokio::time::sleep(Duration::from_nanos(at - now().min(at)).min(Duration::from_millis(250))).await;
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
