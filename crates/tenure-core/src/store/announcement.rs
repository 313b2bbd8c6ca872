//! Announcements: hints that something changed. Losing one breaks nothing.

use std::time::Duration;

use crate::name::{Group, InstanceId, LeaseName};
use crate::time::ServerTime;
use crate::token::Token;

use super::{DocumentId, Generation};

/// A change that others may be waiting for, published by the request that made it.
///
/// Announcements are hints: they make reactions faster. No guarantee rests on them.
///
/// ```
/// use tenure::store::Announcement;
/// use tenure::{LeaseName, Token};
///
/// let announcement = Announcement::Released { name: LeaseName::role("cleanup")?, token: Token::MAX };
/// assert_eq!(announcement.lease().map(LeaseName::label), Some("cleanup"));
/// assert_eq!(Announcement::decode(&announcement.encode()), Some(announcement));
/// assert_eq!(Announcement::decode("hello"), None); // any program can publish to the channel
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Announcement {
    /// A lease is unheld: its holder released it.
    Released {
        /// Which lease.
        name: LeaseName,
        /// The term that ended.
        token: Token,
    },
    /// The reconciler has found an unheld lease.
    Unheld {
        /// Which lease.
        name: LeaseName,
    },
    /// A lease has a new holder, named by the old one.
    HandedOver {
        /// Which lease.
        name: LeaseName,
        /// The new term.
        token: Token,
        /// The new holder.
        to: InstanceId,
    },
    /// An operator ended a term.
    Revoked {
        /// Which lease.
        name: LeaseName,
        /// The term that ended.
        token: Token,
    },
    /// Something is asked of a holder; the store has what it is.
    Asked {
        /// Which lease.
        name: LeaseName,
        /// The term whose holder is asked.
        token: Token,
    },
    /// A record was published under a lease.
    Published {
        /// Which lease.
        name: LeaseName,
        /// Which record.
        record: String,
        /// The term it was published in.
        token: Token,
    },
    /// A new generation was minted: the store had lost its data, or the namespace is new. Every instance that attached
    /// to another generation attaches again.
    GenerationMinted {
        /// The new generation.
        generation: Generation,
    },
    /// The longest ttl that can be relied on has changed: a longer lease was granted, or the last one of the longest
    /// was released.
    LongestTtl {
        /// The new value.
        ttl: Duration,
        /// The store's time of the change.
        server: ServerTime,
    },
    /// A quarantine ends earlier than reported: an operator ended it, or an attaching instance remembers shorter leases
    /// than a newcomer had assumed.
    Reopened,
    /// An instance joined.
    Joined {
        /// The group it joined.
        group: Group,
        /// The instance.
        instance: InstanceId,
    },
    /// An instance left.
    Left {
        /// The group it left.
        group: Group,
        /// The instance.
        instance: InstanceId,
    },
    /// An entry was added to a log of a watched lease.
    Appended {
        /// Which lease.
        name: LeaseName,
        /// Which log.
        log: String,
        /// The term it was added in.
        token: Token,
    },
    /// A document was written or deleted.
    DocumentChanged {
        /// Which.
        document: DocumentId,
    },
    /// An index changed.
    IndexChanged {
        /// Which index.
        index: String,
    },
    /// An event of an instance, for observers.
    Event {
        /// The event: a [`FleetEvent`](crate::fleet::FleetEvent).
        event: String,
    },
}

impl Announcement {
    /// The lease that it is about, if any.
    pub fn lease(&self) -> Option<&LeaseName> {
        match self {
            Self::Released { name, .. }
            | Self::Unheld { name }
            | Self::HandedOver { name, .. }
            | Self::Revoked { name, .. }
            | Self::Asked { name, .. }
            | Self::Published { name, .. }
            | Self::Appended { name, .. } => Some(name),
            Self::GenerationMinted { .. }
            | Self::LongestTtl { .. }
            | Self::Reopened
            | Self::Joined { .. }
            | Self::Left { .. }
            | Self::DocumentChanged { .. }
            | Self::IndexChanged { .. }
            | Self::Event { .. } => None,
        }
    }

    /// Encodes it as one line of text, which [`decode`](Self::decode) reads. Free text comes last, so that it may
    /// contain anything.
    pub fn encode(&self) -> String {
        match self {
            Self::Released { name, token } => format!("released {token} {}", name.encode()),
            Self::Unheld { name } => format!("vacant {}", name.encode()),
            Self::HandedOver { name, token, to } => format!("handed_over {token} {} {to}", name.encode()),
            Self::Revoked { name, token } => format!("revoked {token} {}", name.encode()),
            Self::Asked { name, token } => format!("asked {token} {}", name.encode()),
            Self::Published { name, record, token } => format!("published {token} {} {record}", name.encode()),
            Self::GenerationMinted { generation } => format!("generation {} {}", generation.number, generation.stamp),
            Self::LongestTtl { ttl, server } => format!("longest_ttl {} {}", ttl.as_millis(), server.as_micros()),
            Self::Reopened => "reopened".to_owned(),
            Self::Joined { group, instance } => encode_membership_change("joined", instance, group),
            Self::Left { group, instance } => encode_membership_change("left", instance, group),
            Self::Appended { name, log, token } => format!("appended {token} {} {log}", name.encode()),
            Self::DocumentChanged { document } => format!("document {} {}", document.collection, document.id),
            Self::IndexChanged { index } => format!("index {index}"),
            Self::Event { event } => format!("event {event}"),
        }
    }

