//! Connections to the API: no more than there is room for, and none that says nothing for too long.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::process::{Resource, getrlimit};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

/// How many connections there may be at a time, if there are files for twice as many: polls need some. Whoever comes then waits.
const CONNECTIONS: usize = 4_096;

/// How long somebody may take to read the next piece of what it asked for.
const READS_WITHIN: Duration = Duration::from_secs(30);

/// How much may wait for somebody who does not read.
const UNREAD: usize = 64 * 1024;

/// How long somebody may take to say what it wants.
const ASKS_WITHIN: Duration = Duration::from_secs(10);

/// How long after something like too many open files the next connection is taken.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers until it is told to end, and then what was asked by then.
pub(crate) async fn serve(listener: TcpListener, router: Router, ended: impl Future<Output = ()>) {
    let files =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let (places, graceful) = (Arc::new(Semaphore::new(CONNECTIONS.min(files / 2))), GracefulShutdown::new());
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(ASKS_WITHIN).max_buf_size(UNREAD);
    let mut ended = std::pin::pin!(ended);
    loop {
        let next = async {
            // It is never closed.
            let place = places.clone().acquire_owned().await.ok();
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = &mut ended => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // Both are good for speed and memory, and nothing is lost without them.
        let _ = stream.set_nodelay(true);
        let _ = set_socket_send_buffer_size(&stream, UNREAD);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(READS_WITHIN));
        let answers = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), answers).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // Whoever goes away has gone away.
            let _ = connection.await;
            drop(place);
        });
    }
    graceful.shutdown().await;
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

    /// A server that answers with more than anybody lets wait.
    async fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(|| async { "x".repeat(50_000_000) }));
        tokio::spawn(serve(listener, router, std::future::pending()));
        address
    }

    /// Time goes by at once when nothing else does.
    #[tokio::test(start_paused = true)]
    async fn whoever_does_not_say_what_it_wants_is_let_go_of() {
        let mut stream = TcpStream::connect(start().await).await.unwrap();
        let begun = Instant::now();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a").await.unwrap();
        assert_eq!(stream.read(&mut [0; 1_000]).await.unwrap_or(0), 0);
        assert!(begun.elapsed() >= ASKS_WITHIN && begun.elapsed() < READS_WITHIN, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_reads_nothing_is_let_go_of() {
        let mut stream = TcpStream::connect(start().await).await.unwrap();
        set_socket_recv_buffer_size(&stream, 4_096).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        tokio::time::sleep(READS_WITHIN * 3).await;
        // What was under way arrives, and then nothing more.
        let mut arrived = Vec::new();
        let _ = stream.read_to_end(&mut arrived).await;
        assert!(arrived.len() < 50_000_000, "{}", arrived.len());
    }
}
