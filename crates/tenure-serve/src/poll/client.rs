//! Polls a target over HTTP, within limits on addresses, time and size.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, header};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Response, redirect};
use rustix::io::Errno;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::Instant;
use url::{Origin, Url};

use super::address_policy::{AddressPolicy, ForbiddenAddress};
use super::budget::FileBudget;
use super::lookup::{LookupFn, LookupKind, Lookups};
use super::resolver::system_lookup;

/// Number of redirects to follow.
const MAX_REDIRECTS: usize = 5;

/// Time that an unused connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// A target whose poll takes longer than this is slow.
const SLOW_AFTER: Duration = Duration::from_secs(1);

/// Number of polls allowed in flight however short of files this instance is.
const MIN_POLLS_IN_FLIGHT: usize = 2;

/// Response of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollResponse {
    /// The HTTP status.
    pub status: u16,
    /// The kept part of the body; bytes that are not text are replaced visibly.
    pub body: String,
    /// Whether the body was longer.
    pub truncated: bool,
}

/// Why a poll has no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollError {
    /// The cause, as text.
    pub message: String,
    /// Where the fault lies.
    pub fault: PollFault,
}

/// Where the fault for a missing response lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollFault {
    /// With the target.
    Target,
    /// With the target: it needs more resources than this instance has at present.
    Exhausts {
        /// Whether a file or socket could not be opened.
        has_shortage: bool,
    },
    /// With this instance, which lacks a resource. It says nothing about the target.
    Instance,
    /// With this instance, whose permits for polls were all taken. It says nothing about the target.
    Saturated,
}

impl From<String> for PollError {
    fn from(message: String) -> Self {
        Self { message, fault: PollFault::Target }
    }
}

/// HTTP client for all targets. Clones share state.
#[derive(Clone, Debug)]
pub struct PollClient(Arc<ClientShared>);

#[derive(Debug)]
struct ClientShared {
    /// For targets whose connection is kept until the next poll.
    keep_alive_client: Client,
    /// For other targets.
    close_client: Client,
    /// For redirects to another origin, which may differ every time: no connection is kept.
    redirect_client: Client,
    policy: Arc<AddressPolicy>,
    /// Permits for polls in flight. Some are withheld after files ran out.
    polls: Semaphore,
    max_polls: usize,
    /// Permits for slow and unknown targets: half of all, so that quick targets have the rest.
    slow_polls: Semaphore,
    withheld: AtomicUsize,
    /// Permits for kept connections.
    keep_alive: Arc<Semaphore>,
    strained: AtomicBool,
}

/// Why a client cannot be created.
#[derive(Debug, Error)]
#[error("cannot create the HTTP client: {0}")]
pub struct ClientError(#[from] reqwest::Error);

impl PollClient {
    /// Creates a client that connects only to permitted addresses.
    ///
    /// # Errors
    /// When the system's certificates cannot be used.
    pub fn new(policy: AddressPolicy) -> Result<Self, ClientError> {
        Self::with_lookup(policy, system_lookup(), FileBudget::for_this_process())
    }

    /// Creates a client with another name lookup than the system's.
    ///
    /// # Errors
    /// When the system's certificates cannot be used.
    pub fn with_lookup(policy: AddressPolicy, look_up: LookupFn, budget: FileBudget) -> Result<Self, ClientError> {
        let policy = Arc::new(policy);
        // Another provider may have been installed first, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let lookups = Lookups::new(look_up, budget.lookups);
        let client = |lookup_kind, idle| {
            Client::builder()
                .redirect(redirect::Policy::none())
                .dns_resolver(Arc::new(PolicyResolver {
                    policy: policy.clone(),
                    lookups: lookups.clone(),
                    lookup_kind,
                }))
                .no_proxy()
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_max_idle_per_host(idle)
                .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
                .build()
        };
        Ok(Self(Arc::new(ClientShared {
            // Each target has one connection at a time, so their number is bounded by the permits.
            keep_alive_client: client(LookupKind::Target, usize::MAX)?,
            close_client: client(LookupKind::Target, 0)?,
            redirect_client: client(LookupKind::Redirect, 0)?,
            polls: Semaphore::new(budget.polls),
            max_polls: budget.polls,
            slow_polls: Semaphore::new((budget.polls / 2).max(1)),
            withheld: AtomicUsize::new(0),
            keep_alive: Arc::new(Semaphore::new(budget.keep_alive)),
            strained: AtomicBool::new(false),
            policy,
        })))
    }

    /// Creates the client of one target.
    pub fn for_target(&self) -> TargetClient {
        TargetClient { client: self.clone(), keep_alive: None, is_quick: false }
    }

    /// Sets whether this instance is strained. A strained instance does not follow redirects to other origins, because
    /// they cost most.
    pub fn set_strained(&self, strained: bool) {
        self.0.strained.store(strained, Ordering::Relaxed);
        if !strained {
            self.0.polls.add_permits(self.0.withheld.swap(0, Ordering::Relaxed));
        }
    }

    /// Withholds the permit of a poll that got no file, so that fewer run at once and the API and the store have files
    /// left.
    fn withhold(&self, permit: SemaphorePermit<'_>) {
        let most = self.0.max_polls.saturating_sub(MIN_POLLS_IN_FLIGHT);
        let one_more = |withheld: usize| (withheld < most).then_some(withheld + 1);
        if self.0.withheld.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok() {
            permit.forget();
        }
    }

    fn check(&self, url: &Url) -> Result<(), String> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("the target redirects to {}:, which is not polled", url.scheme()));
        }
        self.0.policy.check(url).map_err(|forbidden| forbidden.to_string())
    }
}

