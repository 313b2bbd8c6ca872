//! Records changed by foreign programs, unexpected files, full servers: each test is the shortest way to reproduce a
//! bug that existed once.

#![cfg(all(feature = "redis", feature = "sqlite"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::store::redis::RedisStore;
use tenure::store::sqlite::SqliteStore;
use tenure::store::{
    AttachRequest, Claim, Connection, DocumentRequest, ErrorKind, Holding, Keyspace, LeaseRequest, LogRequest,
    MembershipRequest, Outcome, Reply, Request, Store, StoreError,
};
use tenure::{Group, InstanceId, LeaseName, Nonce, Token};
use tenure_testbed::{RedisRelease, RedisServer, servers};

const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
const TTL: Duration = Duration::from_secs(30);
const TERM_KEY: &str = "tenure:term:{lease:x}";

async fn redis(server: &RedisServer) -> Arc<dyn Connection> {
    let store = RedisStore::open(&server.url(), &Keyspace::default()).unwrap();
    store.attach(AttachRequest { bootstrap: true, ..AttachRequest::new(fastrand::u64(..)) }).await.unwrap()
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

fn claim(lease: &str, nonce: u128) -> Claim {
    Claim { name: LeaseName::lease(lease).unwrap(), holder: me(), nonce: Nonce::new(nonce), ttl: TTL }
}

fn acquire(nonce: u128) -> LeaseRequest {
    LeaseRequest::Acquire { claim: claim("x", nonce), ended: None }
}

fn holding(token: Token) -> Holding {
    Holding { name: name(), holder: me(), token }
}

fn release(token: Token) -> LeaseRequest {
    LeaseRequest::Release { holding: holding(token), ending: tenure::lease::Ending::GivenUp }
}

async fn send(connection: &Arc<dyn Connection>, request: impl Into<Request>) -> Outcome {
    connection.submit(vec![request.into()], REPLY_TIMEOUT).await.remove(0)
}

async fn acquire_term(connection: &Arc<dyn Connection>, nonce: u128) -> Token {
    match send(connection, acquire(nonce)).await {
        Outcome::Answered(Reply::Granted(grant)) => grant.token,
        other => panic!("{other:?}"),
    }
}

/// `Outcome::Failed` means that the request was not applied and never will be.
async fn assert_fails_without_a_trace(field: &str, value: &str) {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    let token = acquire_term(&connection, 1).await;
    send(&connection, release(token)).await;
    server.command(&["HSET", TERM_KEY, field, value]);
    let outcome = send(&connection, acquire(2)).await;
    let taken = server.command(&["EXISTS", "lease:x"]).as_int() == 1;
    assert!(
        !(taken && matches!(outcome, Outcome::Failed(_))),
        "the lease was acquired, but the outcome is {outcome:?}"
    );
}

#[tokio::test]
async fn redis_a_claim_after_a_term_with_an_unknown_end_fails_without_a_trace() {
    assert_fails_without_a_trace("ended", "odd").await;
}

#[tokio::test]
async fn redis_a_claim_after_a_term_with_an_invalid_token_fails_without_a_trace() {
    assert_fails_without_a_trace("token", "nan").await;
}

#[tokio::test]
async fn redis_a_claim_after_a_term_with_an_invalid_wait_fails_without_a_trace() {
    assert_fails_without_a_trace("wait_out_until", "soon").await;
}

#[tokio::test]
async fn redis_a_hand_over_under_an_invalid_token_floor_fails_without_a_trace() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    let token = acquire_term(&connection, 1).await;
    server.command(&["HSET", "tenure:ns", "token_floor", "high"]);
    let to = InstanceId::new("other").unwrap();
    let outcome = send(&connection, LeaseRequest::HandOver { holding: holding(token), to, window: TTL }).await;
    let given = server.command(&["GET", "lease:x"]).as_text() == "other";
    assert!(
        !(given && matches!(outcome, Outcome::Failed(_))),
        "the lease was handed over, but the outcome is {outcome:?}"
    );
}

