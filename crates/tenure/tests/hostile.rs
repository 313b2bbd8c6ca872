//! Records that outsiders changed, files that are not what they seem, servers without room: each test is the shortest way
//! to a mistake that was once made.

#![cfg(all(feature = "redis", feature = "sqlite"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::redis::RedisStore;
use tenure::store::sqlite::SqliteStore;
use tenure::store::{Claim, Connection, Entry, ErrorKind, Holding, Keyspace, Outcome, Reply, Request, Store};
use tenure::{InstanceId, LeaseName, Nonce, Token};
use tenure_testbed::{RedisServer, Release, servers};

const LIMIT: Duration = Duration::from_secs(2);
const TTL: Duration = Duration::from_secs(30);
const TERM: &str = "tenure:term:{lease:x}";

async fn redis(server: &RedisServer) -> Arc<dyn Connection> {
    let store = RedisStore::open(&server.url(), &Keyspace::default()).unwrap();
    store.enter(Entry { bootstrap: true, ..Entry::default() }).await.unwrap()
}

fn sqlite(path: &Path) -> SqliteStore {
    SqliteStore::open(path.to_str().unwrap(), &Keyspace::default()).unwrap()
}

fn name() -> LeaseName {
    LeaseName::lease("x").unwrap()
}

fn me() -> InstanceId {
    InstanceId::new("me").unwrap()
}

fn acquire(nonce: u128) -> Request {
    Request::Acquire { claim: Claim { name: name(), holder: me(), nonce: Nonce::new(nonce), ttl: TTL }, ended: None }
}

fn holding(token: Token) -> Holding {
    Holding { name: name(), holder: me(), token }
}

fn release(token: Token) -> Request {
    Request::Release { holding: holding(token), ending: tenure::lease::Ending::GivenUp }
}

async fn ask(connection: &Arc<dyn Connection>, request: Request) -> Outcome {
    connection.submit(vec![request], LIMIT).await.remove(0)
}

async fn win(connection: &Arc<dyn Connection>, nonce: u128) -> Token {
    match ask(connection, acquire(nonce)).await {
        Outcome::Answered(Reply::Granted(grant)) => grant.token,
        other => panic!("{other:?}"),
    }
}

/// `Outcome::Failed` says that the request was not carried out and never will be.
async fn fails_without_a_trace(field: &str, value: &str) {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    let token = win(&connection, 1).await;
    ask(&connection, release(token)).await;
    server.command(&["HSET", TERM, field, value]);
    let outcome = ask(&connection, acquire(2)).await;
    let taken = server.command(&["EXISTS", "lease:x"]).as_int() == 1;
    assert!(!(taken && matches!(outcome, Outcome::Failed(_))), "the lease was taken, and the outcome is {outcome:?}");
}

#[tokio::test]
async fn redis_a_grant_after_a_term_with_an_unknown_end() {
    fails_without_a_trace("ended", "odd").await;
}

#[tokio::test]
async fn redis_a_grant_after_a_term_whose_token_is_no_number() {
    fails_without_a_trace("token", "nan").await;
}

#[tokio::test]
async fn redis_a_grant_after_a_term_with_an_unreadable_wait() {
    fails_without_a_trace("wait_out_until", "soon").await;
}

#[tokio::test]
async fn redis_a_hand_over_in_a_namespace_with_an_unreadable_floor() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    let token = win(&connection, 1).await;
    server.command(&["HSET", "tenure:ns", "token_floor", "high"]);
    let to = InstanceId::new("other").unwrap();
    let outcome = ask(&connection, Request::HandOver { holding: holding(token), to, window: TTL }).await;
    let given = server.command(&["GET", "lease:x"]).as_text() == "other";
    assert!(!(given && matches!(outcome, Outcome::Failed(_))), "it was handed over, and the outcome is {outcome:?}");
}

#[tokio::test]
async fn redis_members_before_a_leave_in_one_batch() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    ask(&connection, Request::Beat { instance: me(), ttl: TTL, record: Vec::new() }).await;
    let batch = vec![Request::Members, Request::Leave { instance: me() }];
    let outcomes = connection.submit(batch, LIMIT).await;
    assert!(matches!(&outcomes[0], Outcome::Answered(Reply::Members(members)) if members.len() == 1), "{outcomes:?}");
}

#[tokio::test]
async fn redis_all_notes() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    let outcome = ask(&connection, Request::Notes { limit: usize::MAX }).await;
    assert_eq!(outcome, Outcome::Answered(Reply::Notes(Vec::new())));
}

#[tokio::test]
async fn redis_a_beat_that_nobody_can_see() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    server.command(&["SET", "tenure:nodes", "mine"]);
    let outcome = ask(&connection, Request::Beat { instance: me(), ttl: TTL, record: Vec::new() }).await;
    assert!(!matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
}

