//! Tests each function of [`RedisServer`] on a real server.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tenure_testbed::servers::{self, RedisRelease};
use tenure_testbed::{RawConnection, RedisReply, RedisServer};

fn ok() -> RedisReply {
    RedisReply::text("OK")
}

/// Polls until the condition holds.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The servers on this machine, one per release.
fn all() -> Vec<PathBuf> {
    RedisRelease::ALL.into_iter().filter_map(servers::find_or_warn).collect()
}

#[test]
fn each_server_has_its_own_port_process_and_data() {
    let (one, other) = (RedisServer::start(), RedisServer::start());
    assert_ne!(one.port(), other.port());
    assert_ne!(one.pid(), other.pid());
    assert_eq!(one.command(&["SET", "key", "value"]), ok());
    assert_eq!(one.command(&["GET", "key"]), RedisReply::text("value"));
    assert_eq!(other.command(&["GET", "key"]), RedisReply::Nil);
    assert_eq!(one.url(), format!("redis://127.0.0.1:{}/", one.port()));
    assert!(one.log().contains("Ready to accept connections"), "{}", one.log());
}

#[test]
fn every_release_keeps_and_drops_its_data_alike() {
    for binary in all() {
        let server = RedisServer::builder().binary(&binary).append_only("always").start();
        assert_eq!(server.command(&["SET", "key", "value"]), ok());
        server.kill();
        server.restart();
        assert_eq!(server.command(&["GET", "key"]), RedisReply::text("value"), "{}", server.log());
        server.restart_empty();
        assert_eq!(server.command(&["GET", "key"]), RedisReply::Nil, "{}", server.log());
    }
}

#[test]
fn each_release_runs_its_own_version() {
    for release in RedisRelease::ALL {
        if let Some(path) = servers::find_or_warn(release) {
            let version = servers::version(&path).unwrap();
            assert!(version.starts_with(release.number()), "{release}: {version}");
            let server = RedisServer::builder().release(release).start();
            let info = server.command(&["INFO", "server"]);
            assert!(info.as_text().contains(&format!("redis_version:{version}")), "{info:?}");
        }
    }
    assert!(servers::default_server().is_file());
}

#[test]
fn a_killed_server_restarts_empty_on_the_same_port() {
    let server = RedisServer::start();
    let (port, pid) = (server.port(), server.pid());
    assert_eq!(server.command(&["SET", "key", "value"]), ok());
    let mut connection = server.connect().unwrap();
    server.kill();
    assert!(server.try_command(&["PING"]).is_err());
    assert!(connection.command(&["PING"]).is_err());
    server.kill();

    server.restart();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.command(&["GET", "key"]), RedisReply::Nil);
}

#[test]
fn only_saved_data_survives_a_restart() {
    let server = RedisServer::start();
    assert_eq!(server.command(&["SET", "key", "saved"]), ok());
    server.save();
    assert_eq!(server.command(&["SET", "key", "later"]), ok());
    server.restart();
    assert_eq!(server.command(&["GET", "key"]), RedisReply::text("saved"));

    assert_eq!(server.command(&["SET", "key", "at the end"]), ok());
    server.shutdown_save();
    assert!(server.try_command(&["PING"]).is_err());
    server.restart();
    assert_eq!(server.command(&["GET", "key"]), RedisReply::text("at the end"));

    server.restart_empty();
    assert_eq!(server.command(&["DBSIZE"]), RedisReply::Int(0));
}

#[test]
fn a_stopped_server_answers_only_after_it_continues() {
    let server = RedisServer::start();
    let mut connection = server.connect().unwrap();
    for round in 1..=3 {
        server.stop();
        connection.send(&["INCR", "count"]).unwrap();
        connection.set_timeout(Duration::from_millis(50)).unwrap();
        assert!(connection.receive().is_err());
        server.cont();
        connection.set_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(connection.receive().unwrap(), RedisReply::Int(round));
    }
    server.stop();
}

