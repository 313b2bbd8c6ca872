//! Driving a candidacy: asking, leading, and asking again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};

use super::candidacy::{Candidacy, Turn};
use super::listeners::Listeners;
use super::{ElectionEvent, METADATA};
use crate::event::{Event, Happening, Standing};
use crate::keeper::{AcquireError, Command, Onlooker};
use crate::lease::{Ending, LeaseSettings, Outlook};
use crate::name::LeaseName;
use crate::tenure::{Tenure, Term, TermHandle};
use crate::token::Token;

/// The longest pause after something that waiting does not mend.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How a candidate paces itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) start_jitter: Duration,
}

/// One candidate, and what others see of it.
pub(super) struct Office {
    pub(super) tenure: Tenure,
    pub(super) role: String,
    pub(super) name: LeaseName,
    pub(super) settings: LeaseSettings,
    pub(super) pace: Pace,
    pub(super) metadata: Option<Vec<u8>>,
    pub(super) listeners: Listeners,
    pub(super) standing: watch::Sender<Standing>,
    /// The present term, or the last one.
    pub(super) term: Mutex<Option<TermHandle>>,
}

impl Office {
    pub(super) fn new(
        tenure: Tenure,
        role: String,
        name: LeaseName,
        settings: LeaseSettings,
        pace: Pace,
        metadata: Option<Vec<u8>>,
    ) -> Self {
        Self {
            tenure,
            role,
            name,
            settings,
            pace,
            metadata,
            listeners: Listeners::default(),
            standing: watch::Sender::new(Standing::Follower),
            term: Mutex::default(),
        }
    }

    pub(super) fn term(&self) -> Option<TermHandle> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_term(&self, term: Option<TermHandle>) {
        *self.term.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }

    fn request(&self) -> crate::tenure::LeaseRequest {
        self.tenure.lease_named(self.name.clone()).settings(self.settings)
    }

    /// Tells listeners, the standing's watchers, and whoever hears the events of the whole.
    fn tell(&self, candidacy: &mut Candidacy, turn: Turn) {
        for (token, news) in candidacy.step(turn) {
            let what: Happening = (&news).into();
            let event = Event { instance: self.tenure.instance().clone(), lease: Some(self.name.clone()), token, what };
            self.tenure.door().tell(Command::Tell(event));
            self.listeners.tell(&ElectionEvent { role: self.role.clone(), at: SystemTime::now(), token, news });
        }
        self.standing
            .send_if_modified(|standing| std::mem::replace(standing, candidacy.standing()) != candidacy.standing());
    }
}

/// How a campaign ended.
pub(super) enum Outcome<E> {
    /// It was told to stop.
    Stopped,
    /// The keeper has ended.
    ShutDown,
    /// The work failed.
    Failed(E),
}

/// Asks for the leadership until told to stop, and works whenever it has it.
pub(super) async fn campaign<W, F, E>(office: Arc<Office>, mut stop: watch::Receiver<bool>, work: &mut W) -> Outcome<E>
where
    W: FnMut(TermHandle) -> F,
    F: Future<Output = Result<(), E>>,
{
    let mut candidacy = Candidacy::new();
    let mut pause = office.pace.start_jitter.mul_f64(fastrand::f64());
    let mut setbacks = 0;
    let outcome = loop {
        if paused(pause, &mut stop).await {
            break Outcome::Stopped;
        }
        let term = match win(&office, &mut candidacy, &mut stop).await {
            Won::Term(term) => term,
            Won::Stopped => break Outcome::Stopped,
            Won::Not(AcquireError::ShutDown) => break Outcome::ShutDown,
            Won::Not(error) => {
                office.tell(&mut candidacy, Turn::Failed(error.to_string()));
                setbacks += 1;
                pause = growing(Duration::from_secs(1), setbacks).min(LONGEST_PAUSE);
                continue;
            }
        };
        let began = Instant::now();
        let ended = lead(&office, &mut candidacy, term, &mut stop, work).await;
        // Somebody who keeps losing what it wins leaves it to others for a while.
        setbacks = if began.elapsed() < office.settings.renew_every() { setbacks + 1 } else { 0 };
        pause = match ended {
            Led::Stopped => break Outcome::Stopped,
            Led::Failed(error) => break Outcome::Failed(error),
            Led::Resigned | Led::SteppedDown => office.settings.renew_every(),
            Led::Lost if setbacks > 1 => {
                growing(office.settings.attempt_timeout(), setbacks).min(office.settings.ttl())
            }
            Led::Lost => Duration::ZERO,
        };
    };
    office.tell(&mut candidacy, Turn::Stopped);
    outcome
}