#[tokio::test]
async fn redis_nothing_is_granted_while_the_ttls_cannot_be_read() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    let token = acquire_term(&connection, 1).await;
    send(&connection, release(token)).await;
    server.command(&["HSET", "tenure:ns", "ttls", "a while"]);
    let outcome = send(&connection, acquire(2)).await;
    assert!(matches!(&outcome, Outcome::Failed(error) if error.kind() == ErrorKind::Corrupt), "{outcome:?}");
    assert_eq!(server.command(&["EXISTS", "lease:x"]).as_int(), 0, "no grant while the ttls are unknown");
}

#[tokio::test]
async fn redis_a_namespace_of_a_newer_format_is_refused_and_left_alone() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    let token = acquire_term(&connection, 1).await;
    server.command(&["HSET", "tenure:ns", "format", "3"]);
    let outcome = send(&connection, LeaseRequest::Renew { holding: holding(token), ttl: TTL, progressed: false }).await;
    assert!(
        matches!(outcome, Outcome::Answered(Reply::Renewed { .. })),
        "a held lease must stay renewable: {outcome:?}"
    );
    send(&connection, release(token)).await;
    let outcome = send(&connection, acquire(2)).await;
    let says =
        |error: &StoreError| error.kind() == ErrorKind::Configuration && error.to_string().contains("newer tenure");
    assert!(matches!(&outcome, Outcome::Failed(error) if says(error)), "{outcome:?}");
    let store = RedisStore::open(&server.url(), &Keyspace::default()).unwrap();
    let refused =
        store.attach(AttachRequest { bootstrap: true, ..AttachRequest::new(fastrand::u64(..)) }).await.unwrap_err();
    assert!(says(&refused), "{refused}");
    assert_eq!(server.command(&["HGET", "tenure:ns", "format"]).as_text(), "3", "the record must not be changed");
}

/// The record as it was before it contained the ttls that can be relied on.
#[tokio::test]
async fn redis_a_namespace_of_the_first_format_is_upgraded() {
    let server = RedisServer::start();
    let run = server.command(&["INFO", "server"]).as_text().split_once("run_id:").unwrap().1[..32].to_owned();
    let mut record = vec!["HSET", "tenure:ns", "generation", "1700000000000000", "stamp", "7", "run", &run];
    record.extend(["closed_until", "", "max_ttl", "60000000", "token_floor", "1700000000000000"]);
    server.command(&record);
    let connection = redis(&server).await;
    let attached = connection.attached();
    assert_eq!(
        (attached.generation.number, attached.minted),
        (1_700_000_000_000_000, false),
        "the namespace must stay the same"
    );
    assert_eq!(attached.quarantine, None);
    assert_eq!(attached.max_ttl, Duration::from_secs(60), "the number of leases is unknown");
    acquire_term(&connection, 1).await;
    assert_eq!(server.command(&["HMGET", "tenure:ns", "format", "max_ttl"]).as_array()[0].as_text(), "2");
    // A program that knows only the first format requires a longest ttl, and so acquires nothing.
    assert_eq!(server.command(&["HGET", "tenure:ns", "max_ttl"]).as_text(), "");
}

