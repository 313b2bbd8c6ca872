//! Tests each fault of a [`Proxy`] on connections to a real server.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use tenure_testbed::{Proxy, RawConnection, RedisReply, RedisServer};

/// Longer than anything on this machine takes, to check that no reply arrives.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(100);
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

struct ProxyFixture {
    server: RedisServer,
    proxy: Proxy,
}

impl ProxyFixture {
    fn new() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::to(server.address());
        Self { server, proxy }
    }

    fn connect(&self) -> RawConnection {
        RawConnection::open(self.proxy.address()).unwrap()
    }

    fn count(&self) -> RedisReply {
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

fn is_working(connection: &mut RawConnection) -> bool {
    connection.set_timeout(REPLY_TIMEOUT).unwrap();
    connection.command(&["PING"]).is_ok_and(|reply| reply == RedisReply::text("PONG"))
}

/// Returns whether no reply arrives and the connection stays open.
fn is_silent(connection: &mut RawConnection) -> bool {
    connection.set_timeout(SILENCE_TIMEOUT).unwrap();
    let result = connection.receive();
    matches!(result, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// A command as bytes, for connections that are closed or reset.
const INCREMENT: &[u8] = b"*2\r\n$4\r\nINCR\r\n$5\r\ncount\r\n";

#[test]
fn everything_is_passed_on() {
    let fixture = ProxyFixture::new();
    let mut connection = fixture.connect();
    let long = "x".repeat(3_000_000);
    assert_eq!(connection.command(&["SET", "key", &long]).unwrap(), RedisReply::text("OK"));
    assert_eq!(connection.command(&["GET", "key"]).unwrap(), RedisReply::Text(long));
    let mut other = fixture.connect();
    assert!(is_working(&mut other));
    assert_eq!(fixture.proxy.connections(), 2);
    assert_eq!(fixture.proxy.open_connections(), 2);
    drop((connection, other));
    eventually("both are closed", || fixture.proxy.open_connections() == 0);
    assert_eq!(fixture.proxy.connections(), 2);
    assert_eq!(fixture.proxy.url(), format!("redis://127.0.0.1:{}/", fixture.proxy.port()));
}

#[test]
fn a_dead_server_closes_its_connections() {
    let fixture = ProxyFixture::new();
    let mut connection = fixture.connect();
    assert!(is_working(&mut connection));
    fixture.server.kill();
    assert!(connection.receive().is_err());
    // Reset before or after the connection was usable.
    let late = RawConnection::open(fixture.proxy.address()).and_then(|mut connection| connection.command(&["PING"]));
    assert!(late.is_err(), "{late:?}");
    fixture.server.restart();
    assert!(is_working(&mut fixture.connect()));
}

#[test]
fn blackholed_bytes_vanish_and_the_connection_stays_open() {
    let fixture = ProxyFixture::new();
    let (mut used, mut idle) = (fixture.connect(), fixture.connect());
    assert!(is_working(&mut used) && is_working(&mut idle));
    fixture.proxy.blackhole();
    used.send(&["INCR", "count"]).unwrap();
    assert!(is_silent(&mut used));
    let mut new = fixture.connect();
    new.send(&["INCR", "count"]).unwrap();
    assert!(is_silent(&mut new));
    eventually("the bytes are counted", || fixture.proxy.discarded_bytes() == INCREMENT.len());
    assert_eq!(fixture.count(), RedisReply::Nil);

    // No byte may follow discarded bytes.
    fixture.proxy.pass();
    used.send(&["INCR", "count"]).unwrap();
    assert!(is_silent(&mut used) && is_silent(&mut new));
    assert!(is_working(&mut idle));
    assert!(is_working(&mut fixture.connect()));
    assert_eq!(fixture.count(), RedisReply::Nil);
}

#[test]
fn a_dead_server_behind_a_blackhole_is_not_noticed() {
    let fixture = ProxyFixture::new();
    let mut connection = fixture.connect();
    assert!(is_working(&mut connection));
    fixture.proxy.blackhole();
    fixture.server.kill();
    assert!(is_silent(&mut connection));
    assert!(is_silent(&mut fixture.connect()));
}

#[test]
fn established_connections_are_blackholed_and_new_ones_work() {
    let fixture = ProxyFixture::new();
    let mut old = fixture.connect();
    // Not even used, so the proxy may not have noticed it.
    let mut fresh = fixture.connect();
    fixture.proxy.blackhole_established();
    old.send(&["INCR", "count"]).unwrap();
    fresh.send(&["INCR", "count"]).unwrap();
    assert!(is_silent(&mut old) && is_silent(&mut fresh));
    assert!(is_working(&mut fixture.connect()));
    fixture.proxy.pass();
    assert!(is_silent(&mut old) && is_silent(&mut fresh));
    assert_eq!(fixture.count(), RedisReply::Nil);
}

#[test]
fn one_direction_can_be_blackholed() {
    let fixture = ProxyFixture::new();
    let mut connection = fixture.connect();
    fixture.proxy.blackhole_replies();
    connection.send(&["INCR", "count"]).unwrap();
    eventually("the request arrives", || fixture.count() == RedisReply::text("1"));
    assert!(is_silent(&mut connection));

    fixture.proxy.pass();
    let mut subscriber = fixture.connect();
    assert!(subscriber.command(&["SUBSCRIBE", "news"]).is_ok());
    fixture.proxy.blackhole_requests();
    assert_eq!(fixture.server.command(&["PUBLISH", "news", "one"]), RedisReply::Int(1));
    assert_eq!(subscriber.receive().unwrap().as_array()[2], RedisReply::text("one"));
    subscriber.send(&["PING"]).unwrap();
    assert!(is_silent(&mut subscriber));
}

#[test]
fn held_requests_arrive_when_delivered() {
    let fixture = ProxyFixture::new();
    let mut connection = fixture.connect();
    fixture.proxy.hold_requests();
    connection.send(&["INCR", "count"]).unwrap();
    connection.send(&["INCR", "count"]).unwrap();
    assert!(is_silent(&mut connection));
    eventually("both are held", || fixture.proxy.waiting_requests() == 2 * INCREMENT.len());
    assert_eq!(fixture.count(), RedisReply::Nil);
    fixture.proxy.deliver_held();
    connection.set_timeout(REPLY_TIMEOUT).unwrap();
    assert_eq!(connection.receive().unwrap(), RedisReply::Int(1));
    assert_eq!(connection.receive().unwrap(), RedisReply::Int(2));
    assert_eq!(fixture.proxy.waiting_requests(), 0);
    assert!(is_working(&mut connection));
}

#[test]
fn held_requests_arrive_even_from_closed_connections() {
    let fixture = ProxyFixture::new();
    let open = || TcpStream::connect(fixture.proxy.address()).unwrap();
    let (mut closed, mut reset) = (open(), open());
    fixture.proxy.hold_requests_of_established();
    closed.write_all(INCREMENT).unwrap();
    drop(closed);
    reset.write_all(INCREMENT).unwrap();
    set_socket_linger(&reset, Some(Duration::ZERO)).unwrap();
    drop(reset);
    eventually("both are held", || fixture.proxy.waiting_requests() == 2 * INCREMENT.len());

    let mut next = fixture.connect();
    assert_eq!(next.command(&["SET", "count", "10"]).unwrap(), RedisReply::text("OK"));
    fixture.proxy.deliver_held_requests();
    eventually("both arrive after the later request", || fixture.count() == RedisReply::text("12"));
    eventually("only the new one is left", || fixture.proxy.open_connections() == 1);
}

#[test]
fn held_replies_arrive_when_delivered() {
    let fixture = ProxyFixture::new();
    let mut connection = fixture.connect();
    fixture.proxy.hold_replies();
    connection.send(&["INCR", "count"]).unwrap();
    eventually("the request arrives", || fixture.count() == RedisReply::text("1"));
    eventually("the reply is held", || fixture.proxy.waiting_replies() == b":1\r\n".len());
    assert!(is_silent(&mut connection));
    fixture.proxy.deliver_held_replies();
    connection.set_timeout(REPLY_TIMEOUT).unwrap();
    assert_eq!(connection.receive().unwrap(), RedisReply::Int(1));
}

#[test]
fn held_bytes_can_still_be_blackholed() {
    let fixture = ProxyFixture::new();
    let mut connection = fixture.connect();
    fixture.proxy.hold_requests();
    connection.send(&["INCR", "count"]).unwrap();
    eventually("it is held", || fixture.proxy.waiting_requests() == INCREMENT.len());
    fixture.proxy.blackhole();
    eventually("it is discarded", || fixture.proxy.discarded_bytes() == INCREMENT.len());
    fixture.proxy.pass();
    assert!(is_silent(&mut connection));
    assert_eq!(fixture.count(), RedisReply::Nil);
}

#[test]
fn delays_add_up_and_keep_the_order() {
    let fixture = ProxyFixture::new();
    let mut connection = fixture.connect();
    assert!(is_working(&mut connection));
    let delay = Duration::from_millis(60);
    for (set, expected) in [
        (Proxy::delay as fn(&Proxy, Duration), 2 * delay),
        (Proxy::delay_requests, delay),
        (Proxy::delay_replies, delay),
    ] {
        fixture.proxy.pass();
        set(&fixture.proxy, delay);
        let start = Instant::now();
        assert!(is_working(&mut connection));
        assert!(start.elapsed() >= expected, "{:?}", start.elapsed());
    }
    let replies = connection.pipeline(&[&["ECHO", "1"], &["ECHO", "2"]]).unwrap();
    assert_eq!(replies, [RedisReply::text("1"), RedisReply::text("2")]);
}

#[test]
fn a_reset_closes_all_connections_on_both_sides() {
    let fixture = ProxyFixture::new();
    let mut raw = TcpStream::connect(fixture.proxy.address()).unwrap();
    let mut connection = fixture.connect();
    assert!(is_working(&mut connection));
    fixture.proxy.hold_requests();
    connection.send(&["INCR", "count"]).unwrap();
    fixture.proxy.reset_connections();
    assert_eq!(fixture.proxy.open_connections(), 0);
    assert_eq!(raw.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(connection.receive().is_err());
    eventually("the server sees it", || {
        let clients = fixture.server.command(&["CLIENT", "LIST"]);
        clients.as_text().lines().count() == 1
    });
    fixture.proxy.deliver_held();
    assert!(is_working(&mut fixture.connect()));
    assert_eq!(fixture.count(), RedisReply::Nil);
}

#[test]
fn a_reset_ends_blackholed_connections() {
    let fixture = ProxyFixture::new();
    fixture.proxy.blackhole();
    let mut connection = fixture.connect();
    assert!(is_silent(&mut connection));
    fixture.proxy.reset_connections();
    connection.set_timeout(REPLY_TIMEOUT).unwrap();
    assert_eq!(connection.receive().unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn new_connections_are_refused_and_open_ones_keep_working() {
    let fixture = ProxyFixture::new();
    let mut connection = fixture.connect();
    assert!(is_working(&mut connection));
    for _ in 0..20 {
        fixture.proxy.refuse();
        let error = TcpStream::connect(fixture.proxy.address()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(is_working(&mut connection));
        fixture.proxy.pass();
        assert!(is_working(&mut fixture.connect()));
    }
    assert_eq!(fixture.proxy.connections(), 21);
}

#[test]
fn dropping_the_proxy_closes_every_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let address = proxy.address();
    let mut connection = RawConnection::open(address).unwrap();
    assert!(is_working(&mut connection));
    proxy.blackhole();
    let mut blackholed = RawConnection::open(address).unwrap();
    drop(proxy);
    assert!(connection.receive().is_err() && !is_silent(&mut blackholed));
    assert!(RawConnection::open(address).is_err());
    eventually("the server sees it", || server.command(&["CLIENT", "LIST"]).as_text().lines().count() == 1);
}

#[test]
fn the_proxy_works_while_the_runtime_of_the_test_is_blocked() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let fixture = ProxyFixture::new();
        let mut connection = fixture.connect();
        assert!(is_working(&mut connection));
        fixture.proxy.reset_connections();
        assert!(!is_working(&mut connection));
    });
}
