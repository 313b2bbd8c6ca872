//! A lease machine with a clock that tests move by hand.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::lease::{Action, Attempt, Epoch, Input, Lease, LeaseSettings, LeaseState, Permission};
use tenure_core::store::{ErrorKind, Grant, Held, LeaseRequest, Reply, StoreError};
use tenure_core::time::{Moment, Now, ServerTime};
use tenure_core::{InstanceId, LeaseName, Token};

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn token(n: u64) -> Token {
    Token::new(n).unwrap()
}

pub fn me() -> InstanceId {
    InstanceId::new("me").unwrap()
}

pub fn other() -> InstanceId {
    InstanceId::new("other").unwrap()
}

pub fn name() -> LeaseName {
    LeaseName::lease("report").unwrap()
}

pub fn error() -> StoreError {
    StoreError::new(ErrorKind::Unreachable, "test: no reply")
}

/// A lease with ttl 30 s, P 10 s, R 2 s, S 5 s, so D is 29.698 s after the request and D − S 24.698 s.
pub struct LeaseHarness {
    pub lease: Lease,
    pub now: Moment,
    /// Offset of the wall clock: the lease clock counts it, the steady clock does not.
    pub wall_step: Duration,
    /// Everything since the last [`LeaseHarness::take`].
    pub actions: Vec<Action>,
    wake: Option<(Moment, Epoch)>,
    last_send: Option<Attempt>,
}

pub const STOP_AT: u64 = 24_698;
pub const DEADLINE: u64 = 29_698;

impl LeaseHarness {
    pub fn new() -> Self {
        Self::with(LeaseSettings::default())
    }

    pub fn with(settings: LeaseSettings) -> Self {
        Self::seeded(settings, 7)
    }

    pub fn seeded(settings: LeaseSettings, seed: u64) -> Self {
        let lease = Lease::new(name(), me(), Arc::new(settings), seed);
        let mut harness = Self {
            lease,
            now: Moment::ZERO,
            wall_step: Duration::ZERO,
            actions: Vec::new(),
            wake: None,
            last_send: None,
        };
        harness.input(Input::Tick);
        harness
    }

    /// Creates a harness whose lease was granted at time zero with token 100.
    pub fn holding() -> Self {
        Self::holding_with(LeaseSettings::default())
    }

    pub fn holding_with(settings: LeaseSettings) -> Self {
        let mut harness = Self::with(settings);
        harness.reply(harness.granted(100));
        harness.take();
        harness
    }

    /// The server time equals the local time in these tests.
    pub fn server(&self) -> ServerTime {
        ServerTime::from_micros(1_000_000_000 + self.now.as_nanos() / 1_000)
    }

    pub fn granted(&self, number: u64) -> Reply {
        Reply::Granted(Grant {
            token: token(number),
            server: self.server(),
            max_ttl: ms(30_000),
            wait_out: Duration::ZERO,
            previous: None,
        })
    }

    pub fn renewed(&self) -> Reply {
        Reply::Renewed { server: self.server(), max_ttl: ms(30_000), asked: None }
    }

    pub fn held(&self, number: u64, remaining: Duration) -> Reply {
        Reply::Held(Held {
            holder: other(),
            token: Some(token(number)),
            remaining: Some(remaining),
            idle: None,
            max_ttl: ms(30_000),
            server: self.server(),
        })
    }

    pub fn clocks(&self) -> Now {
        Now { moment: self.now, steady: Now::undisturbed(self.now - self.wall_step).steady }
    }

    pub fn input(&mut self, input: Input) {
        let actions = self.lease.step(self.clocks(), input);
        for action in &actions {
            match action {
                Action::Wake { at, epoch } => self.wake = Some((*at, *epoch)),
                Action::Send { attempt, .. } => self.last_send = Some(*attempt),
                _ => {}
            }
        }
        self.actions.extend(actions);
    }

    pub fn last_attempt(&self) -> Attempt {
        self.last_send.expect("nothing was sent")
    }

    /// Replies to the last request.
    pub fn reply(&mut self, reply: Reply) {
        let attempt = self.last_attempt();
        self.input(Input::Answered { attempt, reply });
    }

    /// Makes the outcome of the last request unknown.
    pub fn unknown(&mut self) {
        let attempt = self.last_attempt();
        self.input(Input::Unknown { attempt, error: error() });
    }

    /// Advances to this many milliseconds, waking the lease whenever it requested it.
    pub fn run_until(&mut self, millis: u64) {
        let target = Moment::ZERO + ms(millis);
        for _ in 0..10_000 {
            match self.wake {
                Some((at, epoch)) if at <= target => {
                    self.now = self.now.max(at);
                    self.wake = None;
                    self.input(Input::Wake(epoch));
                }
                _ => {
                    self.now = target;
                    return;
                }
            }
        }
        panic!("the lease requests wake-ups endlessly");
    }

    /// Moves the clock without wake-ups, as a stopped process would see it.
    pub fn jump_to(&mut self, millis: u64) {
        self.now = Moment::ZERO + ms(millis);
    }

    /// Advances until a request is sent, and returns the time.
    pub fn run_until_sent(&mut self, limit: u64) -> u64 {
        self.take();
        let start = self.now.as_nanos() / 1_000_000;
        for millis in start..=limit {
            self.run_until(millis);
            if !self.requests().is_empty() {
                return millis;
            }
        }
        panic!("no request was sent by {limit} ms");
    }

    pub fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub fn requests(&self) -> Vec<&LeaseRequest> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::Send { request, .. } => Some(request),
                _ => None,
            })
            .collect()
    }

    pub fn permissions(&self) -> Vec<Permission> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::Permit(permission) => Some(*permission),
                _ => None,
            })
            .collect()
    }

    /// The emitted events, as text without the instance.
    pub fn events(&self) -> Vec<String> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::Emit(event) => Some(event.to_string().replace(" instance_id=me lease=report", "")),
                _ => None,
            })
            .collect()
    }

    pub fn state(&self) -> LeaseState {
        self.lease.state(self.clocks())
    }

    pub fn may_start(&self) -> bool {
        matches!(self.lease.permission(self.clocks()), Permission::MayStart { .. })
    }
}
