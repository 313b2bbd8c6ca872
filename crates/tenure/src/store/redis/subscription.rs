//! Announcements, over a separate connection.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSub, PubSubSink, PubSubStream};

use super::address::Address;
use super::connection::dial;
use super::failure;
use super::keys::RedisKeys;
use crate::store::{Announcement, BoxFuture, StoreError, Subscription, SubscriptionItem};

/// The server is pinged after this long without a message. Not often: a dead link delays a waiter by a ttl at most, and
/// every candidate pings.
const PING_AFTER: Duration = Duration::from_secs(20);

/// Timeout of the ping.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct RedisSubscription {
    sink: PubSubSink,
    messages: PubSubStream,
    location: String,
}

impl RedisSubscription {
    pub(super) async fn open(address: &Address, keys: &RedisKeys) -> Result<Self, StoreError> {
        let failed = |error: redis::RedisError| failure::from_redis_error(&address.location, &error);
        let stream = dial(address).await?;
        let mut pubsub = PubSub::new(&address.login().await?, stream).await.map_err(failed)?;
        pubsub.subscribe(&keys.channel).await.map_err(failed)?;
        let (sink, messages) = pubsub.split();
        Ok(Self { sink, messages, location: address.location.clone() })
    }
}

impl Subscription for RedisSubscription {
    fn next(&mut self) -> BoxFuture<'_, SubscriptionItem> {
        Box::pin(async move {
            loop {
                match tokio::time::timeout(PING_AFTER, self.messages.next()).await {
                    Ok(Some(message)) => {
                        let text = std::str::from_utf8(message.get_payload_bytes()).ok();
                        // Any program can publish to the channel; a message that we cannot decode is not for us.
                        if let Some(announcement) = text.and_then(Announcement::decode) {
                            return SubscriptionItem::Announced(announcement);
                        }
                    }
                    Ok(None) => return SubscriptionItem::Closed,
                    Err(_) => {
                        let answer = tokio::time::timeout(PING_TIMEOUT, self.sink.ping::<redis::Value>()).await;
                        if !matches!(answer, Ok(Ok(_))) {
                            return SubscriptionItem::Closed;
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
