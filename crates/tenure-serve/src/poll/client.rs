//! Asks a target over HTTP: nowhere that it should not go, for no longer than it should take, and no more than it should read.

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

use super::budget::FileBudget;
use super::lookup::{LookUp, LookUps, Whose};
use super::resolver::by_system;
use super::safety::{Allowed, Forbidden};

/// How often a target may send us elsewhere.
const REDIRECTS: usize = 5;

/// How long a connection is kept that is not used.
const IDLE: Duration = Duration::from_secs(90);

/// A target whose poll is over within this does not take long.
const QUICK: Duration = Duration::from_secs(1);

/// How many polls may be under way however short of files this instance is.
const FEWEST_POLLS: usize = 2;

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
    /// Whose fault it is.
    pub fault: Fault,
}

/// Whose fault it is that there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The target's.
    Target,
    /// The target's: it costs more than this instance has at present. `is_short` when the instance was found to be short.
    Exhausts {
        /// Whether something could not be opened.
        is_short: bool,
    },
    /// This instance's, which is short of something: it says nothing about the target.
    Ours,
    /// This instance's, whose places for polls were all taken: it says nothing about the target.
    Crowded,
}

impl From<String> for Trouble {
    fn from(words: String) -> Self {
        Self { words, fault: Fault::Target }
    }
}

/// A client for all targets. Clones are the same.
#[derive(Clone, Debug)]
pub struct PollClient(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// For targets whose connection is kept until the next poll.
    keeping: Client,
    /// For the others.
    closing: Client,
    /// For where targets redirect to, which may be somewhere else every time: nothing is kept.
    redirected: Client,
    allowed: Arc<Allowed>,
    /// Places for polls under way, and how many of them are withheld because there were no files for as many.
    polls: Semaphore,
    most_polls: usize,
    /// Places for those of targets that take long, or are not known yet: half of them, so that the others have the rest.
    slow_polls: Semaphore,
    withheld: AtomicUsize,
    /// Places for connections that are kept.
    kept: Arc<Semaphore>,
    strained: AtomicBool,
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
        Self::looking_up(allowed, by_system(), FileBudget::of_this_process())
    }

    /// The same, with another way to look names up than the system's.
    ///
    /// # Errors
    /// When the system's certificates cannot be used.
    pub fn looking_up(allowed: Allowed, look_up: LookUp, budget: FileBudget) -> Result<Self, ClientError> {
        let allowed = Arc::new(allowed);
        // Somebody else may have chosen first, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let lookups = LookUps::new(look_up, budget.lookups);
        let client = |whose, idle| {
            Client::builder()
                .redirect(redirect::Policy::none())
                .dns_resolver(Arc::new(Guarded { allowed: allowed.clone(), lookups: lookups.clone(), whose }))
                .no_proxy()
                .pool_idle_timeout(IDLE)
                .pool_max_idle_per_host(idle)
                .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
                .build()
        };
        Ok(Self(Arc::new(Shared {
            // Each target has one connection at a time, so their number is bounded by the places for them.
            keeping: client(Whose::Target, usize::MAX)?,
            closing: client(Whose::Target, 0)?,
            redirected: client(Whose::Redirect, 0)?,
            polls: Semaphore::new(budget.polls),
            most_polls: budget.polls,
            slow_polls: Semaphore::new((budget.polls / 2).max(1)),
            withheld: AtomicUsize::new(0),
            kept: Arc::new(Semaphore::new(budget.kept)),
            strained: AtomicBool::new(false),
            allowed,
        })))
    }

    /// The client of one target.
    pub fn for_target(&self) -> TargetClient {
        TargetClient { client: self.clone(), kept: None, is_quick: false }
    }

    /// While this instance is short of something, redirects to other places are not followed: they cost most.
    pub fn set_strained(&self, strained: bool) {
        self.0.strained.store(strained, Ordering::Relaxed);
        if !strained {
            self.0.polls.add_permits(self.0.withheld.swap(0, Ordering::Relaxed));
        }
    }

    /// There was no file for a poll: from now on fewer are under way at once, so that the API and the store have some.
    fn withhold(&self, place: SemaphorePermit<'_>) {
        let most = self.0.most_polls.saturating_sub(FEWEST_POLLS);
        let one_more = |withheld: usize| (withheld < most).then_some(withheld + 1);
        if self.0.withheld.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok() {
            place.forget();
        }
    }

    fn check(&self, url: &Url) -> Result<(), String> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("it sends us to {}:, which is not polled", url.scheme()));
        }
        self.0.allowed.check(url).map_err(|forbidden| forbidden.to_string())
    }
}

