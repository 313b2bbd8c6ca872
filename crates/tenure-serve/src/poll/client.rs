//! Asks a target over HTTP: nowhere that it should not go, for no longer than it should take, and no more than it should read.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, header};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Response, redirect};
use rustix::io::Errno;
use thiserror::Error;
use url::Url;

use super::lookup::{LookUp, LookUps, by_system};
use super::safety::{Allowed, Forbidden};

/// How often a target may send us elsewhere.
const REDIRECTS: usize = 5;

/// How much of an answer is kept.
const BODY_KEPT: usize = 4 * 1024;

/// How long a connection is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(90);

/// What a target answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status of HTTP.
    pub status: u16,
    /// What it said, as far as it is kept; what is no text is made visible.
    pub body: String,
    /// Whether there was more.
    pub truncated: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// In words.
    pub words: String,
    /// Whether it is this host's, and says nothing about the target.
    pub is_ours: bool,
}

impl From<String> for Trouble {
    fn from(words: String) -> Self {
        Self { words, is_ours: false }
    }
}

/// A client for all targets.
#[derive(Clone, Debug)]
pub struct PollClient {
    client: Client,
    allowed: Arc<Allowed>,
}

/// Why there can be no client.
#[derive(Debug, Error)]
#[error("HTTP cannot be used: {0}")]
pub struct ClientError(#[from] reqwest::Error);

impl PollClient {
    /// A client that connects to what is allowed.
    ///
    /// # Errors
    /// When the system's certificates cannot be used.
    pub fn new(allowed: Allowed) -> Result<Self, ClientError> {
        Self::looking_up(allowed, by_system())
    }

    /// The same, with another way to look names up than the system's.
    ///
    /// # Errors
    /// When the system's certificates cannot be used.
    pub fn looking_up(allowed: Allowed, look_up: LookUp) -> Result<Self, ClientError> {
        let allowed = Arc::new(allowed);
        // Somebody else may have chosen first, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .redirect(redirect::Policy::none())
            .dns_resolver(Arc::new(Guarded { allowed: allowed.clone(), lookups: LookUps::new(look_up) }))
            .no_proxy()
            .pool_idle_timeout(IDLE)
            .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { client, allowed })
    }

    /// Asks a target, with its own headers and ours, and reads its answer unless it is only looked at.
    ///
    /// # Errors
    /// In words: no answer in time, nobody there, or somewhere that must not be asked.
    ///
    /// # Cancel safety
    /// The connection is closed.
    pub async fn ask(
        &self,
        url: &Url,
        own: &HeaderMap,
        ours: &HeaderMap,
        limit: Duration,
        light: bool,
    ) -> Result<Answer, Trouble> {
        match tokio::time::timeout(limit, self.follow(url, own, ours, light)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no whole answer within {}", crate::session::written(limit)).into()),
        }
    }

    async fn follow(&self, first: &Url, own: &HeaderMap, ours: &HeaderMap, light: bool) -> Result<Answer, Trouble> {
        let mut url = first.clone();
        for _ in 0..=REDIRECTS {
            self.check(&url)?;
            let mut request = self.client.get(url.clone()).headers(ours.clone());
            // What was given for one place is not told to another.
            if url.origin() == first.origin() {
                request = request.headers(own.clone());
            }
            let response = request.send().await.map_err(|error| in_words(&error))?;
            match elsewhere(&url, &response) {
                Some(next) => url = next?,
                None => return read(response, light).await,
            }
        }
        Err(format!("it sends us elsewhere more than {REDIRECTS} times").into())
    }

    fn check(&self, url: &Url) -> Result<(), String> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("it sends us to {}:, which is not polled", url.scheme()));
        }
        self.allowed.check(url).map_err(|forbidden| forbidden.to_string())
    }
}

/// Where the target sends us, if it does.
fn elsewhere(url: &Url, response: &Response) -> Option<Result<Url, String>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(header::LOCATION)?;
    let next = location.to_str().ok().and_then(|location| url.join(location).ok());
    Some(next.ok_or_else(|| "it sends us somewhere that is no URL".to_owned()))
}

async fn read(mut response: Response, light: bool) -> Result<Answer, Trouble> {
    let status = response.status().as_u16();
    let (mut body, mut truncated) = (Vec::new(), light);
    while !light && !truncated {
        let Some(chunk) = response.chunk().await.map_err(|error| in_words(&error))? else { break };
        let room = BODY_KEPT - body.len();
        truncated = chunk.len() > room;
        body.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
    }
    Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned(), truncated })
}

/// The whole chain of causes, without the URL: it may have secrets in it. An address that must not be polled says enough by itself.
fn in_words(error: &reqwest::Error) -> Trouble {
    let (mut words, mut is_ours) = (Vec::new(), false);
    let mut cause = error.source();
    while let Some(error) = cause {
        is_ours |= error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error).is_some_and(is_shortage);
        let text = error.to_string();
        if error.is::<Forbidden>() {
            words.clear();
        }
        if words.last() != Some(&text) {
            words.push(text);
        }
        cause = error.source();
    }
    let words = if words.is_empty() { "the request failed".to_owned() } else { words.join(": ") };
    Trouble { words, is_ours }
}

/// Too many open files here or in the whole system, no memory, no ports left: that says nothing about a target.
fn is_shortage(code: i32) -> bool {
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL]
        .iter()
        .any(|shortage| shortage.raw_os_error() == code)
}

/// Looks names up whenever they are connected to, and leaves out what must not be.
struct Guarded {
    allowed: Arc<Allowed>,
    lookups: LookUps,
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let (allowed, lookups) = (self.allowed.clone(), self.lookups.clone());
        Box::pin(async move {
            let found = lookups.find(name.as_str()).await?;
            let permitted: Vec<SocketAddr> =
                found.iter().copied().filter(|address| allowed.permits(address.ip())).collect();
            match (permitted.is_empty(), found.first()) {
                (true, Some(first)) => Err(Forbidden(first.ip()).into()),
                _ => Ok(Box::new(permitted.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tenure_testbed::web::WebServer;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A name that stands for an address that may be polled when it is first looked up, and for another after that.
    #[tokio::test]
    async fn a_name_that_moves_to_where_nobody_may_go_is_not_followed() {
        let outside = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let port = outside.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = outside.accept().await.unwrap();
                let _ = stream.read(&mut [0; 4_096]).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok").await;
            }
        });
        let inside = WebServer::start();
        let looks = Arc::new(AtomicUsize::new(0));
        let look_up: LookUp = Arc::new(move |_| {
            let first = looks.fetch_add(1, Ordering::Relaxed) == 0;
            let address = if first { [127, 0, 0, 2] } else { [127, 0, 0, 1] };
            Box::pin(async move { Ok(vec![SocketAddr::from((address, 0))]) })
        });
        let allowed = Allowed { near: false, nets: vec!["127.0.0.2/32".parse().unwrap()] };
        let client = PollClient::looking_up(allowed, look_up).unwrap();
        let url = Url::parse(&format!("http://rebinds.example:{port}/")).unwrap();
        let none = HeaderMap::new();
        let limit = Duration::from_secs(60);
        let first = client.ask(&url, &none, &none, limit, false).await;
        assert_eq!(first.map(|answer| answer.body), Ok("ok".to_owned()));
        for _ in 0..3 {
            let later = client.ask(&url, &none, &none, limit, false).await.unwrap_err().words;
            assert!(later.contains("127.0.0.1 is not polled"), "{later}");
        }
        assert!(inside.visits().is_empty());
    }
}
