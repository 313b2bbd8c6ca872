//! One connection: opened, attached, used, and closed with a reset.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::address::Address;
use super::commands::{AttachedData, CommandEncoder, Digests};
use super::failure;
use super::keys::RedisKeys;
use super::replies::{self, RedisServerInfo};
use super::scripts::Script;

use crate::store::{AttachRequest, Attached, BoxFuture, Connection, ErrorKind, Outcome, Request, StoreError};

/// How long the kernel may keep sending to a server that acknowledges nothing.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a TCP connection that is closed with a reset: data still in its buffers at that time is discarded and does not
/// arrive late.
pub(super) async fn dial(address: &Address) -> Result<Box<dyn RedisStream>, StoreError> {
    let failed = |error: std::io::Error| failure::unreachable(&address.location, &error.to_string());
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_zero_linger().map_err(failed)?;
    // Not available everywhere, and nothing depends on them: they find a dead link sooner.
    let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
    let _ = rustix::net::sockopt::set_tcp_keepidle(&stream, TCP_USER_TIMEOUT);
    let millis = u32::try_from(TCP_USER_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, millis);
    #[cfg(feature = "tls")]
    if let Some(tls) = &address.tls {
        return Ok(Box::new(tls.handshake(stream, &address.location).await?));
    }
    Ok(Box::new(stream))
}

/// A connection, encrypted or not.
pub(super) trait RedisStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> RedisStream for S {}

/// Whether to load the scripts before running them.
#[derive(Clone, Copy)]
enum ScriptLoad {
    Assumed,
    First,
}

/// The result of sending one request.
#[derive(Clone, Debug, PartialEq)]
enum RequestAttempt {
    Done(Outcome),
    /// The script was not run: the server has lost it, or does not allow this user to run it in this form.
    Retry,
}

/// How requests were encoded as commands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommandShape {
    /// One request, perhaps preceded by another command of the same request.
    Single { has_preceding: bool },
    /// Two requests as one command, whose reply covers both.
    Combined,
}

impl CommandShape {
    /// The replies to its requests.
    fn replies(self, values: &mut impl Iterator<Item = Value>) -> Vec<Value> {
        let mut next = || values.next().unwrap_or_default();
        match self {
            Self::Single { has_preceding: false } => vec![next()],
            Self::Single { has_preceding: true } => match (next(), next()) {
                // An error of the preceding command is an error of the request.
                (Value::ServerError(error), _) => vec![Value::ServerError(error)],
                (_, value) => vec![value],
            },
            Self::Combined => match next() {
                Value::Array(answers) => answers.into_iter().chain(std::iter::repeat(Value::Nil)).take(2).collect(),
                value => vec![value.clone(), value],
            },
        }
    }
}

/// A connection that has attached.
pub(super) struct RedisConnection {
    link: RedisLink,
    encoder: CommandEncoder,
    attached: Attached,
    /// Whether heartbeats may be combined with other requests: not if this user may not access their keys.
    can_combine_heartbeats: AtomicBool,
}

impl RedisConnection {
    pub(super) async fn attach(
        address: &Address,
        keys: RedisKeys,
        request: &AttachRequest,
    ) -> Result<Self, StoreError> {
        let link = RedisLink::open(address).await?;
        let (digests, server) = link.prepare(&keys).await.map_err(|error| with_tls_hint(address, error))?;
        let encoder = CommandEncoder { keys, digests };
        let answer = link.send_one(encoder.attach(request, &server)).await?;
        let attached = replies::attached(answer, server.run)
            .ok_or_else(|| failure::unreadable(&link.location, &encoder.keys.namespace_key))?;
        if !request.observer && !server.has_served {
            // Before the first grant: a newcomer that finds no record must learn that there was one.
            link.send_one(redis::cmd("SCRIPT").arg("LOAD").arg(encoder.keys.served_marker()).take()).await?;
        }
        Ok(Self { link, encoder, attached, can_combine_heartbeats: AtomicBool::new(true) })
    }

    async fn submit(&self, batch: &[Request]) -> Vec<Outcome> {
        let mut attempts = self.attempt(batch, ScriptLoad::Assumed).await;
        let retried: Vec<usize> = (0..attempts.len()).filter(|at| attempts[*at] == RequestAttempt::Retry).collect();
        if !retried.is_empty() {
            let again: Vec<Request> = retried.iter().filter_map(|at| batch.get(*at)).cloned().collect();
            let second = self.attempt(&again, ScriptLoad::First).await;
            for (at, later) in retried.into_iter().zip(second) {
                attempts[at] = later;
            }
        }
        let outcome = |attempt| match attempt {
            RequestAttempt::Done(outcome) => outcome,
            RequestAttempt::Retry => Outcome::Failed(failure::scripts_flushed(&self.link.location)),
        };
        attempts.into_iter().map(outcome).collect()
    }

