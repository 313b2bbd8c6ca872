//! The shape of the public API: what a program written from the documents relies on.

#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::election::LeaderOnlyError;
use tenure::lease::{Ending, LeaseSettings, Loss, ReleaseReason, SettingsError};
use tenure::pool::Target;
use tenure::store::memory::MemoryStore;
use tenure::{
    AcquireError, ConnectError, DocumentError, EventKind, LeaseName, NameError, PublishError, ReleaseError,
    RequestError, RunError, Tenure, TermHandle, leader_only,
};

/// Longer than anything here takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

async fn with_timeout<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TEST_TIMEOUT, future).await.unwrap_or_else(|_| panic!("timed out after {TEST_TIMEOUT:?}"))
}

async fn connect() -> Tenure {
    Tenure::connect("memory:").await.unwrap()
}

async fn connect_to(store: &MemoryStore) -> Tenure {
    Tenure::with_store(Arc::new(store.clone())).bootstrap().connect().await.unwrap()
}

// One way in.

#[tokio::test]
async fn a_label_means_what_the_call_is_about_and_a_name_means_itself() {
    let tenure = connect().await;
    let role = LeaseName::role("cleanup").unwrap();
    assert_eq!(tenure.lease("cleanup").acquire().await.unwrap().name().key(), "lease:cleanup");
    assert_eq!(tenure.lease(&role).acquire().await.unwrap().name(), &role);
    assert_eq!(tenure.election("cleanup").build().unwrap().name(), &role);
    assert_eq!(tenure.election(&role).build().unwrap().name(), &role);
    assert_eq!(tenure.election(String::from("cleanup")).build().unwrap().role(), "cleanup");
    let leadership = tenure.election("cleanup").acquire().await.unwrap();
    for leader in [tenure.fleet().leader_of("cleanup").await, tenure.fleet().leader_of(&role).await] {
        assert_eq!(&leader.unwrap().unwrap().instance, tenure.instance());
    }
    leadership.release().await.unwrap();
}

#[tokio::test]
async fn settings_that_are_not_valid_are_reported_where_the_chain_ends() {
    let connected = Tenure::builder("memory:").namespace("a b").name("c d").connect().await;
    assert!(matches!(&connected, Err(ConnectError::Name(NameError::BadCharacter { text, .. })) if text == "a b"));
    assert!(matches!(Tenure::builder("memory:").name("c d").start(), Err(ConnectError::Name(_))));
    let both = Tenure::builder("memory:").name("a").instance(tenure::InstanceId::new("b").unwrap());
    assert!(matches!(both.start(), Err(ConnectError::NameAndInstance)));

    let tenure = connect().await;
    assert!(matches!(tenure.lease("a b").acquire().await, Err(AcquireError::Name(_))));
    assert!(matches!(tenure.admin().inspect("a b").await, Err(RequestError::Name(_))));
    assert!(tenure.fleet().observe("a b").is_err());
    assert!(tenure.election("a b").build().is_err());
    assert!(tenure.pool("poll").targets(["a b"]).check().is_err());
    let backoff = tenure.pool("poll").restart_backoff(Duration::from_secs(2), Duration::from_secs(1));
    assert!(backoff.check().unwrap_err().to_string().contains("restart backoff"));
}

#[tokio::test]
async fn no_setting_overrides_another_silently() {
    let tenure = connect().await;
    let all = LeaseSettings::default();
    for request in [
        tenure.lease("job").settings(all).ttl(Duration::from_secs(5)),
        tenure.lease("job").stop_budget(Duration::from_secs(1)).settings(all),
    ] {
        assert!(matches!(request.acquire().await, Err(AcquireError::Settings(SettingsError::SetTwice))));
    }
}

// Outcomes.

/// Makes requests until one loses its reply. A request of the keeper may lose its reply instead.
async fn until_unknown<E>(store: &MemoryStore, request: impl AsyncFn() -> Result<(), E>) -> E {
    loop {
        store.faults().lose_replies(1);
        if let Err(error) = request().await {
            return error;
        }
    }
}

