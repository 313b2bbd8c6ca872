//! Accepts connections to the API: no more than there is room for, and none that stays silent for too long.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

use crate::poll::budget::FileBudget;

/// Number of files in reserve, for connections to the API when no other files are left.
const RESERVED_FILES: usize = 16;

/// Timeout of a client for reading the next piece of a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes that may wait for a client that does not read.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// Timeout of a client for sending the request headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay of the next accept after an error such as too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Serves requests until `ended`, then finishes those that have arrived.
pub(crate) async fn serve(listener: TcpListener, router: Router, ended: impl Future<Output = ()>) {
    // A connection waits while all permits are taken.
    let places = Arc::new(Semaphore::new(FileBudget::for_this_process().api));
    let (reserve, graceful) = (FileReserve::new(), GracefulShutdown::new());
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(SEND_BUFFER_BYTES);
    let mut ended = std::pin::pin!(ended);
    loop {
        let next = async {
            // The semaphore is never closed.
            let place = places.clone().acquire_owned().await.ok();
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = &mut ended => break,
        };
        let Ok((stream, _)) = accepted else {
            // Give a reserved file to the waiting connection.
            if !reserve.free_one() {
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
            continue;
        };
        // Both options improve speed or memory; a failure does no harm.
        let _ = stream.set_nodelay(true);
        let _ = set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(WRITE_TIMEOUT));
        let handler = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), handler).into_owned();
        let (connection, reserve) = (graceful.watch(connection), reserve.clone());
        tokio::spawn(async move {
            // A client that disconnects is not an error.
            let _ = connection.await;
            drop(place);
            reserve.refill();
        });
    }
    graceful.shutdown().await;
}

/// Open files in reserve: one is closed when another is needed. Clones share state.
#[derive(Clone)]
struct FileReserve(Arc<Mutex<Vec<File>>>);

impl FileReserve {
    fn new() -> Self {
        let reserve = Self(Arc::default());
        reserve.refill();
        reserve
    }

    /// Closes a reserved file, if there is one.
    fn free_one(&self) -> bool {
        self.lock().pop().is_some()
    }

    fn refill(&self) {
        let mut files = self.lock();
        while files.len() < RESERVED_FILES
            && let Ok(file) = File::open("/dev/null")
        {
            files.push(file);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use rustix::net::sockopt::set_socket_recv_buffer_size;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::*;

    /// Starts a server whose response exceeds all buffers.
    async fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(|| async { "x".repeat(50_000_000) }));
        tokio::spawn(serve(listener, router, std::future::pending()));
        address
    }

    /// With paused time, timeouts pass at once when nothing else runs.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_no_request_is_disconnected() {
        let mut stream = TcpStream::connect(start().await).await.unwrap();
        let begun = Instant::now();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a").await.unwrap();
        assert_eq!(stream.read(&mut [0; 1_000]).await.unwrap_or(0), 0);
        assert!(begun.elapsed() >= HEADER_TIMEOUT && begun.elapsed() < WRITE_TIMEOUT, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_disconnected() {
        let mut stream = TcpStream::connect(start().await).await.unwrap();
        set_socket_recv_buffer_size(&stream, 4_096).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        tokio::time::sleep(WRITE_TIMEOUT * 3).await;
        // The buffered part arrives, and no more.
        let mut arrived = Vec::new();
        let _ = stream.read_to_end(&mut arrived).await;
        assert!(arrived.len() < 50_000_000, "{}", arrived.len());
    }
}
