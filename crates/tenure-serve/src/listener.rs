//! Connections to the API: no more than there is room for, and none that says nothing for too long.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// How many connections there may be at a time. Whoever comes then waits.
const CONNECTIONS: usize = 4_096;

/// How much may wait for somebody who does not read.
const UNREAD: usize = 64 * 1024;

/// How long somebody may take to say what it wants.
const ASKS_WITHIN: Duration = Duration::from_secs(10);

/// How long after something like too many open files the next connection is taken.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers until it is told to end, and then what was asked by then.
pub(crate) async fn serve(listener: TcpListener, router: Router, ended: impl Future<Output = ()>) {
    let (places, graceful) = (Arc::new(Semaphore::new(CONNECTIONS)), GracefulShutdown::new());
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
        let answers = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), answers).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // Whoever goes away has gone away.
            let _ = connection.await;
            drop(place);
        });
    }
    graceful.shutdown().await;
}
