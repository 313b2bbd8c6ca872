//! The harness of one case: the fixture, and shorthands for what cases do with it.

use std::sync::Arc;
use std::time::Duration;

use super::client::Client;
use super::subscriber::TestSubscriber;
use super::{FaultInjection, StoreFault, StoreFixture, Verdict};
use crate::name::{InstanceId, LeaseName};
use crate::store::{AttachRequest, Connection, Store};
use crate::token::{Nonce, Token};

/// The ttl of leases that must still be held at the end of a case, on however slow a machine.
pub(super) const LONG_TTL: Duration = Duration::from_secs(30);

/// The ttl of leases that must have expired after [`CaseHarness::outlast`].
pub(super) const SHORT_TTL: Duration = Duration::from_millis(200);

/// The longest ttl of a namespace whose quarantine a case waits out.
pub(super) const QUARANTINE_TTL: Duration = Duration::from_millis(400);

/// Rounding to milliseconds on either side.
const ROUNDING_MARGIN: Duration = Duration::from_millis(50);

/// How long to wait for something that should come at once.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The harness of one case.
pub(super) struct CaseHarness<'a> {
    fixture: &'a dyn StoreFixture,
}

/// The fixture does not support what the case needs.
#[derive(Debug)]
pub(super) struct Unsupported {
    needs: String,
}

/// The result of a case that injects faults.
pub(super) type Checked = Result<(), Unsupported>;

impl<'a> CaseHarness<'a> {
    pub(super) fn new(fixture: &'a dyn StoreFixture) -> Self {
        Self { fixture }
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.fixture.store()
    }

    /// Attaches to the store and returns the connection.
    pub(super) async fn attach(&self, request: AttachRequest) -> Arc<dyn Connection> {
        // The minting instance stamps a generation with a random number; a case that needs a certain one sets it.
        let stamp = if request.stamp == 0 { fastrand::u64(1..) } else { request.stamp };
        let request = AttachRequest { stamp, ..request };
        match self.store().attach(request.clone()).await {
            Ok(connection) => connection,
            Err(error) => panic!("the store must accept {request:?}: {error}"),
        }
    }

    /// An attached instance. The first one bootstraps the namespace, however young the server.
    pub(super) async fn client(&self, id: &str) -> Client {
        self.client_with_max_ttl(id, LONG_TTL).await
    }

    /// An instance with this longest ttl.
    pub(super) async fn client_with_max_ttl(&self, id: &str, max_ttl: Duration) -> Client {
        let request = AttachRequest { max_ttl, bootstrap: true, ..AttachRequest::new(fastrand::u64(..)) };
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

    /// Lets enough time pass that everything with this ttl has expired.
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

    /// Continues the case only if the store counts its subscribers.
    pub(super) fn require_subscriber_count(&self) -> Checked {
        if self.fixture.can_count_subscribers() {
            return Ok(());
        }
        Err(Unsupported { needs: "counting subscribers".to_owned() })
    }

    /// Continues the case only if the store remembers the namespaces it has served, even after a loss of data.
    pub(super) fn require_served_marker(&self) -> Checked {
        if self.fixture.remembers_served_namespaces() {
            return Ok(());
        }
        Err(Unsupported { needs: "remembering served namespaces".to_owned() })
    }
}

/// The result of a case: most cannot be unsupported and return nothing.
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

/// A lease for a case.
#[track_caller]
pub(super) fn lease(label: &str) -> LeaseName {
    match LeaseName::lease(label) {
        Ok(name) => name,
        Err(error) => panic!("a case uses a bad name: {error}"),
    }
}

/// The lease that most cases use.
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