#[tokio::test]
async fn redis_6_2_that_has_become_a_replica() {
    if servers::find_or_say(Release::V6_2).is_none() {
        return;
    }
    let server = RedisServer::builder().release(Release::V6_2).start();
    let connection = redis(&server).await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let outcome = ask(&connection, acquire(1)).await;
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    let closed = tokio::time::timeout(LIMIT, connection.closed()).await;
    assert!(closed.is_ok(), "a connection to a replica must be replaced, as it is with 7.0");
}

#[tokio::test]
async fn sqlite_a_file_that_is_replaced_while_somebody_enters() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    sqlite(&path).enter(Entry::default()).await.unwrap();
    let writer = rusqlite::Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let store = sqlite(&path);
    let waiting = tokio::spawn(async move { store.enter(Entry::default()).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::rename(format!("{}{end}", path.display()), format!("{}.old{end}", path.display()));
    }
    let second = sqlite(&path).enter(Entry::default()).await.unwrap();
    win(&second, 2).await;
    writer.execute_batch("ROLLBACK").unwrap();
    if let Ok(first) = waiting.await.unwrap() {
        let outcome = ask(&first, acquire(1)).await;
        assert!(!matches!(outcome, Outcome::Answered(Reply::Granted(_))), "both have the lease: {outcome:?}");
    }
}

#[tokio::test]
async fn sqlite_another_programs_database_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE jobs (a)").unwrap();
    let before = std::fs::read(&path).unwrap();
    let refused = sqlite(&path).enter(Entry::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration);
    assert!(std::fs::read(&path).unwrap() == before, "a database that was refused was written");
}

#[tokio::test]
async fn sqlite_another_programs_first_layout() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.db");
    let theirs = rusqlite::Connection::open(&path).unwrap();
    theirs.execute_batch("CREATE TABLE jobs (a); PRAGMA user_version = 1").unwrap();
    let refused = sqlite(&path).enter(Entry::default()).await.unwrap_err();
    assert!(!refused.is_retryable(), "{refused}");
}

#[tokio::test]
async fn sqlite_whoever_is_in_the_way_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).enter(Entry::default()).await.unwrap();
    let writer = rusqlite::Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let outcome = connection.submit(vec![acquire(1)], Duration::from_millis(500)).await.remove(0);
    assert!(matches!(&outcome, Outcome::Failed(error) if error.to_string().contains("inside a write")), "{outcome:?}");
}

#[tokio::test]
async fn sqlite_a_path_that_begins_with_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("file:{}?mode=memory", folder.path().join("leases.db").display());
    let entered = SqliteStore::open(&path, &Keyspace::default()).unwrap().enter(Entry::default()).await;
    assert!(entered.as_ref().err().is_none_or(|error| !error.is_retryable()), "{entered:?}");
}

#[tokio::test]
async fn sqlite_a_namespace_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).enter(Entry::default()).await.unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch("UPDATE namespaces SET generation = 'x'").unwrap();
    let outcome = ask(&connection, acquire(1)).await;
    assert!(matches!(&outcome, Outcome::Failed(error) if error.kind() == ErrorKind::Corrupt), "{outcome:?}");
    let refused = sqlite(&path).enter(Entry::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
}

#[tokio::test]
async fn redis_a_wrong_password() {
    let server = RedisServer::builder().password("right").start();
    let store = RedisStore::open(&server.url_as("default", "wrong"), &Keyspace::default()).unwrap();
    let refused = store.enter(Entry::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration, "{refused}");
    let refused = store.subscribe().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration, "{refused}");
}

#[tokio::test]
async fn sqlite_a_file_that_is_deleted_while_a_lease_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let holder = sqlite(&path).enter(Entry::default()).await.unwrap();
    win(&holder, 1).await;
    std::fs::remove_file(&path).unwrap();
    let newcomer = sqlite(&path).enter(Entry::default()).await.unwrap();
    let outcome = ask(&newcomer, acquire(2)).await;
    assert!(!matches!(outcome, Outcome::Answered(Reply::Granted(_))), "until it renews, both work: {outcome:?}");
}

#[tokio::test]
async fn redis_entering_again_when_memory_is_full() {
    for release in Release::ALL {
        if servers::find_or_say(release).is_none() {
            continue;
        }
        let server = RedisServer::builder().release(release).start();
        let store = RedisStore::open(&server.url(), &Keyspace::default()).unwrap();
        let connection = store.enter(Entry { bootstrap: true, ..Entry::default() }).await.unwrap();
        let token = win(&connection, 1).await;
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let renew = Request::Renew { holding: holding(token), ttl: TTL, progressed: true };
        let renewed = ask(&connection, renew).await;
        assert!(matches!(renewed, Outcome::Answered(Reply::Renewed { .. })), "{release}: {renewed:?}");
        let mut memory = tenure::store::NamespaceMemory::of(connection.entered());
        memory.saw(token);
        let again = store.enter(Entry { memory: Some(memory), ..Entry::default() }).await;
        assert!(again.is_ok(), "{release}: renewing works and entering does not: {again:?}");
    }
}
