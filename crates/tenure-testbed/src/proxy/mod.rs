//! A TCP proxy with switchable faults.
//!
//! The proxy runs on its own thread, so that it works next to any runtime and while a test blocks. A switch is changed
//! under the same lock under which bytes are forwarded: once the call returns, no byte is handled the old way.

mod flow;

use std::collections::BTreeMap;
use std::future::{pending, poll_fn};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, ready};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::watch;

use crate::ports::{self, Port};

/// A TCP proxy with switchable faults between clients and one server.
///
/// A stream has no gaps: after discarded bytes of a connection, nothing that follows them arrives either, regardless of
/// later switches. A close counts as a byte, and a reset is passed on as a close.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    shared: Arc<SharedState>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy that forwards everything to the server at this address. If the server does not listen,
    /// connections to the proxy are accepted and then reset.
    ///
    /// # Panics
    /// If the system has no more threads or sockets.
    pub fn to(server: SocketAddr) -> Self {
        let port = Port::reserve();
        let shared = Arc::new(SharedState {
            server: Mutex::new(server),
            state: Mutex::default(),
            woken: watch::Sender::new(()),
            settled: Condvar::new(),
        });
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let thread = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("testbed proxy".to_owned())
                .spawn(move || runtime.block_on(accept_loop(&shared)))
                .unwrap()
        };
        let proxy = Self { port, shared, thread: Some(thread) };
        proxy.pass();
        proxy
    }

    /// The port, which stays the same for the lifetime of the value.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The address.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The URL for Redis clients.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// The URL with a user. Neither name nor password may contain characters that are special in a URL.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@{}/", self.address())
    }

    /// Forwards new connections to another server, as an address does after a failover. Resets the open ones.
    pub fn redirect(&self, server: SocketAddr) {
        *self.shared.server.lock().unwrap() = server;
        self.reset_connections();
    }

    /// Ends all faults: accepts connections, forwards everything, and delivers held bytes.
    ///
    /// # Panics
    /// If a process outside the testbed has taken the port after [`refuse`](Self::refuse).
    pub fn pass(&self) {
        self.update(|state| {
            state.requests = DirectionState::default();
            state.replies = DirectionState::default();
            state.flows.values_mut().for_each(|flow| flow.held = false);
            if state.listener.is_none() {
                let listener = TcpListener::bind(self.address()).unwrap();
                listener.set_nonblocking(true).unwrap();
                state.listener = Some(Arc::new(listener));
            }
        });
    }

    /// Discards all bytes in both directions, including held and delayed ones. Connections stay open, and new ones are
    /// accepted, but never reach the server.
    pub fn blackhole(&self) {
        self.update(|state| {
            state.requests.mode = FlowMode::Blackhole;
            state.replies.mode = FlowMode::Blackhole;
        });
    }

    /// Discards all bytes to the server. Replies to earlier requests still pass.
    pub fn blackhole_requests(&self) {
        self.update(|state| state.requests.mode = FlowMode::Blackhole);
    }

    /// Discards all replies: the server executes the requests, but clients get no reply.
    pub fn blackhole_replies(&self) {
        self.update(|state| state.replies.mode = FlowMode::Blackhole);
    }

    /// Discards all bytes of the open connections for good, in both directions. New connections work.
    pub fn blackhole_established(&self) {
        self.update(|state| {
            state.flows.values_mut().for_each(|flow| flow.blackholed = true);
            for line in [&mut state.requests, &mut state.replies] {
                if line.mode == FlowMode::Blackhole {
                    line.mode = FlowMode::Pass;
                }
            }
        });
    }

    /// Holds the bytes to the server until they are released, even if the client has closed or reset its connection by
    /// then. So the packets of an abandoned connection can arrive after those of the next one.
    pub fn hold_requests(&self) {
        self.update(|state| state.requests.mode = FlowMode::Hold);
    }

    /// Holds the bytes to the clients until they are released.
    pub fn hold_replies(&self) {
        self.update(|state| state.replies.mode = FlowMode::Hold);
    }

    /// Holds the bytes to the server of the open connections, whose clients may be about to abandon them. New
    /// connections work.
    pub fn hold_requests_of_established(&self) {
        self.update(|state| state.flows.values_mut().for_each(|flow| flow.held = true));
    }

    /// Delivers the held requests and stops holding.
    pub fn deliver_held_requests(&self) {
        self.update(ProxyState::deliver_held_requests);
    }

    /// Delivers the held replies and stops holding.
    pub fn deliver_held_replies(&self) {
        self.update(ProxyState::deliver_held_replies);
    }

    /// Delivers all held bytes and stops holding.
    pub fn deliver_held(&self) {
        self.update(|state| {
            state.deliver_held_requests();
            state.deliver_held_replies();
        });
    }

    /// Delays bytes that arrive from now on, in both directions. Their order stays.
    pub fn delay(&self, by: Duration) {
        self.update(|state| {
            state.requests.delay = by;
            state.replies.delay = by;
        });
    }

    /// Delays requests that arrive from now on.
    pub fn delay_requests(&self, by: Duration) {
        self.update(|state| state.requests.delay = by);
    }

    /// Delays replies that arrive from now on.
    pub fn delay_replies(&self, by: Duration) {
        self.update(|state| state.replies.delay = by);
    }

    /// Resets all connections on both sides and drops their held bytes. The other switches apply to new connections.
    /// Returns when it is done.
    pub fn reset_connections(&self) {
        self.update(|state| state.flows.values_mut().for_each(|flow| flow.reset = true));
        let done = |state: &mut ProxyState| state.flows.values().any(|flow| flow.reset);
        drop(self.shared.settled.wait_while(self.shared.lock(), done).unwrap_or_else(PoisonError::into_inner));
    }

    /// Refuses new connections, like a host without a listener. Open connections continue. Returns when it is done.
    pub fn refuse(&self) {
        self.update(ProxyState::close);
        let done = |state: &mut ProxyState| state.watching;
        drop(self.shared.settled.wait_while(self.shared.lock(), done).unwrap_or_else(PoisonError::into_inner));
    }

    /// Number of connections accepted since the proxy was started.
    pub fn connections(&self) -> u64 {
        let mut state = self.shared.lock();
        state.accept();
        self.shared.woken.send_replace(());
        state.connections
    }

    /// Number of open connections.
    pub fn open_connections(&self) -> usize {
        let mut state = self.shared.lock();
        state.accept();
        self.shared.woken.send_replace(());
        state.flows.len()
    }

    /// Number of bytes to the server that have arrived and are not forwarded yet.
    pub fn waiting_requests(&self) -> usize {
        self.shared.lock().flows.values().map(|flow| flow.waiting_requests).sum()
    }

    /// Number of bytes to clients that have arrived and are not forwarded yet.
    pub fn waiting_replies(&self) -> usize {
        self.shared.lock().flows.values().map(|flow| flow.waiting_replies).sum()
    }

    /// Number of discarded bytes. Bytes on connections that never reached the server are not counted.
    pub fn discarded_bytes(&self) -> usize {
        self.shared.lock().discarded_bytes
    }

    fn update(&self, switch: impl FnOnce(&mut ProxyState)) {
        let mut state = self.shared.lock();
        // Accept first: connections that the kernel has completed count as established.
        state.accept();
        switch(&mut state);
        drop(state);
        self.shared.woken.send_replace(());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.update(|state| {
            state.close();
            state.ended = true;
        });
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}

