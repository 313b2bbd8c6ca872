//! A port that stays ours while nobody listens on it.
//!
//! A server that is down must come back at the same address, so its port must not go to anyone else in between. The ports
//! of outgoing connections, which the kernel also hands out for port 0, are no good for that: any client may be given one.
//! So ports come from below that range, and each is held under a name that the kernel forgets when we end.

use std::net::{Ipv4Addr, TcpListener};
use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr, unix::net::UnixListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{Shutdown, shutdown};

/// Below what Linux gives to outgoing connections by default, and above the ports of most services.
const FIRST_PORT: u16 = 15_000;
const PORT_COUNT: u16 = 17_000;

static NEXT_OFFSET: AtomicU32 = AtomicU32::new(0);

/// Ends listening now. Dropping alone does not while a child that is just being started has a copy of all we have open.
pub(crate) fn close(listener: &TcpListener) {
    // Fails only where it is closed already.
    let _ = shutdown(listener, Shutdown::Both);
}

/// A port on the loopback interface, for as long as the value lives.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claim: UnixListener,
}

impl Port {
    /// A port that nobody uses.
    pub(crate) fn reserve() -> Self {
        // Processes that run at the same time start far from each other.
        let start = process::id().wrapping_mul(7_919);
        for _ in 0..PORT_COUNT {
            let step = start.wrapping_add(NEXT_OFFSET.fetch_add(1, Ordering::Relaxed)) % u32::from(PORT_COUNT);
            let number = FIRST_PORT + u16::try_from(step).unwrap();
            if let Some(port) = Self::claim(number)
                && let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, number))
            {
                close(&listener);
                return port;
            }
        }
        panic!("no free port from {FIRST_PORT} on");
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    fn claim(number: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("tenure-testbed-port-{number}")).ok()?;
        UnixListener::bind_addr(&name).ok().map(|claim| Self { number, _claim: claim })
    }
}