    /// Reads what [`encode`](Self::encode) wrote. `None` for anything else: any program can publish to the channel.
    pub fn decode(text: &str) -> Option<Self> {
        if text == "reopened" {
            return Some(Self::Reopened);
        }
        let (what, rest) = text.split_once(' ')?;
        match what {
            "joined" | "left" => {
                let (instance, prefix) = rest.split_once(' ').map_or((rest, None), |(id, prefix)| (id, Some(prefix)));
                let instance = InstanceId::new(instance).ok()?;
                let group = prefix.map_or(Some(Group::FLEET), |prefix| Group::candidates(prefix).ok())?;
                return Some(match what {
                    "joined" => Self::Joined { group, instance },
                    _ => Self::Left { group, instance },
                });
            }
            "document" => {
                let (collection, id) = rest.split_once(' ')?;
                let document = DocumentId { collection: collection.to_owned(), id: id.to_owned() };
                return Some(Self::DocumentChanged { document });
            }
            "event" => return Some(Self::Event { event: rest.to_owned() }),
            "index" => return Some(Self::IndexChanged { index: rest.to_owned() }),
            "vacant" => return Some(Self::Unheld { name: LeaseName::decode(rest)? }),
            _ => {}
        }
        let (number, rest) = rest.split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        if what == "generation" {
            let generation = Generation { number, stamp: rest.parse().ok()? };
            return Some(Self::GenerationMinted { generation });
        }
        if what == "longest_ttl" {
            let server = ServerTime::from_micros(rest.parse().ok()?);
            return Some(Self::LongestTtl { ttl: Duration::from_millis(number), server });
        }
        let token = Token::new(number)?;
        let (name, rest) = rest.split_once(' ').map_or((rest, None), |(name, rest)| (name, Some(rest)));
        let name = LeaseName::decode(name)?;
        match (what, rest) {
            ("released", None) => Some(Self::Released { name, token }),
            ("revoked", None) => Some(Self::Revoked { name, token }),
            ("asked", None) => Some(Self::Asked { name, token }),
            ("handed_over", Some(to)) => Some(Self::HandedOver { name, token, to: InstanceId::new(to).ok()? }),
            ("appended", Some(log)) => Some(Self::Appended { name, token, log: log.to_owned() }),
            ("published", Some(record)) => Some(Self::Published { name, token, record: record.to_owned() }),
            _ => None,
        }
    }
}

/// Encodes an instance that joined or left, with the prefix of its group unless the group is the whole fleet.
fn encode_membership_change(what: &str, instance: &InstanceId, group: &Group) -> String {
    match group.prefix() {
        Some(prefix) => format!("{what} {instance} {prefix}"),
        None => format!("{what} {instance}"),
    }
}

/// What a subscription delivers.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{Announcement, AttachRequest, Keyspace, DocumentRequest, SubscriptionItem, open};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?; // before it subscribes
/// let mut subscription = store.subscribe().await?;
/// let change = DocumentRequest::IndexAdd { index: "roles".to_owned(), entry: "cleanup".to_owned(), announced: true };
/// connection.submit(vec![change.into()], Duration::from_secs(1)).await;
/// match subscription.next().await {
///     SubscriptionItem::Announced(Announcement::IndexChanged { index }) => assert_eq!(index, "roles"),
///     SubscriptionItem::Announced(_) => {}
///     SubscriptionItem::Gap => println!("some were missed: read everything again"),
///     SubscriptionItem::Closed => println!("subscribe again"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscriptionItem {
    /// An announcement.
    Announced(Announcement),
    /// Announcements may have been missed: look again at everything being waited for.
    Gap,
    /// The subscription is over; subscribe again.
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_announcement_reads_back_as_it_was_written() {
        let name = LeaseName::target("poll", "eu-1").unwrap();
        let instance = InstanceId::new("api-1").unwrap();
        let group = Group::candidates("{my-app}:heartbeat:").unwrap();
        let token = Token::MAX;
        let free = "a b\n\0{c} ü ".to_owned();
        let all = [
            Announcement::Released { name: name.clone(), token },
            Announcement::Unheld { name: name.clone() },
            Announcement::HandedOver { name: name.clone(), token, to: instance.clone() },
            Announcement::Revoked { name: name.clone(), token },
            Announcement::Asked { name: name.clone(), token },
            Announcement::Published { name: name.clone(), record: free.clone(), token },
            Announcement::Published { name: name.clone(), record: String::new(), token },
            Announcement::Appended { name, log: "results".to_owned(), token },
            Announcement::DocumentChanged {
                document: DocumentId { collection: "sessions".to_owned(), id: free.clone() },
            },
            Announcement::GenerationMinted { generation: Generation { number: u64::MAX, stamp: u64::MAX } },
            Announcement::LongestTtl { ttl: Duration::from_secs(60), server: ServerTime::from_micros(u64::MAX) },
            Announcement::Reopened,
            Announcement::Joined { group: Group::FLEET, instance: instance.clone() },
            Announcement::Joined { group: group.clone(), instance: instance.clone() },
            Announcement::Left { group: Group::FLEET, instance: instance.clone() },
            Announcement::Left { group, instance },
            Announcement::IndexChanged { index: free },
            Announcement::IndexChanged { index: String::new() },
        ];
        for announcement in all {
            assert_eq!(Announcement::decode(&announcement.encode()).as_ref(), Some(&announcement));
        }
        for bad in [
            "",
            "released",
            "released 1",
            "released x l6:lease:a",
            "joined ",
            "left a ",
            "joined a {",
            "generation 1 x",
            "longest_ttl 1",
            "what 1 2 3",
        ] {
            assert_eq!(Announcement::decode(bad), None, "{bad:?}");
        }
    }
}
