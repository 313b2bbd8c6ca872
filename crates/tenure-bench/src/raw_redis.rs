//! The raw store: direct calls of the same scripts with the same client.

use std::error::Error;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{Client, Pipeline, Value};
use tenure::fleet::InstanceRecord;
use tenure_testbed::RedisServer;

use crate::measure::REST_BEFORE_HAND_OVER;

const PRELUDE: &str = include_str!("../../tenure/src/store/redis/scripts/prelude.lua");
const ACQUIRE: &str = include_str!("../../tenure/src/store/redis/scripts/acquire.lua");
const RENEW: &str = include_str!("../../tenure/src/store/redis/scripts/renew.lua");
const RELEASE: &str = include_str!("../../tenure/src/store/redis/scripts/release.lua");
const CHANNEL: &str = "raw:announcements";

/// The channel of announcements other than releases. The raw waiter must not wake up for them.
const UNHEARD_CHANNEL: &str = "raw:unheard";

/// A connection with the loaded scripts.
#[derive(Clone)]
pub struct RawRedis {
    client: Client,
    connection: MultiplexedConnection,
    acquire: String,
    renew: String,
    release: String,
    generation: (String, String),
}

impl RawRedis {
    /// Connects to a server to which Tenure has attached.
    pub async fn connect(server: &RedisServer) -> Result<Self, Box<dyn Error>> {
        let client = Client::open(server.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut digests = Vec::new();
        for script in [ACQUIRE, RENEW, RELEASE] {
            let source = format!("{PRELUDE}\n{script}");
            digests.push(redis::cmd("SCRIPT").arg("LOAD").arg(source).query_async::<String>(&mut connection).await?);
        }
        let mut record = redis::cmd("HMGET");
        record.arg("tenure:ns").arg("generation").arg("stamp");
        let generation = record.query_async(&mut connection).await?;
        let mut digests = digests.into_iter();
        let mut next = || digests.next().unwrap_or_default();
        Ok(Self { client, connection, acquire: next(), renew: next(), release: next(), generation })
    }

    /// Grants the lease and returns its token.
    pub async fn acquire(&mut self, lease: &str, holder: &str) -> Result<String, Box<dyn Error>> {
        let (generation, stamp) = &self.generation;
        let nonce = format!("{:032x}", fastrand::u128(..));
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.acquire).arg(3).arg(lease).arg(format!("tenure:term:{{{lease}}}")).arg("tenure:ns");
        command.arg(generation).arg(stamp).arg(holder).arg(nonce).arg(30_000).arg("").arg("").arg(0);
        command.arg(UNHEARD_CHANNEL).arg("");
        let answer: Vec<Value> = command.query_async(&mut self.connection).await?;
        match answer.as_slice() {
            [Value::BulkString(reply), Value::BulkString(token), ..] if reply == b"granted" => {
                Ok(String::from_utf8(token.clone())?)
            }
            _ => Err(format!("{lease} was not granted: {answer:?}").into()),
        }
    }

