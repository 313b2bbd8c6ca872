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
/// switches say later. QuarantineReason counts as a byte, and a reset is passed on as closing.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A link to the server at this address, which passes everything on. While nobody listens there, connections to the
    /// proxy are made and then reset.
    ///
    /// # Panics
    /// When the system has no more threads or sockets.
    pub fn to(server: SocketAddr) -> Self {
        let port = Port::take();
        let shared = Arc::new(Shared {
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
                .spawn(move || runtime.block_on(receive(&shared)))
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
        self.throw(|state| {
            state.requests = Line::default();
            state.replies = Line::default();
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
    pub fn swallow(&self) {
        self.throw(|state| {
            state.requests.way = Way::Swallow;
            state.replies.way = Way::Swallow;
        });
    }

    /// All bytes to the server vanish; its replies to what came before still pass.
    pub fn swallow_requests(&self) {
        self.throw(|state| state.requests.way = Way::Swallow);
    }

    /// All replies vanish: the server does what it is asked, and nobody learns of it.
    pub fn swallow_replies(&self) {
        self.throw(|state| state.replies.way = Way::Swallow);
    }

    /// All bytes of the connections there are vanish for good, both ways. New connections work.
    pub fn swallow_established(&self) {
        self.throw(|state| {
            state.flows.values_mut().for_each(|flow| flow.swallowed = true);
            for line in [&mut state.requests, &mut state.replies] {
                if line.way == Way::Swallow {
                    line.way = Way::Pass;
                }
            }
        });
    }

    /// Keeps the bytes to the server, to deliver them when let go: even when the client has closed or reset its connection
    /// by then. That is how the packets of a connection that was given up arrive after those of the next one.
    pub fn hold_requests(&self) {
        self.throw(|state| state.requests.way = Way::Hold);
    }

    /// Keeps the bytes to the clients, to deliver them when let go.
    pub fn hold_replies(&self) {
        self.throw(|state| state.replies.way = Way::Hold);
    }

    /// Keeps the bytes to the server of the connections there are, whose clients may be about to give them up. New
    /// connections work.
    pub fn hold_requests_of_established(&self) {
        self.throw(|state| state.flows.values_mut().for_each(|flow| flow.held = true));
    }

    /// Delivers the requests that were held, and holds no more.
    pub fn let_requests_go(&self) {
        self.throw(State::let_requests_go);
    }

    /// Delivers the replies that were held, and holds no more.
    pub fn let_replies_go(&self) {
        self.throw(State::let_replies_go);
    }

    /// Delivers all that was held, and holds no more.
    pub fn let_go(&self) {
        self.throw(|state| {
            state.let_requests_go();
            state.let_replies_go();
        });
    }

    /// What arrives from now on is passed on this much later, each way. It stays in order.
    pub fn delay(&self, by: Duration) {
        self.throw(|state| {
            state.requests.delay = by;
            state.replies.delay = by;
        });
    }

    /// Requests that arrive from now on are passed on this much later.
    pub fn delay_requests(&self, by: Duration) {
        self.throw(|state| state.requests.delay = by);
    }

    /// Replies that arrive from now on are passed on this much later.
    pub fn delay_replies(&self, by: Duration) {
        self.throw(|state| state.replies.delay = by);
    }

    /// Resets all connections, on both sides, with all that was held in them. New ones work as the other switches say.
    /// Returns when it is done.
    pub fn cut(&self) {
        self.throw(|state| state.flows.values_mut().for_each(|flow| flow.cut = true));
        let done = |state: &mut State| state.flows.values().any(|flow| flow.cut);
        drop(self.shared.settled.wait_while(self.shared.lock(), done).unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes no more connections, as a host where nobody listens. Those that there are go on. Returns when it is done.
    pub fn refuse(&self) {
        self.throw(State::close);
        let done = |state: &mut State| state.watching;
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
    pub fn swallowed(&self) -> usize {
        self.shared.lock().swallowed
    }

    fn throw(&self, switch: impl FnOnce(&mut State)) {
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
        self.throw(|state| {
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
struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
    /// Says to the proxy's thread that the state is another.
    woken: watch::Sender<()>,
    /// Says to callers that something they may wait for was done.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    requests: Line,
    replies: Line,
    listener: Option<Arc<TcpListener>>,
    /// Whether the proxy's thread has a hold of the listener.
    watching: bool,
    /// Taken, and not yet with the proxy's thread.
    arrivals: Vec<(u64, TcpStream)>,
    flows: BTreeMap<u64, Flow>,
    connections: u64,
    swallowed: usize,
    ended: bool,
}

/// What happens to bytes in one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    way: Way,
    delay: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    #[default]
    Pass,
    Hold,
    Swallow,
}

/// A connection, as the switches see it.
#[derive(Debug, Default)]
struct Flow {
    swallowed: bool,
    held: bool,
    cut: bool,
    waiting_requests: usize,
    waiting_replies: usize,
}

impl State {
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
        let unreachable = self.requests.way == Way::Swallow && self.replies.way == Way::Swallow;
        self.connections += 1;
        self.flows.insert(self.connections, Flow { swallowed: unreachable, ..Flow::default() });
        self.arrivals.push((self.connections, stream));
    }

    fn let_requests_go(&mut self) {
        self.flows.values_mut().for_each(|flow| flow.held = false);
        if self.requests.way == Way::Hold {
            self.requests.way = Way::Pass;
        }
    }

    fn let_replies_go(&mut self) {
        if self.replies.way == Way::Hold {
            self.replies.way = Way::Pass;
        }
    }
}

impl Shared {
    /// A test that panicked elsewhere is no reason not to end.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listener as the proxy's thread waits on it: another handle of the same one.
struct Door {
    of: Arc<TcpListener>,
    listener: tokio::net::TcpListener,
}

impl Door {
    fn of(listener: &Arc<TcpListener>) -> io::Result<Self> {
        let other = tokio::net::TcpListener::from_std(listener.try_clone()?)?;
        Ok(Self { of: Arc::clone(listener), listener: other })
    }

    /// Waits until connections were made, and takes them.
    async fn knock(door: Option<&Self>, shared: &Shared) {
        let Some(door) = door else { return pending().await };
        poll_fn(|context| {
            // Taken and counted under one lock, so that no switch is thrown in between.
            let mut state = shared.lock();
            let stream = match ready!(door.listener.poll_accept(context)) {
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
async fn receive(shared: &Arc<Shared>) {
    let mut woken = shared.woken.subscribe();
    let mut door: Option<Door> = None;
    loop {
        woken.mark_unchanged();
        {
            let mut state = shared.lock();
            if state.ended {
                return;
            }
            for (number, stream) in state.arrivals.drain(..) {
                tokio::spawn(flow::serve(Arc::clone(shared), number, stream));
            }
            let is_current = match (&door, &state.listener) {
                (Some(door), Some(listener)) => Arc::ptr_eq(&door.of, listener),
                (None, None) => true,
                _ => false,
            };
            if !is_current {
                // Closed before anyone is told so.
                drop(door.take());
                door = state.listener.as_ref().map(|listener| Door::of(listener).unwrap());
                state.watching = door.is_some();
                shared.settled.notify_all();
            }
        }
        tokio::select! {
            // Never fails: we have the sender, too.
            _ = woken.changed() => {}
            () = Door::knock(door.as_ref(), shared) => {}
        }
    }
}
