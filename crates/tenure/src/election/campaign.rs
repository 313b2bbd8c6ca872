//! Driving a candidacy: asking, leading, and asking again.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{oneshot, watch};

use super::ElectionEvent;
use super::candidacy::{Candidacy, Turn};
use super::listeners::Listeners;
use super::pace::{Pace, Setback};
use super::running::Running;
use super::steering::METADATA;
use crate::event::{Event, Happening, Standing};
use crate::keeper::{AcquireError, Command, Heartbeat, Mode, Onlooker, Question};
use crate::lease::{Ending, LeaseSettings, ReleaseReason};
use crate::name::LeaseName;
use crate::store::Request;
use crate::tenure::{Tenure, Term, TermHandle};
use crate::token::Token;

/// What a candidate stands for, and how.
pub(super) struct Bid {
    pub(super) role: String,
    pub(super) name: LeaseName,
    pub(super) settings: LeaseSettings,
    pub(super) start_jitter: Duration,
    pub(super) metadata: Option<Vec<u8>>,
    pub(super) heartbeat: Arc<Heartbeat>,
}

/// One candidate, and what others see of it.
pub(super) struct Office {
    pub(super) tenure: Tenure,
    pub(super) bid: Bid,
    pub(super) listeners: Listeners,
    pub(super) standing: watch::Sender<Standing>,
    /// The present term.
    pub(super) term: Mutex<Option<TermHandle>>,
}

impl Office {
    pub(super) fn new(tenure: Tenure, bid: Bid) -> Self {
        let standing = watch::Sender::new(Standing::Follower);
        Self { tenure, bid, listeners: Listeners::default(), standing, term: Mutex::default() }
    }

    pub(super) fn term(&self) -> Option<TermHandle> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_term(&self, term: Option<TermHandle>) {
        *self.term.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }

    /// Tells listeners, the standing's watchers, and whoever hears the events of the whole.
    fn tell(&self, candidacy: &mut Candidacy, turn: Turn) {
        for (token, news) in candidacy.step(turn) {
            let (instance, lease) = (self.tenure.instance().clone(), Some(self.bid.name.clone()));
            let what: Happening = (&news).into();
            self.tenure.door().tell(Command::Tell(Event { instance, lease, token, what }));
            self.listeners.tell(&ElectionEvent { role: self.bid.role.clone(), at: SystemTime::now(), token, news });
        }
        self.standing
            .send_if_modified(|standing| std::mem::replace(standing, candidacy.standing()) != candidacy.standing());
    }

    /// Takes itself off the list of candidates, unless another one of this process is on it under the same name. Nobody waits for it:
    /// what cannot be said now is over soon by itself.
    fn leave(&self) {
        let group = &self.bid.heartbeat.group;
        if !self.tenure.elections().any_in(group) {
            let request = Request::Leave { group: group.clone(), instance: self.tenure.instance().clone() };
            let (reply, _) = oneshot::channel();
            let limit = self.bid.settings.attempt_timeout();
            self.tenure.door().tell(Command::Ask(Question { request, limit, reply }));
        }
    }
}

/// How much is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ambition {
    /// Term after term.
    EveryTerm,
    /// One term, to be had within the limit.
    OneTerm { mode: Mode, limit: Option<Duration> },
}

/// Tells a campaign to stop, and why.
pub(super) type Stop = watch::Receiver<Option<ReleaseReason>>;

/// How a campaign ended.
pub(super) enum Outcome<E> {
    /// It was told to stop, or had the one term that it wanted.
    Stopped,
    /// The keeper has ended.
    ShutDown,
    /// The work failed.
    Failed(E),
    /// The one term that it wanted was not to be had.
    NotElected(AcquireError),
}

