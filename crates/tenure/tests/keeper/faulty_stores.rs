//! Faulty stores and listeners: the keeper survives all of them.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Tenure;
use tenure::store::memory::MemoryStore;
use tenure::store::{
    AttachRequest, Attached, BoxFuture, Connection, ErrorKind, Outcome, Request, Store, StoreError, Subscription,
};

use crate::harness::{Instance, LONG_TTL, TTL, WorkLog, settings_with_ttl, wait_until, with_timeout};

/// The fault of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum InjectedFault {
    #[default]
    None,
    PanicOnAttach,
    PanicOnSubmit,
    CloseImmediately,
    /// Never replies, regardless of the timeout.
    NeverReply,
    /// Refuses with an error that a retry cannot fix.
    RefuseAttach,
}

#[derive(Debug, Default)]
struct FaultyStore {
    inner: MemoryStore,
    fault: Arc<Mutex<InjectedFault>>,
    attach_count: AtomicUsize,
}

impl FaultyStore {
    fn set_fault(&self, fault: InjectedFault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn fault(&self) -> InjectedFault {
        *self.fault.lock().unwrap()
    }

    fn attach_count(&self) -> usize {
        self.attach_count.load(Ordering::SeqCst)
    }
}

impl Store for FaultyStore {
    fn attach(&self, entry: AttachRequest) -> BoxFuture<'_, Result<Arc<dyn Connection>, StoreError>> {
        Box::pin(async move {
            self.attach_count.fetch_add(1, Ordering::SeqCst);
            match self.fault() {
                InjectedFault::PanicOnAttach => panic!("intended panic in a store"),
                InjectedFault::RefuseAttach => Err(StoreError::new(ErrorKind::Configuration, "not for you")),
                _ => {
                    let inner = self.inner.attach(entry).await?;
                    Ok(Arc::new(FaultyConnection { inner, fault: self.fault.clone() }) as Arc<dyn Connection>)
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

struct FaultyConnection {
    inner: Arc<dyn Connection>,
    fault: Arc<Mutex<InjectedFault>>,
}

impl Connection for FaultyConnection {
    fn attached(&self) -> &Attached {
        self.inner.attached()
    }

    fn submit(&self, batch: Vec<Request>, limit: Duration) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            assert!(*self.fault.lock().unwrap() != InjectedFault::PanicOnSubmit, "intended panic in a store");
            if *self.fault.lock().unwrap() == InjectedFault::NeverReply {
                std::future::pending::<()>().await;
            }
            self.inner.submit(batch, limit).await
        })
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if *self.fault.lock().unwrap() != InjectedFault::CloseImmediately {
                self.inner.closed().await;
            }
        })
    }
}

impl fmt::Debug for FaultyConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyConnection")
    }
}

async fn alice_on(store: &Arc<FaultyStore>) -> Instance {
    Instance::with(Tenure::with_store(store.clone()).name("alice").longest_ttl(LONG_TTL).bootstrap()).await
}

#[tokio::test]
async fn a_store_that_panics_is_attached_again_and_the_term_continues() {
    let store = Arc::new(FaultyStore::default());
    let alice = alice_on(&store).await;
    let record = WorkLog::default();
    let job = record.spawn_worker(&alice, "job", settings_with_ttl(LONG_TTL));
    let token = record.wait_for_work("alice", tenure::Token::ZERO).await;

    store.set_fault(InjectedFault::PanicOnSubmit);
    // A request that needs the store.
    assert!(alice.tenure.lease("other").try_acquire().await.is_err());
    alice.wait_for_event("store.lost").await;
    store.set_fault(InjectedFault::PanicOnAttach);
    store.inner.faults().cut_connections();
    let attach_count = store.attach_count();
    wait_until("the attach is retried", || store.attach_count() > attach_count + 2).await;
    store.set_fault(InjectedFault::None);

    wait_until("attached again", || alice.tenure.stats().connected).await;
    assert!(with_timeout(alice.tenure.lease("other").try_acquire()).await.is_ok());
    record.wait_for_progress(token).await;
    assert!(job.has_never_stopped());
}

#[tokio::test]
async fn failing_connections_are_not_retried_in_a_hot_loop() {
    let store = Arc::new(FaultyStore::default());
    let alice = alice_on(&store).await;
    store.set_fault(InjectedFault::CloseImmediately);
    store.inner.faults().cut_connections();
    wait_until("the failure is noticed", || store.attach_count() > 3).await;
    let before = store.attach_count();
    tokio::time::sleep(Duration::from_secs(2)).await;
    // The backoff doubles from 20 ms to two seconds.
    let made = store.attach_count() - before;
    assert!(made <= 8, "{made} connections in two seconds");
    store.set_fault(InjectedFault::None);
    assert!(with_timeout(alice.tenure.lease("job").acquire()).await.is_ok());
}

#[tokio::test]
async fn a_permanent_store_error_reaches_waiters_behind_the_same_process() {
    let store = Arc::new(FaultyStore::default());
    let alice = alice_on(&store).await;
    let held = alice.acquire("job", LONG_TTL).await;
    let waits = [alice.spawn_acquire("job", LONG_TTL), alice.spawn_acquire("job", LONG_TTL)];
    tokio::task::yield_now().await;
    store.set_fault(InjectedFault::RefuseAttach);
    store.inner.faults().cut_connections();
    for wait in waits {
        let error = with_timeout(wait).await.unwrap().unwrap_err();
        assert!(error.to_string().contains("not for you"), "{error}");
    }
    assert!(held.is_valid(), "a held term stays valid until its deadline");
    let refused = Tenure::with_store(store.clone()).connect().await.unwrap_err();
    assert_eq!(refused.store_error().unwrap().kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn a_panicking_listener_affects_no_other_listener() {
    let store = Arc::new(FaultyStore::default());
    let builder = Tenure::with_store(store).name("alice").bootstrap();
    let alice = Instance::with(builder.on_event(|_| panic!("intended panic in a listener"))).await;
    let mut stream = alice.tenure.events();
    let term = alice.acquire("job", LONG_TTL).await;
    term.release().await.unwrap();
    alice.wait_for_event("lease.released").await;
    while with_timeout(stream.next()).await.unwrap().kind.name() != "lease.released" {}
}

#[tokio::test]
async fn an_invalid_url_is_a_clear_error() {
    for (url, says) in [("redis://", "host"), ("nonsense", "sqlite:"), ("ftp://host", "ftp"), ("sqlite:", "path")] {
        let error = Tenure::builder(url).start().unwrap_err();
        assert_eq!(error.store_error().unwrap().kind(), ErrorKind::Address, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_store_that_never_replies_does_not_block_a_shutdown_for_ever() {
    let store = Arc::new(FaultyStore::default());
    let alice = alice_on(&store).await;
    let term = alice.acquire("job", TTL).await;
    store.set_fault(InjectedFault::NeverReply);
    with_timeout(alice.tenure.shutdown()).await;
    assert!(!term.is_valid());
}
