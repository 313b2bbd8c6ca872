//! The baseline: one process that polls as much with the same client and stores the results. It has no leases and no
//! take-over.

use std::error::Error;
use std::io::BufRead;
use std::time::{Duration, Instant, SystemTime};

use redis::aio::MultiplexedConnection;
use reqwest::{Client, redirect};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval_at};

use crate::poll_records::unix_millis;
use crate::serve::INTERVAL;

/// The same values as in the service.
const POLL_TIMEOUT: Duration = Duration::from_secs(2);
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const MAX_BODY_BYTES: usize = 4 * 1024;

/// State shared by every task.
#[derive(Clone)]
struct PlainLoop {
    client: Client,
    store: MultiplexedConnection,
    target: String,
}

/// Prints `READY`, starts polling at the first line on stdin, and exits at the end of stdin.
pub fn run(target: &str, store: &str, sessions: usize) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let polls = runtime.block_on(PlainLoop::new(target, store))?;
    println!("READY -");
    let mut stdin = std::io::stdin().lock();
    stdin.read_line(&mut String::new())?;
    let (begun, clock) = (tokio::time::Instant::now(), SystemTime::now());
    for session in 0..sessions {
        // All start within the next interval, at random phases like those of the service.
        let phase = INTERVAL.mul_f64(fastrand::f64());
        runtime.spawn(polls.clone().poll_forever(session, begun + phase, clock + phase));
    }
    std::io::copy(&mut stdin, &mut std::io::sink())?;
    Ok(())
}

impl PlainLoop {
    async fn new(target: &str, store: &str) -> Result<Self, Box<dyn Error>> {
        // Another provider may already be installed, which works as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
            .build()?;
        let store = redis::Client::open(store)?.get_multiplexed_async_connection().await?;
        Ok(Self { client, store, target: target.to_owned() })
    }

    async fn poll_forever(mut self, session: usize, first: tokio::time::Instant, mut due: SystemTime) {
        let mut ticks = interval_at(first, INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        loop {
            ticks.tick().await;
            let (polled_at, began) = (SystemTime::now(), Instant::now());
            let answer = tokio::time::timeout(POLL_TIMEOUT, self.poll_once(session, due)).await;
            let answer = answer.unwrap_or_else(|_| Err("no complete response in time".to_owned()));
            let took = began.elapsed();
            let (answer, error) = match answer {
                Ok(answer) => (Some(answer), None),
                Err(error) => (None, Some(error)),
            };
            let (status, body) = answer.unzip();
            // The service's fields, each of the same length.
            let document = json!({
                "sessionId": format!("00000000-0000-7000-8000-{session:012x}"),
                "instanceId": "api-1-1736598400000000000-a1b2c3d4",
                "token": 1_736_598_400_000_000_u64,
                "dueAt": format!("{:024}", unix_millis(due)),
                "polledAt": format!("{:024}", unix_millis(polled_at)),
                "ok": status.is_some_and(|status| (200..300).contains(&status)),
                "status": status,
                "latencyMs": took.as_micros() as f64 / 1_000.0,
                "body": body,
                "truncated": false,
                "error": error,
            });
            let mut set = redis::cmd("SET");
            set.arg(format!("result:{session}")).arg(document.to_string());
            if let Err(error) = set.query_async::<()>(&mut self.store).await {
                eprintln!("tenure-bench: cannot write a result: {error}");
            }
            due += INTERVAL;
        }
    }

    async fn poll_once(&self, session: usize, due: SystemTime) -> Result<(u16, String), String> {
        let request = self.client.get(format!("{}{session}", self.target)).header("tenure-due", unix_millis(due));
        let mut response = request.send().await.map_err(|error| error.to_string())?;
        let mut body = Vec::new();
        while body.len() < MAX_BODY_BYTES {
            let Some(chunk) = response.chunk().await.map_err(|error| error.to_string())? else { break };
            let room = MAX_BODY_BYTES - body.len();
            body.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
        }
        Ok((response.status().as_u16(), String::from_utf8_lossy(&body).into_owned()))
    }
}
