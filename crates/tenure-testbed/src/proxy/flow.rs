//! One connection through the proxy.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::{Shared, State, Way};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

/// Carries what is said over this connection until both sides have closed it or it is cut.
pub(super) async fn serve(shared: Arc<Shared>, number: u64, client: std::net::TcpStream) {
    connect_and_carry(&shared, number, client).await;
    shared.lock().flows.remove(&number);
    shared.settled.notify_all();
}

async fn connect_and_carry(shared: &Shared, number: u64, client: std::net::TcpStream) {
    // Both fail only for a socket that is gone.
    let Ok(client) = client.set_nonblocking(true).and_then(|()| TcpStream::from_std(client)) else { return };
    let _ = client.set_nodelay(true);
    if shared.lock().flows.get(&number).is_some_and(|flow| flow.swallowed) {
        cut(shared, number).await;
        let _ = client.set_zero_linger();
        return;
    }
    let server = tokio::select! {
        server = TcpStream::connect(shared.server) => server.ok(),
        () = cut(shared, number) => None,
    };
    let Some(server) = server else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = server.set_nodelay(true);
    let requests = carry(shared, number, Direction::Requests, &client, &server);
    let replies = carry(shared, number, Direction::Replies, &server, &client);
    tokio::select! {
        _ = async { tokio::join!(requests, replies) } => {}
        () = cut(shared, number) => {
            let _ = client.set_zero_linger();
            let _ = server.set_zero_linger();
        }
    }
}

/// Waits until this connection is to be cut.
async fn cut(shared: &Shared, number: u64) {
    let mut woken = shared.woken.subscribe();
    loop {
        woken.mark_unchanged();
        if shared.lock().flows.get(&number).is_none_or(|flow| flow.cut) {
            return;
        }
        // Never fails: the sender is in `shared`.
        let _ = woken.changed().await;
    }
}

/// What was read at once; nothing stands for the end.
struct Piece {
    due: Instant,
    bytes: VecDeque<u8>,
}

/// What has arrived in one direction and was not passed on.
struct Queue {
    number: u64,
    direction: Direction,
    pieces: VecDeque<Piece>,
    /// Bytes vanished, so that nothing can follow them.
    torn: bool,
    /// The receiver is gone.
    pointless: bool,
}

/// What to do with the first piece.
enum Next {
    /// Nothing, or there is none.
    Wait,
    /// Nothing until then.
    WaitUntil(Instant),
    Deliver,
}

/// Carries one direction to its end. Where bytes vanished, it has none.
async fn carry(shared: &Shared, number: u64, direction: Direction, from: &TcpStream, to: &TcpStream) {
    let mut woken = shared.woken.subscribe();
    let mut queue = Queue { number, direction, pieces: VecDeque::new(), torn: false, pointless: false };
    let mut open = true;
    loop {
        woken.mark_unchanged();
        let next = queue.next(&mut shared.lock());
        let (due, deliver) = match next {
            Next::Wait => (None, false),
            Next::WaitUntil(due) => (Some(due), false),
            Next::Deliver => (None, true),
        };
        tokio::select! {
            // Never fails: the sender is in `shared`.
            _ = woken.changed() => {}
            _ = from.readable(), if open => open = queue.read(&mut shared.lock(), from),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            _ = to.writable(), if deliver => {
                if queue.deliver(&mut shared.lock(), to) {
                    return;
                }
            }
        }
    }
}

impl Queue {
    fn next(&mut self, state: &mut State) -> Next {
        let line = match self.direction {
            Direction::Requests => state.requests,
            Direction::Replies => state.replies,
        };
        let (swallowed, held) = state.flows.get(&self.number).map_or((true, false), |flow| (flow.swallowed, flow.held));
        if self.torn || swallowed || line.way == Way::Swallow {
            self.torn |= !self.pieces.is_empty();
            state.swallowed += self.waiting();
            self.pieces.clear();
        }
        if self.pointless {
            self.pieces.retain(|piece| piece.bytes.is_empty());
        }
        self.report(state);
        let held = line.way == Way::Hold || (held && self.direction == Direction::Requests);
        match self.pieces.front() {
            Some(piece) if !held && piece.due <= Instant::now() => Next::Deliver,
            Some(piece) if !held => Next::WaitUntil(piece.due),
            _ => Next::Wait,
        }
    }

    /// Reads all there is. Returns whether there may be more.
    fn read(&mut self, state: &mut State, from: &TcpStream) -> bool {
        let delay = match self.direction {
            Direction::Requests => state.requests.delay,
            Direction::Replies => state.replies.delay,
        };
        let mut bytes = [0; 16 * 1024];
        loop {
            let read = match from.try_read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Ok(count) => count,
                // A reset loses nothing here that had arrived before it.
                Err(_) => 0,
            };
            self.pieces
                .push_back(Piece { due: Instant::now() + delay, bytes: bytes[..read].iter().copied().collect() });
            self.report(state);
            if read == 0 {
                return false;
            }
        }
    }

    /// Passes on what may be passed on. Returns whether that was the end.
    fn deliver(&mut self, state: &mut State, to: &TcpStream) -> bool {
        while let Next::Deliver = self.next(state) {
            let Some(piece) = self.pieces.front_mut() else { return false };
            if piece.bytes.is_empty() {
                // It may have closed already.
                let _ = shutdown(to, Shutdown::Write);
                return true;
            }
            match to.try_write(piece.bytes.make_contiguous()) {
                Ok(count) => drop(piece.bytes.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => self.pointless = true,
            }
            if self.pieces.front().is_some_and(|piece| piece.bytes.is_empty()) && !self.pointless {
                self.pieces.pop_front();
            }
        }
        false
    }

    fn waiting(&self) -> usize {
        self.pieces.iter().map(|piece| piece.bytes.len()).sum()
    }

    fn report(&self, state: &mut State) {
        if let Some(flow) = state.flows.get_mut(&self.number) {
            match self.direction {
                Direction::Requests => flow.waiting_requests = self.waiting(),
                Direction::Replies => flow.waiting_replies = self.waiting(),
            }
        }
    }
}
