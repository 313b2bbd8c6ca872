//! The embedded store: several processes of one host share a file, and some of them die.

use std::path::Path;
use std::time::{Duration, Instant};

use tenure::lease::{Ending, Loss};
use tenure::{LeaseName, Token};

use tenure_testbed::Probe;

use crate::stage::{Bystander, Instance, LAST_STOP, LONG, NEXT_RENEWAL, STORE, Setup, TTL, play, soon, until};

fn place() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("leases.db").display());
    (folder, url)
}

/// Holds `job`, and writes as fast as it can until it is killed.
#[tokio::test]
#[ignore = "a part that other tests start as a process"]
async fn a_busy_holder() {
    let Ok(url) = std::env::var(STORE) else { return };
    let instance = Instance::connect(&url, "child", TTL).await;
    let term = instance.acquire("job", TTL).await;
    println!("READY {}", term.token());
    loop {
        let other = instance.acquire("scratch", TTL).await;
        other.publish("record", vec![7_u8; 10_000]).await.unwrap();
        other.release().await.unwrap();
    }
}

/// Stands still inside a write.
#[test]
#[ignore = "a part that other tests start as a process"]
fn somebody_inside_a_write() {
    let Ok(url) = std::env::var(STORE) else { return };
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
async fn killed_in_the_middle_of_writes_a_process_harms_nobody() {
    let probe = Probe::start();
    let (_folder, url) = place();
    let bystander = Bystander::at(&url).await;
    let alice = Instance::connect(&url, "alice", TTL).await;
    let mut last = Token::ZERO;
    for round in 0..8_u64 {
        let (process, token) = play("sqlite::a_busy_holder", &url);
        let token = Token::new(token.parse().unwrap()).unwrap();
        assert!(token > last, "tokens grow");
        tokio::time::sleep(Duration::from_millis(17 * round)).await;
        process.signal(rustix::process::Signal::KILL);
        let killed = Instant::now();
        is_intact(&url);
        let term = alice.acquire("job", TTL).await;
        probe.within(killed.elapsed(), TTL + Duration::from_millis(25), "the next holder");
        assert!(term.token() > token, "tokens grow");
        last = term.token();
        term.release().await.unwrap();
        bystander.is_untouched().await;
    }
}

#[tokio::test]
async fn a_stopped_process_does_not_come_back_to_a_lease_that_is_somebody_elses() {
    let (_folder, url) = place();
    let bystander = Bystander::at(&url).await;
    let alice = Instance::connect(&url, "alice", TTL).await;
    let (process, token) = play("sqlite::a_busy_holder", &url);
    // It may be stopped inside a write; then it lets go of that when it goes on.
    process.signal(rustix::process::Signal::STOP);
    let resumes = tokio::spawn(async move {
        tokio::time::sleep(TTL * 2).await;
        process.signal(rustix::process::Signal::CONT);
        process
    });
    let term = alice.acquire("job", LONG).await;
    assert!(term.token() > Token::new(token.parse().unwrap()).unwrap());
    let _process = resumes.await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(term.is_valid());
    let report = alice.tenure.inspect(&LeaseName::lease("job").unwrap()).await.unwrap();
    assert_eq!(report.held.unwrap().token, Some(term.token()));
    bystander.is_untouched().await;
}

#[tokio::test]
async fn whoever_stands_still_inside_a_write_is_named_and_work_stops_in_time() {
    let (_folder, url) = place();
    let scene = Setup::at(&url).scene().await;
    let (process, pid) = play("sqlite::somebody_inside_a_write", &url);
    process.signal(rustix::process::Signal::STOP);
    let stopped = Instant::now();
    assert_eq!(scene.stops(stopped, LAST_STOP).await, Ending::Lost(Loss::Unreachable));
    let named = format!("process {pid}");
    let events = scene.alice.events.clone();
    until("it is named", || events.lock().unwrap().iter().any(|event| event.to_string().contains(&named))).await;
    drop(process);
    scene.record.works("", scene.token).await;
    scene.ends().await;
}

#[tokio::test]
async fn whoever_waits_is_told_by_another_process_of_the_host() {
    let (_folder, url) = place();
    let (alice, bob) = Instance::pair(&url, LONG).await;
    let term = alice.acquire("job", LONG).await;
    let waits = bob.waits_for("job", LONG);
    bob.sees("lease.waiting").await;
    term.release().await.unwrap();
    // Thirty seconds before the ttl would have ended.
    assert!(soon(waits).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_file_that_is_taken_away_ends_every_term_on_it() {
    let (folder, url) = place();
    let scene = Setup::at(&url).for_all().scene().await;
    for end in ["", "-wal", "-shm"] {
        let name = format!("leases.db{end}");
        std::fs::rename(folder.path().join(&name), folder.path().join(format!("old-{name}"))).unwrap();
    }
    let taken_away = Instant::now();
    assert!(matches!(scene.stops(taken_away, NEXT_RENEWAL).await, Ending::Lost(_)));
    scene.goes_on_with(taken_away, NEXT_RENEWAL + TTL * 2).await;
    scene.ends().await;
}

/// Holds `job` on a file that is named as seen from the present directory, and goes to another.
#[tokio::test]
#[ignore = "a part that other tests start as a process"]
async fn somebody_who_goes_elsewhere() {
    let Ok(url) = std::env::var(STORE) else { return };
    let folder = Path::new(url.strip_prefix("sqlite:").unwrap()).parent().unwrap().to_owned();
    std::env::set_current_dir(&folder).unwrap();
    let instance = Instance::connect("sqlite:leases.db", "child", TTL).await;
    let term = instance.acquire("job", TTL).await;
    std::fs::create_dir_all(folder.join("elsewhere")).unwrap();
    std::env::set_current_dir(folder.join("elsewhere")).unwrap();
    // Renewed, and entered anew, as seen from there.
    let renewed = instance.times("lease.renewed");
    until("renewed", || instance.times("lease.renewed") > renewed + 1).await;
    println!("READY {}", term.token());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_file_is_the_same_file_wherever_a_program_goes() {
    let (folder, url) = place();
    let alice = Instance::connect(&url, "alice", TTL).await;
    let (_process, token) = play("sqlite::somebody_who_goes_elsewhere", &url);
    let report = alice.tenure.inspect(&LeaseName::lease("job").unwrap()).await.unwrap();
    assert_eq!(report.held.unwrap().token.unwrap().to_string(), token);
    assert!(!folder.path().join("elsewhere/leases.db").exists());
}

#[tokio::test]
async fn a_file_that_is_made_anew_beside_leftovers_is_closed_whoever_made_it() {
    let (folder, url) = place();
    let alice = Instance::connect(&url, "alice", LONG).await;
    let term = alice.acquire("job", LONG).await;
    std::fs::remove_file(folder.path().join("leases.db")).unwrap();
    // Whoever only listens has noticed by now, and must not have made it.
    tokio::time::sleep(Duration::from_millis(400)).await;
    for name in ["carol", "dave"] {
        let newcomer = Instance::with(tenure::Tenure::builder(&url).name(name).unwrap()).await;
        match newcomer.tenure.lease("job").try_acquire().await {
            Err(tenure::AcquireError::Quarantined(_)) => {}
            other => panic!("{name}: somebody may still work under a lease of the old file: {other:?}"),
        }
    }
    drop(term);
}
