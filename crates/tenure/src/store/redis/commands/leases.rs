//! Requests about leases.

use std::time::Duration;

use redis::Cmd;

use super::{AttachedData, CommandEncoder, add_term_args, cmd, flag, lineage, micros, millis};
use crate::lease::Ending;
use crate::name::LeaseName;
use crate::store::redis::scripts::Script;
use crate::store::{Claim, Generation, Holding, LeaseRequest, deleted_index};
use crate::token::Token;

impl CommandEncoder {
    pub(super) fn encode_lease_request(&self, attached: AttachedData, request: &LeaseRequest) -> Cmd {
        let keys = &self.keys;
        match request {
            LeaseRequest::Acquire { claim, ended } => {
                let arguments = self.claim_args(attached, claim, *ended, None);
                self.lease_script(Script::Acquire, &claim.name).arg(arguments).take()
            }
            LeaseRequest::TakeOver { claim, victim, stale_after } => {
                let arguments = self.claim_args(attached, claim, None, Some((*victim, *stale_after)));
                self.lease_script(Script::Acquire, &claim.name).arg(arguments).take()
            }
            LeaseRequest::Renew { holding, ttl, progressed } => {
                self.lease_script(Script::Renew, &holding.name).arg(self.renew_args(holding, *ttl, *progressed)).take()
            }
            LeaseRequest::Release { holding, ending } => {
                let mut command = self.lease_script(Script::Release, &holding.name);
                add_term_args(&mut command, holding).arg("").arg(ending.encode());
                command.arg(holding.name.encode()).arg(&keys.channel);
                command
            }
            LeaseRequest::Abandon { name, holder, nonce } => {
                let mut command = self.lease_script(Script::Release, name);
                command.arg(holder.as_str()).arg("").arg(nonce.to_string()).arg(Ending::GivenUp.encode());
                command.arg(name.encode()).arg(&keys.channel);
                command
            }
            LeaseRequest::HandOver { holding, to, window } => {
                let mut command = self.lease_script(Script::HandOver, &holding.name);
                add_term_args(&mut command, holding).arg(to.as_str()).arg(millis(*window));
                command.arg(holding.name.encode()).arg(&keys.channel);
                command
            }
            LeaseRequest::Revoke { name, token } => {
                let mut command = self.lease_script(Script::Revoke, name);
                command.arg(token.get()).arg(name.encode()).arg(&keys.channel);
                command
            }
            LeaseRequest::Ask { name, token, ask } => {
                let mut command = self.evalsha(Script::Ask, &[&keys.lease(name), &keys.term(name)]);
                command.arg(token.get()).arg(ask.encode()).arg(name.encode()).arg(&keys.channel);
                command
            }
            LeaseRequest::Inspect { name } => self.lease_script(Script::Inspect, name),
            LeaseRequest::Holders { names } => {
                cmd("MGET").arg(names.iter().map(|name| keys.lease(name)).collect::<Vec<_>>()).take()
            }
            LeaseRequest::Forget { name, logs, idle_for, document } => {
                let mut all = vec![keys.lease(name), keys.term(name), keys.namespace(name), keys.records(name)];
                all.extend(logs.iter().map(|log| keys.log(name, log)));
                if let Some(document) = document {
                    all.extend([keys.document(document), keys.index(&deleted_index(&document.collection))]);
                }
                let all: Vec<&str> = all.iter().map(String::as_str).collect();
                let id = document.as_ref().map_or("", |document| &document.id);
                self.evalsha(Script::Forget, &all).arg(micros(*idle_for)).arg(logs.len()).arg(id).take()
            }
            LeaseRequest::InspectNamespace => self.evalsha(Script::InspectNamespace, &[&keys.namespace_key]),
            LeaseRequest::Reopen { generation: Generation { number, stamp } } => {
                let mut command = self.evalsha(Script::Reopen, &[&keys.namespace_key]);
                command.arg(*number).arg(*stamp).arg(&keys.channel);
                command
            }
        }
    }

    /// A script about a lease, its last term and the namespace.
    fn lease_script(&self, script: Script, name: &LeaseName) -> Cmd {
        self.evalsha(script, &[&self.keys.lease(name), &self.keys.term(name), &self.keys.namespace(name)])
    }

    /// The arguments of a claim.
    pub(super) fn claim_args(
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
    pub(super) fn renew_args(&self, holding: &Holding, ttl: Duration, progressed: bool) -> Vec<String> {
        let (holder, token) = (holding.holder.to_string(), holding.token.to_string());
        vec![holder, token, millis(ttl).to_string(), flag(progressed).to_owned(), self.keys.channel.clone()]
    }
}
