//! A link to a server that can be made bad.
//!
//! The proxy runs on a thread of its own, so that it works beside any runtime and while a test blocks. A switch is thrown
//! under the same lock under which bytes are passed on: once the call returns, no byte goes the old way.

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

/// A link to a server: whoever connects to the proxy talks to the server, as well as the switches let them.
///
/// A stream has no holes: where bytes of a connection vanished, nothing that follows them arrives either, whatever the
/// switches say later. Closing counts as a byte, and a reset is passed on as closing.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    shared: Arc<SharedState>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A link to the server at this address, which passes everything on. While nobody listens there, connections to the
    /// proxy are made and then reset.
    ///
    /// # Panics
    /// When the system has no more threads or sockets.
    pub fn to(server: SocketAddr) -> Self {
        let port = Port::reserve();
        let shared = Arc::new(SharedState {
            server,
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

    /// Its port, which stays the same for the life of the value.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// Its address as Redis clients want it.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// Its address, with a user. Neither name nor password may have characters that an address gives a meaning.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@{}/", self.address())
    }

    /// All is well: takes connections, passes everything on, lets go what was held.
    ///
    /// # Panics
    /// When the port is gone after [`refuse`](Self::refuse), to someone outside the testbed.
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

    /// All bytes vanish, both ways, also those that were held or delayed. Connections stay open, and new ones are taken,
    /// but never get through to the server.
    pub fn blackhole(&self) {
        self.update(|state| {
            state.requests.mode = FlowMode::Blackhole;
            state.replies.mode = FlowMode::Blackhole;
        });
    }

    /// All bytes to the server vanish; its replies to what came before still pass.
    pub fn blackhole_requests(&self) {
        self.update(|state| state.requests.mode = FlowMode::Blackhole);
    }

    /// All replies vanish: the server does what it is asked, and nobody learns of it.
    pub fn blackhole_replies(&self) {
        self.update(|state| state.replies.mode = FlowMode::Blackhole);
    }

    /// All bytes of the connections there are vanish for good, both ways. New connections work.
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

    /// Keeps the bytes to the server, to deliver them when let go: even when the client has closed or reset its connection
    /// by then. That is how the packets of a connection that was given up arrive after those of the next one.
    pub fn hold_requests(&self) {
        self.update(|state| state.requests.mode = FlowMode::Hold);
    }

    /// Keeps the bytes to the clients, to deliver them when let go.
    pub fn hold_replies(&self) {
        self.update(|state| state.replies.mode = FlowMode::Hold);
    }

    /// Keeps the bytes to the server of the connections there are, whose clients may be about to give them up. New
    /// connections work.
    pub fn hold_requests_of_established(&self) {
        self.update(|state| state.flows.values_mut().for_each(|flow| flow.held = true));
    }

    /// Delivers the requests that were held, and holds no more.
    pub fn deliver_held_requests(&self) {
        self.update(ProxyState::deliver_held_requests);
    }

    /// Delivers the replies that were held, and holds no more.
    pub fn deliver_held_replies(&self) {
        self.update(ProxyState::deliver_held_replies);
    }

    /// Delivers all that was held, and holds no more.
    pub fn deliver_held(&self) {
        self.update(|state| {
            state.deliver_held_requests();
            state.deliver_held_replies();
        });
    }

    /// What arrives from now on is passed on this much later, each way. It stays in order.
    pub fn delay(&self, by: Duration) {
        self.update(|state| {
            state.requests.delay = by;
            state.replies.delay = by;
        });
    }

    /// Requests that arrive from now on are passed on this much later.
    pub fn delay_requests(&self, by: Duration) {
        self.update(|state| state.requests.delay = by);
    }

    /// Replies that arrive from now on are passed on this much later.
    pub fn delay_replies(&self, by: Duration) {
        self.update(|state| state.replies.delay = by);
    }

    /// Resets all connections, on both sides, with all that was held in them. New ones work as the other switches say.
    /// Returns when it is done.
    pub fn reset_connections(&self) {
        self.update(|state| state.flows.values_mut().for_each(|flow| flow.reset = true));
        let done = |state: &mut ProxyState| state.flows.values().any(|flow| flow.reset);
        drop(self.shared.settled.wait_while(self.shared.lock(), done).unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes no more connections, as a host where nobody listens. Those that there are go on. Returns when it is done.
    pub fn refuse(&self) {
        self.update(ProxyState::close);
        let done = |state: &mut ProxyState| state.watching;
        drop(self.shared.settled.wait_while(self.shared.lock(), done).unwrap_or_else(PoisonError::into_inner));
    }

    /// How many connections were made since the proxy is there.
    pub fn connections(&self) -> u64 {
        let mut state = self.shared.lock();
        state.accept();
        self.shared.woken.send_replace(());
        state.connections
    }

    /// How many connections there are.
    pub fn open_connections(&self) -> usize {
        let mut state = self.shared.lock();
        state.accept();
        self.shared.woken.send_replace(());
        state.flows.len()
    }

    /// How many bytes to the server have arrived and are not passed on yet.
    pub fn waiting_requests(&self) -> usize {
        self.shared.lock().flows.values().map(|flow| flow.waiting_requests).sum()
    }

    /// How many bytes to clients have arrived and are not passed on yet.
    pub fn waiting_replies(&self) -> usize {
        self.shared.lock().flows.values().map(|flow| flow.waiting_replies).sum()
    }

    /// How many bytes vanished. Those to connections that never got through to the server are not counted.
    pub fn discarded_bytes(&self) -> usize {
        self.shared.lock().discarded_bytes
    }

    fn update(&self, switch: impl FnOnce(&mut ProxyState)) {
        let mut state = self.shared.lock();
        // Whoever has connected is established, also if we had no time to notice.
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
            // If it panicked, that has been shown.
            let _ = thread.join();
        }
    }
}

/// What the switches and the connections have in common.
#[derive(Debug)]
struct SharedState {
    server: SocketAddr,
    state: Mutex<ProxyState>,
    /// Says to the proxy's thread that the state is another.
    woken: watch::Sender<()>,
    /// Says to callers that something they may wait for was done.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct ProxyState {
    requests: DirectionState,
    replies: DirectionState,
    listener: Option<Arc<TcpListener>>,
    /// Whether the proxy's thread has a hold of the listener.
    watching: bool,
    /// Taken, and not yet with the proxy's thread.
    accepted: Vec<(u64, TcpStream)>,
    flows: BTreeMap<u64, Flow>,
    connections: u64,
    discarded_bytes: usize,
    ended: bool,
}

/// What happens to bytes in one direction.
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
    /// Takes all connections that have been made.
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
    /// A test that panicked elsewhere is no reason not to end.
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listener as the proxy's thread waits on it: another handle of the same one.
struct AsyncListener {
    source: Arc<TcpListener>,
    listener: tokio::net::TcpListener,
}

impl AsyncListener {
    fn new(listener: &Arc<TcpListener>) -> io::Result<Self> {
        let other = tokio::net::TcpListener::from_std(listener.try_clone()?)?;
        Ok(Self { source: Arc::clone(listener), listener: other })
    }

    /// Waits until connections were made, and takes them.
    async fn accept_next(acceptor: Option<&Self>, shared: &SharedState) {
        let Some(acceptor) = acceptor else { return pending().await };
        poll_fn(|context| {
            // Taken and counted under one lock, so that no switch is thrown in between.
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

/// Takes connections and has them served, until the proxy is dropped. Returning drops them all.
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
                // Closed before anyone is told so.
                drop(acceptor.take());
                acceptor = state.listener.as_ref().map(|listener| AsyncListener::new(listener).unwrap());
                state.watching = acceptor.is_some();
                shared.settled.notify_all();
            }
        }
        tokio::select! {
            // Never fails: we have the sender, too.
            _ = woken.changed() => {}
            () = AsyncListener::accept_next(acceptor.as_ref(), shared) => {}
        }
    }
}