/// Asks for the leadership until told to stop, and works whenever it has it.
pub(super) async fn campaign<W, F, E>(running: Running, mut stop: Stop, work: &mut W) -> Outcome<E>
where
    W: FnMut(TermHandle) -> F,
    F: Future<Output = Result<(), E>>,
{
    let (office, ambition) = (running.office.clone(), running.ambition);
    let mut candidacy = Candidacy::default();
    let mut pause = office.bid.start_jitter.mul_f64(fastrand::f64());
    let mut pace = Pace::default();
    let settings = &office.bid.settings;
    let outcome = loop {
        if paused(pause, &mut stop).await {
            break Outcome::Stopped;
        }
        let setback = match win(&office, &mut candidacy, ambition, &mut stop).await {
            Won::Stopped => break Outcome::Stopped,
            Won::Not(AcquireError::ShutDown) => break Outcome::ShutDown,
            Won::Not(error) => {
                office.tell(&mut candidacy, Turn::Failed(error.to_string()));
                if matches!(ambition, Ambition::OneTerm { .. }) {
                    break Outcome::NotElected(error);
                }
                Setback::NotAsked
            }
            Won::Term(term) => {
                let began = Instant::now();
                match lead(&office, &mut candidacy, term, &mut stop, work).await {
                    Led::Stopped => break Outcome::Stopped,
                    Led::Failed(error) => break Outcome::Failed(error),
                    _ if matches!(ambition, Ambition::OneTerm { .. }) => break Outcome::Stopped,
                    Led::Resigned | Led::SteppedDown => Setback::Resigned,
                    Led::Lost => Setback::Lost { after: began.elapsed() },
                }
            }
        };
        pause = pace.pause(setback, settings, fastrand::f64());
    };
    office.tell(&mut candidacy, Turn::Stopped);
    drop(running);
    office.leave();
    outcome
}

/// Waits. Returns whether it was told to stop meanwhile.
async fn paused(span: Duration, stop: &mut Stop) -> bool {
    tokio::time::timeout(span, stopped(stop)).await.is_ok() || stop.borrow().is_some()
}

/// Ends when told to stop, or when nobody is left who could tell.
async fn stopped(stop: &mut Stop) -> ReleaseReason {
    stop.wait_for(Option::is_some).await.ok().and_then(|reason| *reason).unwrap_or(ReleaseReason::Voluntary)
}

enum Won {
    Term(Term),
    Stopped,
    Not(AcquireError),
}

async fn win(office: &Office, candidacy: &mut Candidacy, ambition: Ambition, stop: &mut Stop) -> Won {
    let (onlooker, mut news) = Onlooker::new();
    let mut request = office.tenure.lease_named(office.bid.name.clone()).settings(office.bid.settings);
    let mode = match ambition {
        Ambition::EveryTerm => Mode::Wait,
        Ambition::OneTerm { mode, limit } => {
            if let Some(limit) = limit {
                request = request.limit(limit);
            }
            mode
        }
    };
    let mut asking = std::pin::pin!(request.campaign(mode, onlooker, office.bid.heartbeat.clone()));
    let mut stop = std::pin::pin!(stopped(stop));
    loop {
        tokio::select! {
            biased;
            _ = &mut stop => return Won::Stopped,
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
async fn lead<W, F, E>(office: &Office, candidacy: &mut Candidacy, term: Term, stop: &mut Stop, work: &mut W) -> Led<E>
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
            never = introduce(office, &handle) => match never {},
        }
    });
    let (ended, reason) = tokio::select! {
        done = working => match done {
            Ok(Ok(())) => (Led::Resigned, ReleaseReason::Voluntary),
            Ok(Err(error)) => (Led::Failed(error), ReleaseReason::Voluntary),
            Err(lost) => {
                // Whoever was asked to step down leaves it to others for a while.
                let asked = matches!(lost.reason, Ending::Released(_));
                told_of_the_end(office, candidacy, lost.reason);
                (if asked { Led::SteppedDown } else { Led::Lost }, ReleaseReason::Voluntary)
            }
        },
        reason = stopped(stop) => (Led::Stopped, reason),
    };
    // The work is gone. Whoever looks must not see a leader while the store is being told.
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

/// Writes down what is to be known of this leader, which also tells observers that there is one. Tried while the term lasts: nothing
/// depends on it.
async fn introduce(office: &Office, term: &TermHandle) -> Infallible {
    let record = office.bid.metadata.clone().unwrap_or_default();
    while term.publish(METADATA, record.clone()).await.is_err() {
        tokio::time::sleep(office.bid.settings.attempt_timeout()).await;
    }
    std::future::pending().await
}

impl std::fmt::Debug for Office {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token: Option<Token> = self.term().map(|term| term.token());
        write!(f, "{} of {} ({}, {token:?})", self.tenure.instance(), self.bid.name, self.standing.borrow().word())
    }
}
