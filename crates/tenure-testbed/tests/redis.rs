//! Each thing that a [`RedisServer`] can do, done by a real one.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tenure_testbed::servers::{self, Release};
use tenure_testbed::{Connection, RedisServer, Reply};

fn ok() -> Reply {
    Reply::text("OK")
}

/// Polls until it holds.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The servers of this machine, one of each release.
fn all() -> Vec<PathBuf> {
    Release::ALL.into_iter().filter_map(servers::find_or_say).collect()
}

#[test]
fn it_answers_and_has_a_place_of_its_own() {
    let (one, other) = (RedisServer::start(), RedisServer::start());
    assert_ne!(one.port(), other.port());
    assert_ne!(one.pid(), other.pid());
    assert_eq!(one.command(&["SET", "key", "value"]), ok());
    assert_eq!(one.command(&["GET", "key"]), Reply::text("value"));
    assert_eq!(other.command(&["GET", "key"]), Reply::Nil);
    assert_eq!(one.url(), format!("redis://127.0.0.1:{}/", one.port()));
    assert!(one.log().contains("Ready to accept connections"), "{}", one.log());
}

#[test]
fn every_release_on_this_machine_does_the_same() {
    for binary in all() {
        let server = RedisServer::builder().binary(&binary).append_only("always").start();
        assert_eq!(server.command(&["SET", "key", "value"]), ok());
        server.kill();
        server.start_again();
        assert_eq!(server.command(&["GET", "key"]), Reply::text("value"), "{}", server.log());
        server.start_again_empty();
        assert_eq!(server.command(&["GET", "key"]), Reply::Nil, "{}", server.log());
    }
}

#[test]
fn a_release_is_what_it_is_called() {
    for release in Release::ALL {
        if let Some(path) = servers::find_or_say(release) {
            let version = servers::version(&path).unwrap();
            assert!(version.starts_with(release.number()), "{release}: {version}");
            let server = RedisServer::builder().release(release).start();
            let info = server.command(&["INFO", "server"]);
            assert!(info.as_text().contains(&format!("redis_version:{version}")), "{info:?}");
        }
    }
    assert!(servers::installed().is_file());
}

#[test]
fn killed_it_is_gone_and_comes_back_empty_at_the_same_port() {
    let server = RedisServer::start();
    let (port, pid) = (server.port(), server.pid());
    assert_eq!(server.command(&["SET", "key", "value"]), ok());
    let mut connection = server.connect().unwrap();
    server.kill();
    assert!(server.try_command(&["PING"]).is_err());
    assert!(connection.command(&["PING"]).is_err());
    server.kill();

    server.start_again();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.command(&["GET", "key"]), Reply::Nil);
}

#[test]
fn what_was_saved_comes_back_and_what_came_later_does_not() {
    let server = RedisServer::start();
    assert_eq!(server.command(&["SET", "key", "saved"]), ok());
    server.save();
    assert_eq!(server.command(&["SET", "key", "later"]), ok());
    server.start_again();
    assert_eq!(server.command(&["GET", "key"]), Reply::text("saved"));

    assert_eq!(server.command(&["SET", "key", "at the end"]), ok());
    server.shutdown_save();
    assert!(server.try_command(&["PING"]).is_err());
    server.start_again();
    assert_eq!(server.command(&["GET", "key"]), Reply::text("at the end"));

    server.start_again_empty();
    assert_eq!(server.command(&["DBSIZE"]), Reply::Int(0));
}

#[test]
fn stopped_it_does_nothing_until_it_goes_on() {
    let server = RedisServer::start();
    let mut connection = server.connect().unwrap();
    for round in 1..=3 {
        server.stop();
        connection.send(&["INCR", "count"]).unwrap();
        connection.patience(Duration::from_millis(50)).unwrap();
        assert!(connection.receive().is_err());
        server.cont();
        connection.patience(Duration::from_secs(10)).unwrap();
        assert_eq!(connection.receive().unwrap(), Reply::Int(round));
    }
    server.stop();
}

#[test]
fn it_takes_any_directive() {
    let server = RedisServer::builder()
        .argument("maxmemory", "10mb")
        .argument("client-output-buffer-limit", "pubsub 1mb 1mb 7")
        .start();
    let value = |name| server.command(&["CONFIG", "GET", name]).as_array()[1].as_text().to_owned();
    assert_eq!(value("maxmemory"), "10485760");
    assert!(value("client-output-buffer-limit").contains("pubsub 1048576 1048576 7"));
}

