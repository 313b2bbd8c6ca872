//! One case under way: the fixture, and short words for what cases do with it.

use std::sync::Arc;
use std::time::Duration;

use super::client::Client;
use super::subscriber::TestSubscriber;
use super::{FaultInjection, StoreFault, StoreFixture, Verdict};
use crate::name::{InstanceId, LeaseName};
use crate::store::{AttachRequest, Connection, Store};
use crate::token::{Nonce, Token};

/// The ttl of what must still be alive at the end of a case, on however slow a machine.
pub(super) const LONG_TTL: Duration = Duration::from_secs(30);

/// The ttl of what must be gone after [`CaseHarness::outlast`].
pub(super) const SHORT_TTL: Duration = Duration::from_millis(200);

/// The longest ttl of a namespace whose closing is waited out.
pub(super) const QUARANTINE_TTL: Duration = Duration::from_millis(400);

/// Rounding to milliseconds on either side.
const ROUNDING_MARGIN: Duration = Duration::from_millis(50);

/// How long something that should come at once is waited for.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A case under way.
pub(super) struct CaseHarness<'a> {
    fixture: &'a dyn StoreFixture,
}

/// The subject cannot do what the case needs.
#[derive(Debug)]
pub(super) struct Unsupported {
    needs: String,
}

/// How a case ends that disturbs the store.
pub(super) type Checked = Result<(), Unsupported>;

impl<'a> CaseHarness<'a> {
    pub(super) fn new(fixture: &'a dyn StoreFixture) -> Self {
        Self { fixture }
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.fixture.store()
    }

    /// Attaches the store and comes back with a connection.
    pub(super) async fn attach(&self, request: AttachRequest) -> Arc<dyn Connection> {
        // Whoever mints a generation stamps it with chance; a case that cares brings its own.
        let stamp = if request.stamp == 0 { fastrand::u64(1..) } else { request.stamp };
        let request = AttachRequest { stamp, ..request };
        match self.store().attach(request.clone()).await {
            Ok(connection) => connection,
            Err(error) => panic!("the store must let {request:?} in: {error}"),
        }
    }

    /// An instance that has attached. The first one opens the namespace, however young the server.
    pub(super) async fn client(&self, id: &str) -> Client {
        self.client_with_max_ttl(id, LONG_TTL).await
    }

    /// An instance whose longest ttl is this.
    pub(super) async fn client_with_max_ttl(&self, id: &str, max_ttl: Duration) -> Client {
        let request = AttachRequest { max_ttl, bootstrap: true, ..AttachRequest::default() };
        Client::new(instance(id), self.attach(request).await)
    }

    pub(super) async fn subscriber(&self) -> TestSubscriber {
        match self.store().subscribe().await {
            Ok(subscription) => TestSubscriber::new(subscription),
            Err(error) => panic!("the store must accept a subscriber: {error}"),
        }
    }

    pub(super) async fn advance_time(&self, span: Duration) {
        self.fixture.advance_time(span).await;
    }

    /// Lets so much time pass that whatever lasts this long is over.
    pub(super) async fn outlast(&self, ttl: Duration) {
        self.advance_time(ttl + ROUNDING_MARGIN).await;
    }

    pub(super) async fn inject(&self, fault: StoreFault) -> Checked {
        let needs = format!("{fault:?}");
        match self.fixture.inject(fault).await {
            FaultInjection::Injected => Ok(()),
            FaultInjection::Unsupported => Err(Unsupported { needs }),
        }
    }

    /// The case goes on only when the store knows who listens.
    pub(super) fn require_subscriber_count(&self) -> Checked {
        if self.fixture.can_count_subscribers() {
            return Ok(());
        }
        Err(Unsupported { needs: "counting who listens".to_owned() })
    }

    /// The case goes on only when the store knows what it has served, whatever became of its data.
    pub(super) fn require_served_marker(&self) -> Checked {
        if self.fixture.remembers_served_namespaces() {
            return Ok(());
        }
        Err(Unsupported { needs: "knowing what was served".to_owned() })
    }
}

/// How a case may end: most cannot be unsupported and return nothing.
pub(super) trait IntoVerdict {
    fn into_verdict(self) -> Verdict;
}

impl IntoVerdict for () {
    fn into_verdict(self) -> Verdict {
        Verdict::Passed
    }
}

impl IntoVerdict for Checked {
    fn into_verdict(self) -> Verdict {
        match self {
            Ok(()) => Verdict::Passed,
            Err(Unsupported { needs }) => Verdict::NotChecked { needs },
        }
    }
}

/// A lease that a case is about.
#[track_caller]
pub(super) fn lease(label: &str) -> LeaseName {
    match LeaseName::lease(label) {
        Ok(name) => name,
        Err(error) => panic!("a case uses a bad name: {error}"),
    }
}

/// The lease that most cases are about.
pub(super) fn job() -> LeaseName {
    lease("job")
}

#[track_caller]
pub(super) fn instance(id: &str) -> InstanceId {
    match InstanceId::new(id) {
        Ok(id) => id,
        Err(error) => panic!("a case uses a bad id: {error}"),
    }
}

/// A nonce that was never used before.
pub(super) fn nonce() -> Nonce {
    Nonce::new(fastrand::u128(..))
}

/// The token this much above another one.
pub(super) fn token_above(token: Token, by: u64) -> Token {
    Token::new(token.get().saturating_add(by)).unwrap_or(Token::MAX)
}