#[test]
fn any_directive_can_be_set() {
    let server = RedisServer::builder()
        .directive("maxmemory", "10mb")
        .directive("client-output-buffer-limit", "pubsub 1mb 1mb 7")
        .start();
    let value = |name| server.command(&["CONFIG", "GET", name]).as_array()[1].as_text().to_owned();
    assert_eq!(value("maxmemory"), "10485760");
    assert!(value("client-output-buffer-limit").contains("pubsub 1048576 1048576 7"));
}

#[test]
#[should_panic(expected = "Bad directive")]
fn a_bad_directive_is_reported() {
    RedisServer::builder().directive("no-such-directive", "1").start();
}

#[test]
fn a_password_is_required() {
    let server = RedisServer::builder().password("open \"sesame").start();
    let mut stranger = RawConnection::open(server.address()).unwrap();
    assert!(stranger.command(&["GET", "key"]).unwrap().is_error("NOAUTH"));
    assert_eq!(server.command(&["SET", "key", "value"]), ok());
    assert_eq!(server.command_as("default", "open \"sesame", &["GET", "key"]), RedisReply::text("value"));
    assert!(server.command_as("default", "wrong", &["GET", "key"]).is_error("WRONGPASS"));
    assert_eq!(server.url_as("default", "x"), format!("redis://default:x@127.0.0.1:{}/", server.port()));
}

#[test]
fn acl_users_have_only_their_rights() {
    for binary in all() {
        let users = ["user bob on >secret ~own:* &* +@all -eval", "user default off"];
        let server = RedisServer::builder().binary(binary).acl_users(&users).start();
        let bob = |words: &[&str]| server.command_as("bob", "secret", words);
        assert_eq!(bob(&["SET", "own:key", "value"]), ok());
        assert!(bob(&["SET", "key", "value"]).is_error("NOPERM"));
        assert!(bob(&["EVAL", "return 1", "0"]).is_error("NOPERM"));
        assert_eq!(
            server.pipeline(&[&["GET", "own:key"], &["GET", "key"]]),
            [RedisReply::text("value"), RedisReply::Nil]
        );
        server.restart();
        assert!(bob(&["SET", "key", "value"]).is_error("NOPERM"));
    }
}

#[test]
fn the_server_clock_steps_forward_and_back() {
    if !RedisServer::can_fake_time() {
        // Written directly to stderr, past the capture of test output.
        let _ = std::io::stderr().write_all(b"NOT TESTED: cannot find libfaketime; run `cargo xtask test`\n");
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
        assert_eq!(server.command(&["GET", "key"]), RedisReply::Nil, "the key must have expired");

        server.step_clock(2 * hour, false);
        assert!(near(server.time(), right.time() - hour));
        assert_eq!(server.command(&["SET", "key", "value", "EX", "60"]), ok());
        server.step_clock(hour + Duration::from_millis(1_500), false);
        assert!(near(server.time(), right.time() - 2 * hour));
        assert!(server.command(&["TTL", "key"]).as_int() > 3_600, "the clock must have been set back");

        server.kill();
        server.restart();
        assert!(near(server.time(), right.time() - 2 * hour), "a restart must not reset the clock");
    }
}

/// Set for the process that [`a_server_dies_with_the_test_process`] starts.
const VICTIM_VARIABLE: &str = "TENURE_TESTBED_SACRIFICE";

/// Not a test of its own: the process that the next test kills.
#[test]
fn victim() {
    if std::env::var_os(VICTIM_VARIABLE).is_some() {
        // Started by a thread that ends at once, which must not end the server.
        let server = thread::spawn(RedisServer::start).join().unwrap();
        std::fs::write(std::env::var_os(VICTIM_VARIABLE).unwrap(), format!("{} {}\n", server.pid(), server.address()))
            .unwrap();
        thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn a_server_dies_with_the_test_process() {
    if !Command::new("setpriv").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server");
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim"])
        .env(VICTIM_VARIABLE, &file)
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    eventually("the process reports the address of its server", || {
        line = std::fs::read_to_string(&file).unwrap_or_default();
        line.ends_with('\n')
    });
    let address = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_eq!(RawConnection::open(address).unwrap().command(&["PING"]).unwrap(), RedisReply::text("PONG"));
    process.kill().unwrap();
    process.wait().unwrap();
    eventually("the server is gone", || RawConnection::open(address).is_err());
}