#[tokio::test]
async fn an_unknown_outcome_is_neither_success_nor_failure() {
    let store = MemoryStore::default();
    let tenure = connect_to(&store).await;
    let lease = tenure.lease("job").acquire().await.unwrap();
    let unknown = until_unknown(&store, async || lease.publish("result", "17").await).await;
    assert!(matches!(unknown, PublishError::Unknown(_)), "{unknown:?}");
    let written = tenure.read("job", "result").await.unwrap().unwrap();
    assert_eq!(written.text(), Some("17"), "this one was carried out");

    let unknown = until_unknown(&store, async || tenure.documents("servers").create("eu-1", b"{}").await).await;
    assert!(matches!(&unknown, DocumentError::Request(error) if error.may_have_changed()), "{unknown:?}");
    tenure.documents("servers").create("eu-1", b"{}").await.unwrap();

    let unknown = until_unknown(&store, async || tenure.admin().drain(tenure.instance()).await).await;
    assert!(unknown.may_have_changed() && unknown.is_retryable(), "{unknown:?}");
    assert!(unknown.to_string().contains("repeating it is safe"), "{unknown}");
}

#[tokio::test]
async fn a_release_without_a_reply_has_an_unknown_outcome() {
    let store = MemoryStore::default();
    let tenure = connect_to(&store).await;
    let lease = tenure.lease("job").ttl(Duration::from_secs(1)).acquire().await.unwrap();
    let token = lease.token();
    store.faults().stop();
    match with_timeout(lease.release()).await {
        Err(ReleaseError::Unknown { name, token: released }) => {
            assert_eq!((name.label(), released), ("job", token));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_release_that_the_store_refuses_is_an_error() {
    let store = MemoryStore::default();
    let tenure = connect_to(&store).await;
    let lease = tenure.lease("job").acquire().await.unwrap();
    store.faults().flush();
    let lost = with_timeout(lease.release()).await.unwrap_err();
    assert!(matches!(&lost, ReleaseError::Lost(lost) if lost.reason == Loss::StoreReset), "{lost:?}");
}

#[tokio::test]
async fn only_a_loss_is_lost() {
    let tenure = connect().await;
    let lease = tenure.lease("job").acquire().await.unwrap();
    let handle: TermHandle = (*lease).clone();
    assert_eq!(handle.ending(), None);
    let lost = tokio::spawn({
        let handle = handle.clone();
        async move { handle.lost().await }
    });
    lease.release().await.unwrap();
    assert_eq!(with_timeout(handle.cancelled()).await, Ending::Released(ReleaseReason::Voluntary));
    assert_eq!(handle.ending(), Some(Ending::Released(ReleaseReason::Voluntary)));
    let released = handle.run(async { Ok::<(), std::io::Error>(()) }).await;
    assert!(matches!(released, Err(RunError::Released(ReleaseReason::Voluntary))), "{released:?}");
    assert!(!lost.is_finished(), "a released term is not lost");
    lost.abort();

    let lease = tenure.lease("job").acquire().await.unwrap();
    tenure.admin().revoke("job").await.unwrap();
    let lost = with_timeout(lease.lost()).await;
    assert_eq!((lost.reason, lost.name.label(), lost.token), (Loss::Revoked, "job", lease.token()));
}

/// Work with errors of three kinds, each returned with `?`.
async fn work_with_any_error(tenure: &Tenure) -> Result<u32, Box<dyn Error + Send + Sync>> {
    let lease = tenure.lease("job").acquire().await?;
    let boxed = lease.run(async { Err::<u32, Box<dyn Error + Send + Sync>>("boxed".into()) }).await;
    assert_eq!(boxed.unwrap_err().to_string(), "boxed");
    let done = lease.run(async { "17".parse::<u32>() }).await?;
    lease.run(async { Err::<(), Box<dyn Error + Send + Sync>>("returned".into()) }).await?;
    lease.release().await?;
    Ok(done)
}

#[tokio::test]
async fn fallible_work_gives_one_error_that_a_question_mark_returns() {
    let tenure = connect().await;
    let failed = work_with_any_error(&tenure).await.unwrap_err();
    assert_eq!(failed.to_string(), "returned");
}

// Elections.

#[tokio::test]
async fn leading_can_be_spawned_with_the_usual_shutdown_signals() {
    let tenure = connect().await;
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let rounds = Arc::new(Mutex::new(0));
    let counted = rounds.clone();
    let leading = tokio::spawn(async move {
        let lead = tenure.election("cleanup").lead(move |term| {
            let rounds = counted.clone();
            async move {
                while term.wait(Duration::from_millis(1)).await {
                    *rounds.lock().unwrap() += "1".parse::<i32>()?;
                }
                Ok(())
            }
        });
        lead.until(stopped.wait_for(|stopped| *stopped)).await?;
        Ok::<(), Box<dyn Error + Send + Sync>>(())
    });
    while *rounds.lock().unwrap() < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.send_replace(true);
    with_timeout(leading).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_process_knows_without_a_request_whether_it_leads() {
    let tenure = connect().await;
    assert!(!tenure.is_leader("cleanup"));
    let led = tenure.clone();
    let lead = tenure.election("cleanup").lead(async |_| {
        assert!(led.is_leader("cleanup") && !led.is_leader("another"));
        Err("seen".into())
    });
    let ended = with_timeout(lead.until(std::future::pending::<()>())).await.unwrap_err();
    assert_eq!(
        (ended.to_string(), ended.source().unwrap().to_string()),
        ("the leader's work failed".into(), "seen".into())
    );
    assert!(!tenure.is_leader("cleanup"));
}

#[tokio::test]
async fn metadata_is_text_on_both_ends() {
    let tenure = connect().await;
    let leadership = tenure.election("cleanup").metadata("10.0.0.7:8080").acquire().await.unwrap();
    let leader = || async { tenure.fleet().leader_of("cleanup").await.unwrap().unwrap().metadata };
    let published = async {
        while leader().await.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    with_timeout(published).await;
    assert_eq!(leader().await.as_deref(), Some("10.0.0.7:8080"));
    leadership.release().await.unwrap();
}

#[leader_only("not-installed", error)]
async fn without_a_tenure() -> u32 {
    17
}

#[leader_only("not-installed")]
async fn without_a_tenure_or_an_error() -> u32 {
    17
}

#[leader_only("by-parameter", ttl = Duration::from_secs(7))]
async fn with_parameters(tenure: &Tenure, numbers: &[u32], term: TermHandle) -> u32 {
    assert_eq!(tenure.fleet().leader_of("by-parameter").await.unwrap().unwrap().token, Some(term.token()));
    assert!(term.remaining() < Duration::from_secs(7), "the ttl of the attribute");
    numbers.iter().sum()
}

#[leader_only("owned", ttl = settings.0)]
async fn with_owned_parameters(tenure: Tenure, settings: (Duration, String), mut term: TermHandle) -> String {
    term = term.clone();
    drop(tenure);
    format!("{} in {}", settings.1, term.name().label())
}

#[tokio::test]
async fn a_leader_only_function_may_own_its_parameters() {
    let settings = (Duration::from_secs(5), "done".to_owned());
    assert_eq!(with_owned_parameters(connect().await, settings).await.as_deref(), Some("done in owned"));
}

#[tokio::test]
async fn work_as_leader_runs_under_the_lease_that_the_builder_names() {
    let tenure = connect().await;
    let election = tenure.election("x").build().unwrap();
    election.start();
    election.wait_for_leadership(TEST_TIMEOUT).await.unwrap();
    let under = async |builder: tenure::election::ElectionBuilder| {
        builder.run_as_leader(async |term| term.name().key().to_owned()).await.unwrap()
    };
    assert_eq!(under(tenure.election("x")).await, "leader:x");
    assert_eq!(under(tenure.election("x").key("billing:x")).await, "billing:x");
}

#[tokio::test]
async fn a_leader_only_function_without_a_tenure_says_so_and_does_not_panic() {
    assert_eq!(without_a_tenure().await, Err(LeaderOnlyError::NotInstalled));
    assert_eq!(without_a_tenure_or_an_error().await, None);
    assert_eq!(with_parameters(&connect().await, &[1, 2, 3]).await, Some(6));
}

// Pools.

#[derive(Debug)]
struct Server {
    url: &'static str,
}

#[tokio::test]
async fn work_gets_the_state_and_the_payload_of_its_target() {
    let tenure = connect().await;
    let seen: Arc<Mutex<HashMap<String, String>>> = Arc::default();
    let pool = tenure
        .pool("poll")
        .state(seen.clone())
        .targets([("eu-1", Server { url: "http://eu" }), ("us-1", Server { url: "http://us" })])
        .run(async |seen, target, term| {
            seen.lock().unwrap().insert(target.name().to_owned(), target.url.to_owned());
            term.draining().await;
            Ok(())
        })
        .start()
        .unwrap();
    while seen.lock().unwrap().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let expected =
        HashMap::from([("eu-1", "http://eu"), ("us-1", "http://us")].map(|(k, v)| (k.to_owned(), v.to_owned())));
    assert_eq!(*seen.lock().unwrap(), expected);
    let owned: Vec<Target<Server>> = pool.owned();
    assert_eq!(
        owned.iter().map(|target| (target.name(), target.url)).collect::<Vec<_>>(),
        [("eu-1", "http://eu"), ("us-1", "http://us")]
    );
    with_timeout(pool.stop()).await;
}

#[tokio::test]
async fn a_new_payload_reaches_running_work_in_the_same_term() {
    let tenure = connect().await;
    let (send, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let pool = tenure
        .pool("poll")
        .state(send)
        .targets([("eu-1", 1)])
        .run(async |send, mut target, term| {
            loop {
                send.send((*target, term.token()))?;
                tokio::select! {
                    () = target.changed() => {}
                    () = term.draining() => return Ok(()),
                }
            }
        })
        .start()
        .unwrap();
    let first = with_timeout(seen.recv()).await.unwrap();
    pool.retarget([("eu-1", 2), ("eu-2", 20)]).unwrap();
    let mut others = [with_timeout(seen.recv()).await.unwrap(), with_timeout(seen.recv()).await.unwrap()];
    others.sort_unstable();
    assert_eq!((first.0, others[0], others[1].0), (1, (2, first.1), 20), "eu-1 keeps its term");
    with_timeout(pool.stop()).await;
}

#[tokio::test]
async fn failing_work_is_reported_counted_and_restarted_after_the_backoff() {
    let tenure = connect().await;
    let mut events = tenure.events().filter(|event| matches!(event.kind, EventKind::WorkFailed { .. }));
    let runs = Arc::new(Mutex::new(0));
    let pool = tenure
        .pool("poll")
        .state(runs.clone())
        .targets(["eu-1"])
        .restart_backoff(Duration::from_millis(1), Duration::from_millis(5))
        .run(async |runs, target, term| {
            let run = {
                let mut runs = runs.lock().unwrap();
                *runs += 1;
                *runs
            };
            match run {
                1 => Err(format!("no route to {target}").into()),
                2 => panic!("intended panic in work"),
                _ => {
                    term.draining().await;
                    Ok(())
                }
            }
        })
        .start()
        .unwrap();
    for (name, error) in [("work.failed", "no route to eu-1"), ("work.panicked", "intended panic in work")] {
        let event = with_timeout(events.next()).await.unwrap();
        assert_eq!(event.kind.name(), name);
        assert_eq!(event.lease.as_ref().map(LeaseName::label), Some("eu-1"));
        assert!(event.token.is_some() && event.to_string().contains(error), "{event}");
    }
    while *runs.lock().unwrap() < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stats = pool.stats();
    assert_eq!((stats.work_errors.load(Ordering::Relaxed), stats.work_panics.load(Ordering::Relaxed)), (1, 1));
    with_timeout(pool.stop()).await;
}

// Events.

#[tokio::test]
async fn one_stream_serves_every_kind_of_reader() {
    let tenure = connect().await;
    let mut of_the_lease = tenure.events().lease("job");
    let mut of_the_role = tenure.election("cleanup").build().unwrap().events().notable();
    let mut everything = Box::pin(tenure.events());
    tenure.lease("job").acquire().await.unwrap().release().await.unwrap();
    tenure.election("cleanup").acquire().await.unwrap().release().await.unwrap();
    for name in ["lease.acquired", "lease.released"] {
        assert_eq!(with_timeout(of_the_lease.next()).await.unwrap().kind.name(), name);
    }
    let mut names = Vec::new();
    while !names.contains(&"lease.released") {
        names.push(with_timeout(of_the_role.next()).await.unwrap().kind.name());
    }
    assert!(
        names.contains(&"election.leadership_acquired") && names.contains(&"election.leadership_lost"),
        "{names:?}"
    );
    // It is a stream, too.
    while with_timeout(futures_util::StreamExt::next(&mut everything)).await.unwrap().kind.name() != "lease.acquired" {}
}

#[tokio::test]
async fn a_stream_that_has_ended_stays_ended() {
    let tenure = connect().await;
    let mut events = tenure.events().filter(|event| event.kind.name() == "never");
    tenure.shutdown().await;
    assert_eq!(with_timeout(events.next()).await, None);
    assert_eq!(with_timeout(events.next()).await, None, "polled again, as in a loop");
}

#[tokio::test]
async fn listeners_get_the_end_of_a_leadership_that_a_shutdown_ends() {
    for _ in 0..30 {
        let tenure = connect().await;
        let heard: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let noted = heard.clone();
        let listener = move |event: &tenure::Event| noted.lock().unwrap().push(event.kind.name());
        let election = tenure.election("cleanup").on_event(listener).build().unwrap();
        election.start();
        election.wait_for_leadership(TEST_TIMEOUT).await.unwrap();
        tenure.shutdown().await;
        election.stop().await;
        drop((election, tenure));
        let lost = async {
            while !heard.lock().unwrap().contains(&"election.leadership_lost") {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        with_timeout(lost).await;
    }
}