/// A replica that attaches and leaves changes the replication id, but not the data.
#[tokio::test]
async fn redis_replicas_that_come_and_go_lose_nothing() {
    let server = RedisServer::builder().directive("repl-backlog-ttl", "1").start();
    let connection = redis(&server).await;
    let history =
        || server.command(&["INFO", "replication"]).as_text().split_once("master_replid:").unwrap().1[..40].to_owned();
    let (mut nonce, mut names) = (0, vec![history()]);
    let mut goes_on = async |when: &str| {
        nonce += 1;
        match send(&connection, acquire(nonce)).await {
            Outcome::Answered(Reply::Granted(grant)) => drop(send(&connection, release(grant.token)).await),
            other => panic!("{when}: nothing was lost, but got {other:?}"),
        }
    };
    goes_on("alone").await;
    let replica = RedisServer::start();
    replica.replicate_from(&server);
    names.push(history());
    goes_on("with a replica").await;
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let freed = Instant::now();
    while history() == names[1] {
        assert!(freed.elapsed() < Duration::from_secs(60), "the backlog was not freed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    names.push(history());
    goes_on("with its backlog freed").await;
    names.dedup();
    assert_eq!(names.len(), 3, "the replication id must have changed twice: {names:?}");
    let store = RedisStore::open(&server.url(), &Keyspace::default()).unwrap();
    let attached = store.attach(AttachRequest::new(fastrand::u64(..))).await.unwrap().attached().clone();
    assert_eq!(attached.quarantine, None, "{attached:?}");
}

/// Following another server and back, before any of its data has arrived, changes nothing either.
#[tokio::test]
async fn redis_following_an_unreachable_server_loses_nothing() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    acquire_term(&connection, 1).await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    server.command(&["REPLICAOF", "NO", "ONE"]);
    let outcome = send(&connection, LeaseRequest::Acquire { claim: claim("y", 2), ended: None }).await;
    assert!(matches!(outcome, Outcome::Answered(Reply::Granted(_))), "{outcome:?}");
}

#[tokio::test]
async fn redis_without_a_run_id_is_refused() {
    let users = ["user app on >secret ~* &* +@all -info"];
    let server = RedisServer::builder().acl_users(&users).start();
    let store = RedisStore::open(&server.url_as("app", "secret"), &Keyspace::default()).unwrap();
    let refused = store.attach(AttachRequest::new(fastrand::u64(..))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration, "{refused}");
    assert!(refused.to_string().contains("info"), "the error must name the missing permission: {refused}");
}

#[tokio::test]
async fn redis_requests_of_one_batch_run_in_order() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    send(
        &connection,
        MembershipRequest::Heartbeat { group: Group::FLEET, instance: me(), ttl: TTL, record: Vec::new() },
    )
    .await;
    let batch = vec![
        MembershipRequest::List { group: Group::FLEET }.into(),
        MembershipRequest::Leave { group: Group::FLEET, instance: me() }.into(),
    ];
    let outcomes = connection.submit(batch, REPLY_TIMEOUT).await;
    assert!(matches!(&outcomes[0], Outcome::Answered(Reply::Instances(members)) if members.len() == 1), "{outcomes:?}");
}

#[tokio::test]
async fn redis_all_notes_can_be_listed() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    let outcome = send(&connection, LogRequest::Notes { limit: usize::MAX }).await;
    assert_eq!(outcome, Outcome::Answered(Reply::Notes(Vec::new())));
}

#[tokio::test]
async fn redis_a_heartbeat_that_cannot_be_indexed_fails() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    server.command(&["SET", "tenure:nodes", "mine"]);
    let outcome = send(
        &connection,
        MembershipRequest::Heartbeat { group: Group::FLEET, instance: me(), ttl: TTL, record: Vec::new() },
    )
    .await;
    assert!(!matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
}

#[tokio::test]
async fn redis_6_2_that_became_a_replica_closes_the_connection() {
    if servers::find_or_warn(RedisRelease::V6_2).is_none() {
        return;
    }
    let server = RedisServer::builder().release(RedisRelease::V6_2).start();
    let connection = redis(&server).await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let outcome = send(&connection, acquire(1)).await;
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    let closed = tokio::time::timeout(REPLY_TIMEOUT, connection.closed()).await;
    assert!(closed.is_ok(), "a connection to a replica must be replaced, as it is with 7.0");
}

#[tokio::test]
async fn sqlite_a_file_replaced_during_an_attach_does_not_grant_a_lease_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    let writer = rusqlite::Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let store = sqlite(&path);
    let waiting = tokio::spawn(async move { store.attach(AttachRequest::new(fastrand::u64(..))).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::rename(format!("{}{end}", path.display()), format!("{}.old{end}", path.display()));
    }
    let second = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    acquire_term(&second, 2).await;
    writer.execute_batch("ROLLBACK").unwrap();
    if let Ok(first) = waiting.await.unwrap() {
        let outcome = send(&first, acquire(1)).await;
        assert!(!matches!(outcome, Outcome::Answered(Reply::Granted(_))), "the lease was granted twice: {outcome:?}");
    }
}

#[tokio::test]
async fn sqlite_a_file_with_a_second_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, second) = (folder.path().join("leases.db"), folder.path().join("second.db"));
    let first = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    std::fs::hard_link(&path, &second).unwrap();
    for path in [&path, &second] {
        let refused = sqlite(path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap_err();
        assert!(!refused.is_retryable() && refused.to_string().contains("hard link"), "{refused}");
    }
    acquire_term(&first, 2).await;
}

