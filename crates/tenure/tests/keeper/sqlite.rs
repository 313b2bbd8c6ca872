//! The embedded store: several processes of one host share a file, and some of them die.

use std::path::Path;
use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure::{LeaseName, Token};

use tenure_testbed::LagProbe;

use crate::harness::{
    Bystander, Instance, LONG_TTL, MAX_RENEWAL_DELAY, MAX_STOP_DELAY, STORE_ENV, ScenarioBuilder, TTL, start_process,
    wait_until, with_timeout,
};

fn place() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("leases.db").display());
    (folder, url)
}

/// Holds `job`, and writes as fast as it can until it is killed.
#[tokio::test]
#[ignore = "a part that other tests start as a process"]
async fn busy_holder_process() {
    let Ok(url) = std::env::var(STORE_ENV) else { return };
    let instance = Instance::connect(&url, "child", TTL).await;
    let term = instance.acquire("job", TTL).await;
    println!("READY {}", term.token());
    loop {
        let other = instance.acquire("scratch", TTL).await;
        other.publish("record", vec![7_u8; 10_000]).await.unwrap();
        other.release().await.unwrap();
    }
}

/// Blocks inside a write.
#[test]
#[ignore = "a part that other tests start as a process"]
fn stuck_writer_process() {
    let Ok(url) = std::env::var(STORE_ENV) else { return };
    let file = rusqlite::Connection::open(url.strip_prefix("sqlite:").unwrap()).unwrap();
    file.execute_batch("BEGIN IMMEDIATE; UPDATE host SET touched = touched").unwrap();
    println!("READY {}", std::process::id());
    std::thread::sleep(Duration::from_secs(600));
}

fn is_intact(url: &str) {
    let file = rusqlite::Connection::open(Path::new(url.strip_prefix("sqlite:").unwrap())).unwrap();
    file.busy_timeout(Duration::from_secs(30)).unwrap();
    let verdict: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
}

#[tokio::test]
async fn a_process_killed_during_writes_affects_no_other_process() {
    let probe = LagProbe::start();
    let (_folder, url) = place();
    let bystander = Bystander::at(&url).await;
    let alice = Instance::connect(&url, "alice", TTL).await;
    let mut last = Token::ZERO;
    for round in 0..8_u64 {
        let (process, token) = start_process("sqlite::busy_holder_process", &url);
        let token = Token::new(token.parse().unwrap()).unwrap();
        assert!(token > last, "tokens must increase");
        tokio::time::sleep(Duration::from_millis(17 * round)).await;
        process.signal(rustix::process::Signal::KILL);
        let killed = Instant::now();
        is_intact(&url);
        let term = alice.acquire("job", TTL).await;
        probe.assert_within(killed.elapsed(), TTL + Duration::from_millis(25), "the next holder");
        assert!(term.token() > token, "tokens must increase");
        last = term.token();
        term.release().await.unwrap();
        bystander.assert_untouched().await;
    }
}

#[tokio::test]
async fn a_stopped_process_does_not_resume_a_lease_that_was_taken_over() {
    let (_folder, url) = place();
    let bystander = Bystander::at(&url).await;
    let alice = Instance::connect(&url, "alice", TTL).await;
    let (process, token) = start_process("sqlite::busy_holder_process", &url);
    // It may be stopped inside a write; it then ends the write when it resumes.
    process.signal(rustix::process::Signal::STOP);
    let resumes = tokio::spawn(async move {
        tokio::time::sleep(TTL * 2).await;
        process.signal(rustix::process::Signal::CONT);
        process
    });
    let term = alice.acquire("job", LONG_TTL).await;
    assert!(term.token() > Token::new(token.parse().unwrap()).unwrap());
    let _process = resumes.await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(term.is_valid());
    let report = alice.tenure.admin().inspect(&LeaseName::lease("job").unwrap()).await.unwrap();
    assert_eq!(report.held.unwrap().token, Some(term.token()));
    bystander.assert_untouched().await;
}

#[tokio::test]
async fn a_stuck_writer_is_named_and_work_stops_in_time() {
    let (_folder, url) = place();
    let scenario = ScenarioBuilder::at(&url).start().await;
    let (process, pid) = start_process("sqlite::stuck_writer_process", &url);
    process.signal(rustix::process::Signal::STOP);
    let stopped = Instant::now();
    assert_eq!(scenario.wait_until_stopped(stopped, MAX_STOP_DELAY).await, Ending::Lost(Loss::Unreachable));
    let named = format!("process {pid}");
    let events = scenario.alice.events.clone();
    wait_until("it is named", || events.lock().unwrap().iter().any(|event| event.to_string().contains(&named))).await;
    drop(process);
    scenario.record.wait_for_work("", scenario.token).await;
    scenario.finish().await;
}

#[tokio::test]
async fn a_release_wakes_waiters_in_other_processes_of_the_host() {
    let (_folder, url) = place();
    let (alice, bob) = Instance::pair(&url, LONG_TTL).await;
    let term = alice.acquire("job", LONG_TTL).await;
    let waits = bob.spawn_acquire("job", LONG_TTL);
    bob.wait_for_event("lease.waiting").await;
    term.release().await.unwrap();
    // Thirty seconds before the ttl would end.
    assert!(with_timeout(waits).await.unwrap().is_ok());
}