    pub async fn release(&mut self, lease: &str, holder: &str, token: &str) -> Result<(), Box<dyn Error>> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.release).arg(3).arg(lease).arg(format!("tenure:term:{{{lease}}}")).arg("tenure:ns");
        command.arg(holder).arg(token).arg("").arg("released voluntary").arg(lease).arg(CHANNEL);
        let _: Value = command.query_async(&mut self.connection).await?;
        Ok(())
    }

    /// Renews all of these leases in one pipeline, and returns the time it took.
    pub async fn renew(&mut self, holder: &str, leases: &[(String, String)]) -> Result<Duration, Box<dyn Error>> {
        let start = Instant::now();
        let mut pipeline = Pipeline::with_capacity(leases.len());
        for (lease, token) in leases {
            let mut command = redis::cmd("EVALSHA");
            command.arg(&self.renew).arg(3).arg(lease).arg(format!("tenure:term:{{{lease}}}")).arg("tenure:ns");
            command.arg(holder).arg(token).arg(30_000).arg("").arg(UNHEARD_CHANNEL);
            pipeline.add_command(command);
        }
        let answers: Vec<Value> = pipeline.query_async(&mut self.connection).await?;
        if answers.len() != leases.len() {
            return Err("a renewal got no reply".into());
        }
        Ok(start.elapsed())
    }

    /// Writes the heartbeat and the record of an instance.
    pub async fn heartbeat(&mut self, node: &str, ttl: Duration) -> Result<(), Box<dyn Error>> {
        let (ttl, record) =
            (u64::try_from(ttl.as_millis())?, InstanceRecord::new(node, std::time::SystemTime::now()).encode());
        let mut pipeline = redis::pipe();
        pipeline.cmd("SET").arg(format!("poll:node:{node}")).arg("1").arg("PX").arg(ttl);
        pipeline.cmd("SET").arg(format!("raw:node:{node}")).arg(record).arg("PX").arg(ttl);
        pipeline.cmd("ZADD").arg("raw:nodes").arg(ttl).arg(node);
        let _: Vec<Value> = pipeline.query_async(&mut self.connection).await?;
        Ok(())
    }

    /// Reads all heartbeats and records.
    pub async fn read_heartbeats(&mut self, nodes: &[String]) -> Result<(), Box<dyn Error>> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("ZRANGE").arg("raw:nodes").arg(0).arg(-1);
        for kind in ["poll", "raw"] {
            pipeline.cmd("MGET").arg(nodes.iter().map(|node| format!("{kind}:node:{node}")).collect::<Vec<_>>());
        }
        let _: Vec<Value> = pipeline.query_async(&mut self.connection).await?;
        Ok(())
    }
}

/// Two clients that hand a lease over. The waiter subscribes to announcements.
pub struct RedisHandOver {
    holder: RawRedis,
    waiter: RawRedis,
    /// `None` while the waiter listens for the next announcement.
    messages: Option<PubSubStream>,
}

impl RedisHandOver {
    const LEASE: &str = "lease:raw-hand-over";

    pub async fn new(holder: RawRedis) -> Result<Self, Box<dyn Error>> {
        let (mut sink, stream) = holder.client.get_async_pubsub().await?.split();
        sink.subscribe(CHANNEL).await?;
        let mut waiter = holder.clone();
        waiter.connection = holder.client.get_multiplexed_async_connection().await?;
        Ok(Self { holder, waiter, messages: Some(stream) })
    }

    /// Measures the time from a release to the grant to the notified waiter.
    pub async fn measure_once(&mut self) -> Result<Duration, Box<dyn Error>> {
        let token = self.holder.acquire(Self::LEASE, "raw-1").await?;
        let (mut waiter, stream) = (self.waiter.clone(), self.messages.take());
        let waiting = tokio::spawn(async move {
            let mut messages = stream.ok_or("the subscription has ended")?;
            wait_for_release(&mut messages).await?;
            let next = waiter.acquire(Self::LEASE, "raw-2").await.map_err(|error| error.to_string())?;
            Ok::<_, String>((next, Instant::now(), messages))
        });
        // The waiter waits and the machine is idle, so that nothing else delays the hand-over.
        tokio::time::sleep(REST_BEFORE_HAND_OVER).await;
        let start = Instant::now();
        self.holder.release(Self::LEASE, "raw-1", &token).await?;
        let (next, now, mut messages) = waiting.await??;
        self.waiter.release(Self::LEASE, "raw-2", &next).await?;
        wait_for_release(&mut messages).await?;
        self.messages = Some(messages);
        Ok(now.checked_duration_since(start).ok_or("the lease was granted before its release")?)
    }
}

/// Waits for the announcement of a release. A release may also announce that the longest ttl has changed.
async fn wait_for_release(messages: &mut PubSubStream) -> Result<(), &'static str> {
    loop {
        let message = messages.next().await.ok_or("the subscription has ended")?;
        if message.get_payload_bytes().starts_with(b"released ") {
            return Ok(());
        }
    }
}
