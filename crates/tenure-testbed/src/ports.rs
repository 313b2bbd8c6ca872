//! Ports that stay reserved while no server listens on them.
//!
//! A server that is down must come back at the same address, so its port must not go to another process in between.
//! Ephemeral ports, which port 0 also uses, do not work: the kernel may give one to any client. So ports come from
//! below that range. Each is reserved by a name that the kernel releases when this process ends.

use std::net::{Ipv4Addr, TcpListener};
use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr, unix::net::UnixListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{Shutdown, shutdown};

/// Below the ephemeral ports of Linux and above the ports of most services.
const FIRST_PORT: u16 = 15_000;
const PORT_COUNT: u16 = 17_000;

static NEXT_OFFSET: AtomicU32 = AtomicU32::new(0);

/// Closes the listener now. Dropping is not enough while a child that is being started has a copy of all open
/// descriptors.
pub(crate) fn close(listener: &TcpListener) {
    // Fails only if it is closed already.
    let _ = shutdown(listener, Shutdown::Both);
}

/// A port on the loopback interface, reserved for the lifetime of the value.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UnixListener,
}

impl Port {
    /// Reserves an unused port.
    ///
    /// # Panics
    /// If none is left.
    pub fn reserve() -> Self {
        // Concurrent processes start far from each other.
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
        panic!("cannot reserve a port: all {PORT_COUNT} ports from {FIRST_PORT} are in use");
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    fn claim(number: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("tenure-testbed-port-{number}")).ok()?;
        UnixListener::bind_addr(&name).ok().map(|claim| Self { number, _claim: claim })
    }
}
