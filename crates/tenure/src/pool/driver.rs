//! Drives the engine of a pool: asks what it wants to know, claims what it wants to have, and runs the work.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::engine::Engine;
use super::scout::Scout;
use super::seat::{Order, Work, keep};
use super::signal::{Action, Input};
use super::{PoolSettings, Target};
use crate::event::Happening;
use crate::fleet::InstanceRecord;
use crate::keeper::AcquireError;
use crate::lease::ReleaseReason;
use crate::name::{Group, InstanceId, LeaseName};
use crate::placement::{Move, Reason};
use crate::store::{Announcement, Heard, Reply, Request, Wild};
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
    /// Lets go of everything and ends.
    Stop(oneshot::Sender<()>),
    Release(Target),
    /// Asks for a target at once.
    TryAcquire(Target, oneshot::Sender<bool>),
    /// Who should hold a target.
    Preferred(Target, oneshot::Sender<Option<InstanceId>>),
    /// For how long nobody has held a target.
    UnheldFor(Target, oneshot::Sender<Option<Duration>>),
}

/// News from tasks.
enum News {
    Input(Input),
    /// A claim was granted.
    Seated(Target, crate::tenure::Term),
}

pub(super) struct Driver {
    pub(super) tenure: Tenure,
    pub(super) pool: String,
    pub(super) settings: PoolSettings,
    pub(super) discovers_sessions: bool,
    pub(super) work: Work,
    pub(super) held: Held,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) live: watch::Sender<Vec<InstanceId>>,
}

