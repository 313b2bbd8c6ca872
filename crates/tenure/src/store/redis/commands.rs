//! Encodes requests as commands.

use std::time::Duration;

use redis::Cmd;

use super::keys::RedisKeys;
use super::replies::RedisServerInfo;
use super::scripts::Script;
use crate::lease::Ending;
use crate::name::{Group, InstanceId, LeaseName};
use crate::store::note::MAX_TERM_NOTES;
use crate::store::{Announcement, AttachRequest, Claim, DELETED_SESSIONS, Generation, Holding, Request, SESSIONS};
use crate::token::Token;

/// Number of keys examined in one piece of a scan: few enough that other clients do not wait for long.
const SCAN_COUNT: u32 = 1_000;

/// The digests by which the server knows the scripts, in the order of `Script::ALL`.
#[derive(Clone, Debug)]
pub(super) struct Digests(pub(super) Vec<String>);

/// Encodes requests as commands.
#[derive(Debug)]
pub(super) struct CommandEncoder {
    pub(super) keys: RedisKeys,
    pub(super) digests: Digests,
}

/// The commands of one request. Its reply is that of the last one.
pub(super) struct Commands {
    pub(super) before: Option<Cmd>,
    pub(super) last: Cmd,
}

impl From<Cmd> for Commands {
    fn from(last: Cmd) -> Self {
        Self { before: None, last }
    }
}

