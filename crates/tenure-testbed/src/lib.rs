//! Real servers for tests, and a link to them that can be made bad.
//!
//! - [`RedisServer`]: a Redis of one's own, which can be killed, stopped, restarted with or without its data, and given
//!   a clock that jumps.
//! - [`Proxy`]: a link to a server that loses, holds back, delays and cuts what goes over it.
//! - [`TestProcess`]: a part that a test plays as a process, so that it can be killed.
//! - [`LagProbe`]: how late this machine is.
//! - [`servers`]: which releases of Redis there are on this machine.
//! - [`web`]: a web server that writes down who asks it for what, and a client.
//! - [`CertificateAuthority`]: an authority and the certificates that it signs.
//! - [`RawConnection`]: the plainest of clients, for a look at a server that no code under test has a part in.
//!
//! All of it blocks and panics: it is for tests alone, where what can not be set up is a test that fails.

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
pub use probe::LagProbe;
pub use process::TestProcess;
pub use proxy::Proxy;
pub use redis::{RedisBuilder, RedisServer};
pub use reply::RedisReply;
pub use servers::RedisRelease;
