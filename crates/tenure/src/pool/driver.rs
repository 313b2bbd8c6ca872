//! Drives the engine of a pool: asks what it wants to know, claims what it wants to have, and runs the work.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};

use super::company::RETURN_WITHIN;
use super::engine::Engine;
use super::meters::{PoolMeters, Stopwatch};
use super::naming::Naming;
use super::outcome::{StopReport, TargetError, TargetInfo};
use super::scout::{Scout, Scouting};
use super::seat::{Order, RemovedBecause, Work, keep};
use super::signal::{Action, Input, released_because};
use super::{Outlook, Overview, PoolSettings, Target};
use crate::event::Happening;
use crate::fleet::{DRAINING, HeldBack, InstanceRecord};
use crate::keeper::AcquireError;
use crate::lease::{Ending, LeaseState, ReleaseReason};
use crate::name::{Group, InstanceId, LeaseName};
use crate::placement::{Move, Reason};
use crate::store::{Announcement, ErrorKind, Heard, Held as HeldLease, Reply, Request, StoreError, Wild};
use crate::tenure::{Tenure, TermHandle};
use crate::time::{LeaseClock, SystemClock};

/// How many targets are looked at in one go. The next follow when these are answered, so that what is urgent is not behind all of them.
const LOOKS: usize = 500;

/// How much later the others are told how many targets are held: many come and go at once.
const TELL_AFTER: Duration = Duration::from_millis(200);

/// How long after a question that could not be answered it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The record beside a lease that says why it came to its holder.
pub(super) const MOVED: &str = "moved";

/// What is held now, for whoever asks.
pub(super) type Held = Arc<RwLock<HashMap<Target, TermHandle>>>;

/// What users tell a pool.
pub(super) enum Command {
    Targets(BTreeSet<Target>),
    Drain(bool),
    /// Whether this instance can work.
    Able(bool),
    /// Lets go of everything and ends.
    Stop(oneshot::Sender<StopReport>),
    Release(Target, oneshot::Sender<Result<(), TargetError>>),
    /// Asks for a target at once.
    TryAcquire(Target, Acquired),
    /// What is known of a target.
    Inspect(Target, oneshot::Sender<Option<TargetInfo>>),
    /// How it stands with a target.
    Outlook(Target, oneshot::Sender<Option<Outlook>>),
    /// How it stands with all of them.
    Overview(oneshot::Sender<Overview>),
    /// How it stands with each of them.
    Survey(oneshot::Sender<BTreeMap<Target, Outlook>>),
}

/// Who waits to hear whether a target was had.
type Acquired = oneshot::Sender<Result<TermHandle, TargetError>>;

/// News from tasks.
enum News {
    Input(Input),
    /// A claim was granted.
    Seated(Target, crate::tenure::Term),
    /// A claim was not granted.
    Refused {
        target: Target,
        error: TargetError,
        input: Input,
    },
    /// Whether an operator asks this instance to give everything away.
    AskedToDrain(bool),
}

pub(super) struct Driver {
    pub(super) tenure: Tenure,
    pub(super) naming: Naming,
    pub(super) settings: PoolSettings,
    pub(super) discovers_sessions: bool,
    pub(super) work: Work,
    pub(super) removed_because: RemovedBecause,
    pub(super) held: Held,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) live: watch::Sender<Vec<InstanceId>>,
    pub(super) meters: Arc<PoolMeters>,
    pub(super) scouting: Scouting,
}

