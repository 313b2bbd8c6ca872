//! All leases of one process on one store: which is looked at when, what is sent, who is told. No I/O and no clock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::hearers::Hearers;
use super::membership::Membership;
use super::notes::Notes;
use super::observers::Observers;
use super::questions::Questions;
use super::server_clock::ServerClock;
use super::shared::Shared;
use super::slots::{Entry, Slots};
use super::spent::Spent;
use super::timers::Timers;
use super::{AcquireError, Claim, Granted, Heartbeat, LeaseId, Mode, Question, Ticket};
use crate::event::{Event, Happening};
use crate::fleet::FleetEvent;
use crate::lease::{Action, Attempt, Ending, Input, Lease, LeaseSettings, Outlook, Permission, ReleaseReason, Wish};
use crate::name::{InstanceId, LeaseKind, LeaseName};
use crate::store::{
    Announcement, Continuity, ErrorKind, Holding, NamespaceMemory, Outcome, ROLES, Refusal, Reply, Request, StoreError,
    TermNote,
};
use crate::time::{Moment, Now};
use crate::token::Token;

/// Wake-ups of held leases are rounded to this fraction of their ttl, so that renewals travel together.
const ROUNDING: u32 = 2_000;
const COARSEST: Duration = Duration::from_millis(10);

/// How old the knowledge of the longest ttl that can be relied on may become: it is how long a quarantine lasts that this
/// process begins. Every answer about a lease refreshes it.
const REFRESH_TTLS_EVERY: Duration = Duration::from_secs(15);

/// For how long it counts while the store cannot be asked. Longer leases may have been granted to others since.
const TTLS_KNOWN_FOR: Duration = Duration::from_secs(5 * 60);

/// A request on its way, and whom its answer is for.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) request: Request,
    pub(super) give_up_at: Moment,
    pub(super) tag: Tag,
}

impl Outgoing {
    fn question(give_up_at: Moment, question: Question) -> Self {
        let tag = match &question.request {
            Request::Publish { holding, .. } | Request::Append { holding, .. } => {
                Tag::Publication(Box::new(holding.clone()), question.reply)
            }
            _ if question.is_work => Tag::User(question.reply),
            _ => Tag::Onlooker(question.reply),
        };
        Self { request: question.request, give_up_at, tag }
    }
}

/// Whom an answer is for.
#[derive(Debug)]
pub(super) enum Tag {
    Lease(LeaseId, Attempt),
    User(tokio::sync::oneshot::Sender<Outcome>),
    /// The same, of somebody whom nothing depends on.
    Onlooker(tokio::sync::oneshot::Sender<Outcome>),
    /// The same, of a result of this term's.
    Publication(Box<Holding>, tokio::sync::oneshot::Sender<Outcome>),
    /// Nobody waits for it.
    Nobody,
}

pub(super) struct Roster {
    instance: InstanceId,
    leases: Slots,
    held: usize,
    /// Who waits inside this process for a name that somebody else in it has or pursues.
    lines: HashMap<LeaseName, VecDeque<Claim>>,
    tickets: HashMap<Ticket, Place>,
    timers: Timers<LeaseId>,
    limits: Timers<Ticket>,
    spent: Spent,
    notes: Notes,
    pub(super) observers: Observers,
    pub(super) hearers: Hearers,
    membership: Option<Membership>,
    /// Whether it was said that what nobody waits for is refused.
    complained: bool,
    online: bool,
    /// Why there is no connection, once that is known.
    trouble: Option<StoreError>,
    server_clock: ServerClock,
    pub(super) memory: Option<NamespaceMemory>,
    /// When the store last said which ttls can be relied on, or was asked.
    ttls_known_at: Moment,
    /// What users ask.
    questions: Questions,
    /// Whether a lease wants the store to be entered again.
    pub(super) wants_entry: bool,
    pub(super) outbox: Vec<Outgoing>,
    pub(super) events: Vec<Event>,
    /// How long renewals took that were answered.
    pub(super) renewals: Vec<Duration>,
    pub(super) lag: Duration,
}

/// Where a claim is.
enum Place {
    InLine(LeaseName),
    Driven(LeaseId),
}