fn growing(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.min(10)).mul_f64(0.5 + 0.5 * fastrand::f64())
}

/// Waits. Returns whether it was told to stop meanwhile.
async fn paused(span: Duration, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::time::timeout(span, stopped(stop)).await.is_ok() || *stop.borrow()
}

/// Ends when told to stop, or when nobody is left who could tell.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

enum Won {
    Term(Term),
    Stopped,
    Not(AcquireError),
}

async fn win(office: &Office, candidacy: &mut Candidacy, stop: &mut watch::Receiver<bool>) -> Won {
    let (onlooker, mut news): (Onlooker, mpsc::UnboundedReceiver<Outlook>) = Onlooker::new();
    let mut asking = std::pin::pin!(office.request().acquire_before(onlooker));
    let mut stop = std::pin::pin!(stopped(stop));
    loop {
        tokio::select! {
            biased;
            () = &mut stop => return Won::Stopped,
            Some(outlook) = news.recv() => office.tell(candidacy, Turn::Sees(outlook)),
            won = &mut asking => return won.map_or_else(Won::Not, Won::Term),
        }
    }
}

enum Led<E> {
    Stopped,
    Resigned,
    SteppedDown,
    Lost,
    Failed(E),
}

/// One term: from the grant until everything of it is over.
async fn lead<W, F, E>(
    office: &Office,
    candidacy: &mut Candidacy,
    term: Term,
    stop: &mut watch::Receiver<bool>,
    work: &mut W,
) -> Led<E>
where
    W: FnMut(TermHandle) -> F,
    F: Future<Output = Result<(), E>>,
{
    let handle = (*term).clone();
    office.set_term(Some(handle.clone()));
    office.tell(candidacy, Turn::Leads(handle.token()));
    let working = handle.run(async {
        let publishing = publish_metadata(office, &handle);
        let ((), done) = tokio::join!(publishing, work(handle.clone()));
        done
    });
    let ended = tokio::select! {
        done = working => match done {
            Ok(Ok(())) => Led::Resigned,
            Ok(Err(error)) => Led::Failed(error),
            Err(lost) => {
                // Whoever was asked to step down leaves it to others for a while.
                let asked = matches!(lost.reason, Ending::Released(_));
                told_of_the_end(office, candidacy, lost.reason);
                if asked { Led::SteppedDown } else { Led::Lost }
            }
        },
        () = stopped(stop) => Led::Stopped,
    };
    // The work is gone. Whoever looks must not see a leader while the store is being told.
    if !matches!(ended, Led::Lost | Led::SteppedDown) {
        let reason = match ended {
            Led::Stopped => crate::lease::ReleaseReason::Shutdown,
            _ => crate::lease::ReleaseReason::Voluntary,
        };
        told_of_the_end(office, candidacy, Ending::Released(reason));
    }
    // A loss has been told; that the lease is over all the same is what counts here.
    let _ = term.release().await;
    ended
}

fn told_of_the_end(office: &Office, candidacy: &mut Candidacy, reason: Ending) {
    office.set_term(None);
    office.tell(candidacy, Turn::Ended(reason));
}

/// Tells the store what is to be known of this leader. Tried while the term lasts: nothing depends on it.
async fn publish_metadata(office: &Office, term: &TermHandle) {
    let Some(metadata) = &office.metadata else { return };
    while term.publish(METADATA, metadata.clone()).await.is_err() {
        tokio::time::sleep(office.settings.attempt_timeout()).await;
    }
}

/// The token, for whoever prints it.
impl std::fmt::Debug for Office {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token: Option<Token> = self.term().map(|term| term.token());
        write!(f, "{} of {} ({}, {token:?})", self.tenure.instance(), self.name, self.standing.borrow().word())
    }
}
