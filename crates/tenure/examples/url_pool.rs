//! Polls the URLs of a file. Any number of processes share them: each URL is polled by exactly one.
//!
//! ```sh
//! for n in $(seq 20); do echo "site-$n http://127.0.0.1:8080/$n 250"; done > sites.txt
//! cargo run -p tenure --example url_pool -- sites.txt
//! cargo run -p tenure --example url_pool -- sites.txt     # in a second terminal: ten URLs move to it
//! ```
//!
//! Each line is a name, a URL and a limit in milliseconds. `SIGHUP` reads the file again, Ctrl-C hands over.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tenure::{Tenure, Token};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};

const TTL: Duration = Duration::from_secs(3);
const POLL_EVERY: Duration = Duration::from_secs(2);

/// What is polled, and what counts as slow.
struct Site {
    url: String,
    limit: Duration,
}

/// The state that all work shares: how often each site was slow. A real one also has an HTTP client.
#[derive(Clone, Default)]
struct Poller {
    slow: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Poller {
    async fn poll(&self, name: &str, site: &Site, token: Token) -> anyhow::Result<()> {
        let start = Instant::now();
        let status = tokio::time::timeout(POLL_EVERY, get(&site.url, token)).await.context("no answer in time")??;
        anyhow::ensure!(status == 200, "{} answers {status}", site.url);
        let (elapsed, limit) = (start.elapsed(), site.limit);
        println!("{name}: {status} in {elapsed:.0?}, limit {limit:?}, term {token}");
        if elapsed > limit {
            *self.slow().entry(name.to_owned()).or_default() += 1;
        }
        Ok(())
    }

    fn slow(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let path = std::env::args().nth(1).context("usage: url_pool FILE")?;
    let store = std::env::var("TENURE_STORE").unwrap_or_else(|_| "redis://localhost".to_owned());
    let tenure = Tenure::connect(&store).await.context("cannot connect to the store")?;
    let poller = Poller::default();
    let pool = tenure
        .pool("sites")
        .ttl(TTL)
        .state(poller.clone())
        .targets(read_sites(&path)?)
        .run(async |poller, mut target, term| {
            let mut ticks = term.every(POLL_EVERY);
            while let Some(_tick) = ticks.next().await {
                target.refresh(); // the file may have been read again since the last poll
                poller.poll(target.name(), &target, term.token()).await?;
            }
            Ok(())
        })
        .start()?;

    let mut events = pool.events().notable();
    let mut reload = signal(SignalKind::hangup())?;
    let mut stop = pin!(tokio::signal::ctrl_c());
    loop {
        tokio::select! {
            Some(event) = events.next() => println!("{event}"), // terms, and work that failed
            _ = reload.recv() => {
                match read_sites(&path).and_then(|sites| Ok(pool.retarget(sites)?)) {
                    Ok(()) => println!("read {path} again; {} sites are polled here", pool.owned().len()),
                    Err(error) => eprintln!("cannot read {path:?} again: {error:#}; the sites stay as they are"),
                }
            }
            result = &mut stop => break result?,
        }
    }

    let report = pool.stop().await;
    println!("{} sites not handed over; slow: {:?}", report.not_handed_over.len(), poller.slow());
    tenure.shutdown().await;
    Ok(())
}

/// A plain HTTP request. Returns the status.
async fn get(url: &str, token: Token) -> anyhow::Result<u16> {
    let (host, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).context("not an http URL")?;
    let mut stream = TcpStream::connect(host).await.with_context(|| format!("cannot connect to {host}"))?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nTenure-Token: {token}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut first_line = String::new();
    BufReader::new(stream).read_line(&mut first_line).await?;
    first_line.split(' ').nth(1).context("no status")?.parse().context("not a status")
}

fn read_sites(path: &str) -> anyhow::Result<Vec<(String, Site)>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path:?}"))?;
    let sites = text.lines().map(|line| {
        let [name, url, limit] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            anyhow::bail!("expected a name, a URL and milliseconds, got {line:?}");
        };
        let limit = limit.parse().with_context(|| format!("cannot read the limit {limit:?} of {name}"))?;
        Ok((name.to_owned(), Site { url: url.to_owned(), limit: Duration::from_millis(limit) }))
    });
    sites.collect()
}
