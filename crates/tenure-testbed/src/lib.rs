//! Real servers for tests, and a proxy that injects faults between them and their clients.
//!
//! - [`RedisServer`]: a private Redis server that can be killed, stopped and restarted with or without its data, and
//!   whose clock can be stepped.
//! - [`Proxy`]: a TCP proxy that drops, holds back, delays and resets the traffic to a server.
//! - [`TestProcess`]: a test that runs as a child process, so that it can be killed.
//! - [`LagProbe`]: measures the scheduling lag of this machine.
//! - [`servers`]: finds the Redis releases on this machine.
//! - [`web`]: a web server that records its requests, and a client.
//! - [`CertificateAuthority`]: a certificate authority and the certificates that it signs.
//! - [`Port`]: a reserved port, for a program that a test starts.
//! - [`RawConnection`]: a minimal client that inspects a server without any code under test.
//!
//! Everything here blocks and panics. It is for tests only, where a setup that fails is a test that fails.

#![expect(clippy::panic, clippy::unwrap_used, reason = "only tests use this crate; in a test, a panic is a failure")]

mod certificates;
mod children;
mod clock;
mod connection;
mod ports;
mod probe;
mod process;
mod proxy;
mod redis;
mod reply;
pub mod servers;
pub mod web;

pub use certificates::{Certificate, CertificateAuthority};
pub use connection::RawConnection;
pub use ports::Port;
pub use probe::LagProbe;
pub use process::TestProcess;
pub use proxy::Proxy;
pub use redis::{RedisBuilder, RedisServer};
pub use reply::RedisReply;
pub use servers::RedisRelease;
