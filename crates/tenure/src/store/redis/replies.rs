//! Decodes replies.

use std::time::Duration;

use redis::Value;

use super::failure;
use super::keys::RedisKeys;
use crate::lease::Ending;
use crate::name::InstanceId;
use crate::store::{
    Ask, Attached, DocumentRequest, Generation, Grant, Held, LeaseReport, LeaseRequest, Lineage, LiveInstance,
    LogEntry, LogRequest, MembershipRequest, NamespaceReport, PreviousTerm, PublishedRecord, Quarantine,
    QuarantineReason, RecordedEnd, Refusal, Reply, Request, ServerRun, TermNote,
};
use crate::time::ServerTime;
use crate::token::Token;

/// What a server reports about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RedisServerInfo {
    pub(super) run: ServerRun,
    pub(super) uptime: Duration,
    pub(super) subscribers: i64,
    /// Whether this run has served the namespace: the server knows the namespace's marker.
    pub(super) has_served: bool,
}

impl RedisServerInfo {
    /// Reads the replies to `INFO server`, to `PUBSUB NUMSUB` and to the marker.
    pub(super) fn read(info: Value, subscribers: Value, marker: &Value) -> Option<Self> {
        let info = text(info)?;
        let field = |name: &str| info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
        let run = u128::from_str_radix(field("run_id")?.get(..32)?, 16).ok()?;
        // Measured on a wall clock: it may be negative after the clock was set back.
        let uptime: i64 = field("uptime_in_seconds")?.parse().ok()?;
        let uptime = Duration::from_secs(u64::try_from(uptime).unwrap_or(0));
        let mut subscribers = ReplyFields::new(subscribers)?;
        subscribers.text()?;
        let has_served = !matches!(marker, Value::ServerError(error) if failure::is_missing_script(error));
        Some(Self { run: ServerRun(run), uptime, subscribers: subscribers.int()?, has_served })
    }
}

/// Reads the reply of the attach script.
pub(super) fn attached(value: Value, run: ServerRun) -> Option<Attached> {
    let mut fields = ReplyFields::new(value)?;
    Some(Attached {
        generation: Generation { number: fields.number()?, stamp: fields.number()? },
        minted: fields.int()? == 1,
        run,
        server: fields.time()?,
        lineage: Lineage { id: fields.lineage_id()?.unwrap_or_default(), before: fields.lineage_id()? },
        max_ttl: fields.span()?,
        token_floor: fields.token()?,
        rolled_back: fields.int()? == 1,
        quarantine: fields.quarantine()?,
        began_quarantine: fields.int()? == 1,
        publish_error: Some(fields.text()?)
            .filter(|why| !why.is_empty())
            .map(|why| format!("cannot publish; grant this user `+publish` and `&*` (the server said: {why})")),
    })
}

/// Reads the reply to a request. `None` if it is not valid.
pub(super) fn reply(request: &Request, value: Value, keys: &RedisKeys) -> Option<Reply> {
    match request {
        Request::Document(DocumentRequest::ReadRecord { .. }) => match value {
            Value::Nil => Some(Reply::Record(None)),
            value => published(&bytes(value)?).map(|published| Reply::Record(Some(published))),
        },
        Request::Lease(LeaseRequest::Holders { .. }) => {
            let Value::Array(holders) = value else { return None };
            let holder = |value| match value {
                Value::Nil => Some(None),
                value => Some(Some(InstanceId::foreign(&text(value)?))),
            };
            holders.into_iter().map(holder).collect::<Option<_>>().map(Reply::Holders)
        }
        Request::Announce(_)
        | Request::Log(LogRequest::Note(_) | LogRequest::Watch { .. })
        | Request::Membership(MembershipRequest::Adopt { .. })
        | Request::Document(
            DocumentRequest::IndexAdd { announced: false, .. } | DocumentRequest::IndexRemove { announced: false, .. },
        ) => Some(Reply::Done),
        Request::Log(LogRequest::Notes { .. }) => notes(value).map(Reply::Notes),
        Request::Log(LogRequest::Read { after, .. }) => {
            let mut entries = log_entries(value)?;
            if after.is_none() {
                entries.reverse();
            }
            Some(Reply::LogEntries(entries))
        }
        Request::Document(DocumentRequest::Read { .. }) => {
            let Value::Array(documents) = value else { return None };
            Some(Reply::Documents(documents.into_iter().map(bytes).collect()))
        }
        Request::Membership(MembershipRequest::Scan { .. }) => {
            scan_page(value, &keys.heartbeat_prefix(&crate::name::Group::FLEET))
        }
        Request::Document(DocumentRequest::Scan { collection, .. }) => {
            scan_page(value, &keys.document_prefix(collection))
        }
        Request::Document(DocumentRequest::IndexList { .. }) => index_entries(value).map(Reply::Index),
        _ => script_reply(value),
    }
}

/// The entries of a set, in order.
fn index_entries(value: Value) -> Option<Vec<String>> {
    let (Value::Array(entries) | Value::Set(entries)) = value else { return None };
    let mut entries = entries.into_iter().map(text).collect::<Option<Vec<_>>>()?;
    entries.sort_unstable();
    Some(entries)
}