/// The client of one target, which has one connection open at a time.
#[derive(Debug)]
pub struct TargetClient {
    client: PollClient,
    /// The place for the connection that is kept, and whereto.
    kept: Option<(Origin, OwnedSemaphorePermit)>,
    /// Whether its last poll was over quickly.
    is_quick: bool,
}

impl TargetClient {
    /// Asks the target, with its own headers and ours, and reads its answer unless it is only looked at.
    ///
    /// # Errors
    /// In words: no answer in time, nobody there, or somewhere that must not be asked.
    ///
    /// # Cancel safety
    /// The connection is closed.
    pub async fn ask(
        &mut self,
        url: &Url,
        own: &HeaderMap,
        ours: &HeaderMap,
        limit: Duration,
        max_body: usize,
    ) -> Result<Answer, Trouble> {
        let client = self.client.clone();
        let deadline = Instant::now() + limit;
        let is_quick = self.is_quick;
        let places = async {
            let slow = if is_quick { None } else { client.0.slow_polls.acquire().await.ok() };
            (slow, client.0.polls.acquire().await)
        };
        // They are never closed.
        let Ok((_slow, Ok(place))) = tokio::time::timeout_at(deadline, places).await else {
            let words = "all places for polls are taken by polls that take long; allow it more files (ulimit -n), or give the \
                         sessions shorter time-outs";
            return Err(Trouble { words: words.to_owned(), fault: Fault::Crowded });
        };
        let begun = Instant::now();
        let answer = match tokio::time::timeout_at(deadline, self.follow(url, own, ours, max_body)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no whole answer within {}", crate::session::written(limit)).into()),
        };
        self.is_quick = begun.elapsed() < QUICK;
        if matches!(&answer, Err(Trouble { fault: Fault::Ours | Fault::Exhausts { is_short: true }, .. })) {
            client.withhold(place);
        }
        answer
    }

    async fn follow(
        &mut self,
        first: &Url,
        own: &HeaderMap,
        ours: &HeaderMap,
        max_body: usize,
    ) -> Result<Answer, Trouble> {
        let shared = self.client.0.clone();
        let mut url = first.clone();
        for _ in 0..=REDIRECTS {
            self.client.check(&url)?;
            let is_own = url.origin() == first.origin();
            if !is_own && shared.strained.load(Ordering::Relaxed) {
                let words = "it redirects elsewhere, which is not followed while this instance is short of files";
                return Err(Trouble { words: words.to_owned(), fault: Fault::Exhausts { is_short: false } });
            }
            let client = match is_own {
                true if self.keeps(&url) => &shared.keeping,
                true => &shared.closing,
                false => &shared.redirected,
            };
            let mut request = client.get(url.clone()).headers(ours.clone());
            // What was given for one place is not told to another.
            if is_own {
                request = request.headers(own.clone());
            }
            let response = request.send().await.map_err(|error| blamed(in_words(&error), is_own))?;
            match elsewhere(&url, &response) {
                Some(next) => url = next?,
                None => return read(response, max_body).await,
            }
        }
        Err(format!("it redirects more than {REDIRECTS} times").into())
    }

    /// Whether the connection to this place is kept until the next poll.
    fn keeps(&mut self, url: &Url) -> bool {
        let origin = url.origin();
        if self.kept.as_ref().is_none_or(|(kept, _)| *kept != origin) {
            self.let_go();
            self.kept = self.client.0.kept.clone().try_acquire_owned().ok().map(|place| (origin, place));
        }
        self.kept.is_some()
    }

    /// The connection that was kept is closed when it has not been used for a while; its place is free then.
    fn let_go(&mut self) {
        let Some((_, place)) = self.kept.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(IDLE).await;
                drop(place);
            });
        }
    }
}