impl CommandEncoder {
    pub(super) fn evalsha(&self, script: Script, keys: &[&str]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.digests.0.get(script as usize)).arg(keys.len()).arg(keys);
        command
    }

    /// The same with the script's whole text, for a server that may not know it.
    fn eval(&self, script: Script, keys: &[&str]) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(script.source()).arg(keys.len()).arg(keys);
        command
    }

    /// Encodes a request of a connection that attached to this data.
    pub(super) fn encode(&self, attached: AttachedData, request: &Request) -> Commands {
        let keys = &self.keys;
        match request {
            Request::Acquire { claim, ended } => {
                let arguments = self.claim_args(attached, claim, *ended, None);
                self.lease_script(Script::Acquire, &claim.name).arg(arguments).take().into()
            }
            Request::TakeOver { claim, victim, stale_after } => {
                let arguments = self.claim_args(attached, claim, None, Some((*victim, *stale_after)));
                self.lease_script(Script::Acquire, &claim.name).arg(arguments).take().into()
            }
            Request::Renew { holding, ttl, progressed } => self
                .lease_script(Script::Renew, &holding.name)
                .arg(self.renew_args(holding, *ttl, *progressed))
                .take()
                .into(),
            Request::Release { holding, ending } => {
                let mut command = self.lease_script(Script::Release, &holding.name);
                add_term_args(&mut command, holding).arg("").arg(ending.encode());
                command.arg(holding.name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::Abandon { name, holder, nonce } => {
                let mut command = self.lease_script(Script::Release, name);
                command.arg(holder.as_str()).arg("").arg(nonce.to_string()).arg(Ending::GivenUp.encode());
                command.arg(name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::HandOver { holding, to, window } => {
                let mut command = self.lease_script(Script::HandOver, &holding.name);
                add_term_args(&mut command, holding).arg(to.as_str()).arg(millis(*window));
                command.arg(holding.name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::Revoke { name, token } => {
                let mut command = self.lease_script(Script::Revoke, name);
                command.arg(token.get()).arg(name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::Ask { name, token, ask } => {
                let mut command = self.evalsha(Script::Ask, &[&keys.lease(name), &keys.term(name)]);
                command.arg(token.get()).arg(ask.encode()).arg(name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::Inspect { name } => self.lease_script(Script::Inspect, name).into(),
            Request::InspectNamespace => self.evalsha(Script::InspectNamespace, &[&keys.namespace_key]).into(),
            Request::Reopen { generation: Generation { number, stamp } } => {
                let mut command = self.evalsha(Script::Reopen, &[&keys.namespace_key]);
                command.arg(*number).arg(*stamp).arg(&keys.channel);
                command.into()
            }
            Request::Holders { names } => {
                cmd("MGET").arg(names.iter().map(|name| keys.lease(name)).collect::<Vec<_>>()).take().into()
            }
            Request::Publish { holding, record, value, announced } => {
                let (lease, term) = (keys.lease(&holding.name), keys.term(&holding.name));
                let mut command = self.evalsha(Script::Publish, &[&lease, &term, &keys.records(&holding.name)]);
                add_term_args(&mut command, holding).arg(record).arg(value.as_slice());
                command.arg(flag(*announced)).arg(holding.name.encode()).arg(&keys.channel);
                command.into()
            }
            Request::Append { holding, log, value, kept, records: written } => {
                let (lease, term) = (keys.lease(&holding.name), keys.term(&holding.name));
                let (log, records) = (keys.log(&holding.name, log), keys.records(&holding.name));
                let mut command = self.evalsha(Script::Append, &[&lease, &term, &log, &records]);
                add_term_args(&mut command, holding).arg(value.as_slice()).arg((*kept).max(1));
                for (record, value) in written {
                    command.arg(record).arg(value.as_slice());
                }
                command.into()
            }
            Request::ReadLog { name, log, after, limit } => {
                let (key, limit) = (keys.log(name, log), i64::try_from(*limit).unwrap_or(i64::MAX));
                match after {
                    // No entry can follow the largest id.
                    Some(after) => {
                        let from = after.next().map_or_else(|| "+".to_owned(), |next| next.to_string());
                        let to = if after.next().is_some() { "+" } else { "-" };
                        cmd("XRANGE").arg(key).arg(from).arg(to).arg("COUNT").arg(limit).take()
                    }
                    None => cmd("XREVRANGE").arg(key).arg("+").arg("-").arg("COUNT").arg(limit).take(),
                }
                .into()
            }
            Request::Forget { name, logs, idle_for, session } => {
                let mut all = vec![keys.lease(name), keys.term(name), keys.namespace(name), keys.session(session)];
                all.extend([keys.index(DELETED_SESSIONS), keys.records(name)]);
                all.extend(logs.iter().map(|log| keys.log(name, log)));
                let all: Vec<&str> = all.iter().map(String::as_str).collect();
                self.evalsha(Script::Forget, &all).arg(micros(*idle_for)).arg(session).take().into()
            }
            Request::WriteSession { id, expected: seen, value, fresh } => {
                let (session, listed, gone) = (keys.session(id), keys.index(SESSIONS), keys.index(DELETED_SESSIONS));
                let mut command = self.evalsha(Script::WriteSession, &[&session, &listed, &gone]);
                for text in [seen, value] {
                    command.arg(flag(text.is_some())).arg(text.as_deref().unwrap_or_default());
                }
                let changed = Announcement::SessionChanged { id: id.clone() };
                command.arg(id).arg(changed.encode()).arg(&keys.channel).arg(flag(*fresh));
                command.into()
            }
            Request::ReadSessions { ids } => {
                cmd("MGET").arg(ids.iter().map(|id| keys.session(id)).collect::<Vec<_>>()).take().into()
            }
            Request::Read { name, record } => cmd("HGET").arg(keys.records(name)).arg(record).take().into(),
            Request::Announce(announcement) => {
                cmd("PUBLISH").arg(&keys.channel).arg(announcement.encode()).take().into()
            }
            Request::Heartbeat { group, instance, ttl, record } => {
                let mut beat = self.instance_script(Script::Heartbeat, group, instance);
                self.add_heartbeat_args(&mut beat, group, instance, *ttl, record);
                // The index is in another hash slot. It comes first: an entry without a heartbeat is harmless.
                let mut indexed = self.evalsha(Script::IndexInstance, &[&keys.instance_index(group)]);
                indexed.arg(millis(*ttl)).arg(instance.as_str());
                Commands { before: Some(indexed), last: beat }
            }
            Request::Leave { group, instance } => {
                let mut leave = self.instance_script(Script::Leave, group, instance);
                let left = Announcement::Left { group: group.clone(), instance: instance.clone() };
                leave.arg(left.encode()).arg(&keys.channel);
                let indexed = cmd("ZREM").arg(keys.instance_index(group)).arg(instance.as_str()).take();
                Commands { before: Some(indexed), last: leave }
            }
            Request::Instances { group } => {
                let mut command = self.evalsha(Script::Instances, &[&keys.instance_index(group)]);
                let (before, after) = keys.instance_record_affixes(group);
                command.arg(keys.heartbeat_prefix(group)).arg(before).arg(after);
                command.into()
            }
            Request::Adopt { group, name } => {
                // The expiry is unknown: listing the instances checks whether the heartbeat still exists.
                let indexed = cmd("ZADD").arg(keys.instance_index(group)).arg("+inf").arg(name).take();
                let joined = Announcement::Joined { group: group.clone(), instance: InstanceId::foreign(name) };
                let announced = cmd("PUBLISH").arg(&keys.channel).arg(joined.encode()).take();
                Commands { before: Some(indexed), last: announced }
            }
            Request::Scan { kind: what, cursor } => {
                let pattern = format!("{}*", escape_glob(keys.foreign_prefix(*what)));
                cmd("SCAN").arg(*cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT).take().into()
            }
            Request::IndexAdd { index, entry, announced } => self.change_index("SADD", index, entry, *announced).into(),
            Request::IndexRemove { index, entry, announced } => {
                self.change_index("SREM", index, entry, *announced).into()
            }
            Request::IndexList { index } => cmd("SMEMBERS").arg(keys.index(index)).take().into(),
            Request::Note(note) => {
                let mut command = cmd("XADD");
                command
                    .arg(&keys.notes)
                    .arg("MAXLEN")
                    .arg("~")
                    .arg(MAX_TERM_NOTES)
                    .arg("*")
                    .arg("note")
                    .arg(note.encode());
                command.into()
            }
            Request::Notes { limit } => {
                let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
                cmd("XREVRANGE").arg(&keys.notes).arg("+").arg("-").arg("COUNT").arg(limit).take().into()
            }
        }
    }

    /// One command for a request about a lease and the heartbeat that follows it. `None` for other requests, or when
    /// their keys may be on different servers.
    pub(super) fn with_heartbeat(&self, attached: AttachedData, request: &Request, next: &Request) -> Option<Cmd> {
        let Request::Heartbeat { group, instance, ttl, record } = next else { return None };
        if !self.keys.single_server {
            return None;
        }
        let (script, name, arguments) = match request {
            Request::Acquire { claim, ended } => {
                (Script::AcquireWithHeartbeat, &claim.name, self.claim_args(attached, claim, *ended, None))
            }
            Request::TakeOver { claim, victim, stale_after } => {
                let victim = Some((*victim, *stale_after));
                (Script::AcquireWithHeartbeat, &claim.name, self.claim_args(attached, claim, None, victim))
            }
            Request::Renew { holding, ttl, progressed } => {
                (Script::RenewWithHeartbeat, &holding.name, self.renew_args(holding, *ttl, *progressed))
            }
            _ => return None,
        };
        let keys = &self.keys;
        let (lease, term, namespace) = (keys.lease(name), keys.term(name), keys.namespace(name));
        let (heartbeat, said, index) =
            (keys.heartbeat(group, instance), keys.instance_record(group, instance), keys.instance_index(group));
        let mut command = self.evalsha(script, &[&lease, &term, &namespace, &heartbeat, &said, &index]);
        command.arg(arguments);
        self.add_heartbeat_args(&mut command, group, instance, *ttl, record);
        command.arg(instance.as_str());
        Some(command)
    }

    fn add_heartbeat_args(
        &self,
        command: &mut Cmd,
        group: &Group,
        instance: &InstanceId,
        ttl: Duration,
        record: &[u8],
    ) {
        let joined = Announcement::Joined { group: group.clone(), instance: instance.clone() };
        command.arg(millis(ttl)).arg(record).arg(flag(group.prefix().is_some()));
        command.arg(joined.encode()).arg(&self.keys.channel);
    }

    /// A script about an instance.
    fn instance_script(&self, script: Script, group: &Group, instance: &InstanceId) -> Cmd {
        self.evalsha(script, &[&self.keys.heartbeat(group, instance), &self.keys.instance_record(group, instance)])
    }

    pub(super) fn attach(&self, request: &AttachRequest, server: &RedisServerInfo) -> Cmd {
        let mut command = self.eval(Script::Attach, &[&self.keys.namespace_key]);
        command.arg(server.run.to_string()).arg(micros(server.uptime)).arg(server.subscribers);
        command.arg(flag(server.has_served));
        match &request.memory {
            Some(memory) => {
                command.arg(memory.generation.number).arg(memory.generation.stamp).arg(memory.high_water.get())
            }
            None => command.arg("").arg("").arg(0),
        };
        command
            .arg(micros(request.known_ttl()))
            .arg(request.stamp)
            .arg(flag(request.bootstrap))
            .arg(flag(request.durable));
        command.arg(&self.keys.channel).arg(flag(request.observer));
        match &request.memory {
            Some(memory) => {
                command.arg(lineage(memory.lineage)).arg(memory.answered_at().as_micros()).arg(memory.run.to_string())
            }
            None => command.arg("").arg(0).arg(""),
        };
        command
    }

    /// A script about a lease, its last term and the namespace.
    fn lease_script(&self, script: Script, name: &LeaseName) -> Cmd {
        self.evalsha(script, &[&self.keys.lease(name), &self.keys.term(name), &self.keys.namespace(name)])
    }

    /// The arguments of a claim.
    fn claim_args(
        &self,
        attached: AttachedData,
        claim: &Claim,
        ended: Option<Token>,
        victim: Option<(Token, Duration)>,
    ) -> Vec<String> {
        let (victim, stale_after) = victim.map_or((None, 0), |(token, stale_after)| (Some(token), micros(stale_after)));
        let token = |token: Option<Token>| token.map_or_else(String::new, |token| token.to_string());
        vec![
            attached.generation.number.to_string(),
            attached.generation.stamp.to_string(),
            claim.holder.to_string(),
            claim.nonce.to_string(),
            millis(claim.ttl).to_string(),
            token(ended),
            token(victim),
            stale_after.to_string(),
            self.keys.channel.clone(),
            lineage(attached.lineage),
        ]
    }

    /// The arguments of a renewal.
    fn renew_args(&self, holding: &Holding, ttl: Duration, progressed: bool) -> Vec<String> {
        let (holder, token) = (holding.holder.to_string(), holding.token.to_string());
        vec![holder, token, millis(ttl).to_string(), flag(progressed).to_owned(), self.keys.channel.clone()]
    }

    fn change_index(&self, verb: &str, index: &str, entry: &str, announced: bool) -> Cmd {
        if !announced {
            return cmd(verb).arg(self.keys.index(index)).arg(entry).take();
        }
        let mut command = self.evalsha(Script::Index, &[&self.keys.index(index)]);
        let changed = Announcement::IndexChanged { index: index.to_owned() };
        command.arg(verb).arg(entry).arg(changed.encode()).arg(&self.keys.channel);
        command
    }
}

fn add_term_args<'a>(command: &'a mut Cmd, holding: &Holding) -> &'a mut Cmd {
    command.arg(holding.holder.as_str()).arg(holding.token.get())
}

/// A pattern that matches this text alone.
fn escape_glob(text: &str) -> String {
    let special = |letter: char| matches!(letter, '*' | '?' | '[' | ']' | '^' | '-' | '\\');
    text.chars().flat_map(|letter| special(letter).then_some('\\').into_iter().chain([letter])).collect()
}

fn cmd(name: &str) -> Cmd {
    redis::cmd(name)
}

/// The data that a connection attached to. The scripts refuse its claims when other data is in its place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttachedData {
    pub(super) generation: Generation,
    /// The id of its history.
    pub(super) lineage: u128,
}

/// The id of a history in the form that scripts compare: as much of it as is remembered.
fn lineage(id: u128) -> String {
    if id == 0 { String::new() } else { format!("{id:032x}") }
}

fn flag(set: bool) -> &'static str {
    if set { "1" } else { "" }
}

/// Whole milliseconds, rounded up: the holder relies on no less.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX).max(1)
}

fn micros(span: Duration) -> u64 {
    // Below 2^53, up to which Lua numbers are exact.
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(Token::MAX.get())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use redis::Arg;

    use super::*;
    use crate::name::LeaseKind;
    use crate::store::{Ask, ForeignKind, Keyspace, TermNote};
    use crate::time::ServerTime;
    use crate::token::Nonce;

    /// The hash slot of a key, by the rules of Redis Cluster: CRC-16/XMODEM of the hash tag, or of the whole key.
    fn hash_slot(key: &str) -> u16 {
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

    /// The keys of a command: for a script those that it declares, otherwise the first argument.
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
            "PUBLISH" | "SCAN" => Vec::new(),
            _ => vec![words[1].clone()],
        }
    }

    fn candidates() -> Group {
        Group::candidates("my-app:heartbeat:").unwrap()
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
            Request::Holders { names: vec![name.clone()] },
            Request::Publish {
                holding: holding.clone(),
                record: "state".to_owned(),
                value: Vec::new(),
                announced: true,
            },
            Request::Read { name: name.clone(), record: "state".to_owned() },
            Request::Append { holding, log: "results".to_owned(), value: Vec::new(), kept: 1, records: Vec::new() },
            Request::ReadLog { name: name.clone(), log: "results".to_owned(), after: None, limit: 1 },
            Request::ReadSessions { ids: vec!["a".to_owned()] },
            Request::Announce(Announcement::Joined { group: Group::FLEET, instance: holder.clone() }),
            Request::Heartbeat { group: Group::FLEET, instance: holder.clone(), ttl, record: Vec::new() },
            Request::Heartbeat { group: candidates(), instance: holder.clone(), ttl, record: Vec::new() },
            Request::Leave { group: candidates(), instance: holder.clone() },
            Request::Instances { group: Group::FLEET },
            Request::Adopt { group: Group::FLEET, name: "elsewhere".to_owned() },
            Request::Scan { kind: ForeignKind::Sessions, cursor: 0 },
            Request::IndexAdd { index: index.clone(), entry: entry.clone(), announced: true },
            Request::IndexRemove { index: index.clone(), entry, announced: false },
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
    fn glob_characters_in_prefixes_are_escaped() {
        assert_eq!(escape_glob("poll:node:"), "poll:node:");
        assert_eq!(escape_glob("a*[b-c]?\\"), "a\\*\\[b\\-c\\]\\?\\\\");
    }

    #[test]
    fn the_hash_slot_of_a_key_is_that_of_redis() {
        // From `CLUSTER KEYSLOT`.
        assert_eq!((hash_slot("foo"), hash_slot("{foo}bar"), hash_slot("123456789")), (12_182, 12_182, 12_739));
    }

    #[test]
    fn all_keys_of_one_script_share_a_hash_slot() {
        let names = [
            LeaseName::lease("job").unwrap(),
            LeaseName::target("poll", "10.0.0.7:9100").unwrap(),
            LeaseName::with_prefix(LeaseKind::Role, "{my-app}:leader:", "cleanup").unwrap(),
        ];
        for keyspace in [Keyspace::default(), Keyspace::default().namespace("staging").unwrap()] {
            let digests = Digests(Script::ALL.iter().map(|script| format!("{script:?}")).collect());
            let encoder = CommandEncoder { keys: RedisKeys::new(&keyspace, 0).for_cluster(), digests };
            for request in names.iter().flat_map(every_request) {
                let commands = encoder.encode(AttachedData::default(), &request);
                for command in commands.before.iter().chain([&commands.last]) {
                    let slots: BTreeSet<u16> = keys(command).iter().map(|key| hash_slot(key)).collect();
                    assert!(slots.len() <= 1, "{request:?}: {:?}", keys(command));
                }
            }
            let instance = InstanceId::new("api-1").unwrap();
            let beat =
                Request::Heartbeat { group: candidates(), instance, ttl: Duration::from_secs(35), record: Vec::new() };
            for request in names.iter().flat_map(every_request) {
                assert!(
                    encoder.with_heartbeat(AttachedData::default(), &request, &beat).is_none(),
                    "a cluster cannot combine them"
                );
            }
        }
    }
}