impl Driver {
    pub(super) async fn run(self) {
        let Self { tenure, pool, settings, discovers_sessions, work, held, mut commands, live } = self;
        let engine = Engine::new(tenure.instance().clone(), &pool, settings.weight, settings.engine());
        let (news, mut incoming) = mpsc::unbounded_channel();
        let mut announcements = tenure.announcements();
        let mut desk = Desk {
            tenure,
            pool,
            settings,
            work,
            held,
            live,
            engine,
            news,
            seats: HashMap::new(),
            waiting: HashMap::new(),
            tell_at: None,
        };
        desk.tell_fleet();
        let wild = if discovers_sessions { vec![Wild::Nodes, Wild::Sessions] } else { vec![Wild::Nodes] };
        let (scout, mut scouts) = Scout::stands(desk.tenure.clone(), &desk.pool, &desk.settings, wild);
        let mut stopping: Option<(tokio::time::Instant, Vec<oneshot::Sender<()>>)> = None;
        loop {
            let wake = desk.engine.next_wake().map(|at| at.since(SystemClock.now()));
            let wake = wake.unwrap_or(desk.settings.read_every).min(desk.settings.read_every);
            let tell_at = desk.tell_at;
            let give_up_at = stopping.as_ref().map(|(at, _)| *at);
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Targets(targets)) => desk.input(Input::Targets(targets)),
                    // Whoever leaves does not stay after all.
                    Some(Command::Drain(drain)) => if stopping.is_none() { desk.drain(drain) },
                    Some(Command::Stop(done)) => match &mut stopping {
                        Some((_, waiting)) => waiting.push(done),
                        None => {
                            desk.drain(true);
                            stopping = Some((tokio::time::Instant::now() + desk.settings.drain_timeout, vec![done]));
                        }
                    },
                    Some(Command::Release(target)) => desk.order(&target, Order::Release(ReleaseReason::Voluntary)),
                    Some(Command::TryAcquire(target, reply)) => desk.try_acquire(target, reply),
                    Some(Command::Preferred(target, reply)) => drop(reply.send(desk.preferred(&target))),
                    Some(Command::UnheldFor(target, reply)) => {
                        let _ = reply.send(desk.engine.unheld_for(SystemClock.now(), &target));
                    }
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
        desk.tenure.leave_pool(&desk.pool).await;
        for done in stopping.into_iter().flat_map(|(_, waiting)| waiting) {
            let _ = done.send(());
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
    pool: String,
    settings: PoolSettings,
    work: Work,
    held: Held,
    live: watch::Sender<Vec<InstanceId>>,
    engine: Engine,
    news: mpsc::UnboundedSender<News>,
    seats: HashMap<Target, Seat>,
    /// Who waits to hear whether a target was had.
    waiting: HashMap<Target, Vec<oneshot::Sender<bool>>>,
    /// When the others are told how many targets are held.
    tell_at: Option<tokio::time::Instant>,
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
                self.tenure.tell(Happening::Left { instance });
            }
        }
    }

    fn try_acquire(&mut self, target: Target, reply: oneshot::Sender<bool>) {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner).get(&target).cloned();
        if held.is_some_and(|term| term.is_valid() && !term.is_leaving()) {
            let _ = reply.send(true);
            return;
        }
        self.input(Input::Want(target.clone()));
        // Otherwise there is nothing to wait for.
        if self.engine.is_asking(&target) {
            self.waiting.entry(target).or_default().push(reply);
        }
    }

    fn decided(&mut self, target: &Target, had: bool) {
        for reply in self.waiting.remove(target).into_iter().flatten() {
            let _ = reply.send(had);
        }
    }

    fn take_in(&mut self, news: News) {
        match news {
            News::Input(input) => {
                if let Input::Refused { target, .. } | Input::Failed { target, .. } = &input {
                    self.decided(target, false);
                }
                if let Input::Over { target, .. } = &input {
                    self.seats.remove(target);
                    self.lock_held().remove(target);
                    self.index(target, false);
                }
                self.input(input);
            }
            News::Seated(target, term) => {
                let handle = (*term).clone();
                self.lock_held().insert(target.clone(), handle.clone());
                let (orders, orders_in) = mpsc::unbounded_channel();
                let (news, work, seat) = (self.news.clone(), self.work.clone(), target.clone());
                let task = tokio::spawn(async move {
                    keep(seat.clone(), term, work, orders_in).await;
                    let _ = news.send(News::Input(Input::Over { target: seat, ending: handle.ending() }));
                });
                self.seats.insert(target.clone(), Seat { orders, task });
                self.decided(&target, true);
                self.input(Input::Granted(target));
            }
        }
    }

    fn hear(&mut self, announcement: Announcement) {
        match announcement {
            Announcement::Vacant { name } => {
                if let Some(target) = self.target(&name) {
                    self.input(Input::Vacant(target));
                }
            }
            Announcement::Released { name, .. } => {
                if let Some(target) = self.target(&name) {
                    self.input(Input::Released(target));
                }
            }
            Announcement::HandedOver { name, to, .. } => {
                if let Some(target) = self.target(&name) {
                    self.input(Input::HandedOver { target, to });
                }
            }
            Announcement::Joined { group: Group::FLEET, instance }
            | Announcement::Left { group: Group::FLEET, instance }
                if instance != *self.tenure.instance() =>
            {
                self.input(Input::FleetChanged);
            }
            _ => {}
        }
    }

    /// The target that a lease is of, when it is one of this pool's.
    fn target(&self, name: &LeaseName) -> Option<Target> {
        self.name(name.label()).filter(|ours| ours == name).map(|_| Target::from(name.label()))
    }

    fn name(&self, target: &str) -> Option<LeaseName> {
        LeaseName::target(&self.pool, target).ok()
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::ReadMembers => {
                self.ask(|tenure, _| async move { Some(tenure.fleet().await.map_or(Input::Unread, Input::Members)) })
            }
            Action::LookAt(targets) => {
                let (tenure, pool, news) = (self.tenure.clone(), self.pool.clone(), self.news.clone());
                tokio::spawn(async move {
                    for chunk in targets.chunks(LOOKS) {
                        let seen = look_at(&tenure, &pool, chunk.to_vec()).await;
                        if news.send(News::Input(seen)).is_err() {
                            return;
                        }
                    }
                });
            }
            Action::Inspect(target) => {
                self.ask(move |tenure, pool| async move { inspect(&tenure, &pool, target).await })
            }
            Action::LookUp(instance) => {
                self.ask(move |tenure, pool| async move { look_up(&tenure, &pool, instance).await })
            }
            Action::Claim(target) => self.claim(target),
            Action::Release { target, reason } => self.order(&target, Order::Release(reason)),
            Action::HandOver { target, to, reason } => {
                // Before it is anybody else's.
                self.explain(&target, Some(self.tenure.instance().clone()), to.clone(), reason);
                self.order(&target, Order::HandOver(to));
            }
            Action::Explain { target, from } => {
                self.explain(&target, Some(from), self.tenure.instance().clone(), Reason::HolderGone);
            }
            Action::Proclaim(target) => {
                if let Some(name) = self.name(&target) {
                    self.tenure.say(Request::Announce(Announcement::Vacant { name }));
                }
            }
            Action::Forget { instance, target } => {
                self.tenure.say(index_of(&self.pool, &instance, &target, false));
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

    /// Asks something beside the loop, and takes in what comes of it.
    fn ask<F, Fut>(&self, question: F)
    where
        F: FnOnce(Tenure, String) -> Fut,
        Fut: Future<Output = Option<Input>> + Send + 'static,
    {
        let (news, asking) = (self.news.clone(), question(self.tenure.clone(), self.pool.clone()));
        tokio::spawn(async move {
            if let Some(input) = asking.await {
                let _ = news.send(News::Input(input));
            }
        });
    }

    fn claim(&mut self, target: Target) {
        let Some(name) = self.name(&target) else { return };
        let (tenure, news) = (self.tenure.clone(), self.news.clone());
        let (lease, pool) = (self.settings.lease, self.pool.clone());
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
                    News::Input(match error {
                        AcquireError::Held { by, remaining } => Input::Refused { target, by, remaining },
                        AcquireError::Closed { remaining } => Input::Failed { target, again_in: remaining },
                        _ => Input::Failed { target, again_in },
                    })
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
        self.tenure.say(index_of(&self.pool, self.tenure.instance(), target, held));
    }

    fn drain(&mut self, drain: bool) {
        self.input(if drain { Input::Drain } else { Input::Stay });
        self.tell_fleet();
        // A heartbeat alone is not announced.
        let instance = self.tenure.instance().clone();
        self.tenure.say(Request::Announce(Announcement::Joined { group: Group::FLEET, instance }));
    }

    /// Says how it stands with this instance. It may be in other pools, too, which is all one to them.
    fn tell_fleet(&self) {
        let leaving = self.engine.is_draining();
        let settings = &self.settings;
        self.tenure.update_record(|record: &mut InstanceRecord| {
            let alone = record.held.keys().all(|pool| *pool == self.pool);
            let least = |theirs: Duration, ours: Duration| if alone { ours } else { theirs.min(ours) };
            record.weighs(&self.pool, settings.weight);
            record.heartbeat_every = least(record.heartbeat_every, settings.heartbeat_every);
            record.heartbeat_ttl = least(record.heartbeat_ttl, settings.heartbeat_ttl);
            record.tells_of(&self.pool, self.engine.held(), leaving);
        });
    }

    fn preferred(&self, target: &Target) -> Option<InstanceId> {
        self.engine.preferred(SystemClock.now(), target)
    }

    async fn stop_all(&mut self) {
        for seat in self.seats.values() {
            let _ = seat.orders.send(Order::Stop(ReleaseReason::Shutdown));
        }
        for (target, seat) in std::mem::take(&mut self.seats) {
            let _ = seat.task.await;
            self.lock_held().remove(&target);
            self.index(&target, false);
        }
    }

    fn lock_held(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<Target, TermHandle>> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The index of what an instance holds of a pool.
fn held_by(pool: &str, instance: &InstanceId) -> String {
    format!("held:{pool}:{instance}")
}

fn index_of(pool: &str, instance: &InstanceId, target: &Target, held: bool) -> Request {
    let (index, entry, announced) = (held_by(pool, instance), target.to_string(), false);
    if held { Request::IndexAdd { index, entry, announced } } else { Request::IndexRemove { index, entry, announced } }
}

async fn look_at(tenure: &Tenure, pool: &str, targets: Vec<Target>) -> Input {
    let named = targets.into_iter().filter_map(|target| Some((LeaseName::target(pool, &target).ok()?, target)));
    let (names, targets): (Vec<LeaseName>, Vec<Target>) = named.unzip();
    match until_answered(tenure, Request::Holders { names }).await {
        Some(Reply::Holders(holders)) => Input::Holders(targets.into_iter().zip(holders).collect()),
        _ => Input::Holders(Vec::new()),
    }
}

async fn inspect(tenure: &Tenure, pool: &str, target: Target) -> Option<Input> {
    let name = LeaseName::target(pool, &target).ok()?;
    let Reply::Lease(report) = until_answered(tenure, Request::Inspect { name }).await? else { return None };
    Some(Input::Report { target, held: report.held.map(|held| (held.by, held.remaining)) })
}

async fn look_up(tenure: &Tenure, pool: &str, instance: InstanceId) -> Option<Input> {
    let index = held_by(pool, &instance);
    let Reply::Index(entries) = until_answered(tenure, Request::IndexList { index }).await? else { return None };
    Some(Input::WasHeldBy { instance, targets: entries.into_iter().map(Target::from).collect() })
}

/// Asks until it is answered, or there is nobody to ask.
pub(super) async fn until_answered(tenure: &Tenure, request: Request) -> Option<Reply> {
    loop {
        match tenure.ask(request.clone()).await {
            Ok(reply) => return Some(reply),
            Err(error) if error.is_retryable() => tokio::time::sleep(ASK_AGAIN).await,
            Err(_) => return None,
        }
    }
}