    async fn attempt(&self, batch: &[Request], scripts: ScriptLoad) -> Vec<RequestAttempt> {
        if batch.is_empty() {
            return Vec::new();
        }
        let mut pipeline = match scripts {
            ScriptLoad::Assumed => Pipeline::with_capacity(batch.len()),
            // In one pipeline, so that the server has no time to lose them again.
            ScriptLoad::First => load_scripts_pipeline(),
        };
        let loaded = pipeline.len();
        let attached = AttachedData { generation: self.attached.generation, lineage: self.attached.lineage.id };
        let mut shapes = Vec::with_capacity(batch.len());
        let mut requests = batch.iter().peekable();
        while let Some(request) = requests.next() {
            let next = requests.peek().filter(|_| self.can_combine_heartbeats.load(Ordering::Relaxed));
            let both = next.and_then(|next| self.encoder.with_heartbeat(attached, request, next));
            if let Some(both) = both {
                requests.next();
                pipeline.add_command(both);
                shapes.push(CommandShape::Combined);
                continue;
            }
            let commands = self.encoder.encode(attached, request);
            shapes.push(CommandShape::Single { has_preceding: commands.before.is_some() });
            if let Some(before) = commands.before {
                pipeline.add_command(before);
            }
            pipeline.add_command(commands.last);
        }
        let values = match self.link.send(&pipeline).await {
            Ok(values) => values,
            Err(failed) => return vec![RequestAttempt::Done(failed); batch.len()],
        };
        let mut values = values.into_iter().skip(loaded);
        let answers = shapes
            .into_iter()
            .flat_map(|shape| shape.replies(&mut values).into_iter().map(move |value| (shape, value)));
        let mut attempts = Vec::with_capacity(batch.len());
        for (request, (shape, value)) in batch.iter().zip(answers) {
            attempts.push(match (request, value) {
                (_, Value::ServerError(error)) if failure::is_missing_script(&error) => RequestAttempt::Retry,
                // A forbidden heartbeat must not cost the lease.
                (_, Value::ServerError(error)) if shape == CommandShape::Combined && failure::is_forbidden(&error) => {
                    self.can_combine_heartbeats.store(false, Ordering::Relaxed);
                    RequestAttempt::Retry
                }
                (_, Value::ServerError(error)) => RequestAttempt::Done(self.link.refused_outcome(&error)),
                (request, value) => RequestAttempt::Done(match replies::reply(request, value, &self.encoder.keys) {
                    Some(reply) => Outcome::Answered(reply),
                    // Another program has corrupted the record that was read; nothing else is affected.
                    None if request.is_read_only() => {
                        Outcome::Failed(failure::unreadable(&self.link.location, &format!("{request:?}")))
                    }
                    // The request was carried out, whatever this reply means.
                    None => Outcome::Unknown(failure::unreadable(&self.link.location, &format!("{request:?}"))),
                }),
            });
        }
        attempts
    }
}

impl Connection for RedisConnection {
    fn attached(&self) -> &Attached {
        &self.attached
    }

    fn submit(&self, batch: Vec<Request>, timeout: Duration) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            match tokio::time::timeout(timeout, RedisConnection::submit(self, &batch)).await {
                Ok(outcomes) => outcomes,
                Err(_) => {
                    // A reply that comes now has no receiver any more, and unsent data must not be sent.
                    self.link.close();
                    let error = failure::unreachable(&self.link.location, &format!("no answer within {timeout:.0?}"));
                    vec![Outcome::Unknown(error); batch.len()]
                }
            }
        })
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        let mut closed = self.link.closed.subscribe();
        Box::pin(async move {
            // The connection owns the sender, so the channel does not end first.
            let _ = closed.wait_for(|closed| *closed).await;
        })
    }
}

impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisConnection({})", self.link.location)
    }
}

/// The link to the server: one socket, served by its own task.
struct RedisLink {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
    closed: Arc<watch::Sender<bool>>,
    location: String,
}

impl RedisLink {
    async fn open(address: &Address) -> Result<Self, StoreError> {
        let location = address.location.clone();
        let stream = dial(address).await?;
        // Timeouts come from the leases, so the client has none of its own.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let login = address.login().await?;
        let (connection, driver) = MultiplexedConnection::new_with_config(&login, stream, config)
            .await
            .map_err(|error| with_tls_hint(address, failure::from_redis_error(&location, &error)))?;
        let closed = Arc::new(watch::Sender::new(false));
        let driver = tokio::spawn({
            let closed = closed.clone();
            async move {
                driver.await;
                closed.send_replace(true);
            }
        });
        Ok(Self { connection, driver, closed, location })
    }