impl Driver {
    pub(super) async fn run(self) {
        let Self {
            tenure,
            naming,
            settings,
            discovers_sessions,
            work,
            removed_because,
            held,
            mut commands,
            live,
            meters,
            scouting,
        } = self;
        let engine = Engine::new(tenure.instance().clone(), naming.pool(), settings.weight, settings.engine());
        let (news, mut incoming) = mpsc::unbounded_channel();
        let mut announcements = tenure.announcements();
        let mut desk = Desk {
            tenure,
            naming,
            settings,
            work,
            removed_because,
            held,
            live,
            engine,
            news,
            seats: HashMap::new(),
            waiting: HashMap::new(),
            releasing: HashMap::new(),
            not_handed_over: None,
            tell_at: None,
            stopwatch: Stopwatch::default(),
            started: std::time::Instant::now(),
            meters,
            told_to_drain: false,
            asked_to_drain: false,
        };
        desk.tell_fleet();
        let wild = if discovers_sessions { vec![Wild::Nodes, Wild::Sessions] } else { vec![Wild::Nodes] };
        let (scout, mut scouts) = Scout::stands(desk.tenure.clone(), &desk.naming, &desk.settings, wild, scouting);
        let mut stopping: Option<(tokio::time::Instant, Vec<oneshot::Sender<StopReport>>)> = None;
        loop {
            let wake = desk.engine.next_wake().map(|at| at.since(SystemClock.now()));
            let wake = wake.unwrap_or(desk.settings.read_every).min(desk.settings.read_every);
            let tell_at = desk.tell_at;
            let give_up_at = stopping.as_ref().map(|(at, _)| *at);
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Targets(targets)) => desk.input(Input::Targets(targets)),
                    Some(Command::Drain(drain)) => {
                        // Whoever leaves does not stay after all.
                        desk.told_to_drain = drain || stopping.is_some();
                        desk.drain_as_asked();
                    }
                    Some(Command::Able(able)) => desk.set_able(able),
                    Some(Command::Stop(done)) => match &mut stopping {
                        Some((_, waiting)) => waiting.push(done),
                        None => {
                            desk.not_handed_over.get_or_insert_default();
                            desk.told_to_drain = true;
                            desk.drain_as_asked();
                            stopping = Some((tokio::time::Instant::now() + desk.settings.drain_timeout, vec![done]));
                        }
                    },
                    Some(Command::Release(target, reply)) => desk.release(target, reply),
                    Some(Command::Inspect(target, reply)) => drop(reply.send(desk.info(&target))),
                    Some(Command::TryAcquire(target, reply)) => desk.try_acquire(target, reply),
                    Some(Command::Outlook(target, reply)) => {
                        let _ = reply.send(desk.engine.outlook(SystemClock.now(), &target));
                    }
                    Some(Command::Overview(reply)) => drop(reply.send(desk.engine.overview(SystemClock.now()))),
                    Some(Command::Survey(reply)) => drop(reply.send(desk.engine.survey(SystemClock.now()))),
                    // Nobody is left who could want anything.
                    None => break,
                },
                Some(news) = incoming.recv() => desk.take_in(news),
                heard = announcements.next() => match heard {
                    Heard::Announced(announcement) => desk.hear(announcement),
                    Heard::Gap => desk.input(Input::Gap),
                    Heard::Closed => break,
                },
                Some(scouts) = scouts.recv() => desk.input(Input::Scouts(scouts)),
                () = tokio::time::sleep(wake) => desk.input(Input::Tick),
                () = sleep_until(tell_at) => {
                    desk.tell_at = None;
                    desk.tell_fleet();
                }
                () = sleep_until(give_up_at) => {}
            }
            if let Some((give_up_at, _)) = &stopping
                && (desk.engine.is_empty() || tokio::time::Instant::now() >= *give_up_at)
            {
                break;
            }
        }
        // Whatever is still held is stopped, and waited for.
        desk.stop_all().await;
        scout.stop().await;
        desk.tenure.say(listed(desk.naming.pool(), desk.tenure.instance(), false));
        desk.tenure.leave_pool(desk.naming.pool()).await;
        let not_handed_over: Vec<Target> = desk.not_handed_over.into_iter().flatten().collect();
        for done in stopping.into_iter().flat_map(|(_, waiting)| waiting) {
            let _ = done.send(StopReport { not_handed_over: not_handed_over.clone() });
        }
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Everything that the loop works with.
struct Desk {
    tenure: Tenure,
    naming: Naming,
    settings: PoolSettings,
    work: Work,
    removed_because: RemovedBecause,
    held: Held,
    live: watch::Sender<Vec<InstanceId>>,
    engine: Engine,
    news: mpsc::UnboundedSender<News>,
    seats: HashMap<Target, Seat>,
    /// Who waits to hear whether a target was had.
    waiting: HashMap<Target, Vec<Acquired>>,
    /// Who waits for the end of a term that it has asked for.
    releasing: HashMap<Target, Vec<oneshot::Sender<Result<(), TargetError>>>>,
    /// What ended without another holder, since the pool is stopping.
    not_handed_over: Option<BTreeSet<Target>>,
    /// When the others are told how many targets are held.
    tell_at: Option<tokio::time::Instant>,
    stopwatch: Stopwatch,
    started: std::time::Instant,
    meters: Arc<PoolMeters>,
    /// Whether the program wants everything to be given away, and whether an operator does.
    told_to_drain: bool,
    asked_to_drain: bool,
}