impl Roster {
    pub(super) fn new(instance: InstanceId) -> Self {
        Self {
            instance,
            leases: Slots::default(),
            held: 0,
            lines: HashMap::new(),
            tickets: HashMap::new(),
            timers: Timers::new(),
            limits: Timers::new(),
            spent: Spent::new(),
            notes: Notes::default(),
            observers: Observers::default(),
            hearers: Hearers::default(),
            membership: None,
            complained: false,
            online: false,
            trouble: None,
            server_clock: ServerClock::default(),
            memory: None,
            ttls_known_at: Moment::ZERO,
            questions: Questions::default(),
            wants_entry: false,
            outbox: Vec::new(),
            events: Vec::new(),
            renewals: Vec::new(),
            lag: Duration::ZERO,
        }
    }

    /// How many leases are being driven, held or not.
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// How many of them are held.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Server time less the lease clock, in microseconds.
    pub(super) fn server_offset(&self) -> i64 {
        self.server_clock.offset()
    }

    /// How many notes were dropped because too many waited.
    pub(super) fn notes_dropped(&self) -> u64 {
        self.notes.dropped
    }

    /// Whether it is known how long leases of this fleet are: the store has said so, and not too long ago.
    pub(super) fn knows_ttls(&self, now: Moment) -> bool {
        let is_recent = now.since(self.ttls_known_at) <= TTLS_KNOWN_FOR;
        is_recent && self.memory.as_ref().is_some_and(|memory| !memory.max_ttl.is_zero())
    }

    /// The longest ttl of any lease here.
    pub(super) fn longest_ttl(&self) -> Option<Duration> {
        self.leases.iter().map(|entry| entry.shared.settings.ttl()).max()
    }

    /// The shortest that any lease here gives one attempt.
    pub(super) fn shortest_attempt(&self) -> Option<Duration> {
        self.leases.iter().map(|entry| entry.shared.settings.attempt_timeout()).min()
    }

    /// Whether all that is left is work which did not stop in time: there is nothing to let go of any more.
    pub(super) fn has_only_overdue(&self) -> bool {
        self.lines.is_empty() && self.leases.iter().all(|entry| entry.shared.is_overdue())
    }

    /// Whether nothing is left to be done.
    pub(super) fn is_idle(&self) -> bool {
        let said = self.notes.is_empty() && self.questions.is_empty();
        self.len() == 0 && self.lines.is_empty() && (said || !self.online)
    }

