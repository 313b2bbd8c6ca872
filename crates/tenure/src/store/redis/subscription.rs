//! Hearing announcements, over a connection of their own.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSub, PubSubSink, PubSubStream};

use super::address::Address;
use super::connection::dial;
use super::failure;
use super::keys::Keys;
use crate::store::{Announcement, BoxFuture, Heard, StoreError, Subscription};

/// After this long without a word the server is asked whether it is still there. Not often: what a dead link does not tell costs a ttl at
/// most, and every candidate asks.
const QUIET: Duration = Duration::from_secs(20);

/// How long it may take to say so.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) struct RedisSubscription {
    sink: PubSubSink,
    messages: PubSubStream,
    location: String,
}

impl RedisSubscription {
    pub(super) async fn open(address: &Address, keys: &Keys) -> Result<Self, StoreError> {
        let failed = |error: redis::RedisError| failure::broken(&address.location, &error);
        let stream = dial(address).await?;
        let mut pubsub = PubSub::new(&address.login().await?, stream).await.map_err(failed)?;
        pubsub.subscribe(&keys.channel).await.map_err(failed)?;
        let (sink, messages) = pubsub.split();
        Ok(Self { sink, messages, location: address.location.clone() })
    }
}

impl Subscription for RedisSubscription {
    fn next(&mut self) -> BoxFuture<'_, Heard> {
        Box::pin(async move {
            loop {
                match tokio::time::timeout(QUIET, self.messages.next()).await {
                    Ok(Some(message)) => {
                        let text = std::str::from_utf8(message.get_payload_bytes()).ok();
                        // Anybody can publish anything; what we cannot read is not for us.
                        if let Some(announcement) = text.and_then(Announcement::decode) {
                            return Heard::Announced(announcement);
                        }
                    }
                    Ok(None) => return Heard::Closed,
                    Err(_) => {
                        let answer = tokio::time::timeout(PATIENCE, self.sink.ping::<redis::Value>()).await;
                        if !matches!(answer, Ok(Ok(_))) {
                            return Heard::Closed;
                        }
                    }
                }
            }
        })
    }
}

impl fmt::Debug for RedisSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisSubscription({})", self.location)
    }
}