struct Seat {
    orders: mpsc::UnboundedSender<Order>,
    task: tokio::task::JoinHandle<()>,
}

impl Desk {
    fn input(&mut self, input: Input) {
        let members = matches!(input, Input::Members(_));
        for action in self.engine.step(SystemClock.now(), input) {
            self.act(action);
        }
        if members {
            let mut ids: Vec<InstanceId> =
                self.engine.peers(SystemClock.now()).into_iter().map(|peer| peer.instance).collect();
            ids.sort_unstable();
            let before = self.live.send_replace(ids.clone());
            for instance in ids.iter().filter(|id| before.binary_search(id).is_err()) {
                self.tenure.tell(Happening::Joined { instance: instance.clone() });
            }
            for instance in before.into_iter().filter(|id| ids.binary_search(id).is_err()) {
                self.stopwatch.misses(&instance);
                self.tenure.tell(Happening::Left { instance });
            }
        }
    }

    fn try_acquire(&mut self, target: Target, reply: Acquired) {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner).get(&target).cloned();
        if let Some(term) = held.filter(|term| term.is_valid() && !term.is_leaving()) {
            let _ = reply.send(Ok(term));
            return;
        }
        self.input(Input::Want(target.clone()));
        if self.engine.is_asking(&target) {
            self.waiting.entry(target).or_default().push(reply);
            return;
        }
        // There is nothing to wait for.
        let error = match self.engine.holder(&target) {
            _ if self.engine.outlook(SystemClock.now(), &target).is_none() => TargetError::NotATarget,
            _ if self.engine.is_draining() => TargetError::Draining,
            Some(holder) => TargetError::Held { holder: holder.clone(), remaining: None },
            None => TargetError::NotATarget,
        };
        let _ = reply.send(Err(error));
    }

    fn decided(&mut self, target: &Target, outcome: &Result<TermHandle, TargetError>) {
        for reply in self.waiting.remove(target).into_iter().flatten() {
            let _ = reply.send(outcome.clone());
        }
    }

    fn release(&mut self, target: Target, reply: oneshot::Sender<Result<(), TargetError>>) {
        if self.seats.contains_key(&target) {
            self.order(&target, Order::Release(ReleaseReason::Voluntary));
            self.releasing.entry(target).or_default().push(reply);
            return;
        }
        let is_target = self.engine.outlook(SystemClock.now(), &target).is_some();
        let _ = reply.send(Err(if is_target { TargetError::NotHeld } else { TargetError::NotATarget }));
    }

    /// What is known of a target, as far as the engine knows.
    fn info(&self, target: &Target) -> Option<TargetInfo> {
        let outlook = self.engine.outlook(SystemClock.now(), target)?;
        let holder = self.engine.holder(target).cloned();
        let state = if holder.is_some() { LeaseState::Other } else { LeaseState::Unknown };
        Some(TargetInfo {
            target: target.clone(),
            state,
            holder,
            token: None,
            acquired_at: None,
            last_renewed_at: None,
            preferred: outlook.preferred,
            unheld_for: outlook.unheld_for,
        })
    }

    fn take_in(&mut self, news: News) {
        match news {
            News::Input(input) => {
                if let Input::Over { target, ending } = &input {
                    let handed_over = matches!(
                        ending,
                        Ending::Released(ReleaseReason::HandedOver | ReleaseReason::Rebalance | ReleaseReason::Unable)
                    );
                    for reply in self.releasing.remove(target).into_iter().flatten() {
                        let _ = reply.send(Ok(()));
                    }
                    if let Some(targets) = self.not_handed_over.as_mut().filter(|_| !handed_over) {
                        targets.insert(target.clone());
                    }
                    self.stopwatch.gave(target, handed_over, &self.meters);
                    self.seats.remove(target);
                    self.lock_held().remove(target);
                    self.index(target, false);
                }
                self.input(input);
            }
            News::Refused { target, error, input } => {
                self.decided(&target, &Err(error));
                self.input(input);
            }
            News::AskedToDrain(asked) => {
                self.asked_to_drain = asked;
                self.drain_as_asked();
            }
            News::Seated(target, term) => {
                let handle = (*term).clone();
                let term_handle = handle.clone();
                self.lock_held().insert(target.clone(), handle.clone());
                let (orders, orders_in) = mpsc::unbounded_channel();
                let (news, work, seat) = (self.news.clone(), self.work.clone(), target.clone());
                let task = tokio::spawn(async move {
                    keep(seat.clone(), term, work, orders_in).await;
                    let _ = news.send(News::Input(Input::Over { target: seat, ending: handle.ending() }));
                });
                self.seats.insert(target.clone(), Seat { orders, task });
                self.decided(&target, &Ok(term_handle));
                self.input(Input::Granted(target.clone()));
                self.see_whether_it_came_home(target);
            }
        }
    }

    fn hear(&mut self, announcement: Announcement) {
        match announcement {
            Announcement::Vacant { name } => {
                if let Some(target) = self.naming.target(&name) {
                    self.input(Input::Vacant(target));
                }
            }
            Announcement::Released { name, .. } => {
                if let Some(target) = self.naming.target(&name) {
                    self.input(Input::Released(target));
                }
            }
            Announcement::HandedOver { name, to, .. } => {
                if let Some(target) = self.naming.target(&name) {
                    self.input(Input::HandedOver { target, to });
                }
            }
            Announcement::Joined { group: Group::FLEET, instance }
            | Announcement::Left { group: Group::FLEET, instance }
                if instance != *self.tenure.instance() =>
            {
                self.input(Input::FleetChanged);
            }
            Announcement::IndexChanged { index } if index == DRAINING => self.see_whether_to_drain(),
            // What was refused until the end of a quarantine need not wait for that.
            Announcement::Reopened => self.input(Input::Gap),
            _ => {}
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::ReadMembers => {
                self.see_whether_to_drain();
                self.ask(|tenure, _| async move {
                    match tenure.ask_for_work(Request::Members { group: Group::FLEET }).await {
                        Ok(Reply::Members(members)) => Some(Input::Members(members)),
                        _ => Some(Input::Unread),
                    }
                })
            }
            Action::LookAt(targets) => {
                let (tenure, naming, news) = (self.tenure.clone(), self.naming.clone(), self.news.clone());
                tokio::spawn(async move {
                    for chunk in targets.chunks(LOOKS) {
                        let seen = look_at(&tenure, &naming, chunk.to_vec()).await;
                        if news.send(News::Input(seen)).is_err() {
                            return;
                        }
                    }
                });
            }
            Action::Inspect(target) => {
                self.ask(move |tenure, naming| async move { inspect(&tenure, &naming, target).await })
            }
            Action::LookUp(instance) => {
                self.ask(move |tenure, naming| async move { look_up(&tenure, naming.pool(), instance).await })
            }
            Action::Claim(target) => self.claim(target),
            Action::Release { target, reason } => {
                let removed = reason == ReleaseReason::Removed;
                let reason = if removed { (self.removed_because)(&target) } else { reason };
                self.order(&target, Order::Release(reason));
            }
            Action::HandOver { target, to, reason } => {
                // Before it is anybody else's.
                self.explain(&target, Some(self.tenure.instance().clone()), to.clone(), reason);
                // Should the receiver be dead, this is found with what it held.
                self.tenure.say(index_of(self.naming.pool(), &to, &target, true));
                self.stopwatch.gives(&target);
                self.order(&target, Order::HandOver(to, released_because(reason)));
            }
            Action::Explain { target, from } => {
                self.stopwatch.took_from(&from, &self.meters);
                self.explain(&target, Some(from), self.tenure.instance().clone(), Reason::HolderGone);
            }
            Action::Proclaim(target) => {
                if let Ok(name) = self.naming.lease(&target) {
                    self.tenure.say(Request::Announce(Announcement::Vacant { name }));
                }
            }
            Action::Forget { instance, target } => {
                self.tenure.say(index_of(self.naming.pool(), &instance, &target, false));
            }
            Action::Tell => {
                self.tell_at.get_or_insert(tokio::time::Instant::now() + TELL_AFTER);
            }
        }
    }

    /// Writes down beside the lease why a target moves.
    fn explain(&self, target: &Target, from: Option<InstanceId>, to: InstanceId, reason: Reason) {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(term) = held.get(target) {
            let moved = Move { target: target.to_string(), from, to, reason };
            let (record, value) = (MOVED.to_owned(), moved.encode().into_bytes());
            self.tenure.say(Request::Publish { holding: term.holding(), record, value, announced: false });
        }
    }

    /// What was handed back to this instance after a restart is what it had before; the giver has written that down.
    fn see_whether_it_came_home(&self, target: Target) {
        if !self.tenure.is_named() || self.started.elapsed() >= RETURN_WITHIN {
            return;
        }
        self.ask(move |tenure, naming| async move {
            let name = naming.lease(&target).ok()?;
            let record = tenure.read(&name, MOVED).await.ok()??;
            let moved = Move::decode(&target, std::str::from_utf8(&record.value).ok()?)?;
            let is_ours = moved.reason == Reason::HandBack && moved.to == *tenure.instance();
            is_ours.then_some(Input::CameHome(target))
        });
    }

    fn see_whether_to_drain(&self) {
        let (tenure, news) = (self.tenure.clone(), self.news.clone());
        tokio::spawn(async move {
            if let Ok(asked) = tenure.is_asked_to_drain().await {
                let _ = news.send(News::AskedToDrain(asked));
            }
        });
    }

    /// Asks something beside the loop, and takes in what comes of it.
    fn ask<F, Fut>(&self, question: F)
    where
        F: FnOnce(Tenure, Naming) -> Fut,
        Fut: Future<Output = Option<Input>> + Send + 'static,
    {
        let (news, asking) = (self.news.clone(), question(self.tenure.clone(), self.naming.clone()));
        tokio::spawn(async move {
            if let Some(input) = asking.await {
                let _ = news.send(News::Input(input));
            }
        });
    }

    fn claim(&mut self, target: Target) {
        let Ok(name) = self.naming.lease(&target) else { return };
        let (tenure, news) = (self.tenure.clone(), self.news.clone());
        let (lease, pool) = (self.settings.lease, self.naming.pool().to_owned());
        tokio::spawn(async move {
            // Before the claim: whoever reads what we held misses nothing, and an entry too many does no harm.
            tenure.say(index_of(&pool, tenure.instance(), &target, true));
            let claim = tenure.lease_named(name).settings(lease).limit(lease.ttl() / 2);
            let again_in = lease.renew_every();
            let outcome = match claim.try_acquire().await {
                Ok(term) => News::Seated(target, term),
                Err(error) => {
                    let ours = matches!(&error, AcquireError::Held { by, .. } if by == tenure.instance());
                    if !ours {
                        tenure.say(index_of(&pool, tenure.instance(), &target, false));
                    }
                    let (reason, input) = match error {
                        AcquireError::Held { by, remaining } => (
                            TargetError::Held { holder: by.clone(), remaining },
                            Input::Refused { target: target.clone(), by, remaining },
                        ),
                        AcquireError::Quarantined(quarantine) => (
                            TargetError::Quarantined(quarantine),
                            Input::Failed { target: target.clone(), again_in: quarantine.remaining },
                        ),
                        other => (unacquired(other), Input::Failed { target: target.clone(), again_in }),
                    };
                    News::Refused { target, error: reason, input }
                }
            };
            let _ = news.send(outcome);
        });
    }

    fn order(&mut self, target: &Target, order: Order) {
        if let Some(seat) = self.seats.get(target) {
            // One that has just ended says so itself.
            let _ = seat.orders.send(order);
        }
    }

    fn index(&self, target: &Target, held: bool) {
        self.tenure.say(index_of(self.naming.pool(), self.tenure.instance(), target, held));
    }

    fn drain_as_asked(&mut self) {
        let drain = self.told_to_drain || self.asked_to_drain;
        if drain == self.engine.is_draining() {
            return;
        }
        self.input(if drain { Input::Drain } else { Input::Stay });
        self.tell_fleet_at_once();
    }

    fn set_able(&mut self, able: bool) {
        if able != self.engine.is_able() {
            self.input(Input::Able(able));
            self.tell_fleet_at_once();
        }
    }

    fn tell_fleet_at_once(&self) {
        self.tell_fleet();
        // A heartbeat alone is not announced.
        let instance = self.tenure.instance().clone();
        self.tenure.say(Request::Announce(Announcement::Joined { group: Group::FLEET, instance }));
    }

    /// Says how it stands with this instance. It may be in other pools, too, which is all one to them.
    fn tell_fleet(&self) {
        // For whoever tidies up after it.
        self.tenure.say(listed(self.naming.pool(), self.tenure.instance(), true));
        let (leaving, able) = (self.engine.is_draining(), self.engine.is_able());
        let (now, wall) = (SystemClock.now(), SystemTime::now());
        let waits = |(id, left, crashes)| (id, HeldBack { until: wall + left, crashes });
        let waiting: Vec<_> = self.engine.held_back(now).into_iter().map(waits).collect();
        let settings = &self.settings;
        self.tenure.update_record(|record: &mut InstanceRecord| {
            let ours = self.naming.pool();
            let alone = record.held.keys().all(|pool| pool == ours);
            let least = |theirs: Duration, ours: Duration| if alone { ours } else { theirs.min(ours) };
            record.weighs(ours, settings.weight);
            record.heartbeat_every = least(record.heartbeat_every, settings.heartbeat_every);
            record.heartbeat_ttl = least(record.heartbeat_ttl, settings.heartbeat_ttl);
            record.tells_of(ours, self.engine.held(), leaving);
            record.reports_able(ours, able);
            record.says_who_waits(&waiting);
        });
    }

    async fn stop_all(&mut self) {
        for seat in self.seats.values() {
            let _ = seat.orders.send(Order::Stop(ReleaseReason::Shutdown));
        }
        for (target, seat) in std::mem::take(&mut self.seats) {
            if let Some(targets) = &mut self.not_handed_over {
                targets.insert(target.clone());
            }
            let _ = seat.task.await;
            self.lock_held().remove(&target);
            self.index(&target, false);
        }
    }

    fn lock_held(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<Target, TermHandle>> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a claim came to nothing that no holder and no quarantine stood in the way of.
fn unacquired(error: AcquireError) -> TargetError {
    match error {
        AcquireError::Store(error) | AcquireError::TimedOut { because: Some(error), .. } => TargetError::Store(error),
        AcquireError::ShutDown => TargetError::Stopped,
        other => TargetError::Store(StoreError::new(ErrorKind::Unavailable, other.to_string())),
    }
}

/// The index of those who hold, or held, anything of a pool.
pub(super) fn holders_of(pool: &str) -> String {
    format!("holders:{pool}")
}

fn listed(pool: &str, instance: &InstanceId, listed: bool) -> Request {
    let (index, entry, announced) = (holders_of(pool), instance.to_string(), false);
    if listed {
        Request::IndexAdd { index, entry, announced }
    } else {
        Request::IndexRemove { index, entry, announced }
    }
}

/// The index of what an instance holds of a pool.
pub(super) fn held_by(pool: &str, instance: &InstanceId) -> String {
    format!("held:{pool}:{instance}")
}

fn index_of(pool: &str, instance: &InstanceId, target: &Target, held: bool) -> Request {
    let (index, entry, announced) = (held_by(pool, instance), target.to_string(), false);
    if held { Request::IndexAdd { index, entry, announced } } else { Request::IndexRemove { index, entry, announced } }
}

async fn look_at(tenure: &Tenure, naming: &Naming, targets: Vec<Target>) -> Input {
    let named = targets.into_iter().filter_map(|target| Some((naming.lease(&target).ok()?, target)));
    let (names, targets): (Vec<LeaseName>, Vec<Target>) = named.unzip();
    match until_answered(tenure, Request::Holders { names }).await {
        Some(Reply::Holders(holders)) => Input::Holders(targets.into_iter().zip(holders).collect()),
        _ => Input::Holders(Vec::new()),
    }
}

async fn inspect(tenure: &Tenure, naming: &Naming, target: Target) -> Option<Input> {
    let name = naming.lease(&target).ok()?;
    let Reply::Lease(report) = until_answered(tenure, Request::Inspect { name }).await? else { return None };
    // By the store's clock: the answer may have been on its way for longer than the others need to take it over.
    let ends = |held: &HeldLease| Some(tenure.local_moment(held.server + held.remaining?));
    Some(Input::Report { target, held: report.held.map(|held| (held.by.clone(), ends(&held))) })
}

async fn look_up(tenure: &Tenure, pool: &str, instance: InstanceId) -> Option<Input> {
    let index = held_by(pool, &instance);
    let Reply::Index(entries) = until_answered(tenure, Request::IndexList { index }).await? else { return None };
    Some(Input::WasHeldBy { instance, targets: entries.into_iter().map(Target::from).collect() })
}

/// Asks until it is answered, or there is nobody to ask.
pub(super) async fn until_answered(tenure: &Tenure, request: Request) -> Option<Reply> {
    loop {
        match tenure.ask_for_work(request.clone()).await {
            Ok(reply) => return Some(reply),
            Err(error) if error.is_retryable() => tokio::time::sleep(ASK_AGAIN).await,
            Err(_) => return None,
        }
    }
}