/// Client of one target, with one connection open at a time.
#[derive(Debug)]
pub struct TargetClient {
    client: PollClient,
    /// The permit for the kept connection, and its origin.
    keep_alive: Option<(Origin, OwnedSemaphorePermit)>,
    /// Whether its last poll was quick.
    is_quick: bool,
}

impl TargetClient {
    /// Polls the target with the session's headers and Tenure's, and reads the response.
    ///
    /// # Errors
    /// When the target did not respond in time or at all, or its address must not be polled.
    ///
    /// # Cancel safety
    /// Closes the connection.
    pub async fn fetch(
        &mut self,
        url: &Url,
        session_headers: &HeaderMap,
        tenure_headers: &HeaderMap,
        timeout: Duration,
        max_body: usize,
    ) -> Result<PollResponse, PollError> {
        let client = self.client.clone();
        let deadline = Instant::now() + timeout;
        let is_quick = self.is_quick;
        let permits = async {
            let slow = if is_quick { None } else { client.0.slow_polls.acquire().await.ok() };
            (slow, client.0.polls.acquire().await)
        };
        // The semaphores are never closed.
        let Ok((_slow, Ok(permit))) = tokio::time::timeout_at(deadline, permits).await else {
            let message = "slow polls have taken all permits for polls; allow more files (ulimit -n), or set shorter \
                           timeouts for the sessions";
            return Err(PollError { message: message.to_owned(), fault: PollFault::Saturated });
        };
        let begun = Instant::now();
        let answer = match tokio::time::timeout_at(
            deadline,
            self.follow_redirects(url, session_headers, tenure_headers, max_body),
        )
        .await
        {
            Ok(answer) => answer,
            Err(_) => Err(format!("no complete response within {}", crate::session::format_duration(timeout)).into()),
        };
        self.is_quick = begun.elapsed() < SLOW_AFTER;
        if matches!(
            &answer,
            Err(PollError { fault: PollFault::Instance | PollFault::Exhausts { has_shortage: true }, .. })
        ) {
            client.withhold(permit);
        }
        answer
    }

    async fn follow_redirects(
        &mut self,
        first: &Url,
        session_headers: &HeaderMap,
        tenure_headers: &HeaderMap,
        max_body: usize,
    ) -> Result<PollResponse, PollError> {
        let shared = self.client.0.clone();
        let mut url = first.clone();
        for _ in 0..=MAX_REDIRECTS {
            self.client.check(&url)?;
            let is_own = url.origin() == first.origin();
            if !is_own && shared.strained.load(Ordering::Relaxed) {
                let message = "the target redirects to another origin, which is not followed while this instance is short of files";
                return Err(PollError {
                    message: message.to_owned(),
                    fault: PollFault::Exhausts { has_shortage: false },
                });
            }
            let client = match is_own {
                true if self.reserve_keep_alive(&url) => &shared.keep_alive_client,
                true => &shared.close_client,
                false => &shared.redirect_client,
            };
            let mut request = client.get(url.clone()).headers(tenure_headers.clone());
            // Headers of one origin must not be sent to another.
            if is_own {
                request = request.headers(session_headers.clone());
            }
            let response = request.send().await.map_err(|error| attribute(describe(&error), is_own))?;
            match redirect_target(&url, &response) {
                Some(next) => url = next?,
                None => return read_body(response, max_body).await,
            }
        }
        Err(format!("the target redirects more than {MAX_REDIRECTS} times").into())
    }

