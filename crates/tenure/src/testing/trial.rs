//! One case under way: the subject, and short words for what cases do with it.

use std::sync::Arc;
use std::time::Duration;

use super::listener::Listener;
use super::player::Player;
use super::{Disturbance, Disturbed, Subject, Verdict};
use crate::name::{InstanceId, LeaseName};
use crate::store::{Connection, Entry, Store};
use crate::token::{Nonce, Token};

/// The ttl of what must still be alive at the end of a case, on however slow a machine.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// The ttl of what must be gone after [`Trial::outlast`].
pub(super) const SHORT: Duration = Duration::from_millis(200);

/// The longest ttl of a namespace whose closing is waited out.
pub(super) const BRIEF: Duration = Duration::from_millis(400);

/// Rounding to milliseconds on either side.
const MARGIN: Duration = Duration::from_millis(50);

/// How long something that should come at once is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A case under way.
pub(super) struct Trial<'a> {
    subject: &'a dyn Subject,
}

/// The subject cannot do what the case needs.
#[derive(Debug)]
pub(super) struct Unsupported {
    needs: String,
}

/// How a case ends that disturbs the store.
pub(super) type Checked = Result<(), Unsupported>;

impl<'a> Trial<'a> {
    pub(super) fn new(subject: &'a dyn Subject) -> Self {
        Self { subject }
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.subject.store()
    }

    /// Enters the store and comes back with a connection.
    pub(super) async fn enter(&self, entry: Entry) -> Arc<dyn Connection> {
        // Whoever mints a generation stamps it with chance; a case that cares brings its own.
        let stamp = if entry.stamp == 0 { fastrand::u64(1..) } else { entry.stamp };
        let entry = Entry { stamp, ..entry };
        match self.store().enter(entry.clone()).await {
            Ok(connection) => connection,
            Err(error) => panic!("the store must let {entry:?} in: {error}"),
        }
    }

    /// An instance that has entered. The first one opens the namespace, however young the server.
    pub(super) async fn player(&self, id: &str) -> Player {
        self.player_with(id, LONG).await
    }

    /// An instance whose longest ttl is this.
    pub(super) async fn player_with(&self, id: &str, max_ttl: Duration) -> Player {
        let entry = Entry { max_ttl, bootstrap: true, ..Entry::default() };
        Player::new(instance(id), self.enter(entry).await)
    }

    pub(super) async fn listener(&self) -> Listener {
        match self.store().subscribe().await {
            Ok(subscription) => Listener::new(subscription),
            Err(error) => panic!("the store must accept a listener: {error}"),
        }
    }

    pub(super) async fn pass(&self, span: Duration) {
        self.subject.pass(span).await;
    }

    /// Lets so much time pass that whatever lasts this long is over.
    pub(super) async fn outlast(&self, ttl: Duration) {
        self.pass(ttl + MARGIN).await;
    }

    pub(super) async fn disturb(&self, disturbance: Disturbance) -> Checked {
        let needs = format!("{disturbance:?}");
        match self.subject.disturb(disturbance).await {
            Disturbed::Done => Ok(()),
            Disturbed::Unsupported => Err(Unsupported { needs }),
        }
    }

    /// The case goes on only when the store knows who listens.
    pub(super) fn needs_listener_count(&self) -> Checked {
        if self.subject.counts_listeners() {
            return Ok(());
        }
        Err(Unsupported { needs: "counting who listens".to_owned() })
    }

    /// The case goes on only when the store knows what it has served, whatever became of its data.
    pub(super) fn needs_marker(&self) -> Checked {
        if self.subject.knows_what_it_served() {
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
