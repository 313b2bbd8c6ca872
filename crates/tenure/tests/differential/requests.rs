//! Turns the templates of a sequence into requests for the ledger and for the store.

use std::time::Duration;

use tenure::store::{
    Announcement, Ask, Claim, DocumentRequest, Generation, Holding, LeaseRequest, LogRequest, MembershipRequest, Reply,
    Request, TermNote,
};
use tenure::time::ServerTime;
use tenure::{Nonce, Token};

use crate::run::DifferentialRun;
use crate::sequence::{ENTRIES, RECORDS, RequestTemplate, TermTemplate, VALUES, ending, group, holder, lease};

impl DifferentialRun<'_> {
    pub(crate) fn remember_grant(&mut self, request: &Request, reply: &Reply) {
        match (request, reply) {
            (
                Request::Lease(LeaseRequest::Acquire { claim, .. } | LeaseRequest::TakeOver { claim, .. }),
                Reply::Granted(grant),
            ) => {
                self.granted.insert(grant.token, (claim.name.clone(), claim.holder.clone()));
            }
            (Request::Lease(LeaseRequest::HandOver { holding, to, .. }), Reply::HandedOver { token }) => {
                self.granted.insert(*token, (holding.name.clone(), to.clone()));
            }
            _ => {}
        }
    }

    /// Builds a request about a term for the ledger and for the store.
    fn term_requests<R: Into<Request>>(
        &mut self,
        term: TermTemplate,
        request: impl Fn(Holding) -> R,
    ) -> (Request, Request) {
        let (ours, theirs) = self.tokens.resolve(term.token);
        let granted = self.granted.get(&ours).filter(|_| term.right).cloned();
        let (name, holder) = granted.unwrap_or_else(|| (lease(term.lease), holder(term.holder)));
        let request = |token| request(Holding { name: name.clone(), holder: holder.clone(), token }).into();
        (request(ours), request(theirs))
    }

    /// Builds the request for the ledger and for the store.
    pub(crate) fn build_requests(&mut self, client: usize, template: &RequestTemplate) -> (Request, Request) {
        let claim = |number: usize, who: usize, nonce: u8, ttl: Duration| Claim {
            name: lease(number),
            holder: holder(who),
            nonce: Nonce::new(u128::from(nonce)),
            ttl,
        };
        match *template {
            RequestTemplate::InspectNamespace => same(LeaseRequest::InspectNamespace),
            RequestTemplate::Reopen { right } => {
                let (ours, theirs) = self.generations_of(client);
                let reopen = |generation: Generation| LeaseRequest::Reopen {
                    generation: Generation { stamp: generation.stamp ^ u64::from(!right), ..generation },
                };
                (reopen(ours).into(), reopen(theirs).into())
            }
            RequestTemplate::Acquire { lease, holder, nonce, ttl, ended } => {
                let claim = claim(lease, holder, nonce, ttl);
                match ended {
                    None => same(LeaseRequest::Acquire { claim, ended: None }),
                    Some(which) => both(
                        |token| LeaseRequest::Acquire { claim: claim.clone(), ended: Some(token) },
                        self.tokens.resolve(which),
                    ),
                }
            }
            RequestTemplate::TakeOver { lease, holder, nonce, ttl, victim, stale_after } => {
                let claim = claim(lease, holder, nonce, ttl);
                both(
                    |victim| LeaseRequest::TakeOver { claim: claim.clone(), victim, stale_after },
                    self.tokens.resolve(victim),
                )
            }
            RequestTemplate::Renew { term, ttl, progressed } => {
                self.term_requests(term, |holding| LeaseRequest::Renew { holding, ttl, progressed })
            }
            RequestTemplate::Release { term, ending: number } => {
                self.term_requests(term, |holding| LeaseRequest::Release { holding, ending: ending(number) })
            }
            RequestTemplate::Abandon { lease: number, holder: who, nonce } => same(LeaseRequest::Abandon {
                name: lease(number),
                holder: holder(who),
                nonce: Nonce::new(u128::from(nonce)),
            }),
            RequestTemplate::HandOver { term, to, window } => {
                self.term_requests(term, |holding| LeaseRequest::HandOver { holding, to: holder(to), window })
            }
            RequestTemplate::Revoke { lease: number, token } => {
                both(|token| LeaseRequest::Revoke { name: lease(number), token }, self.tokens.resolve(token))
            }
            RequestTemplate::StepDown { lease: number, token, to } => {
                let ask = Ask::StepDown { to: to.map(holder) };
                both(
                    |token| LeaseRequest::Ask { name: lease(number), token, ask: ask.clone() },
                    self.tokens.resolve(token),
                )
            }
            RequestTemplate::Inspect { lease: number } => same(LeaseRequest::Inspect { name: lease(number) }),
            RequestTemplate::Holder { lease: number } => same(LeaseRequest::Holders { names: vec![lease(number)] }),
            RequestTemplate::Forget { lease: number, idle_for } => {
                same(LeaseRequest::Forget { name: lease(number), logs: Vec::new(), idle_for, document: None })
            }
            RequestTemplate::Publish { term, record, value } => {
                self.term_requests(term, |holding| DocumentRequest::Publish {
                    holding,
                    record: RECORDS[record].to_owned(),
                    value: VALUES[value].to_vec(),
                    announced: value % 2 == 0,
                })
            }
            RequestTemplate::Read { lease: number, record } => {
                same(DocumentRequest::ReadRecord { name: lease(number), record: RECORDS[record].to_owned() })
            }
            RequestTemplate::Announce { lease: number, token } => both(
                |token| Request::Announce(Announcement::Released { name: lease(number), token }),
                self.tokens.resolve(token),
            ),
            RequestTemplate::Heartbeat { group: of, instance, ttl, record } => {
                let record = VALUES[record].to_vec();
                same(MembershipRequest::Heartbeat { group: group(of), instance: holder(instance), ttl, record })
            }
            RequestTemplate::Leave { group: of, instance } => {
                same(MembershipRequest::Leave { group: group(of), instance: holder(instance) })
            }
            RequestTemplate::Instances { group: of } => same(MembershipRequest::List { group: group(of) }),
            RequestTemplate::IndexAdd { index, entry, announced } => {
                let (index, entry) = (ENTRIES[index].to_owned(), ENTRIES[entry].to_owned());
                same(DocumentRequest::IndexAdd { index, entry, announced })
            }
            RequestTemplate::IndexRemove { index, entry, announced } => {
                let (index, entry) = (ENTRIES[index].to_owned(), ENTRIES[entry].to_owned());
                same(DocumentRequest::IndexRemove { index, entry, announced })
            }
            RequestTemplate::IndexList { index } => {
                same(DocumentRequest::IndexList { index: ENTRIES[index].to_owned() })
            }
            RequestTemplate::Note { term, ending: number } => self.term_requests(term, |holding| {
                let time = |is_there: bool| is_there.then(|| ServerTime::from_micros(u64::MAX));
                LogRequest::Note(TermNote {
                    name: holding.name,
                    token: holding.token,
                    holder: holding.holder,
                    from: ServerTime::from_micros(1),
                    demoted: time(number.is_some()),
                    released: time(number == Some(1)),
                    ending: number.map(ending),
                })
            }),
            RequestTemplate::Notes { limit } => same(LogRequest::Notes { limit }),
        }
    }
}

/// One request for both.
fn same(request: impl Into<Request>) -> (Request, Request) {
    let request = request.into();
    (request.clone(), request)
}

/// A request with the ledger's token, and one with the store's.
fn both<R: Into<Request>>(make: impl Fn(Token) -> R, (ours, theirs): (Token, Token)) -> (Request, Request) {
    (make(ours).into(), make(theirs).into())
}
