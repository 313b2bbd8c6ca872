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

/// The longest pause between two attempts to say who leads.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

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

    /// Takes itself off the list of candidates, unless another one of this process is on it under the same name. Nobody waits for it:
    /// what cannot be said now is over soon by itself.
    fn leave(&self) {
        let group = &self.bid.heartbeat.group;
        if !self.tenure.elections().any_in(group) {
            let request = Request::Leave { group: group.clone(), instance: self.tenure.instance().clone() };
            let (reply, _) = oneshot::channel();
            let limit = self.bid.settings.attempt_timeout();
            self.tenure.door().tell(Command::Ask(Question { request, limit, is_work: true, reply }));
        }
    }
}

/// A candidacy that is under way. However it ends, also when it is dropped in the middle of everything, its end is told.
pub(super) struct Stand {
    running: Option<Running>,
    office: Arc<Office>,
    ambition: Ambition,
    candidacy: Candidacy,
}

impl Stand {
    pub(super) fn new(running: Running) -> Self {
        let (office, ambition) = (running.office.clone(), running.ambition);
        Self { running: Some(running), office, ambition, candidacy: Candidacy::default() }
    }

    pub(super) fn leads(&mut self, term: &TermHandle) {
        self.office.set_term(Some(term.clone()));
        self.tell(Turn::Leads(term.token()));
    }