/// The entries of a log. Entries that cannot be read were written by another program, and are skipped.
fn log_entries(value: Value) -> Option<Vec<LogEntry>> {
    let entries = match value {
        Value::Array(entries) => entries,
        Value::Nil => Vec::new(),
        _ => return None,
    };
    let entry = |entry: Value| {
        let mut entry = ReplyFields::new(entry)?;
        let id = entry.text()?.parse().ok()?;
        let mut fields = ReplyFields::new(entry.next()?)?;
        fields.next()?;
        let token = fields.token()?;
        fields.next()?;
        Some(LogEntry { id, token, value: fields.bytes()? })
    };
    Some(entries.into_iter().filter_map(entry).collect())
}

/// A piece of a scan: the next cursor, and the keys.
fn scan_page(value: Value, prefix: &str) -> Option<Reply> {
    let mut fields = ReplyFields::new(value)?;
    let cursor = fields.number()?;
    let (Value::Array(keys) | Value::Set(keys)) = fields.next()? else { return None };
    // A key that is not UTF-8 has no name that a request could use.
    let name = |key: Value| Some(String::from_utf8(bytes(key)?).ok()?.strip_prefix(prefix)?.to_owned());
    let names = keys.into_iter().filter_map(name).collect();
    Some(Reply::Found { names, cursor })
}

/// Reads one live instance; `None` after the last.
fn live_instance(fields: &mut ReplyFields) -> Option<LiveInstance> {
    let instance = fields.instance()?;
    let record = fields.bytes()?;
    // A foreign program's heartbeat may never expire.
    let remaining = u64::try_from(fields.int()?).map_or(crate::store::MAX_TTL, Duration::from_millis);
    Some(LiveInstance { instance, record, remaining })
}

fn script_reply(value: Value) -> Option<Reply> {
    let mut fields = ReplyFields::new(value)?;
    let what = fields.text()?;
    Some(match what.as_str() {
        "granted" => Reply::Granted(Grant {
            token: fields.token()?,
            server: fields.time()?,
            max_ttl: fields.span()?,
            wait_out: fields.span()?,
            previous: match fields.optional_text() {
                Some(token) => Some(PreviousTerm {
                    token: Token::new(token.parse().ok()?)?,
                    holder: fields.instance()?,
                    ended: fields.ended()?,
                }),
                None => None,
            },
        }),
        "held" => Reply::Held(fields.held()?),
        "quarantined" => Reply::Quarantined(fields.quarantine()??),
        "namespace" => {
            let (server, max_ttl) = (fields.time()?, fields.span()?);
            let (number, stamp) = (fields.text()?, fields.text()?);
            let generation = match number.as_str() {
                "" => None,
                number => Some(Generation { number: number.parse().ok()?, stamp: stamp.parse().ok()? }),
            };
            Reply::Namespace(NamespaceReport { generation, quarantine: fields.quarantine()?, max_ttl, server })
        }
        "not_entered" => Reply::NotAttached,
        "term_over" => Reply::TermOver,
        "tokens_exhausted" => Reply::TokensExhausted,
        "renewed" => Reply::Renewed {
            server: fields.time()?,
            max_ttl: fields.span()?,
            asked: fields.optional_text().and_then(|asked| Ask::decode(&asked)),
        },
        "refused" => Reply::Refused(match fields.text()?.as_str() {
            "taken" => Refusal::Taken { holder: fields.instance()? },
            "stalled" => Refusal::Stalled,
            "missing" => Refusal::Missing,
            "store_reset" => Refusal::StoreReset,
            "revoked" => Refusal::Revoked,
            _ => return None,
        }),
        "done" => Reply::Done,
        "in_use" => Reply::InUse,
        "changed" => Reply::Conflict(fields.next().and_then(bytes)),
        "handed_over" => Reply::HandedOver { token: fields.token()? },
        "members" => {
            let mut members: Vec<LiveInstance> = std::iter::from_fn(|| live_instance(&mut fields)).collect();
            members.sort_unstable_by(|a, b| a.instance.cmp(&b.instance));
            Reply::Instances(members)
        }
        "lease" => Reply::Lease(report(&mut fields)?),
        _ => return None,
    })
}

fn report(fields: &mut ReplyFields) -> Option<LeaseReport> {
    let held = match fields.next()? {
        Value::Nil => None,
        value => {
            let mut held = ReplyFields::new(value)?;
            held.text()?;
            Some(held.held()?)
        }
    };
    let Some(token) = fields.optional_text() else {
        return Some(LeaseReport { held, ..LeaseReport::default() });
    };
    let last =
        PreviousTerm { token: Token::new(token.parse().ok()?)?, holder: fields.instance()?, ended: fields.ended()? };
    let since = ServerTime::from_micros(fields.number()?);
    let (ending, asked) = (fields.text()?, fields.text()?);
    Some(LeaseReport {
        held,
        last: Some(last),
        since: Some(since),
        ending: Ending::decode(&ending),
        asked: Ask::decode(&asked),
    })
}

