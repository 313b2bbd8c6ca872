//! Connections to the API: no more than there is room for, and none that says nothing for too long.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Sleep;

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
        let answers = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(Patient::new(stream)), answers).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // Whoever goes away has gone away.
            let _ = connection.await;
            drop(place);
        });
    }
    graceful.shutdown().await;
}

/// A connection that is given up when whoever is at its other end reads nothing for too long.
struct Patient {
    stream: TcpStream,
    /// Since it could not be written to.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: TcpStream) -> Self {
        Self { stream, stuck: None }
    }

    fn until<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(READS_WITHIN)));
        ready!(stuck.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.until(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.until(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.until(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
