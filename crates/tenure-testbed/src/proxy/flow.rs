//! One connection through the proxy.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::{FlowMode, ProxyState, SharedState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowDirection {
    Requests,
    Replies,
}

/// Forwards the data of this connection until both sides have closed it or it is reset.
pub(super) async fn serve(shared: Arc<SharedState>, number: u64, client: std::net::TcpStream) {
    connect_and_carry(&shared, number, client).await;
    shared.lock().flows.remove(&number);
    shared.settled.notify_all();
}

async fn connect_and_carry(shared: &SharedState, number: u64, client: std::net::TcpStream) {
    // Both fail only for a socket that is gone.
    let Ok(client) = client.set_nonblocking(true).and_then(|()| TcpStream::from_std(client)) else { return };
    let _ = client.set_nodelay(true);
    if shared.lock().flows.get(&number).is_some_and(|flow| flow.blackholed) {
        wait_for_reset(shared, number).await;
        let _ = client.set_zero_linger();
        return;
    }
    let to = *shared.server.lock().unwrap();
    let server = tokio::select! {
        server = TcpStream::connect(to) => server.ok(),
        () = wait_for_reset(shared, number) => None,
    };
    let Some(server) = server else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = server.set_nodelay(true);
    let requests = carry(shared, number, FlowDirection::Requests, &client, &server);
    let replies = carry(shared, number, FlowDirection::Replies, &server, &client);
    tokio::select! {
        _ = async { tokio::join!(requests, replies) } => {}
        () = wait_for_reset(shared, number) => {
            let _ = client.set_zero_linger();
            let _ = server.set_zero_linger();
        }
    }
}

/// Waits until this connection is to be reset.
async fn wait_for_reset(shared: &SharedState, number: u64) {
    let mut woken = shared.woken.subscribe();
    loop {
        woken.mark_unchanged();
        if shared.lock().flows.get(&number).is_none_or(|flow| flow.reset) {
            return;
        }
        // Never fails: the sender is in `shared`.
        let _ = woken.changed().await;
    }
}

/// The bytes of one read; an empty chunk stands for the end.
struct Chunk {
    due: Instant,
    bytes: VecDeque<u8>,
}

/// Bytes that have arrived in one direction and have not been forwarded.
struct Queue {
    number: u64,
    direction: FlowDirection,
    chunks: VecDeque<Chunk>,
    /// Whether bytes were discarded, so that nothing may follow them.
    has_gap: bool,
    /// Whether the receiver is gone.
    receiver_gone: bool,
}

/// The next step for the first chunk.
enum NextStep {
    /// Wait, or there is no chunk.
    Wait,
    /// Wait until that time.
    WaitUntil(Instant),
    Deliver,
}

/// Forwards one direction to its end. A direction with discarded bytes has no end.
async fn carry(shared: &SharedState, number: u64, direction: FlowDirection, from: &TcpStream, to: &TcpStream) {
    let mut woken = shared.woken.subscribe();
    let mut queue = Queue { number, direction, chunks: VecDeque::new(), has_gap: false, receiver_gone: false };
    let mut open = true;
    loop {
        woken.mark_unchanged();
        let next = queue.next(&mut shared.lock());
        let (due, deliver) = match next {
            NextStep::Wait => (None, false),
            NextStep::WaitUntil(due) => (Some(due), false),
            NextStep::Deliver => (None, true),
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
    fn next(&mut self, state: &mut ProxyState) -> NextStep {
        let line = match self.direction {
            FlowDirection::Requests => state.requests,
            FlowDirection::Replies => state.replies,
        };
        let (blackholed, held) =
            state.flows.get(&self.number).map_or((true, false), |flow| (flow.blackholed, flow.held));
        if self.has_gap || blackholed || line.mode == FlowMode::Blackhole {
            self.has_gap |= !self.chunks.is_empty();
            state.discarded_bytes += self.waiting();
            self.chunks.clear();
        }
        if self.receiver_gone {
            self.chunks.retain(|chunk| chunk.bytes.is_empty());
        }
        self.report(state);
        let held = line.mode == FlowMode::Hold || (held && self.direction == FlowDirection::Requests);
        match self.chunks.front() {
            Some(chunk) if !held && chunk.due <= Instant::now() => NextStep::Deliver,
            Some(chunk) if !held => NextStep::WaitUntil(chunk.due),
            _ => NextStep::Wait,
        }
    }

    /// Reads all available bytes. Returns whether more may follow.
    fn read(&mut self, state: &mut ProxyState, from: &TcpStream) -> bool {
        let delay = match self.direction {
            FlowDirection::Requests => state.requests.delay,
            FlowDirection::Replies => state.replies.delay,
        };
        let mut bytes = [0; 16 * 1024];
        loop {
            let read = match from.try_read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Ok(count) => count,
                // A reset does not lose bytes that arrived before it.
                Err(_) => 0,
            };
            self.chunks
                .push_back(Chunk { due: Instant::now() + delay, bytes: bytes[..read].iter().copied().collect() });
            self.report(state);
            if read == 0 {
                return false;
            }
        }
    }

    /// Forwards the chunks that are due. Returns whether that was the end.
    fn deliver(&mut self, state: &mut ProxyState, to: &TcpStream) -> bool {
        while let NextStep::Deliver = self.next(state) {
            let Some(chunk) = self.chunks.front_mut() else { return false };
            if chunk.bytes.is_empty() {
                // The receiver may have closed it already.
                let _ = shutdown(to, Shutdown::Write);
                return true;
            }
            match to.try_write(chunk.bytes.make_contiguous()) {
                Ok(count) => drop(chunk.bytes.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => self.receiver_gone = true,
            }
            if self.chunks.front().is_some_and(|chunk| chunk.bytes.is_empty()) && !self.receiver_gone {
                self.chunks.pop_front();
            }
        }
        false
    }

    fn waiting(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes.len()).sum()
    }

    fn report(&self, state: &mut ProxyState) {
        if let Some(flow) = state.flows.get_mut(&self.number) {
            match self.direction {
                FlowDirection::Requests => flow.waiting_requests = self.waiting(),
                FlowDirection::Replies => flow.waiting_replies = self.waiting(),
            }
        }
    }
}
