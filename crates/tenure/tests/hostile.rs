//! Records that outsiders changed, files that are not what they seem, servers without room: each test is the shortest way
//! to a mistake that was once made.

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
    Claim, Connection, Entry, ErrorKind, Holding, Keyspace, Outcome, Reply, Request, Store, StoreError,
};
use tenure::{Group, InstanceId, LeaseName, Nonce, Token};
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

fn claim(lease: &str, nonce: u128) -> Claim {
    Claim { name: LeaseName::lease(lease).unwrap(), holder: me(), nonce: Nonce::new(nonce), ttl: TTL }
}

fn acquire(nonce: u128) -> Request {
    Request::Acquire { claim: claim("x", nonce), ended: None }
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
async fn redis_ttls_that_cannot_be_read() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    let token = win(&connection, 1).await;
    ask(&connection, release(token)).await;
    server.command(&["HSET", "tenure:ns", "ttls", "a while"]);
    let outcome = ask(&connection, acquire(2)).await;
    assert!(matches!(&outcome, Outcome::Failed(error) if error.kind() == ErrorKind::Corrupt), "{outcome:?}");
    assert_eq!(server.command(&["EXISTS", "lease:x"]).as_int(), 0, "how long leases may be relied on is not known");
}

#[tokio::test]
async fn redis_a_namespace_of_a_newer_format() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    let token = win(&connection, 1).await;
    server.command(&["HSET", "tenure:ns", "format", "3"]);
    let outcome = ask(&connection, Request::Renew { holding: holding(token), ttl: TTL, progressed: false }).await;
    assert!(matches!(outcome, Outcome::Answered(Reply::Renewed { .. })), "what is held goes on: {outcome:?}");
    ask(&connection, release(token)).await;
    let outcome = ask(&connection, acquire(2)).await;
    let says =
        |error: &StoreError| error.kind() == ErrorKind::Configuration && error.to_string().contains("newer tenure");
    assert!(matches!(&outcome, Outcome::Failed(error) if says(error)), "{outcome:?}");
    let store = RedisStore::open(&server.url(), &Keyspace::default()).unwrap();
    let refused = store.enter(Entry { bootstrap: true, ..Entry::default() }).await.unwrap_err();
    assert!(says(&refused), "{refused}");
    assert_eq!(server.command(&["HGET", "tenure:ns", "format"]).as_text(), "3", "and it is left alone");
}

/// The record as it was before it said which ttls can be relied on.
#[tokio::test]
async fn redis_a_namespace_of_the_first_format() {
    let server = RedisServer::start();
    let run = server.command(&["INFO", "server"]).as_text().split_once("run_id:").unwrap().1[..32].to_owned();
    let mut record = vec!["HSET", "tenure:ns", "generation", "1700000000000000", "stamp", "7", "run", &run];
    record.extend(["closed_until", "", "max_ttl", "60000000", "token_floor", "1700000000000000"]);
    server.command(&record);
    let connection = redis(&server).await;
    let entered = connection.entered();
    assert_eq!((entered.generation.number, entered.minted), (1_700_000_000_000_000, false), "it is the same namespace");
    assert_eq!(entered.quarantine, None);
    assert_eq!(entered.max_ttl, Duration::from_secs(60), "how many leases there are is not known");
    win(&connection, 1).await;
    assert_eq!(server.command(&["HMGET", "tenure:ns", "format", "max_ttl"]).as_array()[0].as_text(), "2");
    // A program that knows only the first format requires a longest ttl, and so acquires nothing.
    assert_eq!(server.command(&["HGET", "tenure:ns", "max_ttl"]).as_text(), "");
}

/// A replica that attaches and leaves changes the name of the data's history, and not the data.
#[tokio::test]
async fn redis_replicas_that_come_and_go() {
    let server = RedisServer::builder().argument("repl-backlog-ttl", "1").start();
    let connection = redis(&server).await;
    let history =
        || server.command(&["INFO", "replication"]).as_text().split_once("master_replid:").unwrap().1[..40].to_owned();
    let (mut nonce, mut names) = (0, vec![history()]);
    let mut goes_on = async |when: &str| {
        nonce += 1;
        match ask(&connection, acquire(nonce)).await {
            Outcome::Answered(Reply::Granted(grant)) => drop(ask(&connection, release(grant.token)).await),
            other => panic!("{when}: nothing was lost, and yet {other:?}"),
        }
    };
    goes_on("alone").await;
    let replica = RedisServer::start();
    replica.follow(&server);
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
    assert_eq!(names.len(), 3, "the name has changed twice: {names:?}");
    let store = RedisStore::open(&server.url(), &Keyspace::default()).unwrap();
    let entered = store.enter(Entry::default()).await.unwrap().entered().clone();
    assert_eq!(entered.quarantine, None, "{entered:?}");
}