#[tokio::test]
async fn moving_the_file_away_ends_every_term_on_it() {
    let (folder, url) = place();
    let scenario = ScenarioBuilder::at(&url).without_bystander().start().await;
    for end in ["", "-wal", "-shm"] {
        let name = format!("leases.db{end}");
        std::fs::rename(folder.path().join(&name), folder.path().join(format!("old-{name}"))).unwrap();
    }
    let taken_away = Instant::now();
    assert!(matches!(scenario.wait_until_stopped(taken_away, MAX_RENEWAL_DELAY).await, Ending::Lost(_)));
    scenario.wait_for_next_work(taken_away, MAX_RENEWAL_DELAY + TTL * 2).await;
    scenario.finish().await;
}

/// Holds `job` on a file with a relative path, then changes the working directory.
#[tokio::test]
#[ignore = "a part that other tests start as a process"]
async fn chdir_holder_process() {
    let Ok(url) = std::env::var(STORE_ENV) else { return };
    let folder = Path::new(url.strip_prefix("sqlite:").unwrap()).parent().unwrap().to_owned();
    std::env::set_current_dir(&folder).unwrap();
    let instance = Instance::connect("sqlite:leases.db", "child", TTL).await;
    let term = instance.acquire("job", TTL).await;
    std::fs::create_dir_all(folder.join("elsewhere")).unwrap();
    std::env::set_current_dir(folder.join("elsewhere")).unwrap();
    // Renewed, and attached again, from the new directory.
    let renewed = instance.count_events("lease.renewed");
    wait_until("renewed", || instance.count_events("lease.renewed") > renewed + 1).await;
    println!("READY {}", term.token());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_relative_path_survives_a_change_of_directory() {
    let (folder, url) = place();
    let alice = Instance::connect(&url, "alice", TTL).await;
    let (_process, token) = start_process("sqlite::chdir_holder_process", &url);
    let report = alice.tenure.admin().inspect(&LeaseName::lease("job").unwrap()).await.unwrap();
    assert_eq!(report.held.unwrap().token.unwrap().to_string(), token);
    assert!(!folder.path().join("elsewhere/leases.db").exists());
}

#[tokio::test]
async fn a_file_created_beside_leftovers_is_quarantined() {
    let (folder, url) = place();
    let alice = Instance::connect(&url, "alice", LONG_TTL).await;
    let term = alice.acquire("job", LONG_TTL).await;
    std::fs::remove_file(folder.path().join("leases.db")).unwrap();
    // An instance that is only subscribed has noticed by now, and must not have created the file.
    tokio::time::sleep(Duration::from_millis(400)).await;
    for name in ["carol", "dave"] {
        let newcomer = Instance::with(tenure::Tenure::builder(&url).name(name)).await;
        match newcomer.tenure.lease("job").try_acquire().await {
            Err(tenure::AcquireError::Quarantined(_)) => {}
            other => panic!("{name}: expected a quarantine, since a holder may still rely on the old file: {other:?}"),
        }
    }
    drop(term);
}

/// The files beside the database are deleted while a stopped process relies on a lease in them.
#[tokio::test]
async fn nothing_is_granted_while_a_process_uses_deleted_files_beside_the_database() {
    for deleted in [&["-shm"][..], &["-wal"], &["-wal", "-shm"]] {
        let (folder, url) = place();
        let (process, _) = start_process("sqlite::chdir_holder_process", &url);
        process.signal(rustix::process::Signal::STOP);
        for end in deleted {
            std::fs::remove_file(folder.path().join(format!("leases.db{end}"))).unwrap();
        }
        let refused = tenure::Tenure::builder(&url).name("alice").connect().await;
        let error =
            refused.expect_err("alice can see neither the locks nor the writes of the other process").to_string();
        // With the old index and a new log, SQLite fails by itself.
        let is_named = error.contains("another process uses this file with another -wal and -shm");
        assert!(is_named || *deleted == ["-wal"], "{deleted:?}: {error}");
        // The writes may be lost with the process.
        drop(process);
        let alice = Instance::connect(&url, "alice", TTL).await;
        drop(alice);
    }
}

/// The same, with processes that go on: each has to notice at its next contact, and no lease has two holders.
#[tokio::test]
async fn processes_whose_files_beside_the_database_are_deleted_attach_again() {
    for deleted in [&["-shm"][..], &["-wal"], &["-wal", "-shm"]] {
        let (folder, url) = place();
        let alice = Instance::connect(&url, "alice", TTL).await;
        let term = alice.acquire("job", TTL).await;
        for end in deleted {
            std::fs::remove_file(folder.path().join(format!("leases.db{end}"))).unwrap();
        }
        let (_process, _) = start_process("sqlite::other_holder_process", &url);
        wait_until("alice attaches again", || alice.count_events("store.attached") > 1).await;
        let report = alice.tenure.admin().inspect(&LeaseName::lease("job").unwrap()).await.unwrap();
        assert!(!term.is_valid() || report.held.is_none_or(|held| held.token == Some(term.token())), "{deleted:?}");
        let other = alice.acquire("after", TTL).await;
        assert!(other.is_valid(), "{deleted:?}");
    }
}

/// Attaches, and holds another lease.
#[tokio::test]
#[ignore = "a part that other tests start as a process"]
async fn other_holder_process() {
    let Ok(url) = std::env::var(STORE_ENV) else { return };
    let instance = crate::harness::builder(&url, "child", TTL).start().unwrap();
    let term = with_timeout(instance.lease("other").ttl(TTL).acquire()).await.unwrap();
    println!("READY {}", term.token());
    std::future::pending::<()>().await;
}