/// The notes of a stream, which lists the latest first: an id and a list of fields and values each.
fn notes(value: Value) -> Option<Vec<TermNote>> {
    let entries = match value {
        Value::Array(entries) => entries,
        Value::Nil => Vec::new(),
        _ => return None,
    };
    let note = |entry: Value| {
        let mut entry = ReplyFields::new(entry)?;
        entry.next()?;
        let mut fields = ReplyFields::new(entry.next()?)?;
        fields.next()?;
        TermNote::decode(&fields.text()?)
    };
    // Notes that cannot be read were written by another program, and nothing depends on them.
    Some(entries.into_iter().rev().filter_map(note).collect())
}

/// Parses a record: its token, its time and its value, separated by spaces.
fn published(bytes: &[u8]) -> Option<PublishedRecord> {
    let mut parts = bytes.splitn(3, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let (token, at) = (Token::new(number()?)?, ServerTime::from_micros(number()?));
    Some(PublishedRecord { token, at, value: parts.next()?.to_vec() })
}

/// The fields of a script's reply, one after the other.
struct ReplyFields(std::vec::IntoIter<Value>);

impl ReplyFields {
    fn new(value: Value) -> Option<Self> {
        match value {
            Value::Array(fields) => Some(Self(fields.into_iter())),
            _ => None,
        }
    }

    fn next(&mut self) -> Option<Value> {
        self.0.next()
    }

    fn int(&mut self) -> Option<i64> {
        match self.next()? {
            Value::Int(number) => Some(number),
            _ => None,
        }
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        bytes(self.next()?)
    }

    fn text(&mut self) -> Option<String> {
        text(self.next()?)
    }

    /// Text that may be missing.
    fn optional_text(&mut self) -> Option<String> {
        self.next().and_then(text).filter(|text| !text.is_empty())
    }

    /// A number, as an integer or as digits.
    fn number(&mut self) -> Option<u64> {
        match self.next()? {
            Value::Int(number) => u64::try_from(number).ok(),
            other => text(other)?.parse().ok(),
        }
    }

    fn token(&mut self) -> Option<Token> {
        Token::new(self.number()?)
    }

    fn time(&mut self) -> Option<ServerTime> {
        self.number().map(ServerTime::from_micros)
    }

    fn span(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_micros)
    }

    /// A duration; a negative one stands for `None`.
    fn optional_span(&mut self) -> Option<Option<Duration>> {
        Some(u64::try_from(self.int()?).ok().map(Duration::from_micros))
    }

    fn instance(&mut self) -> Option<InstanceId> {
        self.text().map(|text| InstanceId::foreign(&text))
    }

    fn ended(&mut self) -> Option<RecordedEnd> {
        RecordedEnd::from_word(&self.text()?)
    }

    fn held(&mut self) -> Option<Held> {
        Some(Held {
            holder: self.instance()?,
            token: match self.optional_text() {
                Some(token) => Some(Token::new(token.parse().ok()?)?),
                None => None,
            },
            remaining: self.optional_span()?,
            idle: self.optional_span()?,
            max_ttl: self.span()?,
            server: self.time()?,
        })
    }

    /// The rest of a quarantine and its reason; `None` if no time is left.
    fn quarantine(&mut self) -> Option<Option<Quarantine>> {
        let (remaining, reason) = (self.span()?, self.text()?);
        if remaining.is_zero() {
            return Some(None);
        }
        Some(Some(Quarantine { remaining, reason: QuarantineReason::from_word(&reason)? }))
    }

    /// The id of a history: its first 32 digits, which are more than enough to identify it.
    fn lineage_id(&mut self) -> Option<Option<u128>> {
        let text = self.text()?;
        Some(text.get(..32).and_then(|name| u128::from_str_radix(name, 16).ok()))
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

/// The value of a setting in the reply to `CONFIG GET`.
pub(super) fn setting(value: Value) -> Option<String> {
    match value {
        Value::Array(mut pair) if pair.len() == 2 => text(pair.swap_remove(1)),
        _ => None,
    }
}

/// Text as it was written. Bytes that are not UTF-8 are replaced, never refused.
fn text(value: Value) -> Option<String> {
    let bytes = bytes(value)?;
    Some(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_hides_its_run_id_is_refused() {
        let subscribers = || Value::Array(vec![Value::BulkString(b"channel".to_vec()), Value::Int(0)]);
        let info = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let run = "00112233445566778899aabbccddeeff00112233";
        let whole = format!("redis_version:7.0.15\r\nrun_id:{run}\r\nuptime_in_seconds:12\r\n");
        let facts = RedisServerInfo::read(info(&whole), subscribers(), &Value::Int(1)).unwrap();
        assert_eq!((facts.uptime, facts.subscribers, facts.has_served), (Duration::from_secs(12), 0, true));
        for hidden in
            ["redis_version:7.0.15\r\nuptime_in_seconds:12\r\n", "run_id:short\r\nuptime_in_seconds:1\r\n", ""]
        {
            assert_eq!(RedisServerInfo::read(info(hidden), subscribers(), &Value::Int(1)), None, "{hidden:?}");
        }
        let error = failure::missing_run_id("redis://host");
        assert!(error.to_string().contains("run_id") && !error.is_retryable(), "{error}");
    }
}
