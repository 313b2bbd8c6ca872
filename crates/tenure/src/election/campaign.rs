//! Driving a candidacy: asking, leading, and asking again.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::candidacy::{Candidacy, Turn};
use super::listeners::Listeners;
use super::pace::{self, Pace};
use super::{ElectionEvent, METADATA};
use crate::event::{Event, Happening, Standing};
use crate::keeper::{AcquireError, Command, Onlooker};
use crate::lease::{Ending, LeaseSettings, ReleaseReason};
use crate::name::LeaseName;
use crate::tenure::{Tenure, Term, TermHandle};
use crate::token::Token;

/// One candidate, and what others see of it.
pub(super) struct Office {
    pub(super) tenure: Tenure,
    pub(super) role: String,
    pub(super) name: LeaseName,
    pub(super) settings: LeaseSettings,
    pub(super) start_jitter: Duration,
    pub(super) metadata: Option<Vec<u8>>,
    pub(super) listeners: Listeners,
    pub(super) standing: watch::Sender<Standing>,
    /// The present term.
    pub(super) term: Mutex<Option<TermHandle>>,
}

impl Office {
    pub(super) fn new(
        tenure: Tenure,
        role: String,
        name: LeaseName,
        settings: LeaseSettings,
        start_jitter: Duration,
        metadata: Option<Vec<u8>>,
    ) -> Self {
        Self {
            tenure,
            role,
            name,
            settings,
            start_jitter,
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
    let mut pause = office.start_jitter.mul_f64(fastrand::f64());
    let mut pace = Pace::default();
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
                pause = pace.pause(pace::Result::NotAsked, &office.settings, fastrand::f64());
                continue;
            }
        };
        let began = Instant::now();
        let ended = lead(&office, &mut candidacy, term, &mut stop, work).await;
        let result = match ended {
            Led::Stopped => break Outcome::Stopped,
            Led::Failed(error) => break Outcome::Failed(error),
            Led::Resigned | Led::SteppedDown => pace::Result::Resigned,
            Led::Lost => pace::Result::Lost { after: began.elapsed() },
        };
        pause = pace.pause(result, &office.settings, fastrand::f64());
    };
    office.tell(&mut candidacy, Turn::Stopped);
    outcome
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
    let (onlooker, mut news) = Onlooker::new();
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
        tokio::select! {
            done = work(handle.clone()) => done,
            // Beside the work, which does not wait for it.
            never = publish_metadata(office, &handle) => match never {},
        }
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
    let reason = if matches!(ended, Led::Stopped) { ReleaseReason::Shutdown } else { ReleaseReason::Voluntary };
    if !matches!(ended, Led::Lost | Led::SteppedDown) {
        told_of_the_end(office, candidacy, Ending::Released(reason));
    }
    // A loss has been told; that the lease is over all the same is what counts here.
    let _ = term.let_go(reason).await;
    ended
}

fn told_of_the_end(office: &Office, candidacy: &mut Candidacy, reason: Ending) {
    office.set_term(None);
    office.tell(candidacy, Turn::Ended(reason));
}

/// Tells the store what is to be known of this leader. Tried while the term lasts: nothing depends on it.
async fn publish_metadata(office: &Office, term: &TermHandle) -> Infallible {
    if let Some(metadata) = &office.metadata {
        while term.publish(METADATA, metadata.clone()).await.is_err() {
            tokio::time::sleep(office.settings.attempt_timeout()).await;
        }
    }
    std::future::pending().await
}

impl std::fmt::Debug for Office {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token: Option<Token> = self.term().map(|term| term.token());
        write!(f, "{} of {} ({}, {token:?})", self.tenure.instance(), self.name, self.standing.borrow().word())
    }
}