    /// When to come back at the latest.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        let question = if self.online { None } else { self.questions.next_wake() };
        let note = self.notes.due().filter(|_| self.online);
        let beat = self.membership.as_ref().map(Membership::due).filter(|_| self.online);
        let refresh = self.online.then_some(self.ttls_known_at + REFRESH_TTLS_EVERY);
        [self.timers.next(), self.limits.next(), question, note, beat, refresh].into_iter().flatten().min()
    }

    // What users want.

    pub(super) fn acquire(&mut self, now: Now, claim: Claim) {
        if let Some(at) = claim.limit.map(|limit| now.moment + limit).filter(|at| *at != Moment::END) {
            self.limits.add(at, claim.ticket);
        }
        let sibling = self.leases.find(&claim.name);
        // A term that is being let go of is as good as free.
        let leaving = sibling
            .and_then(|id| self.entry(id))
            .is_some_and(|entry| entry.claim.is_none() && entry.lease.token().is_none());
        match (sibling, claim.mode) {
            (None, _) => self.drive(now, claim),
            (Some(_), Mode::Try) if !leaving => {
                let by = self.instance.clone();
                claim.refuse(AcquireError::Held { by, remaining: None });
            }
            (Some(_), _) => {
                let mut claim = claim;
                if let Some(onlooker) = &mut claim.onlooker {
                    onlooker.see(Outlook::Behind { owner: self.instance.clone() });
                }
                self.tickets.insert(claim.ticket, Place::InLine(claim.name.clone()));
                self.lines.entry(claim.name.clone()).or_default().push_back(claim);
            }
        }
    }

    pub(super) fn give_up(&mut self, now: Now, ticket: Ticket) {
        drop(self.withdraw(now, ticket));
    }

    pub(super) fn wish(&mut self, now: Now, id: LeaseId, wish: Wish) {
        if let Some(entry) = self.entry(id) {
            entry.wished = Some(match &wish {
                Wish::Release(reason) | Wish::Drain(reason) | Wish::DrainTo(_, reason) => *reason,
                Wish::HandOver(_) => ReleaseReason::HandedOver,
            });
            let drains = matches!(wish, Wish::Drain(_) | Wish::DrainTo(..));
            let shared = entry.shared.clone();
            self.step(now, id, Input::Wish(wish));
            if drains {
                shared.set_leaving();
                // With nothing running there is nothing to wait for.
                self.work_ended(now, id);
            }
        }
    }

    pub(super) fn work_ended(&mut self, now: Now, id: LeaseId) {
        // Counted again: more may have begun before it was forbidden.
        if let Some(entry) = self.entry(id)
            && entry.shared.works() == 0
        {
            if entry.shared.is_stopped() {
                entry.demoted = entry.demoted.min(now.moment);
            }
            self.step(now, id, Input::WorkEnded);
        }
    }

    pub(super) fn progress(&mut self, now: Now, id: LeaseId) {
        if let Some(entry) = self.entry(id) {
            entry.shared.take_progress();
            self.step(now, id, Input::Progress);
        }
    }

    pub(super) fn ask(&mut self, now: Now, question: Question) {
        self.questions.ask(now.moment, question);
        if self.online {
            self.send_questions(now.moment);
        }
    }

    fn send_questions(&mut self, now: Moment) {
        while let Some(question) = self.questions.next() {
            self.outbox.push(Outgoing::question(now + question.limit, question));
        }
    }

    /// Takes a place in the fleet, or changes what is said of it.
    pub(super) fn join(&mut self, heartbeat: Arc<Heartbeat>, every: Duration) {
        self.membership = Some(Membership::new(heartbeat, every));
    }

    pub(super) fn quit(&mut self, now: Moment) {
        let goodbye = self.membership.take().map(|membership| membership.leave(&self.instance));
        self.say(now, goodbye);
    }

    /// Lets go of everything, and refuses whoever waits.
    pub(super) fn shut_down(&mut self, now: Now) {
        self.quit(now.moment);
        self.refuse_lines(&AcquireError::ShutDown);
        for id in self.leases.ids() {
            let Some(entry) = self.entry(id) else { continue };
            let (claim, heartbeat) = (entry.claim.take(), entry.heartbeat.take());
            if let Some(claim) = claim {
                self.tickets.remove(&claim.ticket);
                claim.refuse(AcquireError::ShutDown);
            }
            let instance = self.instance.clone();
            self.say(now.moment, heartbeat.map(|beat| Request::Leave { group: beat.group.clone(), instance }));
            self.wish(now, id, Wish::Release(ReleaseReason::Shutdown));
        }
    }

    // What the store says.

    pub(super) fn connection_lost(&mut self, now: Now, why: &str) {
        if std::mem::replace(&mut self.online, false) {
            self.questions.connection_lost();
            self.observers.tell_all();
            // What was not sent yet will not be.
            let unsent = std::mem::take(&mut self.outbox);
            let lost = StoreError::new(ErrorKind::Unreachable, format!("{why}, before the lease was granted"));
            for id in self.leases.ids() {
                self.step(now, id, Input::ConnectionLost);
                // One attempt was asked for, and that was it. Should it have been granted, it is let go of.
                if self.entry(id).is_some_and(|e| e.claim.as_ref().is_some_and(|claim| claim.mode == Mode::Try)) {
                    self.refuse(now, id, AcquireError::Store(lost.clone()));
                }
            }
            let error = StoreError::new(ErrorKind::Unreachable, "the connection was lost before the request was sent");
            for outgoing in unsent {
                if let Tag::User(reply) | Tag::Onlooker(reply) | Tag::Publication(_, reply) = outgoing.tag {
                    let _ = reply.send(Outcome::Failed(error.clone()));
                }
            }
        }
    }

    pub(super) fn entered(&mut self, now: Now, continuity: Continuity) {
        self.online = true;
        self.ttls_known_at = now.moment;
        self.trouble = None;
        self.observers.tell_all();
        self.hearers.gap();
        if let Some(membership) = &mut self.membership {
            membership.hurry();
        }
        for id in self.leases.ids() {
            self.step(now, id, Input::Entered(continuity));
        }
        self.send_questions(now.moment);
    }

    /// The store cannot be entered as things are set up. Whoever holds a lease keeps it while it lasts; whoever waits is
    /// told.
    pub(super) fn cannot_enter(&mut self, now: Now, error: &StoreError) {
        self.trouble = Some(error.clone());
        if !error.is_retryable() {
            self.refuse_lines(&AcquireError::Store(error.clone()));
        }
        for id in self.leases.ids() {
            let waits = self.entry(id).is_some_and(|entry| {
                entry.claim.as_ref().is_some_and(|claim| claim.mode == Mode::Try || !error.is_retryable())
            });
            if waits {
                self.refuse(now, id, AcquireError::Store(error.clone()));
            }
            self.show_outlook(id);
        }
    }

    /// Takes in an answer. Returns whether the connection it came over can still be used.
    pub(super) fn answered(&mut self, now: Now, tag: Tag, outcome: Outcome) -> bool {
        let usable = !matches!(outcome, Outcome::Unknown(_));
        if let (Outcome::Answered(reply), Some(memory)) = (&outcome, &mut self.memory) {
            memory.learn(reply);
            if matches!(reply, Reply::Granted(_) | Reply::Renewed { .. } | Reply::Held(_) | Reply::Namespace(_)) {
                self.ttls_known_at = now.moment;
            }
            let server = match reply {
                Reply::Granted(grant) => Some(grant.server),
                Reply::Renewed { server, .. } => Some(*server),
                Reply::Held(held) => Some(held.server),
                Reply::Lease(report) => report.held.as_ref().map(|held| held.server),
                Reply::Namespace(report) => Some(report.server),
                _ => None,
            };
            server.into_iter().for_each(|server| self.server_clock.observe(now.moment, server));
            self.settle_ttl_doubt(now.moment);
        }
        if matches!(tag, Tag::Onlooker(_)) {
            self.questions.answered();
            self.send_questions(now.moment);
        }
        match tag {
            Tag::Nobody => self.complain(outcome),
            Tag::User(reply) | Tag::Onlooker(reply) => drop(reply.send(outcome)),
            Tag::Publication(holding, reply) => {
                let refusal = match &outcome {
                    Outcome::Answered(Reply::Refused(refusal)) => Some(refusal.clone()),
                    _ => None,
                };
                drop(reply.send(outcome));
                if let Some(refusal) = refusal {
                    self.publication_refused(now, &holding, refusal);
                }
            }
            Tag::Lease(id, attempt) => {
                let refusal = self.refusal(id, &outcome);
                let input = match outcome {
                    Outcome::Answered(reply) => Input::Answered { attempt, reply },
                    Outcome::Failed(error) => Input::Failed { attempt, error },
                    Outcome::Unknown(error) => Input::Unknown { attempt, error },
                };
                let renewed = matches!(&input, Input::Answered { reply: Reply::Renewed { .. }, .. });
                self.step(now, id, input);
                if renewed {
                    self.renewals.extend(self.leases.get(id).and_then(|entry| entry.lease.last_round_trip()));
                }
                if let Some(refusal) = refusal {
                    self.refuse(now, id, refusal);
                }
            }
        }
        usable
    }

    /// What nobody waits for was refused for good: somebody should know.
    fn complain(&mut self, outcome: Outcome) {
        if let Outcome::Failed(error) = outcome
            && !error.is_retryable()
            && !std::mem::replace(&mut self.complained, true)
        {
            let (instance, what) = (self.instance.clone(), Happening::StoreRefused { error: error.to_string() });
            self.events.push(Event { instance, lease: None, token: None, what });
        }
    }

    /// Takes in a hint. Returns whether the store must be entered again.
    pub(super) fn announced(&mut self, now: Now, announcement: Announcement) -> bool {
        if self.memory.as_ref().is_some_and(|memory| memory.is_outdated_by(&announcement)) {
            return true;
        }
        if let Some(memory) = &mut self.memory {
            memory.hear(&announcement);
            self.settle_ttl_doubt(now.moment);
        }
        if announcement == Announcement::Reopened {
            self.look_again(now);
        }
        self.hearers.tell(&announcement);
        let Some(name) = announcement.lease() else { return false };
        self.observers.tell(name);
        // What was published says nothing about who may act.
        if !matches!(announcement, Announcement::Published { .. })
            && let Some(id) = self.leases.find(name)
        {
            self.step(now, id, Input::Announced(announcement));
        }
        false
    }

    /// Announcements may have been missed.
    pub(super) fn look_again(&mut self, now: Now) {
        self.refresh_ttls(now.moment);
        self.observers.tell_all();
        self.hearers.gap();
        for id in self.leases.ids() {
            if self.entry(id).is_some_and(|entry| entry.claim.is_some()) {
                self.step(now, id, Input::LookAgain);
            }
        }
    }

    /// Does everything that is due.
    pub(super) fn look_at_clock(&mut self, now: Now) {
        // All that is due now, before any of it: what is due again at once waits for the next turn.
        let due: Vec<(Moment, LeaseId)> = std::iter::from_fn(|| self.timers.pop_due(now.moment)).collect();
        for (at, id) in due {
            let Some(entry) = self.entry(id) else { continue };
            if entry.queued != at {
                continue;
            }
            entry.queued = Moment::END;
            match entry.lease.next_wake() {
                Some((due, epoch)) if due <= now.moment => {
                    self.lag = self.lag.max(now.moment.since(at));
                    self.step(now, id, Input::Wake(epoch));
                }
                Some((due, _)) => self.arm(id, due),
                None => {}
            }
        }
        if !self.online {
            self.questions.give_up(now.moment, self.trouble.as_ref());
        }
        while let Some((_, ticket)) = self.limits.pop_due(now.moment) {
            let outlook = match self.tickets.get(&ticket) {
                Some(Place::Driven(id)) => self.leases.peek(*id).and_then(|entry| entry.lease.outlook()),
                _ => None,
            };
            if let Some(claim) = self.withdraw(now, ticket) {
                let waited = claim.limit.unwrap_or_default();
                let (by, why) = match outlook {
                    Some(Outlook::Behind { owner }) => (Some(owner), None),
                    Some(Outlook::Waiting { why }) => (None, why),
                    _ => (None, None),
                };
                let why = why.map(|why| StoreError::new(ErrorKind::Unavailable, why));
                claim.refuse(AcquireError::TimedOut { waited, by, because: self.trouble.clone().or(why) });
            }
        }
        if self.online {
            let due = self.notes.take_due(now.moment);
            self.say(now.moment, due);
            let beat = self.membership.as_mut().and_then(|membership| membership.beat(now.moment, &self.instance));
            self.say(now.moment, beat);
            if now.moment.since(self.ttls_known_at) >= REFRESH_TTLS_EVERY {
                self.refresh_ttls(now.moment);
            }
        }
    }

    /// Answers and announcements come over different connections. One that was overtaken may name a ttl that nothing
    /// relies on any more, and an idle process would go on believing it.
    fn settle_ttl_doubt(&mut self, now: Moment) {
        if self.memory.as_mut().is_some_and(NamespaceMemory::take_ttl_doubt) {
            self.refresh_ttls(now);
        }
    }

    /// Asks which ttl is the longest that can be relied on.
    fn refresh_ttls(&mut self, now: Moment) {
        if self.online {
            self.ttls_known_at = now;
            self.say(now, [Request::InspectNamespace]);
        }
    }

    /// Sends all notes that there are.
    pub(super) fn send_notes(&mut self, now: Moment) {
        let all = self.notes.take_all();
        self.say(now, all);
    }

    /// Lets the whole fleet hear of what happened, a moment later.
    pub(super) fn share(&mut self, now: Moment, events: impl IntoIterator<Item = FleetEvent>) {
        for event in events {
            self.notes.add(now, Request::Announce(Announcement::Happened { event: event.encode() }));
        }
    }

    /// Sends what nobody waits for, if it can be sent now.
    fn say(&mut self, now: Moment, requests: impl IntoIterator<Item = Request>) {
        if !self.online {
            return;
        }
        let give_up_at = now + LeaseSettings::default().attempt_timeout();
        let outgoing = |request| Outgoing { request, give_up_at, tag: Tag::Nobody };
        self.outbox.extend(requests.into_iter().map(outgoing));
    }

    // How leases are driven.

    /// Begins to drive a lease for a claim.
    fn drive(&mut self, now: Now, claim: Claim) {
        let (name, settings) = (claim.name.clone(), claim.settings.clone());
        let spent = self.spent.take(&name);
        let lease = Lease::new(name.clone(), self.instance.clone(), settings.clone(), fastrand::u64(..)).after(spent);
        let shared = Arc::new(Shared::new(name, settings, claim.door.clone()));
        let heartbeat = claim.heartbeat.clone();
        let ticket = claim.ticket;
        let entry = Entry {
            lease,
            shared: shared.clone(),
            claim: Some(Box::new(claim)),
            heartbeat,
            wished: None,
            queued: Moment::END,
            demoted: Moment::END,
        };
        let id = self.leases.insert(entry);
        shared.set_id(id);
        self.tickets.insert(ticket, Place::Driven(id));
        if !self.online {
            self.step(now, id, Input::ConnectionLost);
        }
        self.step(now, id, Input::Tick);
    }

    /// Gives a lease an input and does what it asks for, until nothing more comes of it.
    fn step(&mut self, now: Now, id: LeaseId, input: Input) {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            let siblings = self.held;
            let Some(entry) = self.entry(id) else { return };
            let had = entry.lease.token().is_some();
            entry.lease.set_siblings(siblings);
            let actions = entry.lease.step(now, input);
            let has = entry.lease.token().is_some();
            if had || has {
                entry.shared.show(now, &entry.lease);
            }
            match (had, has) {
                (false, true) => self.begun(now, id),
                (true, false) => self.held -= 1,
                _ => {}
            }
            for action in actions {
                match action {
                    Action::Send { attempt, request, give_up_at } => {
                        let beat = self.heartbeat_with(id, &request);
                        self.outbox.push(Outgoing { request, give_up_at, tag: Tag::Lease(id, attempt) });
                        self.outbox.extend(beat.map(|request| Outgoing { request, give_up_at, tag: Tag::Nobody }));
                    }
                    Action::Enter => self.wants_entry = true,
                    Action::Wake { at, .. } => self.arm(id, at),
                    Action::Permit(permission) => next = self.permit(now, id, permission).or(next),
                    Action::Tell(event) => self.tell(now, id, event),
                    Action::Deadline(_) => {}
                }
            }
        }
        self.show_outlook(id);
        self.finish_if_over(now, id);
    }

    /// Tells whoever looks on how it goes.
    fn show_outlook(&mut self, id: LeaseId) {
        let trouble = self.trouble.as_ref();
        if let Some(entry) = self.leases.get(id)
            && let Some(onlooker) = entry.claim.as_mut().and_then(|claim| claim.onlooker.as_mut())
            && let Some(outlook) = entry.lease.outlook()
        {
            onlooker.see(match outlook {
                // The lease knows only that it cannot ask.
                Outlook::Waiting { why } => Outlook::Waiting { why: trouble.map(ToString::to_string).or(why) },
                outlook => outlook,
            });
        }
    }

    /// A term has begun.
    fn begun(&mut self, now: Now, id: LeaseId) {
        self.held += 1;
        let Some(entry) = self.entry(id) else { return };
        let (name, token) = (entry.lease.name().clone(), entry.shared.token());
        let group = entry.heartbeat.as_ref().map(|heartbeat| heartbeat.group.clone());
        let from = self.server_clock.at(now.moment);
        let holder = self.instance.clone();
        // Whoever is listed and does not live is forgotten with it.
        self.say(now.moment, group.map(|group| Request::Members { group }));
        if name.kind() == LeaseKind::Role {
            // For whoever wants to know which roles there are.
            let (index, entry) = (ROLES.to_owned(), name.encode());
            self.say(now.moment, [Request::IndexAdd { index, entry, announced: false }]);
        }
        let note = TermNote { name, token, holder, from, demoted: None, released: None, ending: None };
        self.notes.add(now.moment, Request::Note(note));
    }

    /// Passes on what work may do. Returns what the lease must be told at once: that there is no work that would have to end, or
    /// that nobody waits for it any more.
    fn permit(&mut self, now: Now, id: LeaseId, permission: Permission) -> Option<Input> {
        let entry = self.leases.get(id)?;
        let stop = matches!(permission, Permission::MustCancel { .. } | Permission::MustBeGone);
        if stop {
            // When nobody here has wished for it, an operator has asked for it. A loss was told before.
            entry.shared.explain(Ending::Released(entry.wished.unwrap_or(ReleaseReason::StepDown)));
        }
        entry.shared.permit(permission);
        if stop && entry.shared.works() == 0 {
            entry.demoted = entry.demoted.min(now.moment);
            return Some(Input::WorkEnded);
        }
        if matches!(permission, Permission::MayStart { .. })
            && let Some(claim) = entry.claim.take()
        {
            let granted = Granted::new(entry.shared.clone());
            self.tickets.remove(&claim.ticket);
            if !claim.grant(granted) {
                entry.wished = Some(ReleaseReason::Voluntary);
                return Some(Input::Wish(Wish::Release(ReleaseReason::Voluntary)));
            }
        }
        None
    }

    fn tell(&mut self, now: Now, id: LeaseId, mut event: Event) {
        if let Some(entry) = self.entry(id) {
            match &mut event.what {
                Happening::AcquireFailed { waits, .. } => {
                    *waits = entry.claim.as_ref().is_some_and(|claim| claim.mode == Mode::Wait);
                }
                Happening::Lost(loss) => entry.shared.explain(Ending::Lost(loss.clone())),
                Happening::Released(reason) => entry.shared.explain(Ending::Released(*reason)),
                // Its heartbeat would outlive it. Should it live after all, it beats again.
                Happening::TakenOver { owner } => {
                    let group = entry.heartbeat.as_ref().map(|heartbeat| heartbeat.group.clone());
                    self.say(now.moment, group.map(|group| Request::Leave { group, instance: owner.clone() }));
                }
                _ => {}
            }
        }
        self.events.push(event);
    }

    /// The heartbeat that goes with a request, if one does.
    fn heartbeat_with(&self, id: LeaseId, request: &Request) -> Option<Request> {
        if !matches!(request, Request::Acquire { .. } | Request::TakeOver { .. } | Request::Renew { .. }) {
            return None;
        }
        let Heartbeat { group, ttl, record } = self.leases.peek(id)?.heartbeat.as_deref()?;
        let (group, ttl, record) = (group.clone(), *ttl, record.clone());
        Some(Request::Beat { group, instance: self.instance.clone(), ttl, record })
    }

    /// A term whose publications are refused is over, whether a renewal has said so yet or not.
    fn publication_refused(&mut self, now: Now, holding: &Holding, refusal: Refusal) {
        let owner = match &refusal {
            Refusal::Taken { by } => Some(by.clone()),
            _ => None,
        };
        let (lease, token) = (Some(holding.name.clone()), Some(holding.token));
        let what = Happening::PublishRefused { owner };
        self.events.push(Event { instance: self.instance.clone(), lease, token, what });
        if let Some(id) = self.leases.find(&holding.name) {
            self.step(now, id, Input::Refused { token: holding.token, refusal });
        }
    }

    fn arm(&mut self, id: LeaseId, at: Moment) {
        let Some(entry) = self.entry(id) else { return };
        let at = if entry.lease.token().is_some() { rounded_up(at, entry.shared.settings.ttl()) } else { at };
        if at < entry.queued {
            entry.queued = at;
            self.timers.add(at, id);
        }
    }

    fn finish_if_over(&mut self, now: Now, id: LeaseId) {
        let Some(ending) = self.entry(id).and_then(|entry| entry.lease.ending().cloned()) else { return };
        let Some(mut entry) = self.leases.remove(id) else { return };
        let name = entry.lease.name().clone();
        if let Some(token) = entry.lease.spent() {
            self.spent.remember(now.moment, &name, token, entry.shared.settings.ttl());
        }
        if entry.shared.token() != Token::ZERO {
            self.note_end(now.moment, &entry, ending.clone());
        }
        entry.shared.end(ending);
        // A term that ended before its work could start leaves its claim waiting for the next one.
        let next = entry.claim.take().map(|claim| *claim).or_else(|| self.next_in_line(&name));
        if let Some(claim) = next {
            self.drive(now, claim);
        }
    }

    fn next_in_line(&mut self, name: &LeaseName) -> Option<Claim> {
        let line = self.lines.get_mut(name)?;
        let next = line.pop_front();
        if line.is_empty() {
            self.lines.remove(name);
        }
        next
    }

    /// Takes a claim out, wherever it is, and gives up on its lease.
    fn withdraw(&mut self, now: Now, ticket: Ticket) -> Option<Claim> {
        match self.tickets.remove(&ticket)? {
            Place::InLine(name) => {
                let line = self.lines.get_mut(&name)?;
                let at = line.iter().position(|claim| claim.ticket == ticket)?;
                let claim = line.remove(at);
                if line.is_empty() {
                    self.lines.remove(&name);
                }
                claim
            }
            Place::Driven(id) => {
                let claim = self.entry(id)?.claim.take()?;
                self.wish(now, id, Wish::Release(ReleaseReason::Voluntary));
                Some(*claim)
            }
        }
    }

    /// What to tell whoever waits for this lease, if the outcome decides it.
    fn refusal(&mut self, id: LeaseId, outcome: &Outcome) -> Option<AcquireError> {
        let mode = self.entry(id)?.claim.as_ref()?.mode;
        match (outcome, mode) {
            (Outcome::Failed(error), _) if !error.is_retryable() => Some(AcquireError::Store(error.clone())),
            (Outcome::Failed(error) | Outcome::Unknown(error), Mode::Try) => Some(AcquireError::Store(error.clone())),
            (Outcome::Answered(Reply::Held(held)), Mode::Try) => {
                Some(AcquireError::Held { by: held.by.clone(), remaining: held.remaining })
            }
            (Outcome::Answered(Reply::Quarantined(quarantine)), Mode::Try) => {
                Some(AcquireError::Quarantined(*quarantine))
            }
            (Outcome::Answered(Reply::TokensExhausted), _) => {
                let message = "there is no larger token left for this lease";
                Some(AcquireError::Store(StoreError::new(ErrorKind::Corrupt, message)))
            }
            _ => None,
        }
    }

    /// Refuses everybody who waits behind somebody else of this process.
    fn refuse_lines(&mut self, error: &AcquireError) {
        for claim in std::mem::take(&mut self.lines).into_values().flatten() {
            self.tickets.remove(&claim.ticket);
            claim.refuse(error.clone());
        }
    }

    fn refuse(&mut self, now: Now, id: LeaseId, error: AcquireError) {
        if let Some(ticket) = self.entry(id).and_then(|entry| entry.claim.as_ref()).map(|claim| claim.ticket)
            && let Some(claim) = self.withdraw(now, ticket)
        {
            claim.refuse(error);
        }
    }

    fn note_end(&mut self, now: Moment, entry: &Entry, ending: Ending) {
        let released = matches!(ending, Ending::Released(_)).then(|| self.server_clock.at(now));
        let (from, _) = entry.shared.times();
        let note = TermNote {
            name: entry.lease.name().clone(),
            token: entry.shared.token(),
            holder: self.instance.clone(),
            from: self.server_clock.at(from),
            demoted: Some(self.server_clock.at(entry.demoted.min(now))),
            released,
            ending: Some(ending),
        };
        self.notes.add(now, Request::Note(note));
    }

    fn entry(&mut self, id: LeaseId) -> Option<&mut Entry> {
        self.leases.get(id)
    }
}

/// The next multiple of a small part of the ttl: leases that are due at about the same time are then due together.
fn rounded_up(at: Moment, ttl: Duration) -> Moment {
    let grain = (ttl / ROUNDING).min(COARSEST).as_nanos().max(1);
    let nanos = u128::from(at.as_nanos()).div_ceil(grain) * grain;
    Moment::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