    /// Returns whether the connection to this origin is kept until the next poll.
    fn reserve_keep_alive(&mut self, url: &Url) -> bool {
        let origin = url.origin();
        if self.keep_alive.as_ref().is_none_or(|(kept_origin, _)| *kept_origin != origin) {
            self.release_keep_alive();
            self.keep_alive = self.client.0.keep_alive.clone().try_acquire_owned().ok().map(|permit| (origin, permit));
        }
        self.keep_alive.is_some()
    }

    /// Gives up the kept connection. Its permit returns when the idle timeout has closed the connection.
    fn release_keep_alive(&mut self) {
        let Some((_, permit)) = self.keep_alive.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(IDLE_TIMEOUT).await;
                drop(permit);
            });
        }
    }
}

impl Drop for TargetClient {
    fn drop(&mut self) {
        self.release_keep_alive();
    }
}

/// Blames the target for a shortage on a redirect: it costs more than other targets.
fn attribute(error: PollError, is_own: bool) -> PollError {
    match error.fault {
        PollFault::Instance if !is_own => PollError { fault: PollFault::Exhausts { has_shortage: true }, ..error },
        _ => error,
    }
}

/// Returns the URL that the target redirects to, if it does.
fn redirect_target(url: &Url, response: &Response) -> Option<Result<Url, String>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(header::LOCATION)?;
    let next = location.to_str().ok().and_then(|location| url.join(location).ok());
    Some(next.ok_or_else(|| "the target redirects to an invalid URL".to_owned()))
}

async fn read_body(mut response: Response, max_body: usize) -> Result<PollResponse, PollError> {
    let status = response.status().as_u16();
    let (mut body, mut truncated) = (Vec::new(), false);
    while !truncated {
        let Some(chunk) = response.chunk().await.map_err(|error| describe(&error))? else { break };
        let room = max_body - body.len();
        truncated = chunk.len() > room;
        body.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
    }
    // Replacing bytes that are not text makes the body longer.
    let body = String::from_utf8_lossy(&body);
    let cut = truncate(&body, max_body);
    truncated |= cut.len() < body.len();
    Ok(PollResponse { status, body: cut.to_owned(), truncated })
}

/// Truncates a text to at most this many bytes.
pub(super) fn truncate(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Describes the whole chain of causes, without the URL, which may contain secrets. A forbidden address needs no
/// further explanation.
fn describe(error: &reqwest::Error) -> PollError {
    let (mut words, mut is_ours) = (Vec::new(), false);
    let mut cause = error.source();
    while let Some(error) = cause {
        is_ours |= error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error).is_some_and(is_shortage);
        let text = error.to_string();
        if error.is::<ForbiddenAddress>() {
            words.clear();
        }
        if words.last() != Some(&text) {
            words.push(text);
        }
        cause = error.source();
    }
    let message = if words.is_empty() { "the request failed".to_owned() } else { words.join(": ") };
    PollError { message, fault: if is_ours { PollFault::Instance } else { PollFault::Target } }
}

/// Returns whether an error means too many open files here or in the whole system, no memory or no ports left. Such an
/// error says nothing about the target.
fn is_shortage(code: i32) -> bool {
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL]
        .iter()
        .any(|shortage| shortage.raw_os_error() == code)
}

/// Resolves names for each connection, and drops forbidden addresses.
struct PolicyResolver {
    policy: Arc<AddressPolicy>,
    lookups: Lookups,
    lookup_kind: LookupKind,
}