impl Drop for TargetClient {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// What cannot be opened for where a target redirects to is the target's fault: it costs more than others.
fn blamed(trouble: Trouble, is_own: bool) -> Trouble {
    match trouble.fault {
        Fault::Ours if !is_own => Trouble { fault: Fault::Exhausts { is_short: true }, ..trouble },
        _ => trouble,
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

async fn read(mut response: Response, max_body: usize) -> Result<Answer, Trouble> {
    let status = response.status().as_u16();
    let (mut body, mut truncated) = (Vec::new(), false);
    while !truncated {
        let Some(chunk) = response.chunk().await.map_err(|error| in_words(&error))? else { break };
        let room = max_body - body.len();
        truncated = chunk.len() > room;
        body.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
    }
    // What is not text becomes longer when it is made visible.
    let body = String::from_utf8_lossy(&body);
    let cut = cut(&body, max_body);
    truncated |= cut.len() < body.len();
    Ok(Answer { status, body: cut.to_owned(), truncated })
}

/// The beginning of a text, in so many bytes at most.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
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
    Trouble { words, fault: if is_ours { Fault::Ours } else { Fault::Target } }
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
    whose: Whose,
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let (allowed, lookups, whose) = (self.allowed.clone(), self.lookups.clone(), self.whose);
        Box::pin(async move {
            let found = lookups.find(whose, name.as_str()).await?;
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
        let mut client = PollClient::looking_up(allowed, look_up, FileBudget::of(1_024)).unwrap().for_target();
        let url = Url::parse(&format!("http://rebinds.example:{port}/")).unwrap();
        let none = HeaderMap::new();
        let limit = Duration::from_secs(60);
        let first = client.ask(&url, &none, &none, limit, 65_536).await;
        assert_eq!(first.map(|answer| answer.body), Ok("ok".to_owned()));
        for _ in 0..3 {
            let later = client.ask(&url, &none, &none, limit, 65_536).await.unwrap_err().words;
            assert!(later.contains("127.0.0.1 is not polled"), "{later}");
        }
        assert!(inside.visits().is_empty());
    }

    /// A client for targets of this host, by their addresses.
    fn local(budget: FileBudget) -> PollClient {
        let look_up: LookUp = Arc::new(|_| Box::pin(async { Err(io::Error::other("no names here")) }));
        PollClient::looking_up(Allowed { near: true, nets: Vec::new() }, look_up, budget).unwrap()
    }

    async fn look(target: &mut TargetClient, server: &WebServer) -> Result<Answer, Trouble> {
        let (url, none) = (Url::parse(&server.url("/")).unwrap(), HeaderMap::new());
        target.ask(&url, &none, &none, Duration::from_secs(60), 65_536).await
    }

    #[tokio::test]
    async fn connections_are_kept_for_no_more_targets_than_there_are_places() {
        let client = local(FileBudget { kept: 2, ..FileBudget::of(1_024) });
        let servers: Vec<WebServer> = (0..4).map(|_| WebServer::start()).collect();
        let mut targets: Vec<TargetClient> = servers.iter().map(|_| client.for_target()).collect();
        for _ in 0..3 {
            for (target, server) in targets.iter_mut().zip(&servers) {
                assert!(look(target, server).await.is_ok());
            }
        }
        assert_eq!(targets.iter().filter(|target| target.kept.is_some()).count(), 2);
    }

    #[tokio::test]
    async fn redirects_elsewhere_are_not_followed_while_this_instance_is_short_of_files() {
        let elsewhere = WebServer::start();
        let to = elsewhere.url("/");
        let redirect = move |_: &str| format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
        let server = WebServer::answering(move |path| (Duration::ZERO, redirect(path)));
        let client = local(FileBudget::of(1_024));
        let mut target = client.for_target();
        assert!(look(&mut target, &server).await.is_ok());
        client.set_strained(true);
        let trouble = look(&mut target, &server).await.unwrap_err();
        assert_eq!(trouble.fault, Fault::Exhausts { is_short: false }, "{}", trouble.words);
        assert!(look(&mut client.for_target(), &elsewhere).await.is_ok(), "others are polled");
        client.set_strained(false);
        assert!(look(&mut target, &server).await.is_ok());
        assert_eq!(elsewhere.visits().len(), 3);
    }

    #[tokio::test]
    async fn targets_that_take_long_leave_places_for_the_others() {
        let hangs = WebServer::answering(|_| (Duration::from_secs(3_600), String::new()));
        let quick = WebServer::start();
        let client = local(FileBudget { polls: 8, ..FileBudget::of(1_024) });
        let ask = |url: String, limit| {
            let (mut target, url) = (client.for_target(), Url::parse(&url).unwrap());
            async move {
                let none = HeaderMap::new();
                (target.ask(&url, &none, &none, limit, 65_536).await, target)
            }
        };
        let (known, mut target) = ask(quick.url("/"), Duration::from_secs(60)).await;
        assert!(known.is_ok());
        let limit = Duration::from_secs(600);
        let hanging: Vec<_> = (0..50).map(|n| tokio::spawn(ask(hangs.url(&format!("/{n}")), limit))).collect();
        while hangs.visits().len() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for _ in 0..20 {
            let answer = look(&mut target, &quick).await;
            assert!(answer.is_ok(), "{answer:?}");
        }
        assert_eq!(hangs.visits().len(), 4, "half of the places");
        let (crowded, _) = ask(hangs.url("/one-more"), Duration::from_millis(50)).await;
        assert_eq!(crowded.unwrap_err().fault, Fault::Crowded);
        hanging.into_iter().for_each(|task| task.abort());
    }
}