#[test]
#[should_panic(expected = "Bad directive")]
fn a_directive_that_is_wrong_is_shown() {
    RedisServer::builder().argument("no-such-directive", "1").start();
}

#[test]
fn a_password_is_asked_for() {
    let server = RedisServer::builder().password("open \"sesame").start();
    let mut stranger = Connection::open(server.address()).unwrap();
    assert!(stranger.command(&["GET", "key"]).unwrap().is_error("NOAUTH"));
    assert_eq!(server.command(&["SET", "key", "value"]), ok());
    assert_eq!(server.command_as("default", "open \"sesame", &["GET", "key"]), Reply::text("value"));
    assert!(server.command_as("default", "wrong", &["GET", "key"]).is_error("WRONGPASS"));
    assert_eq!(server.url_as("default", "x"), format!("redis://default:x@127.0.0.1:{}/", server.port()));
}

#[test]
fn users_may_do_what_they_were_given() {
    for binary in all() {
        let users = ["user bob on >secret ~own:* &* +@all -eval", "user default off"];
        let server = RedisServer::builder().binary(binary).acl_users(&users).start();
        let bob = |words: &[&str]| server.command_as("bob", "secret", words);
        assert_eq!(bob(&["SET", "own:key", "value"]), ok());
        assert!(bob(&["SET", "key", "value"]).is_error("NOPERM"));
        assert!(bob(&["EVAL", "return 1", "0"]).is_error("NOPERM"));
        assert_eq!(server.pipeline(&[&["GET", "own:key"], &["GET", "key"]]), [Reply::text("value"), Reply::Nil]);
        server.start_again();
        assert!(bob(&["SET", "key", "value"]).is_error("NOPERM"));
    }
}

#[test]
fn its_clock_goes_forward_and_back() {
    if !RedisServer::can_fake_time() {
        // Past the capture of test output.
        let _ = std::io::stderr().write_all(b"NOT TESTED: libfaketime is not here; `cargo xtask test` gets it\n");
        return;
    }
    let hour = Duration::from_secs(3_600);
    let minute = Duration::from_secs(60);
    for binary in all() {
        let server = RedisServer::builder().binary(binary).own_clock().start();
        let right = RedisServer::start();
        let near = |time: Duration, expected: Duration| time.abs_diff(expected) < minute;
        assert!(near(server.time(), right.time()));

        assert_eq!(server.command(&["SET", "key", "value", "EX", "1800"]), ok());
        server.step_clock(hour, true);
        assert!(near(server.time(), right.time() + hour));
        assert_eq!(server.command(&["GET", "key"]), Reply::Nil, "its time is over");

        server.step_clock(2 * hour, false);
        assert!(near(server.time(), right.time() - hour));
        assert_eq!(server.command(&["SET", "key", "value", "EX", "60"]), ok());
        server.step_clock(hour + Duration::from_millis(1_500), false);
        assert!(near(server.time(), right.time() - 2 * hour));
        assert!(server.command(&["TTL", "key"]).as_int() > 3_600, "the clock went back");

        server.kill();
        server.start_again();
        assert!(near(server.time(), right.time() - 2 * hour), "a restart does not set the clock right");
    }
}

/// Set for the process that [`it_dies_with_the_test_process`] starts.
const SACRIFICE: &str = "TENURE_TESTBED_SACRIFICE";

/// Not a test of its own: the process that is killed by the next one.
#[test]
fn sacrifice() {
    if std::env::var_os(SACRIFICE).is_some() {
        // Started by a thread that ends at once, which must not end the server.
        let server = thread::spawn(RedisServer::start).join().unwrap();
        std::fs::write(std::env::var_os(SACRIFICE).unwrap(), format!("{} {}\n", server.pid(), server.address()))
            .unwrap();
        thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn it_dies_with_the_test_process() {
    if !Command::new("setpriv").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server");
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sacrifice"])
        .env(SACRIFICE, &file)
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    eventually("the process says where its server is", || {
        line = std::fs::read_to_string(&file).unwrap_or_default();
        line.ends_with('\n')
    });
    let address = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_eq!(Connection::open(address).unwrap().command(&["PING"]).unwrap(), Reply::text("PONG"));
    process.kill().unwrap();
    process.wait().unwrap();
    eventually("the server is gone", || Connection::open(address).is_err());
}