/// Following another server and back, before any of its data has come, changes nothing either.
#[tokio::test]
async fn redis_following_a_server_that_is_not_there() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    win(&connection, 1).await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    server.command(&["REPLICAOF", "NO", "ONE"]);
    let outcome = ask(&connection, Request::Acquire { claim: claim("y", 2), ended: None }).await;
    assert!(matches!(outcome, Outcome::Answered(Reply::Granted(_))), "{outcome:?}");
}

#[tokio::test]
async fn redis_that_does_not_name_its_run() {
    let users = ["user app on >secret ~* &* +@all -info"];
    let server = RedisServer::builder().acl_users(&users).start();
    let store = RedisStore::open(&server.url_as("app", "secret"), &Keyspace::default()).unwrap();
    let refused = store.enter(Entry::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration, "{refused}");
    assert!(refused.to_string().contains("info"), "it says which right is missing: {refused}");
}

#[tokio::test]
async fn redis_members_before_a_leave_in_one_batch() {
    let server = RedisServer::start();
    let connection = redis(&server).await;
    ask(&connection, Request::Beat { group: Group::FLEET, instance: me(), ttl: TTL, record: Vec::new() }).await;
    let batch = vec![Request::Members { group: Group::FLEET }, Request::Leave { group: Group::FLEET, instance: me() }];
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
    let outcome =
        ask(&connection, Request::Beat { group: Group::FLEET, instance: me(), ttl: TTL, record: Vec::new() }).await;
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

#[test]
fn sqlite_a_path_that_is_written_like_a_hosts_name() {
    let refused = SqliteStore::open("//jobs.db", &Keyspace::default()).unwrap_err();
    assert!(refused.to_string().contains("`sqlite:jobs.db`"), "{refused}");
    assert!(SqliteStore::open("///var/lib/jobs.db", &Keyspace::default()).is_ok());
}

#[tokio::test]
async fn sqlite_what_is_made_is_its_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).enter(Entry::default()).await.unwrap();
    ask(&connection, acquire(1)).await;
    // Also behind a link to what is not there yet.
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink("behind.db", &link).unwrap();
    let behind = sqlite(&link).enter(Entry::default()).await.unwrap();
    let mode = std::fs::metadata(folder.path().join("behind.db")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(behind);
    for end in ["", "-wal", "-shm"] {
        let mode = std::fs::metadata(format!("{}{end}", path.display())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{end}");
    }
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

#[tokio::test]
async fn sqlite_a_newer_layout_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    sqlite(&path).enter(Entry::default()).await.unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 99").unwrap();
    let refused = sqlite(&path).enter(Entry::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration);
    assert!(refused.to_string().contains("newer tenure (layout 99"), "{refused}");
}

/// A file as it was before it said which ttls can be relied on.
#[tokio::test]
async fn sqlite_a_file_of_the_third_layout() {
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
    let connection = sqlite(&path).enter(Entry::default()).await.unwrap();
    let entered = connection.entered();
    assert_eq!((entered.generation.number, entered.token_floor), (5, Token::new(9).unwrap()), "{entered:?}");
    assert_eq!(entered.max_ttl, Duration::from_secs(60), "how many leases there are is not known");
    assert!(win(&connection, 1).await > entered.token_floor);
}

/// As long as a reader looks at an old state, nothing of the log can be used again.
#[tokio::test]
async fn sqlite_a_log_that_a_reader_kept_large() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).enter(Entry::default()).await.unwrap();
    let token = win(&connection, 1).await;
    let reader = rusqlite::Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    reader.query_row("SELECT count(*) FROM leases", [], |row| row.get::<_, i64>(0)).unwrap();
    let publish = async |size: usize| {
        let (record, value) = ("state".to_owned(), vec![fastrand::u8(..); size]);
        let request = Request::Publish { holding: holding(token), record, value, announced: false };
        let outcome = connection.submit(vec![request], Duration::from_secs(60)).await.remove(0);
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
    let refused = sqlite(&path).enter(Entry::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    assert!(!refused.to_string().contains('\n'), "one line: {refused}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[tokio::test]
async fn sqlite_a_file_in_use_under_another_boot_is_left_alone_until_nobody_can_be_using_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let entry = || Entry { max_ttl: Duration::from_secs(1), ..Entry::default() };
    let connection = sqlite(&path).enter(entry()).await.unwrap();
    let before = win(&connection, 1).await;
    drop(connection);
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute_batch("UPDATE host SET identity = 'another+0.0'; UPDATE ttls SET ttl = 1000000").unwrap();
    let refused = sqlite(&path).enter(entry()).await.unwrap_err();
    assert!(refused.is_retryable(), "after a restart of the host it passes: {refused}");
    assert!(refused.to_string().contains("another host"), "{refused}");
    // As if nobody had written it for a while. A reboot frees every lease; tokens go on growing.
    file.execute_batch("UPDATE host SET touched = touched - 60000000").unwrap();
    let connection = sqlite(&path).enter(entry()).await.unwrap();
    assert!(win(&connection, 2).await > before);
}

/// Says, past the capture of the test harness, that something could not be tested here.
fn not_tested(why: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("NOT TESTED: {why}\n").as_bytes());
}

/// A small file system of its own, which only root can have.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let disk = Self(tempfile::tempdir().unwrap());
        let mounted = disk.run("mount", &["-t", "tmpfs", "-o", "size=512k", "tmpfs"]);
        if !mounted {
            not_tested("a disk that is full or read-only needs a file system of its own, and so root");
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
async fn sqlite_a_read_only_disk_is_refused_and_the_file_is_none_the_worse() {
    let Some(disk) = SmallDisk::mount() else { return };
    let path = disk.path().join("leases.db");
    let connection = sqlite(&path).enter(Entry::default()).await.unwrap();
    let token = win(&connection, 1).await;
    drop(connection);
    // Its thread closes the file a moment later.
    let mut tries = 0;
    while !disk.run("mount", &["-o", "remount,ro"]) {
        tries += 1;
        assert!(tries < 1_000, "the file stays open");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let refused = sqlite(&path).enter(Entry::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration, "{refused}");
    assert!(refused.to_string().contains("cannot be written"), "{refused}");
    assert!(disk.run("mount", &["-o", "remount,rw"]));
    let connection = sqlite(&path).enter(Entry::default()).await.unwrap();
    let renewed = ask(&connection, Request::Renew { holding: holding(token), ttl: TTL, progressed: true }).await;
    assert!(matches!(renewed, Outcome::Answered(Reply::Renewed { .. })), "{renewed:?}");
}

/// Set for a process that a test has started: the file to enter.
const FILE: &str = "TENURE_TEST_FILE";

#[tokio::test]
#[ignore = "a part that another test starts as a process"]
async fn somebody_in_another_time_namespace() {
    let Ok(path) = std::env::var(FILE) else { return };
    let entered = sqlite(Path::new(&path)).enter(Entry::default()).await;
    println!(
        "ENTERED {}",
        entered.map_or_else(|refused| refused.to_string(), |_| "as if nothing were wrong".to_owned())
    );
}

#[tokio::test]
async fn sqlite_a_file_in_use_by_another_time_namespace_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).enter(Entry::default()).await.unwrap();
    win(&connection, 1).await;
    let child = Command::new("unshare")
        .args(["--time", "--boottime", "86400"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "somebody_in_another_time_namespace", "--ignored", "--nocapture"])
        .env(FILE, &path)
        .output();
    let said = child.map(|child| String::from_utf8_lossy(&child.stdout).into_owned()).unwrap_or_default();
    match said.split_once("ENTERED ") {
        Some((_, said)) => assert!(said.contains("another host or time namespace"), "{said}"),
        None => not_tested("another time namespace needs `unshare --time`, and so root"),
    }
}

#[tokio::test]
async fn sqlite_a_full_disk_is_said_and_nothing_is_lost() {
    let Some(folder) = SmallDisk::mount() else { return };
    let path = folder.path().join("leases.db");
    let connection = sqlite(&path).enter(Entry::default()).await.unwrap();
    let token = win(&connection, 1).await;
    let filler = folder.path().join("filler");
    let mut bytes = 512 << 10;
    while bytes > 0 && std::fs::write(&filler, vec![1_u8; bytes]).is_err() {
        bytes -= 4 << 10;
    }
    let big = |size| Request::Publish {
        holding: holding(token),
        record: "r".to_owned(),
        value: vec![2_u8; size],
        announced: true,
    };
    let outcome = ask(&connection, big(200 << 10)).await;
    match outcome {
        Outcome::Failed(error) => {
            assert!(error.is_retryable() && error.to_string().contains("disk is full"), "{error}")
        }
        other => panic!("{other:?}"),
    }
    std::fs::remove_file(&filler).unwrap();
    let renewed = ask(&connection, Request::Renew { holding: holding(token), ttl: TTL, progressed: true }).await;
    assert!(matches!(renewed, Outcome::Answered(Reply::Renewed { .. })), "{renewed:?}");
}