#[tokio::test]
async fn sqlite_another_programs_database_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE jobs (a)").unwrap();
    let before = std::fs::read(&path).unwrap();
    let refused = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration);
    assert!(std::fs::read(&path).unwrap() == before, "a refused database must not be changed");
}

#[tokio::test]
async fn sqlite_another_programs_first_layout_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.db");
    let theirs = rusqlite::Connection::open(&path).unwrap();
    theirs.execute_batch("CREATE TABLE jobs (a); PRAGMA user_version = 1").unwrap();
    let refused = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap_err();
    assert!(!refused.is_retryable(), "{refused}");
}

#[tokio::test]
async fn sqlite_the_process_that_blocks_a_write_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    let writer = rusqlite::Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let outcome = connection.submit(vec![acquire(1).into()], Duration::from_millis(500)).await.remove(0);
    assert!(matches!(&outcome, Outcome::Failed(error) if error.to_string().contains("inside a write")), "{outcome:?}");
}

#[tokio::test]
async fn sqlite_a_path_that_begins_with_file_is_not_a_uri() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("file:{}?mode=memory", folder.path().join("leases.db").display());
    let attached =
        SqliteStore::open(&path, &Keyspace::default()).unwrap().attach(AttachRequest::new(fastrand::u64(..))).await;
    assert!(attached.as_ref().err().is_none_or(|error| !error.is_retryable()), "{attached:?}");
}

#[test]
fn sqlite_a_path_written_like_a_host_name_is_refused() {
    let refused = SqliteStore::open("//jobs.db", &Keyspace::default()).unwrap_err();
    assert!(refused.to_string().contains("`sqlite:jobs.db`"), "{refused}");
    assert!(SqliteStore::open("///var/lib/jobs.db", &Keyspace::default()).is_ok());
}

#[tokio::test]
async fn sqlite_a_new_file_is_accessible_only_to_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    send(&connection, acquire(1)).await;
    // Also behind a symbolic link to a file that does not exist yet.
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink("behind.db", &link).unwrap();
    let behind = sqlite(&link).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    let mode = std::fs::metadata(folder.path().join("behind.db")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(behind);
    // Also behind a chain of them.
    let (first, second) = (folder.path().join("first.db"), folder.path().join("second.db"));
    std::os::unix::fs::symlink("chained.db", &second).unwrap();
    std::os::unix::fs::symlink("second.db", &first).unwrap();
    let chained = sqlite(&first).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    assert!(folder.path().join("chained.db").exists());
    drop(chained);
    for end in ["", "-wal", "-shm"] {
        let mode = std::fs::metadata(format!("{}{end}", path.display())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{end}");
    }
}

#[tokio::test]
async fn sqlite_a_namespace_that_cannot_be_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch("UPDATE namespaces SET generation = 'x'").unwrap();
    let outcome = send(&connection, acquire(1)).await;
    assert!(matches!(&outcome, Outcome::Failed(error) if error.kind() == ErrorKind::Corrupt), "{outcome:?}");
    let refused = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
}

#[tokio::test]
async fn redis_a_wrong_password_is_refused() {
    let server = RedisServer::builder().password("right").start();
    let store = RedisStore::open(&server.url_as("default", "wrong"), &Keyspace::default()).unwrap();
    let refused = store.attach(AttachRequest::new(fastrand::u64(..))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration, "{refused}");
    let refused = store.subscribe().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration, "{refused}");
}

#[tokio::test]
async fn sqlite_a_file_deleted_while_a_lease_is_held_does_not_grant_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let holder = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    acquire_term(&holder, 1).await;
    std::fs::remove_file(&path).unwrap();
    let newcomer = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    let outcome = send(&newcomer, acquire(2)).await;
    assert!(
        !matches!(outcome, Outcome::Answered(Reply::Granted(_))),
        "two holders until the next renewal: {outcome:?}"
    );
}

