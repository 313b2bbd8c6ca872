//! The keeper's thread: a loop that takes in whatever has happened, lets the roster decide, and carries it out.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;

use super::alarm::Alarm;
use super::link::{Inside, Link};
use super::outlet::Outlet;
use super::roster::Roster;
use super::{AcquireError, Command, Contact, Door, Gauges};
use crate::event::{Event, Happening};
use crate::fleet::FleetEvent;
use crate::lease::LeaseSettings;
use crate::name::InstanceId;
use crate::store::{Connection, Continuity, Entry, Heard, NamespaceMemory, Outcome, Store, StoreError};
use crate::time::{LeaseClock, Moment, Now, SystemClock};

/// How often both clocks are looked at, whatever the alarm does: a wall clock that jumps ahead rings no alarm.
const BACKSTOP: Duration = Duration::from_millis(250);

/// How much is taken in before something is sent.
const TURN: usize = 1_024;

/// How long the last requests may take after nobody needs the keeper any more.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What a keeper is started with.
pub(crate) struct Plan {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) instance: InstanceId,
    /// The longest ttl that others are assumed to rely on, as long as nothing is known.
    pub(crate) assumed_ttl: Duration,
    pub(crate) observer: bool,
    pub(crate) bootstrap: bool,
    pub(crate) durable: bool,
    /// Whether the whole fleet hears of what happens.
    pub(crate) shares_events: bool,
    pub(crate) outlet: Outlet,
    pub(crate) gauges: Arc<Gauges>,
}

/// Starts a keeper. It ends when nobody can reach it any more and all its leases are let go of.
pub(crate) fn start(plan: Plan) -> io::Result<Arc<Door>> {
    let (commands, orders) = mpsc::unbounded_channel();
    let (contact_sender, contact) = watch::channel(Contact::None);
    let door = Arc::new(Door {
        instance: plan.instance.clone(),
        location: plan.store.location().to_owned(),
        commands,
        contact,
        gauges: plan.gauges.clone(),
        tickets: AtomicU64::new(1),
        soon: Mutex::default(),
        process: rustix::process::getpid(),
    });
    let (report, reported) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new().name("tenure-keeper".to_owned()).spawn(move || {
        // Made here, because it must not be dropped inside another runtime when something is missing.
        let made = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
            let alarm = {
                let _inside = runtime.enter();
                Alarm::new()?
            };
            Ok((runtime, alarm))
        });
        let (runtime, alarm) = match made {
            Ok(made) => made,
            Err(error) => {
                let _ = report.send(Err(error));
                return;
            }
        };
        let _ = report.send(Ok(()));
        let (inside_sender, inside) = mpsc::unbounded_channel();
        let keeper = Keeper {
            link: Link::new(plan.store.clone(), inside_sender),
            roster: Roster::new(plan.instance.clone()),
            contact: contact_sender,
            ending: None,
            deaf: false,
            plan,
        };
        // As a task: what the runtime itself waits for is woken through the kernel, even by its own tasks.
        let ends = runtime.spawn(keeper.run(orders, inside, alarm));
        // A panic has been told; everybody who waits is told by what is dropped.
        let _ = runtime.block_on(ends);
        // What may still run has nobody to report to.
        runtime.shutdown_background();
    })?;
    reported.recv().unwrap_or_else(|_| Err(io::Error::other("the thread has ended")))?;
    Ok(door)
}

struct Keeper {
    plan: Plan,
    roster: Roster,
    link: Link,
    contact: watch::Sender<Contact>,
    /// Once nobody needs us: until when we still try to say goodbye to the store.
    ending: Option<Ending>,
    /// Whether it was said that announcements cannot be heard.
    deaf: bool,
}

#[derive(Clone, Copy)]
struct Ending {
    /// `None` while somebody waits for everything to be let go of.
    until: Option<Moment>,
}

