//! Stores and listeners with mistakes in them: the keeper lives through all of it.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Tenure;
use tenure::store::memory::MemoryStore;
use tenure::store::{
    BoxFuture, Connection, Entered, Entry, ErrorKind, Outcome, Request, Store, StoreError, Subscription,
};

use crate::stage::{Instance, LONG, Record, TTL, lasting, soon, until};

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mistake {
    #[default]
    None,
    PanicsWhenEntered,
    PanicsWhenAsked,
    ClosesAtOnce,
    /// Whatever limit it was given.
    NeverAnswers,
    /// Nobody can mend it by waiting.
    Refuses,
}

#[derive(Debug, Default)]
struct OddStore {
    inner: MemoryStore,
    mistake: Arc<Mutex<Mistake>>,
    entries: AtomicUsize,
}

impl OddStore {
    fn now_has(&self, mistake: Mistake) {
        *self.mistake.lock().unwrap() = mistake;
    }

    fn mistake(&self) -> Mistake {
        *self.mistake.lock().unwrap()
    }

    fn entries(&self) -> usize {
        self.entries.load(Ordering::SeqCst)
    }
}

impl Store for OddStore {
    fn enter(&self, entry: Entry) -> BoxFuture<'_, Result<Arc<dyn Connection>, StoreError>> {
        Box::pin(async move {
            self.entries.fetch_add(1, Ordering::SeqCst);
            match self.mistake() {
                Mistake::PanicsWhenEntered => panic!("a mistake in a store (this test makes it)"),
                Mistake::Refuses => Err(StoreError::new(ErrorKind::Configuration, "not for you")),
                _ => {
                    let inner = self.inner.enter(entry).await?;
                    Ok(Arc::new(OddConnection { inner, mistake: self.mistake.clone() }) as Arc<dyn Connection>)
                }
            }
        })
    }

    fn subscribe(&self) -> BoxFuture<'_, Result<Box<dyn Subscription>, StoreError>> {
        self.inner.subscribe()
    }

    fn location(&self) -> &str {
        "odd:"
    }
}

struct OddConnection {
    inner: Arc<dyn Connection>,
    mistake: Arc<Mutex<Mistake>>,
}

impl Connection for OddConnection {
    fn entered(&self) -> &Entered {
        self.inner.entered()
    }

    fn submit(&self, batch: Vec<Request>, limit: Duration) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            assert!(*self.mistake.lock().unwrap() != Mistake::PanicsWhenAsked, "a mistake (this test makes it)");
            if *self.mistake.lock().unwrap() == Mistake::NeverAnswers {
                std::future::pending::<()>().await;
            }
            self.inner.submit(batch, limit).await
        })
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if *self.mistake.lock().unwrap() != Mistake::ClosesAtOnce {
                self.inner.closed().await;
            }
        })
    }
}

impl fmt::Debug for OddConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OddConnection")
    }
}

async fn alice_on(store: &Arc<OddStore>) -> Instance {
    Instance::with(Tenure::on(store.clone()).name("alice").unwrap().longest_ttl(LONG).bootstrap()).await
}

#[tokio::test]
async fn a_store_that_panics_is_entered_again_and_the_term_goes_on() {
    let store = Arc::new(OddStore::default());
    let alice = alice_on(&store).await;
    let record = Record::default();
    let job = record.candidate(&alice, "job", lasting(LONG));
    let token = record.works("alice", tenure::Token::ZERO).await;

    store.now_has(Mistake::PanicsWhenAsked);
    // Something that has to be asked.
    assert!(alice.tenure.lease("other").try_acquire().await.is_err());
    alice.sees("store.lost").await;
    store.now_has(Mistake::PanicsWhenEntered);
    store.inner.faults().cut_connections();
    let entries = store.entries();
    until("it is tried again and again", || store.entries() > entries + 2).await;
    store.now_has(Mistake::None);

    until("entered again", || alice.tenure.how_it_stands().connected).await;
    assert!(soon(alice.tenure.lease("other").try_acquire()).await.is_ok());
    record.goes_on(token).await;
    assert!(job.never_stopped());
}

#[tokio::test]
async fn connections_that_never_work_are_not_made_over_and_over() {
    let store = Arc::new(OddStore::default());
    let alice = alice_on(&store).await;
    store.now_has(Mistake::ClosesAtOnce);
    store.inner.faults().cut_connections();
    until("it has noticed", || store.entries() > 3).await;
    let before = store.entries();
    tokio::time::sleep(Duration::from_secs(2)).await;
    // The pauses double: 20 ms at first, two seconds at last.
    let made = store.entries() - before;
    assert!(made <= 8, "{made} connections in two seconds");
    store.now_has(Mistake::None);
    assert!(soon(alice.tenure.lease("job").acquire()).await.is_ok());
}

#[tokio::test]
async fn whoever_waits_behind_somebody_of_the_same_process_is_told_what_waiting_does_not_mend() {
    let store = Arc::new(OddStore::default());
    let alice = alice_on(&store).await;
    let held = alice.acquire("job", LONG).await;
    let waits = [alice.waits_for("job", LONG), alice.waits_for("job", LONG)];
    tokio::task::yield_now().await;
    store.now_has(Mistake::Refuses);
    store.inner.faults().cut_connections();
    for wait in waits {
        let error = soon(wait).await.unwrap().unwrap_err();
        assert!(error.to_string().contains("not for you"), "{error}");
    }
    assert!(held.is_valid(), "what is held lasts as long as it lasts");
    let refused = Tenure::on(store.clone()).connect().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn a_listener_that_panics_hurts_nobody() {
    let store = Arc::new(OddStore::default());
    let builder = Tenure::on(store).name("alice").unwrap().bootstrap();
    let alice = Instance::with(builder.on_event(|_| panic!("a mistake in a listener (this test makes it)"))).await;
    let mut stream = alice.tenure.events();
    let term = alice.acquire("job", LONG).await;
    term.release().await.unwrap();
    alice.sees("lease.released").await;
    while soon(stream.next()).await.unwrap().what.name() != "lease.released" {}
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    for (url, says) in [("redis://", "host"), ("nonsense", "sqlite:"), ("ftp://host", "ftp"), ("sqlite:", "path")] {
        let error = Tenure::builder(url).start().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Address, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_store_that_never_answers_does_not_hold_up_a_shutdown_for_ever() {
    let store = Arc::new(OddStore::default());
    let alice = alice_on(&store).await;
    let term = alice.acquire("job", TTL).await;
    store.now_has(Mistake::NeverAnswers);
    soon(alice.tenure.shutdown()).await;
    assert!(!term.is_valid());
}