#[tokio::test]
async fn redis_reattaching_works_when_memory_is_full() {
    for release in RedisRelease::ALL {
        if servers::find_or_warn(release).is_none() {
            continue;
        }
        let server = RedisServer::builder().release(release).start();
        let store = RedisStore::open(&server.url(), &Keyspace::default()).unwrap();
        let connection =
            store.attach(AttachRequest { bootstrap: true, ..AttachRequest::new(fastrand::u64(..)) }).await.unwrap();
        let token = acquire_term(&connection, 1).await;
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let renew = LeaseRequest::Renew { holding: holding(token), ttl: TTL, progressed: true };
        let renewed = send(&connection, renew).await;
        assert!(matches!(renewed, Outcome::Answered(Reply::Renewed { .. })), "{release}: {renewed:?}");
        let mut memory = tenure::store::NamespaceMemory::new(connection.attached());
        memory.learn_token(token);
        let again = store.attach(AttachRequest { memory: Some(memory), ..AttachRequest::new(fastrand::u64(..)) }).await;
        assert!(again.is_ok(), "{release}: cannot attach although renewals work: {again:?}");
    }
}

#[tokio::test]
async fn sqlite_a_newer_layout_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 99").unwrap();
    let refused = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration);
    assert!(refused.to_string().contains("newer tenure (layout 99"), "{refused}");
}

/// A file as it was before it contained the ttls that can be relied on.
#[tokio::test]
async fn sqlite_a_file_of_the_third_layout_is_upgraded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let file = rusqlite::Connection::open(&path).unwrap();
    for layout in [
        include_str!("../src/store/sqlite/schema.sql"),
        include_str!("../src/store/sqlite/members.sql"),
        include_str!("../src/store/sqlite/service.sql"),
        "PRAGMA application_id = 0x54454E55; PRAGMA user_version = 3;
         INSERT INTO namespaces (namespace, generation, stamp, max_ttl, token_floor) VALUES ('', 5, 7, 60000000, 9);",
    ] {
        file.execute_batch(layout).unwrap();
    }
    let connection = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    let attached = connection.attached();
    assert_eq!((attached.generation.number, attached.token_floor), (5, Token::new(9).unwrap()), "{attached:?}");
    assert_eq!(attached.max_ttl, Duration::from_secs(60), "the number of leases is unknown");
    assert!(acquire_term(&connection, 1).await > attached.token_floor);
}

/// While a reader uses an old snapshot, no part of the WAL can be reused.
#[tokio::test]
async fn sqlite_a_wal_that_a_reader_kept_large_is_truncated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    let token = acquire_term(&connection, 1).await;
    let reader = rusqlite::Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    reader.query_row("SELECT count(*) FROM leases", [], |row| row.get::<_, i64>(0)).unwrap();
    let publish = async |size: usize| {
        let (record, value) = ("state".to_owned(), vec![fastrand::u8(..); size]);
        let request = DocumentRequest::Publish { holding: holding(token), record, value, announced: false };
        let outcome = connection.submit(vec![request.into()], Duration::from_secs(60)).await.remove(0);
        assert_eq!(outcome, Outcome::Answered(Reply::Done));
    };
    for _ in 0..80 {
        publish(1 << 20).await;
    }
    let log = || std::fs::metadata(path.with_extension("db-wal")).unwrap().len();
    let largest = log();
    assert!(largest > 64 << 20, "{largest}");
    reader.execute_batch("COMMIT").unwrap();
    for _ in 0..600 {
        publish(1).await;
    }
    assert!(log() <= 16 << 20, "{} after {largest}", log());
}

#[tokio::test]
async fn sqlite_a_damaged_file_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let bytes = b"this is no database at all, whatever it is called".repeat(100);
    std::fs::write(&path, &bytes).unwrap();
    let refused = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    assert!(!refused.to_string().contains('\n'), "the error must be one line: {refused}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[tokio::test]
async fn sqlite_a_file_in_use_under_another_boot_is_refused_until_its_leases_have_expired() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let request = || AttachRequest { max_ttl: Duration::from_secs(1), ..AttachRequest::new(fastrand::u64(..)) };
    let connection = sqlite(&path).attach(request()).await.unwrap();
    let before = acquire_term(&connection, 1).await;
    drop(connection);
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute_batch("UPDATE host SET identity = 'another+0.0'; UPDATE ttls SET ttl = 1000000").unwrap();
    let refused = sqlite(&path).attach(request()).await.unwrap_err();
    assert!(refused.is_retryable(), "the error must be retryable, since it passes after a reboot: {refused}");
    assert!(refused.to_string().contains("another host"), "{refused}");
    // As if it had not been written for a while. A reboot ends every lease; tokens still increase.
    file.execute_batch("UPDATE host SET touched = touched - 60000000").unwrap();
    let connection = sqlite(&path).attach(request()).await.unwrap();
    assert!(acquire_term(&connection, 2).await > before);
}