    /// Loads the scripts and reads the server's information about itself.
    async fn prepare(&self, keys: &RedisKeys) -> Result<(Digests, RedisServerInfo), StoreError> {
        let digests = self.load_scripts().await?;
        let marker = redis::Script::new(&keys.served_marker());
        let mut pipeline = Pipeline::new();
        pipeline.cmd("INFO").arg("server").cmd("PUBSUB").arg("NUMSUB").arg(&keys.channel);
        pipeline.cmd("EVALSHA").arg(marker.get_hash()).arg(0);
        let mut values = self.send_raw(&pipeline).await?;
        // An error is a valid reply, too: the server does not know the marker.
        let marker = values.pop().unwrap_or_default();
        let mut answers = self.check_errors(values)?.into_iter();
        let (info, subscribers) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
        let server =
            RedisServerInfo::read(info, subscribers, &marker).ok_or_else(|| failure::missing_run_id(&self.location))?;
        Ok((digests, server))
    }

    async fn load_scripts(&self) -> Result<Digests, StoreError> {
        let answers = self.send_checked(&load_scripts_pipeline()).await?;
        let digest = |value: Value| match value {
            Value::BulkString(digest) => String::from_utf8(digest).ok(),
            _ => None,
        };
        let digests: Option<Vec<String>> = answers.into_iter().map(digest).collect();
        digests.map(Digests).ok_or_else(|| failure::unreadable(&self.location, "its script digests"))
    }

    async fn send_one(&self, command: redis::Cmd) -> Result<Value, StoreError> {
        let mut pipeline = Pipeline::new();
        pipeline.add_command(command);
        Ok(self.send_checked(&pipeline).await?.pop().unwrap_or_default())
    }

    /// Sends commands that must all succeed.
    async fn send_checked(&self, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let values = self.send_raw(pipeline).await?;
        self.check_errors(values)
    }

    /// Sends commands and returns their replies, errors among them.
    async fn send_raw(&self, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        match self.send(pipeline).await {
            Ok(values) => Ok(values),
            Err(Outcome::Failed(error) | Outcome::Unknown(error)) => Err(error),
            Err(Outcome::Answered(_)) => Ok(Vec::new()),
        }
    }

    fn check_errors(&self, values: Vec<Value>) -> Result<Vec<Value>, StoreError> {
        match values.iter().find_map(|value| match value {
            Value::ServerError(error) => Some(error),
            _ => None,
        }) {
            Some(error) => Err(failure::from_server_error(&self.location, error)),
            None => Ok(values),
        }
    }

    /// Sends commands and waits for their replies. Without replies, returns what that means for each command.
    async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, Outcome> {
        if *self.closed.borrow() {
            let why = "the connection was closed; attach again";
            return Err(Outcome::Failed(failure::unreachable(&self.location, why)));
        }
        self.connection.clone().send_packed_commands(pipeline, 0, pipeline.len()).await.map_err(|error| {
            self.close();
            Outcome::Unknown(failure::from_redis_error(&self.location, &error))
        })
    }

    /// The outcome of a command that the server answered with an error.
    fn refused_outcome(&self, error: &redis::ServerError) -> Outcome {
        if failure::is_reconnect_error(error) {
            self.close();
        }
        Outcome::Failed(failure::from_server_error(&self.location, error))
    }

    /// Closes the socket at once, with a reset.
    fn close(&self) {
        self.driver.abort();
        self.closed.send_replace(true);
    }
}

impl Drop for RedisLink {
    fn drop(&mut self) {
        self.close();
    }
}

/// Adds a hint to an error of the first exchange: a server that expects TLS hangs up on anything else.
fn with_tls_hint(address: &Address, error: StoreError) -> StoreError {
    match error.kind() {
        ErrorKind::Unreachable if address.is_plain() => error.with_hint("if the server expects TLS, use rediss://"),
        _ => error,
    }
}

/// What an operator should know about the server's settings. Settings that this user may not read are left out.
pub(super) async fn warnings(address: &Address) -> Vec<String> {
    let Ok(link) = RedisLink::open(address).await else { return Vec::new() };
    let mut pipeline = Pipeline::new();
    for setting in ["appendonly", "save", "maxmemory-policy"] {
        pipeline.cmd("CONFIG").arg("GET").arg(setting);
    }
    let values = link.send_raw(&pipeline).await.unwrap_or_default().into_iter();
    let settings: Vec<Option<String>> = values.map(replies::setting).collect();
    let [appendonly, save, policy] = &settings[..] else { return Vec::new() };
    let mut warnings = Vec::new();
    if appendonly.as_deref() == Some("no") && save.as_deref() == Some("") {
        let text = "the server keeps nothing on disk: a restart loses all sessions; set `appendonly yes`, or run `tenure session export` regularly";
        warnings.push(text.to_owned());
    }
    // Leases have a ttl, so that even the `volatile` policies evict them.
    if let Some(policy) = policy.as_ref().filter(|policy| *policy != "noeviction") {
        warnings.push(format!("`maxmemory-policy {policy}` may evict leases; set `noeviction`"));
    }
    warnings
}

/// Loads all scripts.
fn load_scripts_pipeline() -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(Script::ALL.len());
    for script in Script::ALL {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(script.source());
    }
    pipeline
}
