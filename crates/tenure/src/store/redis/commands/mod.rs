//! Encodes requests as commands. Each group of requests has a file.

mod documents;
mod leases;
mod logs;
mod membership;

use std::time::Duration;

use redis::Cmd;

use super::keys::RedisKeys;
use super::replies::RedisServerInfo;
use super::scripts::Script;
use crate::store::{AttachRequest, Generation, Holding, LeaseRequest, MembershipRequest, Request};
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
        match request {
            Request::Lease(request) => self.encode_lease_request(attached, request).into(),
            Request::Membership(request) => self.encode_membership_request(request),
            Request::Document(request) => self.encode_document_request(request).into(),
            Request::Log(request) => self.encode_log_request(request).into(),
            Request::Announce(announcement) => {
                cmd("PUBLISH").arg(&self.keys.channel).arg(announcement.encode()).take().into()
            }
        }
    }

    /// One command for a request about a lease and the heartbeat that follows it. `None` for other requests, or when
    /// their keys may be on different servers.
    pub(super) fn with_heartbeat(&self, attached: AttachedData, request: &Request, next: &Request) -> Option<Cmd> {
        let Request::Membership(MembershipRequest::Heartbeat { group, instance, ttl, record }) = next else {
            return None;
        };
        let Request::Lease(request) = request else { return None };
        if !self.keys.single_server {
            return None;
        }
        let (script, name, arguments) = match request {
            LeaseRequest::Acquire { claim, ended } => {
                (Script::AcquireWithHeartbeat, &claim.name, self.claim_args(attached, claim, *ended, None))
            }
            LeaseRequest::TakeOver { claim, victim, stale_after } => {
                let victim = Some((*victim, *stale_after));
                (Script::AcquireWithHeartbeat, &claim.name, self.claim_args(attached, claim, None, victim))
            }
            LeaseRequest::Renew { holding, ttl, progressed } => {
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

    /// One piece of a scan for the keys with this prefix.
    fn scan(&self, prefix: String, cursor: u64) -> Cmd {
        let pattern = format!("{}*", escape_glob(&prefix));
        cmd("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT).take()
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
    use crate::lease::Ending;
    use crate::name::{Group, InstanceId, LeaseKind, LeaseName};
    use crate::store::{Announcement, Ask, Claim, DocumentRequest, Keyspace, LogRequest, TermNote};
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
        let (name, name_again, index, entry) = (name.clone(), name.clone(), "index".to_owned(), "entry".to_owned());
        vec![
            LeaseRequest::Acquire { claim: claim.clone(), ended: None }.into(),
            LeaseRequest::TakeOver { claim, victim: token, stale_after: ttl }.into(),
            LeaseRequest::Renew { holding: holding.clone(), ttl, progressed: true }.into(),
            LeaseRequest::Release { holding: holding.clone(), ending: Ending::GivenUp }.into(),
            LeaseRequest::Abandon { name: name.clone(), holder: holder.clone(), nonce: Nonce::new(1) }.into(),
            LeaseRequest::HandOver { holding: holding.clone(), to: holder.clone(), window: ttl }.into(),
            LeaseRequest::Revoke { name: name.clone(), token }.into(),
            LeaseRequest::Ask { name: name.clone(), token, ask: Ask::StepDown { to: None } }.into(),
            LeaseRequest::Inspect { name: name.clone() }.into(),
            LeaseRequest::Holders { names: vec![name.clone()] }.into(),
            DocumentRequest::Publish {
                holding: holding.clone(),
                record: "state".to_owned(),
                value: Vec::new(),
                announced: true,
            }
            .into(),
            DocumentRequest::ReadRecord { name: name.clone(), record: "state".to_owned() }.into(),
            LogRequest::Append {
                holding,
                log: "results".to_owned(),
                value: Vec::new(),
                kept: 1,
                nonce: Nonce::new(1),
                records: Vec::new(),
            }
            .into(),
            LogRequest::Read { name: name.clone(), log: "results".to_owned(), after: None, limit: 1 }.into(),
            DocumentRequest::Read { collection: "sessions".to_owned(), ids: vec!["a".to_owned()] }.into(),
            Request::Announce(Announcement::Joined { group: Group::FLEET, instance: holder.clone() }),
            MembershipRequest::Heartbeat { group: Group::FLEET, instance: holder.clone(), ttl, record: Vec::new() }
                .into(),
            MembershipRequest::Heartbeat { group: candidates(), instance: holder.clone(), ttl, record: Vec::new() }
                .into(),
            MembershipRequest::Leave { group: candidates(), instance: holder.clone() }.into(),
            MembershipRequest::List { group: Group::FLEET }.into(),
            MembershipRequest::Adopt { group: Group::FLEET, name: "elsewhere".to_owned() }.into(),
            DocumentRequest::Scan { collection: "sessions".to_owned(), cursor: 0 }.into(),
            DocumentRequest::IndexAdd { index: index.clone(), entry: entry.clone(), announced: true }.into(),
            DocumentRequest::IndexRemove { index: index.clone(), entry, announced: false }.into(),
            DocumentRequest::IndexList { index }.into(),
            LogRequest::Note(TermNote {
                name,
                token,
                holder,
                from: ServerTime::from_micros(1),
                demoted: None,
                released: None,
                ending: None,
            })
            .into(),
            LogRequest::Notes { limit: 1 }.into(),
            LogRequest::Watch { name: name_again, ttl }.into(),
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
            let beat = MembershipRequest::Heartbeat {
                group: candidates(),
                instance,
                ttl: Duration::from_secs(35),
                record: Vec::new(),
            };
            let beat = beat.into();
            for request in names.iter().flat_map(every_request) {
                assert!(
                    encoder.with_heartbeat(AttachedData::default(), &request, &beat).is_none(),
                    "a cluster cannot combine them"
                );
            }
        }
    }
}