/// Prints, past the capture of test output, that a case could not be tested here.
fn not_tested(why: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("NOT TESTED: {why}\n").as_bytes());
}

/// A separate small file system, which only root can mount.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let disk = Self(tempfile::tempdir().unwrap());
        let mounted = disk.run("mount", &["-t", "tmpfs", "-o", "size=512k", "tmpfs"]);
        if !mounted {
            not_tested("cannot mount a separate file system for a full or read-only disk; run as root");
        }
        mounted.then_some(disk)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> bool {
        let done = Command::new(program).args(arguments).arg(self.path()).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.run("umount", &["-l"]);
    }
}

#[tokio::test]
async fn sqlite_a_read_only_disk_is_refused_and_the_file_stays_intact() {
    let Some(disk) = SmallDisk::mount() else { return };
    let path = disk.path().join("leases.db");
    let connection = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    let token = acquire_term(&connection, 1).await;
    drop(connection);
    // Its thread closes the file a moment later.
    let mut tries = 0;
    while !disk.run("mount", &["-o", "remount,ro"]) {
        tries += 1;
        assert!(tries < 1_000, "the file stays open");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let refused = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration, "{refused}");
    assert!(refused.to_string().contains("cannot be written"), "{refused}");
    assert!(disk.run("mount", &["-o", "remount,rw"]));
    let connection = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    let renewed = send(&connection, LeaseRequest::Renew { holding: holding(token), ttl: TTL, progressed: true }).await;
    assert!(matches!(renewed, Outcome::Answered(Reply::Renewed { .. })), "{renewed:?}");
}

/// Set for a process that a test has started: the file to attach.
const FILE_ENV: &str = "TENURE_TEST_FILE";

#[tokio::test]
#[ignore = "a part that another test starts as a process"]
async fn instance_in_another_time_namespace() {
    let Ok(path) = std::env::var(FILE_ENV) else { return };
    let attached = sqlite(Path::new(&path)).attach(AttachRequest::new(fastrand::u64(..))).await;
    println!(
        "ENTERED {}",
        attached.map_or_else(|refused| refused.to_string(), |_| "as if nothing were wrong".to_owned())
    );
}

#[tokio::test]
async fn sqlite_a_file_in_use_by_another_time_namespace_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    acquire_term(&connection, 1).await;
    let child = Command::new("unshare")
        .args(["--time", "--boottime", "86400"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "instance_in_another_time_namespace", "--ignored", "--nocapture"])
        .env(FILE_ENV, &path)
        .output();
    let said = child.map(|child| String::from_utf8_lossy(&child.stdout).into_owned()).unwrap_or_default();
    match said.split_once("ENTERED ") {
        Some((_, said)) => assert!(said.contains("another host or time namespace"), "{said}"),
        None => not_tested("cannot run `unshare --time` for another time namespace; run as root"),
    }
}

#[tokio::test]
async fn sqlite_a_full_disk_is_reported_and_nothing_is_lost() {
    let Some(folder) = SmallDisk::mount() else { return };
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).attach(AttachRequest::new(fastrand::u64(..))).await.unwrap();
    let token = acquire_term(&connection, 1).await;
    let filler = folder.path().join("filler");
    let mut bytes = 512 << 10;
    while bytes > 0 && std::fs::write(&filler, vec![1_u8; bytes]).is_err() {
        bytes -= 4 << 10;
    }
    let big = |size| DocumentRequest::Publish {
        holding: holding(token),
        record: "r".to_owned(),
        value: vec![2_u8; size],
        announced: true,
    };
    let outcome = send(&connection, big(200 << 10)).await;
    match outcome {
        Outcome::Failed(error) => {
            assert!(error.is_retryable() && error.to_string().contains("disk is full"), "{error}")
        }
        other => panic!("{other:?}"),
    }
    std::fs::remove_file(&filler).unwrap();
    let renewed = send(&connection, LeaseRequest::Renew { holding: holding(token), ttl: TTL, progressed: true }).await;
    assert!(matches!(renewed, Outcome::Answered(Reply::Renewed { .. })), "{renewed:?}");
}
