//! Each thing that a [`Proxy`] can do to a connection, done to a real server's.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use tenure_testbed::{Connection, Proxy, RedisServer, Reply};

/// Longer than anything on this machine takes, for what shall not come.
const IN_VAIN: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(10);

struct Bed {
    server: RedisServer,
    proxy: Proxy,
}

impl Bed {
    fn new() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::to(server.address());
        Self { server, proxy }
    }

    fn connect(&self) -> Connection {
        Connection::open(self.proxy.address()).unwrap()
    }

    fn count(&self) -> Reply {
        self.server.command(&["GET", "count"])
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn works(connection: &mut Connection) -> bool {
    connection.patience(SOON).unwrap();
    connection.command(&["PING"]).is_ok_and(|reply| reply == Reply::text("PONG"))
}

/// Nothing comes, but the connection is not closed either.
fn is_silent(connection: &mut Connection) -> bool {
    connection.patience(IN_VAIN).unwrap();
    let result = connection.receive();
    matches!(result, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// A command as bytes, for connections that are treated badly.
const INCREMENT: &[u8] = b"*2\r\n$4\r\nINCR\r\n$5\r\ncount\r\n";

#[test]
fn it_passes_everything_on() {
    let bed = Bed::new();
    let mut connection = bed.connect();
    let long = "x".repeat(3_000_000);
    assert_eq!(connection.command(&["SET", "key", &long]).unwrap(), Reply::text("OK"));
    assert_eq!(connection.command(&["GET", "key"]).unwrap(), Reply::Text(long));
    let mut other = bed.connect();
    assert!(works(&mut other));
    assert_eq!(bed.proxy.connections(), 2);
    assert_eq!(bed.proxy.open_connections(), 2);
    drop((connection, other));
    eventually("both are closed", || bed.proxy.open_connections() == 0);
    assert_eq!(bed.proxy.connections(), 2);
    assert_eq!(bed.proxy.url(), format!("redis://127.0.0.1:{}/", bed.proxy.port()));
}

#[test]
fn a_server_that_ends_or_is_gone_is_seen() {
    let bed = Bed::new();
    let mut connection = bed.connect();
    assert!(works(&mut connection));
    bed.server.kill();
    assert!(connection.receive().is_err());
    // Reset before or after it was of any use.
    let late = Connection::open(bed.proxy.address()).and_then(|mut connection| connection.command(&["PING"]));
    assert!(late.is_err(), "{late:?}");
    bed.server.start_again();
    assert!(works(&mut bed.connect()));
}

#[test]
fn what_is_swallowed_vanishes_and_the_connection_stays() {
    let bed = Bed::new();
    let (mut used, mut idle) = (bed.connect(), bed.connect());
    assert!(works(&mut used) && works(&mut idle));
    bed.proxy.swallow();
    used.send(&["INCR", "count"]).unwrap();
    assert!(is_silent(&mut used));
    let mut new = bed.connect();
    new.send(&["INCR", "count"]).unwrap();
    assert!(is_silent(&mut new));
    eventually("the bytes are counted", || bed.proxy.swallowed() == INCREMENT.len());
    assert_eq!(bed.count(), Reply::Nil);

    // Nothing can follow what is missing.
    bed.proxy.pass();
    used.send(&["INCR", "count"]).unwrap();
    assert!(is_silent(&mut used) && is_silent(&mut new));
    assert!(works(&mut idle));
    assert!(works(&mut bed.connect()));
    assert_eq!(bed.count(), Reply::Nil);
}

#[test]
fn a_server_that_ends_behind_a_swallowing_link_is_not_seen() {
    let bed = Bed::new();
    let mut connection = bed.connect();
    assert!(works(&mut connection));
    bed.proxy.swallow();
    bed.server.kill();
    assert!(is_silent(&mut connection));
    assert!(is_silent(&mut bed.connect()));
}

#[test]
fn established_connections_are_swallowed_and_new_ones_work() {
    let bed = Bed::new();
    let mut old = bed.connect();
    // Not even used, and so perhaps not even noticed.
    let mut fresh = bed.connect();
    bed.proxy.swallow_established();
    old.send(&["INCR", "count"]).unwrap();
    fresh.send(&["INCR", "count"]).unwrap();
    assert!(is_silent(&mut old) && is_silent(&mut fresh));
    assert!(works(&mut bed.connect()));
    bed.proxy.pass();
    assert!(is_silent(&mut old) && is_silent(&mut fresh));
    assert_eq!(bed.count(), Reply::Nil);
}

#[test]
fn one_direction_can_be_swallowed() {
    let bed = Bed::new();
    let mut connection = bed.connect();
    bed.proxy.swallow_replies();
    connection.send(&["INCR", "count"]).unwrap();
    eventually("the request arrives", || bed.count() == Reply::text("1"));
    assert!(is_silent(&mut connection));

    bed.proxy.pass();
    let mut subscriber = bed.connect();
    assert!(subscriber.command(&["SUBSCRIBE", "news"]).is_ok());
    bed.proxy.swallow_requests();
    assert_eq!(bed.server.command(&["PUBLISH", "news", "one"]), Reply::Int(1));
    assert_eq!(subscriber.receive().unwrap().as_array()[2], Reply::text("one"));
    subscriber.send(&["PING"]).unwrap();
    assert!(is_silent(&mut subscriber));
}

#[test]
fn held_requests_arrive_when_let_go() {
    let bed = Bed::new();
    let mut connection = bed.connect();
    bed.proxy.hold_requests();
    connection.send(&["INCR", "count"]).unwrap();
    connection.send(&["INCR", "count"]).unwrap();
    assert!(is_silent(&mut connection));
    eventually("both are held", || bed.proxy.waiting_requests() == 2 * INCREMENT.len());
    assert_eq!(bed.count(), Reply::Nil);
    bed.proxy.let_go();
    connection.patience(SOON).unwrap();
    assert_eq!(connection.receive().unwrap(), Reply::Int(1));
    assert_eq!(connection.receive().unwrap(), Reply::Int(2));
    assert_eq!(bed.proxy.waiting_requests(), 0);
    assert!(works(&mut connection));
}

#[test]
fn held_requests_arrive_late_even_from_connections_that_are_gone() {
    let bed = Bed::new();
    let open = || TcpStream::connect(bed.proxy.address()).unwrap();
    let (mut closed, mut reset) = (open(), open());
    bed.proxy.hold_requests_of_established();
    closed.write_all(INCREMENT).unwrap();
    drop(closed);
    reset.write_all(INCREMENT).unwrap();
    set_socket_linger(&reset, Some(Duration::ZERO)).unwrap();
    drop(reset);
    eventually("both are held", || bed.proxy.waiting_requests() == 2 * INCREMENT.len());

    let mut next = bed.connect();
    assert_eq!(next.command(&["SET", "count", "10"]).unwrap(), Reply::text("OK"));
    bed.proxy.let_requests_go();
    eventually("both arrive after what came later", || bed.count() == Reply::text("12"));
    eventually("only the new one is left", || bed.proxy.open_connections() == 1);
}

#[test]
fn held_replies_arrive_when_let_go() {
    let bed = Bed::new();
    let mut connection = bed.connect();
    bed.proxy.hold_replies();
    connection.send(&["INCR", "count"]).unwrap();
    eventually("the request arrives", || bed.count() == Reply::text("1"));
    eventually("the reply is held", || bed.proxy.waiting_replies() == b":1\r\n".len());
    assert!(is_silent(&mut connection));
    bed.proxy.let_replies_go();
    connection.patience(SOON).unwrap();
    assert_eq!(connection.receive().unwrap(), Reply::Int(1));
}

#[test]
fn what_is_held_can_still_vanish() {
    let bed = Bed::new();
    let mut connection = bed.connect();
    bed.proxy.hold_requests();
    connection.send(&["INCR", "count"]).unwrap();
    eventually("it is held", || bed.proxy.waiting_requests() == INCREMENT.len());
    bed.proxy.swallow();
    eventually("it vanished", || bed.proxy.swallowed() == INCREMENT.len());
    bed.proxy.pass();
    assert!(is_silent(&mut connection));
    assert_eq!(bed.count(), Reply::Nil);
}

#[test]
fn delays_add_up_and_keep_the_order() {
    let bed = Bed::new();
    let mut connection = bed.connect();
    assert!(works(&mut connection));
    let delay = Duration::from_millis(60);
    for (set, expected) in [
        (Proxy::delay as fn(&Proxy, Duration), 2 * delay),
        (Proxy::delay_requests, delay),
        (Proxy::delay_replies, delay),
    ] {
        bed.proxy.pass();
        set(&bed.proxy, delay);
        let start = Instant::now();
        assert!(works(&mut connection));
        assert!(start.elapsed() >= expected, "{:?}", start.elapsed());
    }
    let replies = connection.pipeline(&[&["ECHO", "1"], &["ECHO", "2"]]).unwrap();
    assert_eq!(replies, [Reply::text("1"), Reply::text("2")]);
}

#[test]
fn a_cut_resets_all_connections_on_both_sides() {
    let bed = Bed::new();
    let mut raw = TcpStream::connect(bed.proxy.address()).unwrap();
    let mut connection = bed.connect();
    assert!(works(&mut connection));
    bed.proxy.hold_requests();
    connection.send(&["INCR", "count"]).unwrap();
    bed.proxy.cut();
    assert_eq!(bed.proxy.open_connections(), 0);
    assert_eq!(raw.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(connection.receive().is_err());
    eventually("the server sees it", || {
        let clients = bed.server.command(&["CLIENT", "LIST"]);
        clients.as_text().lines().count() == 1
    });
    bed.proxy.let_go();
    assert!(works(&mut bed.connect()));
    assert_eq!(bed.count(), Reply::Nil);
}

#[test]
fn a_cut_ends_what_was_swallowed() {
    let bed = Bed::new();
    bed.proxy.swallow();
    let mut connection = bed.connect();
    assert!(is_silent(&mut connection));
    bed.proxy.cut();
    connection.patience(SOON).unwrap();
    assert_eq!(connection.receive().unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn refused_connections_are_refused_and_the_others_go_on() {
    let bed = Bed::new();
    let mut connection = bed.connect();
    assert!(works(&mut connection));
    for _ in 0..20 {
        bed.proxy.refuse();
        let error = TcpStream::connect(bed.proxy.address()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(works(&mut connection));
        bed.proxy.pass();
        assert!(works(&mut bed.connect()));
    }
    assert_eq!(bed.proxy.connections(), 21);
}

#[test]
fn all_ends_with_the_proxy() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let address = proxy.address();
    let mut connection = Connection::open(address).unwrap();
    assert!(works(&mut connection));
    proxy.swallow();
    let mut swallowed = Connection::open(address).unwrap();
    drop(proxy);
    assert!(connection.receive().is_err() && !is_silent(&mut swallowed));
    assert!(Connection::open(address).is_err());
    eventually("the server sees it", || server.command(&["CLIENT", "LIST"]).as_text().lines().count() == 1);
}

#[test]
fn it_works_beside_a_runtime_that_is_blocked() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bed = Bed::new();
        let mut connection = bed.connect();
        assert!(works(&mut connection));
        bed.proxy.cut();
        assert!(!works(&mut connection));
    });
}