impl Resolve for PolicyResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (policy, lookups, lookup_kind) = (self.policy.clone(), self.lookups.clone(), self.lookup_kind);
        Box::pin(async move {
            let found = lookups.resolve(lookup_kind, name.as_str()).await?;
            let permitted: Vec<SocketAddr> =
                found.iter().copied().filter(|address| policy.permits(address.ip())).collect();
            match (permitted.is_empty(), found.first()) {
                (true, Some(first)) => Err(ForbiddenAddress(first.ip()).into()),
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

    /// A name that resolves to a permitted address first, and to a forbidden one after that.
    #[tokio::test]
    async fn a_name_rebound_to_a_forbidden_address_is_not_polled() {
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
        let look_up: LookupFn = Arc::new(move |_| {
            let first = looks.fetch_add(1, Ordering::Relaxed) == 0;
            let address = if first { [127, 0, 0, 2] } else { [127, 0, 0, 1] };
            Box::pin(async move { Ok(vec![SocketAddr::from((address, 0))]) })
        });
        let policy = AddressPolicy { allow_private: false, allowed_nets: vec!["127.0.0.2/32".parse().unwrap()] };
        let mut client = PollClient::with_lookup(policy, look_up, FileBudget::for_files(1_024)).unwrap().for_target();
        let url = Url::parse(&format!("http://rebinds.example:{port}/")).unwrap();
        let none = HeaderMap::new();
        let timeout = Duration::from_secs(60);
        let first = client.fetch(&url, &none, &none, timeout, 65_536).await;
        assert_eq!(first.map(|answer| answer.body), Ok("ok".to_owned()));
        for _ in 0..3 {
            let later = client.fetch(&url, &none, &none, timeout, 65_536).await.unwrap_err().message;
            assert!(later.contains("127.0.0.1 is not polled"), "{later}");
        }
        assert!(inside.requests().is_empty());
    }

    /// Creates a client for targets on this host, by address.
    fn local(budget: FileBudget) -> PollClient {
        let look_up: LookupFn = Arc::new(|_| Box::pin(async { Err(io::Error::other("no names here")) }));
        PollClient::with_lookup(AddressPolicy { allow_private: true, allowed_nets: Vec::new() }, look_up, budget)
            .unwrap()
    }

    async fn poll_once(target: &mut TargetClient, server: &WebServer) -> Result<PollResponse, PollError> {
        let (url, none) = (Url::parse(&server.url("/")).unwrap(), HeaderMap::new());
        target.fetch(&url, &none, &none, Duration::from_secs(60), 65_536).await
    }

    #[tokio::test]
    async fn keep_alive_connections_are_limited() {
        let client = local(FileBudget { keep_alive: 2, ..FileBudget::for_files(1_024) });
        let servers: Vec<WebServer> = (0..4).map(|_| WebServer::start()).collect();
        let mut targets: Vec<TargetClient> = servers.iter().map(|_| client.for_target()).collect();
        for _ in 0..3 {
            for (target, server) in targets.iter_mut().zip(&servers) {
                assert!(poll_once(target, server).await.is_ok());
            }
        }
        assert_eq!(targets.iter().filter(|target| target.keep_alive.is_some()).count(), 2);
    }

    #[tokio::test]
    async fn cross_origin_redirects_are_not_followed_while_strained() {
        let elsewhere = WebServer::start();
        let to = elsewhere.url("/");
        let redirect = move |_: &str| format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
        let server = WebServer::with_handler(move |path| (Duration::ZERO, redirect(path)));
        let client = local(FileBudget::for_files(1_024));
        let mut target = client.for_target();
        assert!(poll_once(&mut target, &server).await.is_ok());
        client.set_strained(true);
        let error = poll_once(&mut target, &server).await.unwrap_err();
        assert_eq!(error.fault, PollFault::Exhausts { has_shortage: false }, "{}", error.message);
        assert!(poll_once(&mut client.for_target(), &elsewhere).await.is_ok(), "other targets are polled");
        client.set_strained(false);
        assert!(poll_once(&mut target, &server).await.is_ok());
        assert_eq!(elsewhere.requests().len(), 3);
    }

    #[tokio::test]
    async fn slow_targets_leave_permits_for_fast_ones() {
        let hangs = WebServer::with_handler(|_| (Duration::from_secs(3_600), String::new()));
        let quick = WebServer::start();
        let client = local(FileBudget { polls: 8, ..FileBudget::for_files(1_024) });
        let ask = |url: String, timeout| {
            let (mut target, url) = (client.for_target(), Url::parse(&url).unwrap());
            async move {
                let none = HeaderMap::new();
                (target.fetch(&url, &none, &none, timeout, 65_536).await, target)
            }
        };
        let (known, mut target) = ask(quick.url("/"), Duration::from_secs(60)).await;
        assert!(known.is_ok());
        let timeout = Duration::from_secs(600);
        let hanging: Vec<_> = (0..50).map(|n| tokio::spawn(ask(hangs.url(&format!("/{n}")), timeout))).collect();
        while hangs.requests().len() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for _ in 0..20 {
            let answer = poll_once(&mut target, &quick).await;
            assert!(answer.is_ok(), "{answer:?}");
        }
        assert_eq!(hangs.requests().len(), 4, "half of the permits");
        let (crowded, _) = ask(hangs.url("/one-more"), Duration::from_millis(50)).await;
        assert_eq!(crowded.unwrap_err().fault, PollFault::Saturated);
        hanging.into_iter().for_each(|task| task.abort());
    }
}