    /// Tells listeners, the standing's watchers, and whoever hears the events of the whole.
    pub(super) fn tell(&mut self, turn: Turn) {
        let office = &self.office;
        if matches!(turn, Turn::Ended(_)) {
            office.set_term(None);
        }
        for (token, news) in self.candidacy.step(turn) {
            let (instance, lease) = (office.tenure.instance().clone(), Some(office.bid.name.clone()));
            let what: Happening = (&news).into();
            office.tenure.door().tell(Command::Tell(Event { instance, lease, token, what }));
            office.listeners.tell(&ElectionEvent { role: office.bid.role.clone(), at: SystemTime::now(), token, news });
        }
        let now = self.candidacy.standing();
        office.standing.send_if_modified(|standing| std::mem::replace(standing, now) != now);
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.tell(Turn::Ended(Ending::Released(ReleaseReason::Voluntary)));
        self.tell(Turn::Stopped);
        self.running = None;
        self.office.leave();
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
    /// It was told to stop.
    Stopped,
    /// The keeper has ended.
    ShutDown,
    /// The work failed.
    Failed(E),
}

/// Asks for the leadership until told to stop, and works whenever it has it.
pub(super) async fn campaign<W, F, E>(running: Running, mut stop: Stop, work: &mut W) -> Outcome<E>
where
    W: FnMut(TermHandle) -> F,
    F: Future<Output = Result<(), E>>,
{
    // Dropped last, when everything of the term is gone.
    let mut stand = Stand::new(running);
    let settings = stand.office.bid.settings;
    let mut pause = stand.office.bid.start_jitter.mul_f64(fastrand::f64());
    let mut pace = Pace::default();
    loop {
        if paused(pause, &mut stop).await {
            return Outcome::Stopped;
        }
        let won = tokio::select! {
            biased;
            _ = stopped(&mut stop) => return Outcome::Stopped,
            won = win(&mut stand) => won,
        };
        let setback = match won {
            Err(AcquireError::ShutDown) => return Outcome::ShutDown,
            Err(error) => {
                stand.tell(Turn::Failed(error.to_string()));
                Setback::NotAsked
            }
            Ok(term) => {
                let began = Instant::now();
                match lead(&mut stand, term, &mut stop, work).await {
                    Led::Stopped => return Outcome::Stopped,
                    Led::Failed(error) => return Outcome::Failed(error),
                    Led::Resigned | Led::SteppedDown => Setback::Resigned,
                    Led::Lost => Setback::Lost { after: began.elapsed() },
                    // Whoever asks again is told that there is nobody to ask.
                    Led::ShutDown => return Outcome::ShutDown,
                }
            }
        };
        pause = pace.pause(setback, &settings, fastrand::f64());
    }
}

/// Waits. Returns whether it was told to stop meanwhile.
async fn paused(span: Duration, stop: &mut Stop) -> bool {
    tokio::time::timeout(span, stopped(stop)).await.is_ok() || stop.borrow().is_some()
}

/// Ends when told to stop, or when nobody is left who could tell.
async fn stopped(stop: &mut Stop) -> ReleaseReason {
    stop.wait_for(Option::is_some).await.ok().and_then(|reason| *reason).unwrap_or(ReleaseReason::Voluntary)
}

/// Asks until the leadership is won or cannot be, and tells how it goes.
pub(super) async fn win(stand: &mut Stand) -> Result<Term, AcquireError> {
    let (onlooker, mut news) = Onlooker::new();
    let bid = &stand.office.bid;
    let mut request = stand.office.tenure.lease_named(bid.name.clone()).settings(bid.settings);
    let mode = match stand.ambition {
        Ambition::EveryTerm => Mode::Wait,
        Ambition::OneTerm { mode, limit } => {
            if let Some(limit) = limit {
                request = request.limit(limit);
            }
            mode
        }
    };
    let mut asking = std::pin::pin!(request.campaign(mode, onlooker, bid.heartbeat.clone()));
    loop {
        tokio::select! {
            biased;
            Some(outlook) = news.recv() => stand.tell(Turn::Sees(outlook)),
            won = &mut asking => return won,
        }
    }
}

enum Led<E> {
    Stopped,
    Resigned,
    SteppedDown,
    Lost,
    ShutDown,
    Failed(E),
}

/// One term: from the grant until everything of it is over.
async fn lead<W, F, E>(stand: &mut Stand, term: Term, stop: &mut Stop, work: &mut W) -> Led<E>
where
    W: FnMut(TermHandle) -> F,
    F: Future<Output = Result<(), E>>,
{
    let handle = (*term).clone();
    let office = stand.office.clone();
    stand.leads(&handle);
    let working = handle.run(async {
        tokio::select! {
            done = work(handle.clone()) => done,
            // Beside the work, which does not wait for it.
            never = introduce(&office, &handle) => match never {},
        }
    });
    let (ended, ending) = tokio::select! {
        done = working => match done {
            Ok(Ok(())) => (Led::Resigned, Ending::Released(ReleaseReason::Voluntary)),
            Ok(Err(error)) => (Led::Failed(error), Ending::Released(ReleaseReason::Voluntary)),
            Err(lost) => {
                let ended = match lost.reason {
                    Ending::Released(ReleaseReason::Shutdown) => Led::ShutDown,
                    // Whoever was asked to step down leaves it to others for a while.
                    Ending::Released(_) => Led::SteppedDown,
                    _ => Led::Lost,
                };
                (ended, lost.reason)
            }
        },
        reason = stopped(stop) => (Led::Stopped, Ending::Released(reason)),
    };
    // The work is gone. Whoever looks must not see a leader while the store is being told.
    let reason = match &ending {
        Ending::Released(reason) => *reason,
        _ => ReleaseReason::Voluntary,
    };
    stand.tell(Turn::Ended(ending));
    // A loss has been told; that the lease is over all the same is what counts here.
    let _ = term.let_go(reason).await;
    ended
}

/// Writes down what is to be known of this leader, which also tells observers that there is one. Tried while the term lasts, and less and
/// less often: nothing depends on it.
pub(super) async fn introduce(office: &Office, term: &TermHandle) -> Infallible {
    let record = office.bid.metadata.clone().unwrap_or_default();
    let mut pause = office.bid.settings.attempt_timeout();
    while term.publish(METADATA, record.clone()).await.is_err() {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    std::future::pending().await
}

impl std::fmt::Debug for Office {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token: Option<Token> = self.term().map(|term| term.token());
        write!(f, "{} of {} ({}, {token:?})", self.tenure.instance(), self.bid.name, self.standing.borrow().word())
    }
}
