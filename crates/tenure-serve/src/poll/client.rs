//! Asks a target over HTTP: nowhere that it should not go, for no longer than it should take, and no more than it should read.

use std::error::Error as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, header};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Response, redirect};
use thiserror::Error;
use url::{Host, Url};

use super::safety::Allowed;

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
        let allowed = Arc::new(allowed);
        // Somebody else may have chosen first, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .redirect(redirect::Policy::none())
            .dns_resolver(Arc::new(Guarded(allowed.clone())))
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
    ) -> Result<Answer, String> {
        match tokio::time::timeout(limit, self.follow(url, own, ours, light)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no whole answer within {}", crate::session::written(limit))),
        }
    }

    async fn follow(&self, first: &Url, own: &HeaderMap, ours: &HeaderMap, light: bool) -> Result<Answer, String> {
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
        Err(format!("it sends us elsewhere more than {REDIRECTS} times"))
    }

    /// A name is looked up when it is connected to, and checked then. An address is not looked up.
    fn check(&self, url: &Url) -> Result<(), String> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("it sends us to {}:, which is not polled", url.scheme()));
        }
        let address: IpAddr = match url.host() {
            Some(Host::Ipv4(address)) => address.into(),
            Some(Host::Ipv6(address)) => address.into(),
            _ => return Ok(()),
        };
        if self.allowed.permits(address) { Ok(()) } else { Err(Forbidden(address).to_string()) }
    }
}

/// An address that must not be polled.
#[derive(Debug, Error)]
#[error("{0} is not polled: {why}", why = if super::safety::is_near(*.0) { "private networks have to be allowed with --allow-targets" } else { "such addresses never are" })]
struct Forbidden(IpAddr);

/// Where the target sends us, if it does.
fn elsewhere(url: &Url, response: &Response) -> Option<Result<Url, String>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(header::LOCATION)?;
    let next = location.to_str().ok().and_then(|location| url.join(location).ok());
    Some(next.ok_or_else(|| "it sends us somewhere that is no URL".to_owned()))
}

async fn read(mut response: Response, light: bool) -> Result<Answer, String> {
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

/// The whole chain of causes, without the URL: it may have secrets in it.
fn in_words(error: &reqwest::Error) -> String {
    let mut words = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if words.last() != Some(&text) {
            words.push(text);
        }
        cause = error.source();
    }
    if words.is_empty() { "the request failed".to_owned() } else { words.join(": ") }
}

/// Looks names up, and leaves out what must not be connected to.
struct Guarded(Arc<Allowed>);

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let allowed = self.0.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let permitted: Vec<SocketAddr> =
                found.iter().copied().filter(|address| allowed.permits(address.ip())).collect();
            match (permitted.is_empty(), found.first()) {
                (true, Some(first)) => Err(Forbidden(first.ip()).into()),
                _ => Ok(Box::new(permitted.into_iter()) as Addrs),
            }
        })
    }
}
