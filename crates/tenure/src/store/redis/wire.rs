//! Requests as commands, and answers as replies.

use std::time::Duration;

use redis::{Cmd, Value};

use super::keys::Keys;
use super::scripts::Script;
use crate::lease::Ending;
use crate::name::{InstanceId, LeaseName};
use crate::store::note::NOTES_KEPT;
use crate::store::{
    Ask, Claim, Closing, Ended, Entered, Entry, Generation, Grant, Held, Holding, LeaseReport, Member, PreviousTerm,
    Published, Refusal, Reply, Request, ServerRun, TermNote,
};
use crate::time::ServerTime;
use crate::token::Token;

/// The names under which the server knows the scripts, by their number.
#[derive(Clone, Debug)]
pub(super) struct Digests(pub(super) Vec<String>);

/// What turns requests into commands.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) keys: Keys,
    pub(super) digests: Digests,
}

/// The commands of one request. Its answer is that of the last one.
pub(super) struct Commands {
    pub(super) before: Option<Cmd>,
    pub(super) last: Cmd,
}

impl From<Cmd> for Commands {
    fn from(last: Cmd) -> Self {
        Self { before: None, last }
    }
}

impl Wire {
    pub(super) fn call(&self, script: Script, keys: &[&str]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.digests.0.get(script as usize)).arg(keys.len()).arg(keys);
        command
    }

    /// The same with the script's whole text, for when the server need not know it.
    fn call_by_text(&self, script: Script, keys: &[&str]) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(script.source()).arg(keys.len()).arg(keys);
        command
    }

    /// What asks for this, over a connection that entered this generation.
    pub(super) fn commands(&self, generation: Generation, request: &Request) -> Commands {
        let keys = &self.keys;
        match request {
            Request::Acquire { claim, ended } => self.claim(generation, claim, *ended, None).into(),
            Request::TakeOver { claim, victim, stale_after } => {
                self.claim(generation, claim, None, Some((*victim, *stale_after))).into()
            }
            Request::Renew { holding, ttl, progressed } => {
                let mut command = self.about(Script::Renew, &holding.name);
                who(&mut command, holding).arg(millis(*ttl)).arg(flag(*progressed));
                command.into()
            }
            Request::Release { holding, ending } => {
                let mut command = self.call(Script::Release, &[&keys.lease(&holding.name), &keys.term(&holding.name)]);
                who(&mut command, holding).arg("").arg(ending.encode());
                command.arg(holding.name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::Abandon { name, holder, nonce } => {
                let mut command = self.call(Script::Release, &[&keys.lease(name), &keys.term(name)]);
                command.arg(holder.as_str()).arg("").arg(nonce.to_string()).arg(Ending::GivenUp.encode());
                command.arg(name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::HandOver { holding, to, window } => {
                let mut command = self.about(Script::HandOver, &holding.name);
                who(&mut command, holding).arg(to.as_str()).arg(millis(*window));
                command.arg(holding.name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::Revoke { name, token } => {
                let mut command = self.call(Script::Revoke, &[&keys.lease(name), &keys.term(name)]);
                command.arg(token.get()).arg(name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::Ask { name, token, ask } => {
                let mut command = self.call(Script::Ask, &[&keys.lease(name), &keys.term(name)]);
                command.arg(token.get()).arg(ask.encode()).arg(name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::Inspect { name } => self.about(Script::Inspect, name).into(),
            Request::Publish { holding, record, value } => {
                let (lease, term) = (keys.lease(&holding.name), keys.term(&holding.name));
                let mut command = self.call(Script::Publish, &[&lease, &term, &keys.records(&holding.name)]);
                who(&mut command, holding).arg(record).arg(value.as_slice());
                command.arg(holding.name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::Read { name, record } => plain("HGET").arg(keys.records(name)).arg(record).take().into(),
            Request::Announce(announcement) => {
                plain("PUBLISH").arg(&keys.channel).arg(announcement.encode()).take().into()
            }
            Request::Beat { instance, ttl, record } => {
                let mut beat = self.call(Script::Beat, &[&keys.heartbeat(instance), &keys.member(instance)]);
                beat.arg(millis(*ttl)).arg(record.as_slice()).arg(instance.as_str()).arg(&keys.channel);
                // The index is in another slot. It comes first: an entry without a heartbeat does no harm.
                let indexed = plain("SADD").arg(&keys.nodes).arg(instance.as_str()).take();
                Commands { before: Some(indexed), last: beat }
            }
            Request::Leave { instance } => {
                let mut leave = self.call(Script::Leave, &[&keys.heartbeat(instance), &keys.member(instance)]);
                leave.arg(instance.as_str()).arg(&keys.channel);
                let indexed = plain("SREM").arg(&keys.nodes).arg(instance.as_str()).take();
                Commands { before: Some(indexed), last: leave }
            }
            Request::Members => plain("SMEMBERS").arg(&keys.nodes).take().into(),
            Request::IndexAdd { index, entry } => self.change_index("SADD", index, entry).into(),
            Request::IndexRemove { index, entry } => self.change_index("SREM", index, entry).into(),
            Request::IndexList { index } => plain("SMEMBERS").arg(keys.index(index)).take().into(),
            Request::Note(note) => {
                let mut command = plain("XADD");
                command.arg(&keys.notes).arg("MAXLEN").arg("~").arg(NOTES_KEPT).arg("*").arg("note").arg(note.encode());
                command.into()
            }
            Request::Notes { limit } => {
                let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
                plain("XREVRANGE").arg(&keys.notes).arg("+").arg("-").arg("COUNT").arg(limit).take().into()
            }
        }
    }

    /// What asks for one instance, alive or not.
    pub(super) fn member(&self, instance: &InstanceId) -> Cmd {
        self.call(Script::Member, &[&self.keys.heartbeat(instance), &self.keys.member(instance)])
    }

    /// What takes instances that are gone out of the index. One that comes back puts itself in again.
    pub(super) fn forget(&self, gone: &[InstanceId]) -> Cmd {
        let mut command = plain("SREM");
        command.arg(&self.keys.nodes);
        gone.iter().for_each(|instance| {
            command.arg(instance.as_str());
        });
        command
    }

    pub(super) fn enter(&self, entry: &Entry, server: &ServerFacts) -> Cmd {
        let mut command = self.call_by_text(Script::Enter, &[&self.keys.entrance]);
        command.arg(server.run.to_string()).arg(micros(server.uptime)).arg(server.listeners);
        match &entry.memory {
            Some(memory) => command
                .arg(memory.generation.number)
                .arg(memory.generation.stamp)
                .arg(memory.high_water.get())
                .arg(micros(memory.max_ttl.max(entry.max_ttl).min(crate::lease::LONGEST_TTL))),
            None => command.arg("").arg("").arg(0).arg(micros(entry.max_ttl.min(crate::lease::LONGEST_TTL))),
        };
        command.arg(entry.stamp).arg(flag(entry.bootstrap)).arg(flag(entry.durable)).arg(&self.keys.channel);
        command
    }

    fn claim(
        &self,
        generation: Generation,
        claim: &Claim,
        ended: Option<Token>,
        victim: Option<(Token, Duration)>,
    ) -> Cmd {
        let mut command = self.about(Script::Acquire, &claim.name);
        command.arg(generation.number).arg(generation.stamp).arg(claim.holder.as_str()).arg(claim.nonce.to_string());
        command.arg(millis(claim.ttl)).arg(ended.map_or_else(String::new, |token| token.to_string()));
        match victim {
            Some((token, stale_after)) => command.arg(token.get()).arg(micros(stale_after)),
            None => command.arg("").arg(0),
        };
        command
    }

    /// A script about a lease, its last term and the namespace.
    fn about(&self, script: Script, name: &LeaseName) -> Cmd {
        self.call(script, &[&self.keys.lease(name), &self.keys.term(name), &self.keys.namespace(name)])
    }

    fn change_index(&self, verb: &str, index: &str, entry: &str) -> Cmd {
        let mut command = self.call(Script::Index, &[&self.keys.index(index)]);
        let changed = crate::store::Announcement::IndexChanged { index: index.to_owned() };
        command.arg(verb).arg(entry).arg(changed.encode()).arg(&self.keys.channel);
        command
    }
}

/// What a server tells about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerFacts {
    pub(super) run: ServerRun,
    pub(super) uptime: Duration,
    pub(super) listeners: i64,
}

impl ServerFacts {
    /// Reads the answers to `INFO server` and `PUBSUB NUMSUB`.
    pub(super) fn read(info: Value, subscribers: Value) -> Option<Self> {
        let info = text(info)?;
        let field = |name: &str| info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
        let run = u128::from_str_radix(field("run_id")?.get(..32)?, 16).ok()?;
        // Counted on a wall clock: after that was set back it may be below zero.
        let uptime: i64 = field("uptime_in_seconds")?.parse().ok()?;
        let uptime = Duration::from_secs(u64::try_from(uptime).unwrap_or(0));
        let mut subscribers = Fields::of(subscribers)?;
        subscribers.text()?;
        Some(Self { run: ServerRun(run), uptime, listeners: subscribers.int()? })
    }
}

/// Reads the answer of the script that enters.
pub(super) fn entered(value: Value, run: ServerRun) -> Option<Entered> {
    let mut fields = Fields::of(value)?;
    Some(Entered {
        generation: Generation { number: fields.number()?, stamp: fields.number()? },
        minted: fields.int()? == 1,
        run,
        max_ttl: fields.span()?,
        token_floor: fields.token()?,
        rolled_back: fields.int()? == 1,
        closed_for: fields.span()?,
        closing: match fields.text()?.as_str() {
            "" => None,
            "record_missing" => Some(Closing::RecordMissing),
            "older_generation" => Some(Closing::OlderGeneration),
            "server_restarted" => Some(Closing::ServerRestarted),
            "tokens_went_back" => Some(Closing::TokensWentBack),
            "others_listening" => Some(Closing::OthersListening),
            "server_too_young" => Some(Closing::ServerTooYoung),
            _ => return None,
        },
        silent: Some(fields.text()?)
            .filter(|why| !why.is_empty())
            .map(|why| format!("this user may not publish; grant it `+publish` and `&*` (the server said: {why})")),
    })
}

/// Reads the answer to a request. `None` when it is not one.
pub(super) fn reply(request: &Request, value: Value) -> Option<Reply> {
    match request {
        Request::Read { .. } => match value {
            Value::Nil => Some(Reply::Record(None)),
            value => published(&bytes(value)?).map(|published| Reply::Record(Some(published))),
        },
        Request::Announce(_) | Request::Note(_) => Some(Reply::Done),
        Request::Notes { .. } => notes(value).map(Reply::Notes),
        Request::IndexList { .. } => listed(value).map(Reply::Index),
        _ => answered(value),
    }
}

/// The entries of a set, in order.
pub(super) fn listed(value: Value) -> Option<Vec<String>> {
    let (Value::Array(entries) | Value::Set(entries)) = value else { return None };
    let mut entries = entries.into_iter().map(text).collect::<Option<Vec<_>>>()?;
    entries.sort_unstable();
    Some(entries)
}

/// Reads the answer about one instance: nobody, or somebody alive.
pub(super) fn member(instance: InstanceId, value: Value) -> Option<Option<Member>> {
    let mut fields = Fields::of(value)?;
    match fields.text()?.as_str() {
        "nobody" => Some(None),
        "member" => {
            let record = fields.bytes()?;
            // A foreign program's heartbeat may have no end.
            let left = u64::try_from(fields.int()?).map_or(crate::lease::LONGEST_TTL, Duration::from_millis);
            Some(Some(Member { instance, record, remaining: left }))
        }
        _ => None,
    }
}

fn answered(value: Value) -> Option<Reply> {
    let mut fields = Fields::of(value)?;
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
        "closed" => Reply::Closed { remaining: fields.span()? },
        "not_entered" => Reply::NotEntered,
        "term_over" => Reply::TermOver,
        "tokens_exhausted" => Reply::TokensExhausted,
        "renewed" => Reply::Renewed {
            server: fields.time()?,
            max_ttl: fields.span()?,
            asked: fields.optional_text().and_then(|asked| Ask::decode(&asked)),
        },
        "refused" => Reply::Refused(match fields.text()?.as_str() {
            "taken" => Refusal::Taken { by: fields.instance()? },
            "stalled" => Refusal::Stalled,
            "missing" => Refusal::Missing,
            "store_reset" => Refusal::StoreReset,
            "revoked" => Refusal::Revoked,
            _ => return None,
        }),
        "done" => Reply::Done,
        "handed_over" => Reply::HandedOver { token: fields.token()? },
        "lease" => Reply::Lease(report(&mut fields)?),
        _ => return None,
    })
}

fn report(fields: &mut Fields) -> Option<LeaseReport> {
    let held = match fields.next()? {
        Value::Nil => None,
        value => {
            let mut held = Fields::of(value)?;
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
        let mut entry = Fields::of(entry)?;
        entry.next()?;
        let mut fields = Fields::of(entry.next()?)?;
        fields.next()?;
        TermNote::decode(&fields.text()?)
    };
    // What cannot be read is somebody else's, and nothing depends on it.
    Some(entries.into_iter().rev().filter_map(note).collect())
}

/// A record is its token, its time and its value, with a space between.
fn published(bytes: &[u8]) -> Option<Published> {
    let mut parts = bytes.splitn(3, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let (token, at) = (Token::new(number()?)?, ServerTime::from_micros(number()?));
    Some(Published { token, at, value: parts.next()?.to_vec() })
}

/// The fields of a script's answer, one after the other.
struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    fn of(value: Value) -> Option<Self> {
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

    /// A number, whole or written in digits.
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

    /// A span; a negative one stands for none.
    fn optional_span(&mut self) -> Option<Option<Duration>> {
        Some(u64::try_from(self.int()?).ok().map(Duration::from_micros))
    }

    fn instance(&mut self) -> Option<InstanceId> {
        self.text().map(|text| InstanceId::foreign(&text))
    }

    fn ended(&mut self) -> Option<Ended> {
        Ended::from_word(&self.text()?)
    }

    fn held(&mut self) -> Option<Held> {
        Some(Held {
            by: self.instance()?,
            token: match self.optional_text() {
                Some(token) => Some(Token::new(token.parse().ok()?)?),
                None => None,
            },
            remaining: self.optional_span()?,
            idle: self.optional_span()?,
            max_ttl: self.span()?,
        })
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

/// Text as somebody wrote it; what is not text is made visible, never refused.
fn text(value: Value) -> Option<String> {
    let bytes = bytes(value)?;
    Some(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

fn who<'a>(command: &'a mut Cmd, holding: &Holding) -> &'a mut Cmd {
    command.arg(holding.holder.as_str()).arg(holding.token.get())
}

fn plain(name: &str) -> Cmd {
    redis::cmd(name)
}

fn flag(set: bool) -> &'static str {
    if set { "1" } else { "" }
}

/// Whole milliseconds, rounded up: the holder counts on no less.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX).max(1)
}

fn micros(span: Duration) -> u64 {
    // Below 2^53, which is as far as Lua counts.
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(Token::MAX.get())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use redis::Arg;

    use super::*;
    use crate::name::LeaseKind;
    use crate::store::{Announcement, Keyspace, TermNote};
    use crate::token::Nonce;

    /// The slot of a key, by the rules of Redis Cluster: CRC-16/XMODEM of the hash tag, or of the whole key.
    fn slot(key: &str) -> u16 {
        let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
        let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
        let crc =
            hashed.bytes().fold(0_u16, |crc, byte| {
                (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
                    if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
                })
            });
        crc % 16_384
    }

    /// The keys of a command: of a script, those that it declares; otherwise the first argument.
    fn keys(command: &Cmd) -> Vec<String> {
        let words: Vec<String> = command
            .args_iter()
            .map(|word| match word {
                Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                _ => String::new(),
            })
            .collect();
        match words[0].as_str() {
            "EVALSHA" => words[3..3 + words[2].parse::<usize>().unwrap()].to_vec(),
            "PUBLISH" => Vec::new(),
            _ => vec![words[1].clone()],
        }
    }

    fn every_request(name: &LeaseName) -> Vec<Request> {
        let (holder, token, ttl) = (InstanceId::new("api-1").unwrap(), Token::MAX, Duration::from_secs(30));
        let claim = Claim { name: name.clone(), holder: holder.clone(), nonce: Nonce::new(1), ttl };
        let holding = Holding { name: name.clone(), holder: holder.clone(), token };
        let (name, index, entry) = (name.clone(), "index".to_owned(), "entry".to_owned());
        vec![
            Request::Acquire { claim: claim.clone(), ended: None },
            Request::TakeOver { claim, victim: token, stale_after: ttl },
            Request::Renew { holding: holding.clone(), ttl, progressed: true },
            Request::Release { holding: holding.clone(), ending: Ending::GivenUp },
            Request::Abandon { name: name.clone(), holder: holder.clone(), nonce: Nonce::new(1) },
            Request::HandOver { holding: holding.clone(), to: holder.clone(), window: ttl },
            Request::Revoke { name: name.clone(), token },
            Request::Ask { name: name.clone(), token, ask: Ask::StepDown { to: None } },
            Request::Inspect { name: name.clone() },
            Request::Publish { holding, record: "state".to_owned(), value: Vec::new() },
            Request::Read { name: name.clone(), record: "state".to_owned() },
            Request::Announce(Announcement::Joined { instance: holder.clone() }),
            Request::Beat { instance: holder.clone(), ttl, record: Vec::new() },
            Request::Leave { instance: holder.clone() },
            Request::Members,
            Request::IndexAdd { index: index.clone(), entry: entry.clone() },
            Request::IndexRemove { index: index.clone(), entry },
            Request::IndexList { index },
            Request::Note(TermNote {
                name,
                token,
                holder,
                from: ServerTime::from_micros(1),
                demoted: None,
                released: None,
                ending: None,
            }),
            Request::Notes { limit: 1 },
        ]
    }

    #[test]
    fn the_slot_of_a_key_is_what_redis_says_it_is() {
        // From `CLUSTER KEYSLOT`.
        assert_eq!((slot("foo"), slot("{foo}bar"), slot("123456789")), (12_182, 12_182, 12_739));
    }

    #[test]
    fn all_keys_of_one_script_share_a_slot() {
        let names = [
            LeaseName::lease("job").unwrap(),
            LeaseName::target("poll", "10.0.0.7:9100").unwrap(),
            LeaseName::with_prefix(LeaseKind::Role, "{my-app}:leader:", "cleanup").unwrap(),
        ];
        for keyspace in [Keyspace::default(), Keyspace::default().namespace("staging").unwrap()] {
            let digests = Digests(Script::ALL.iter().map(|script| format!("{script:?}")).collect());
            let wire = Wire { keys: Keys::new(&keyspace, 0).spread(), digests };
            for request in names.iter().flat_map(every_request) {
                let commands = wire.commands(Generation::default(), &request);
                for command in commands.before.iter().chain([&commands.last]) {
                    let slots: BTreeSet<u16> = keys(command).iter().map(|key| slot(key)).collect();
                    assert!(slots.len() <= 1, "{request:?}: {:?}", keys(command));
                }
            }
            let member = wire.member(&InstanceId::new("api-1").unwrap());
            assert_eq!(keys(&member).iter().map(|key| slot(key)).collect::<BTreeSet<_>>().len(), 1);
        }
    }
}