/// State that the switches and the connections share.
#[derive(Debug)]
struct SharedState {
    server: Mutex<SocketAddr>,
    state: Mutex<ProxyState>,
    /// Notifies the proxy's thread of a changed state.
    woken: watch::Sender<()>,
    /// Notifies callers that a change has taken effect.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct ProxyState {
    requests: DirectionState,
    replies: DirectionState,
    listener: Option<Arc<TcpListener>>,
    /// Whether the proxy's thread uses the listener.
    watching: bool,
    /// Accepted connections that the proxy's thread has not picked up yet.
    accepted: Vec<(u64, TcpStream)>,
    flows: BTreeMap<u64, Flow>,
    connections: u64,
    discarded_bytes: usize,
    ended: bool,
}

/// The switches of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct DirectionState {
    mode: FlowMode,
    delay: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FlowMode {
    #[default]
    Pass,
    Hold,
    Blackhole,
}

/// A connection, as the switches see it.
#[derive(Debug, Default)]
struct Flow {
    blackholed: bool,
    held: bool,
    reset: bool,
    waiting_requests: usize,
    waiting_replies: usize,
}

impl ProxyState {
    /// Accepts all pending connections.
    fn accept(&mut self) {
        let Some(listener) = self.listener.clone() else { return };
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return,
            }
        }
    }

    fn close(&mut self) {
        if let Some(listener) = self.listener.take() {
            ports::close(&listener);
        }
    }

    fn admit(&mut self, stream: TcpStream) {
        let unreachable = self.requests.mode == FlowMode::Blackhole && self.replies.mode == FlowMode::Blackhole;
        self.connections += 1;
        self.flows.insert(self.connections, Flow { blackholed: unreachable, ..Flow::default() });
        self.accepted.push((self.connections, stream));
    }

    fn deliver_held_requests(&mut self) {
        self.flows.values_mut().for_each(|flow| flow.held = false);
        if self.requests.mode == FlowMode::Hold {
            self.requests.mode = FlowMode::Pass;
        }
    }

    fn deliver_held_replies(&mut self) {
        if self.replies.mode == FlowMode::Hold {
            self.replies.mode = FlowMode::Pass;
        }
    }
}