impl Keeper {
    async fn run(
        mut self,
        mut orders: UnboundedReceiver<Command>,
        mut inside: UnboundedReceiver<Inside>,
        alarm: Alarm,
    ) {
        let mut rings_at = Moment::END;
        loop {
            let now = SystemClock.read();
            self.roster.look_at_clock(now);
            self.tend_the_link(now);
            self.link.send(now.moment, &mut self.roster.outbox);
            self.report();
            if !orders.is_empty() || !inside.is_empty() {
                // What was sent must get its turn, too, however much there is to be taken in.
                tokio::task::yield_now().await;
            }
            if self.is_done(now.moment) {
                break;
            }
            let wake = [self.roster.next_wake(), self.link.retry_at()].into_iter().flatten().min();
            let wake = wake.map_or(now.moment + BACKSTOP, |at| at.min(now.moment + BACKSTOP));
            // One that rings too early does no harm, and setting it costs more than most turns do.
            if wake < rings_at || rings_at <= now.moment {
                rings_at = wake;
                if alarm.set(wake.since(SystemClock.now())).is_err() {
                    // Cannot happen to a timer that was made. A busy loop keeps every promise, too.
                    rings_at = Moment::ZERO;
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            tokio::select! {
                order = orders.recv(), if self.listens_to_orders() => match order {
                    Some(order) => self.obey(order),
                    None => self.ending = Some(Ending { until: Some(SystemClock.now() + LAST_WORDS) }),
                },
                Some(news) = inside.recv() => self.take_in(news),
                // Whatever a broken timer says, the loop goes on.
                _ = alarm.rung() => rings_at = Moment::END,
            }
            for _ in 0..TURN {
                match orders.try_recv() {
                    Ok(order) => self.obey(order),
                    Err(_) => break,
                }
            }
            for _ in 0..TURN {
                match inside.try_recv() {
                    Ok(news) => self.take_in(news),
                    Err(_) => break,
                }
            }
        }
        self.contact.send_replace(Contact::Over);
    }

    fn listens_to_orders(&self) -> bool {
        self.ending.is_none_or(|ending| ending.until.is_none())
    }

    fn is_done(&mut self, now: Moment) -> bool {
        let Some(ending) = self.ending else { return false };
        let too_late = ending.until.is_some_and(|until| now >= until);
        if self.roster.len() == 0 && self.link.is_up() {
            self.roster.send_notes(now);
            self.link.send(now, &mut self.roster.outbox);
        }
        too_late
            || self.roster.has_only_overdue()
                && (self.roster.len() > 0 || self.roster.is_idle() && self.link.is_quiet())
    }

    fn obey(&mut self, order: Command) {
        let now = SystemClock.read();
        match order {
            Command::Acquire(claim) if self.ending.is_some() => claim.refuse(AcquireError::ShutDown),
            Command::Acquire(claim) if self.plan.observer => claim.refuse(AcquireError::Observer),
            Command::Acquire(claim) => self.roster.acquire(now, claim),
            Command::GiveUp(ticket) => self.roster.give_up(now, ticket),
            Command::Wish(id, wish) => self.roster.wish(now, id, wish),
            Command::WorkEnded(id) => self.roster.work_ended(now, id),
            Command::Progress(id) => self.roster.progress(now, id),
            Command::Ask(question) => self.roster.ask(now, question),
            Command::AskAll(questions) => questions.into_iter().for_each(|question| self.roster.ask(now, question)),
            Command::Hear(queue) => self.roster.hearers.add(queue),
            Command::Join { heartbeat, every } => self.roster.join(heartbeat, every),
            Command::Quit => self.roster.quit(now.moment),
            Command::Observe(name, observer) => self.roster.observers.add(name, observer),
            Command::Tell(event) => self.roster.events.push(event),
            Command::ShutDown => {
                self.ending.get_or_insert(Ending { until: None });
                self.roster.shut_down(now);
            }
        }
    }

    fn take_in(&mut self, news: Inside) {
        let now = SystemClock.read();
        match news {
            Inside::Entered { link, .. } | Inside::Outcomes { link, .. } | Inside::Closed { link }
                if !self.link.is_current(link) => {}
            Inside::Entered { result: Ok(connection), .. } => self.entered(now, connection),
            Inside::Entered { result: Err(error), .. } => {
                self.link.failed(now.moment, &error);
                self.roster.cannot_enter(now, &error);
                self.lost_contact(error);
            }
            Inside::Outcomes { tags, outcomes, .. } => {
                let (mut usable, mut answers) = (true, false);
                for (tag, outcome) in tags.into_iter().zip(outcomes) {
                    answers |= matches!(outcome, Outcome::Answered(_));
                    usable &= self.roster.answered(now, tag, outcome);
                }
                if !usable {
                    self.lose_the_link(now, "an answer did not come in time");
                } else if answers {
                    self.link.works(now.moment);
                }
            }
            Inside::Closed { .. } => self.lose_the_link(now, "the connection was closed"),
            Inside::Heard(Heard::Announced(announcement)) => {
                if self.roster.announced(now, announcement) {
                    self.lose_the_link(now, "the store has lost its data");
                }
            }
            Inside::Heard(_) => {
                self.deaf = false;
                self.roster.look_again(now);
            }
            // A store that is down is told of by the link.
            Inside::Deaf(error) if error.is_retryable() => {}
            Inside::Deaf(error) => {
                if !std::mem::replace(&mut self.deaf, true) {
                    self.tell(Happening::StoreSilent { error: error.to_string() });
                }
            }
        }
    }

    fn tend_the_link(&mut self, now: Now) {
        if std::mem::take(&mut self.roster.wants_entry) {
            self.lose_the_link(now, "the store is not what it was");
        }
        if self.link.retry_at().is_some_and(|at| now.moment >= at) {
            // Several round trips, but no longer than leases can wait.
            let attempt = self.roster.shortest_attempt().unwrap_or(LeaseSettings::default().attempt_timeout());
            let limit = (attempt * 2).max(Duration::from_millis(250)).saturating_mul(self.link.patience());
            let limit = limit.min(Duration::from_secs(5));
            let memory = self.roster.memory.clone();
            let own = self.roster.longest_ttl().unwrap_or_default();
            let entry = Entry {
                max_ttl: if self.roster.knows_ttls(now.moment) { own } else { own.max(self.plan.assumed_ttl) },
                memory,
                observer: self.plan.observer,
                bootstrap: self.plan.bootstrap,
                durable: self.plan.durable,
                patience: limit.mul_f64(0.75),
                ..Entry::default()
            };
            self.link.enter(entry, limit);
        }
    }

    fn entered(&mut self, now: Now, connection: Arc<dyn Connection>) {
        let entered = connection.entered().clone();
        let continuity = match &mut self.roster.memory {
            Some(memory) => memory.reenter(&entered),
            None => {
                self.roster.memory = Some(NamespaceMemory::of(&entered));
                Continuity::Changed
            }
        };
        self.link.up(now.moment, connection);
        self.contact.send_replace(Contact::Entered);
        self.tell(Happening::StoreEntered);
        if let Some(quarantine) = entered.quarantine {
            self.tell(Happening::StoreQuarantined(quarantine));
        }
        if let Some(why) = &entered.silent
            && !std::mem::replace(&mut self.deaf, true)
        {
            self.tell(Happening::StoreSilent { error: why.clone() });
        }
        self.roster.entered(now, continuity);
    }

    fn lose_the_link(&mut self, now: Now, why: &str) {
        if self.link.is_up() {
            self.link.give_up(now.moment);
            self.roster.connection_lost(now, why);
            let message = format!("{}: {why}", self.plan.store.location());
            self.lost_contact(StoreError::new(crate::store::ErrorKind::Unreachable, message));
        }
    }

    /// Says that the store cannot be reached, once.
    fn lost_contact(&mut self, error: StoreError) {
        let known = matches!(&*self.contact.borrow(), Contact::Lost(before) if before.kind() == error.kind());
        if !known {
            self.tell(Happening::StoreLost { error: error.to_string() });
        }
        self.contact.send_replace(Contact::Lost(error));
    }

    fn tell(&mut self, what: Happening) {
        let instance = self.plan.instance.clone();
        self.roster.events.push(Event { instance, lease: None, token: None, what });
    }

    fn report(&mut self) {
        if !self.roster.events.is_empty() {
            let events = std::mem::take(&mut self.roster.events);
            if self.plan.shares_events {
                let (now, at) = (SystemClock.now(), SystemTime::now());
                let all = events.iter().filter(|event| FleetEvent::concerns_all(&event.what));
                self.roster.share(now, all.map(|event| FleetEvent::of(event, at)));
            }
            self.plan.outlet.pass(events);
        }
        for span in self.roster.renewals.drain(..) {
            self.plan.gauges.renewals.record(span);
        }
        let gauges = &self.plan.gauges;
        gauges.held.store(self.roster.held() as u64, Ordering::Relaxed);
        gauges.server_offset.store(self.roster.server_offset(), Ordering::Relaxed);
        gauges.notes_dropped.store(self.roster.notes_dropped(), Ordering::Relaxed);
        let lag = std::mem::take(&mut self.roster.lag);
        if !lag.is_zero() {
            gauges.lag.record(SystemClock.now(), lag);
        }
    }
}