impl SharedState {
    /// Ignores a panic in another test, so that the proxy still ends.
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listener as the proxy's thread waits on it: another handle of the same socket.
struct AsyncListener {
    source: Arc<TcpListener>,
    listener: tokio::net::TcpListener,
}

impl AsyncListener {
    fn new(listener: &Arc<TcpListener>) -> io::Result<Self> {
        let other = tokio::net::TcpListener::from_std(listener.try_clone()?)?;
        Ok(Self { source: Arc::clone(listener), listener: other })
    }

    /// Waits for connections and accepts them.
    async fn accept_next(acceptor: Option<&Self>, shared: &SharedState) {
        let Some(acceptor) = acceptor else { return pending().await };
        poll_fn(|context| {
            // Accepted and counted under one lock, so that no switch changes in between.
            let mut state = shared.lock();
            let stream = match ready!(acceptor.listener.poll_accept(context)) {
                Ok((stream, _)) => stream.into_std(),
                Err(error) => Err(error),
            };
            if let Ok(stream) = stream {
                state.admit(stream);
            }
            state.accept();
            Poll::Ready(())
        })
        .await;
    }
}

/// Accepts and serves connections until the proxy is dropped. Returning drops them all.
async fn accept_loop(shared: &Arc<SharedState>) {
    let mut woken = shared.woken.subscribe();
    let mut acceptor: Option<AsyncListener> = None;
    loop {
        woken.mark_unchanged();
        {
            let mut state = shared.lock();
            if state.ended {
                return;
            }
            for (number, stream) in state.accepted.drain(..) {
                tokio::spawn(flow::serve(Arc::clone(shared), number, stream));
            }
            let is_current = match (&acceptor, &state.listener) {
                (Some(acceptor), Some(listener)) => Arc::ptr_eq(&acceptor.source, listener),
                (None, None) => true,
                _ => false,
            };
            if !is_current {
                // Close the listener before callers are notified.
                drop(acceptor.take());
                acceptor = state.listener.as_ref().map(|listener| AsyncListener::new(listener).unwrap());
                state.watching = acceptor.is_some();
                shared.settled.notify_all();
            }
        }
        tokio::select! {
            // Never fails: the sender is in `shared`.
            _ = woken.changed() => {}
            () = AsyncListener::accept_next(acceptor.as_ref(), shared) => {}
        }
    }
}
