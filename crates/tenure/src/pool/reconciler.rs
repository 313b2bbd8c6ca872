//! The reconciler: one instance that checks all targets for unheld ones, and discovers what programs that are not
//! Tenure's have written to the store.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::pool::{held_index, holders_index};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::Naming;
use super::PoolSettings;
use crate::event::EventKind;
use crate::fleet::DRAINING_INDEX;
use crate::name::{Group, InstanceId};
use crate::store::{
    Announcement, DocumentId, DocumentRequest, LeaseRequest, LiveInstance, MembershipRequest, Reply, Request,
};
use crate::tenure::{Tenure, TermHandle};

/// The reconciler reports progress several times in this many ttls or rounds; without it, its term ends as stalled.
const STALL_AFTER_INTERVALS: u32 = 3;

/// As long as none is found, other programs are looked for only in one round of this many, because that scans the whole
/// store.
const IDLE_SCAN_EVERY_ROUNDS: u32 = 6;

/// A drain request is forgotten when its instance was missing in this many cleanups in a row. An instance that was away
/// for less is still asked to drain when it is back.
const FORGET_AFTER_ROUNDS: u32 = 10;

/// The limit of targets of a gone instance per query.
const MAX_HOLDERS_PER_REQUEST: usize = 500;

/// The backoff after a failed request.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The pause between two parts of a scan, so that the server can serve other clients.
const SCAN_PAUSE: Duration = Duration::from_millis(2);

/// The task that campaigns for the reconciler role.
pub(super) struct Reconciler {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Reconciler {
    /// Campaigns for the role. Reports whenever this instance becomes the reconciler, and when it no longer is.
    pub(super) fn spawn(
        tenure: Tenure,
        naming: &Naming,
        settings: &PoolSettings,
        collections: Vec<String>,
        reconciler_term: ReconcilerTerm,
    ) -> (Self, mpsc::UnboundedReceiver<bool>) {
        let (stop, stopped) = oneshot::channel();
        let (changes, receiver) = mpsc::unbounded_channel();
        let (name, naming) = (naming.reconciler_lease(), naming.clone());
        let (ttl, every) = (settings.lease.ttl(), settings.read_every);
        let foreign: Vec<ForeignKind> =
            [ForeignKind::Heartbeats].into_iter().chain(collections.into_iter().map(ForeignKind::Documents)).collect();
        let task = tokio::spawn(async move {
            let mut stopped = pin!(stopped);
            let Ok(name) = name else { return };
            loop {
                // A lease, not an election: a list of candidates is not needed.
                let lease =
                    tenure.lease(&name).ttl(ttl).stall_after(ttl.max(every).saturating_mul(STALL_AFTER_INTERVALS));
                let term = tokio::select! {
                    term = lease.acquire() => term,
                    _ = &mut stopped => return,
                };
                let Ok(term) = term else {
                    tokio::select! {
                        () = tokio::time::sleep(ttl) => continue,
                        _ = &mut stopped => return,
                    }
                };
                let guard = ReconcilerGuard::new(&changes, &reconciler_term, (*term).clone());
                let stops = tokio::select! {
                    _ = term.run_infallible(reconcile(&tenure, &term, &naming, &foreign, every)) => false,
                    () = term.draining() => false,
                    _ = &mut stopped => true,
                };
                drop(guard);
                if stops {
                    let _ = term.release().await;
                    return;
                }
                drop(term);
                // Let another instance be the reconciler: we were asked to step down, or made no progress.
                tokio::select! {
                    () = tokio::time::sleep(ttl) => {}
                    _ = &mut stopped => return,
                }
            }
        });
        (Self { stop, task }, receiver)
    }

    pub(super) async fn stop(self) {
        drop(self.stop);
        let _ = self.task.await;
    }
}

/// Reports the begin of the role, and the end when dropped.
struct ReconcilerGuard {
    changes: mpsc::UnboundedSender<bool>,
    reconciler_term: ReconcilerTerm,
}

impl ReconcilerGuard {
    fn new(changes: &mpsc::UnboundedSender<bool>, reconciler_term: &ReconcilerTerm, term: TermHandle) -> Self {
        let _ = changes.send(true);
        reconciler_term.set(Some(term));
        Self { changes: changes.clone(), reconciler_term: reconciler_term.clone() }
    }
}

impl Drop for ReconcilerGuard {
    fn drop(&mut self) {
        self.reconciler_term.set(None);
        let _ = self.changes.send(false);
    }
}

/// The term of the reconciler, while this instance is it.
#[derive(Clone, Debug, Default)]
pub(super) struct ReconcilerTerm(Arc<Mutex<Option<TermHandle>>>);

impl ReconcilerTerm {
    fn set(&self, term: Option<TermHandle>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }

    pub(super) fn term(&self) -> Option<TermHandle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(TermHandle::is_valid)
    }
}

/// Runs rounds for as long as this instance is the reconciler.
async fn reconcile(
    tenure: &Tenure,
    term: &TermHandle,
    naming: &Naming,
    foreign: &[ForeignKind],
    every: Duration,
) -> Infallible {
    let mut foreign: Vec<(&ForeignKind, Discovery)> = foreign.iter().map(|kind| (kind, Discovery::Found)).collect();
    let mut missing = MissingInstances::default();
    for round in 0_u32.. {
        for (kind, last) in &mut foreign {
            let due = match last {
                Discovery::Found => true,
                Discovery::Nothing | Discovery::Refused(_) => round.is_multiple_of(IDLE_SCAN_EVERY_ROUNDS),
                Discovery::Unsupported => false,
            };
            if !due {
                continue;
            }
            let outcome = discover(tenure, term, kind).await;
            if let Discovery::Refused(error) = &outcome
                && !matches!(last, Discovery::Refused(_))
            {
                tenure.emit(EventKind::StoreRefused { error: error.clone() });
            }
            *last = outcome;
        }
        if round.is_multiple_of(IDLE_SCAN_EVERY_ROUNDS) {
            clean_up(tenure, naming, &mut missing).await;
        }
        term.progress();
        tokio::time::sleep(every).await;
    }
    std::future::pending().await
}

/// Removes what gone instances have left: the lists of their targets and, when they were missing for long, the drain
/// requests to them.
async fn clean_up(tenure: &Tenure, naming: &Naming, missing: &mut MissingInstances) -> Option<()> {
    // Read before the heartbeats, so that an instance that joins later does not count as gone.
    let index = |index: String| ask_until_answered(tenure, DocumentRequest::IndexList { index });
    let Reply::Index(holders) = index(holders_index(naming.pool())).await? else { return None };
    let Reply::Index(asked) = index(DRAINING_INDEX.to_owned()).await? else { return None };
    let Reply::Instances(members) = ask_until_answered(tenure, MembershipRequest::List { group: Group::FLEET }).await?
    else {
        return None;
    };
    let is_gone = |id: &&String| members.iter().all(|member| member.instance.as_str() != id.as_str());
    for entry in missing.update(asked.iter().filter(is_gone)) {
        tenure.call_detached(DocumentRequest::IndexRemove {
            index: DRAINING_INDEX.to_owned(),
            entry,
            announced: false,
        });
    }
    for gone in holders.iter().filter(is_gone) {
        let list = held_index(naming.pool(), &InstanceId::foreign(gone));
        // A list that another program has corrupted stays; the other lists do not wait for it.
        let Some(Reply::Index(targets)) = index(list.clone()).await else { continue };
        let mut holds = false;
        let forget = |target: &String| {
            tenure.call_detached(DocumentRequest::IndexRemove {
                index: list.clone(),
                entry: target.clone(),
                announced: false,
            });
        };
        let (named, unnamed): (Vec<&String>, Vec<&String>) =
            targets.iter().partition(|target| naming.lease(target).is_ok());
        unnamed.into_iter().for_each(forget);
        for some in named.chunks(MAX_HOLDERS_PER_REQUEST) {
            let names = some.iter().filter_map(|target| naming.lease(target).ok()).collect();
            let Some(Reply::Holders(now)) = ask_until_answered(tenure, LeaseRequest::Holders { names }).await else {
                holds = true;
                continue;
            };
            for (target, holder) in some.iter().zip(now) {
                // The instances that take over from it need this list to find what it still holds.
                if holder.is_some_and(|holder| holder.as_str() == gone) {
                    holds = true;
                } else {
                    forget(target);
                }
            }
        }
        if !holds {
            let (index, entry) = (holders_index(naming.pool()), gone.clone());
            tenure.call_detached(DocumentRequest::IndexRemove { index, entry, announced: false });
        }
    }
    Some(())
}

/// Instances with a drain request that are missing, and in how many cleanups in a row.
#[derive(Default)]
struct MissingInstances(BTreeMap<String, u32>);

impl MissingInstances {
    /// Records the instances missing now. Returns those that have been missing for long.
    fn update<'a>(&mut self, gone: impl Iterator<Item = &'a String>) -> Vec<String> {
        self.0 = gone.map(|id| (id.clone(), self.0.get(id).map_or(1, |times| times.saturating_add(1)))).collect();
        self.0.iter().filter(|(_, times)| **times >= FORGET_AFTER_ROUNDS).map(|(id, _)| id.clone()).collect()
    }
}

/// What programs that are not Tenure's may write without adding it to an index.
enum ForeignKind {
    /// Heartbeats of the fleet.
    Heartbeats,
    /// Documents of a collection.
    Documents(String),
}

/// The outcome of a discovery.
enum Discovery {
    /// Other programs have written something.
    Found,
    /// Other programs have written nothing now.
    Nothing,
    /// The store refuses the scan, for now.
    Refused(String),
    /// This store never has anything to discover.
    Unsupported,
}

/// Brings the index into line with the store. The index is read before the scan, so that the scan finds every entry
/// that existed all the while.
async fn discover(tenure: &Tenure, term: &TermHandle, kind: &ForeignKind) -> Discovery {
    let listed = match kind {
        ForeignKind::Heartbeats => ask_until_answered(tenure, MembershipRequest::List { group: Group::FLEET }).await,
        ForeignKind::Documents(collection) => {
            ask_until_answered(tenure, DocumentRequest::IndexList { index: collection.clone() }).await
        }
    };
    let found = match scan(tenure, term, kind).await {
        ScanResult::Complete(found) => found,
        ScanResult::Interrupted => return Discovery::Found,
        ScanResult::Refused(error) => return Discovery::Refused(error),
        ScanResult::Unsupported => return Discovery::Unsupported,
    };
    match (kind, listed) {
        (ForeignKind::Heartbeats, Some(Reply::Instances(members))) => adopt(tenure, &found, &members),
        (ForeignKind::Documents(collection), Some(Reply::Index(entries))) => {
            list_documents(tenure, collection, &found, &entries.into_iter().collect())
        }
        _ => Discovery::Nothing,
    }
}

/// Sends a request until the store replies, or refuses for good.
async fn ask_until_answered(tenure: &Tenure, request: impl Into<Request>) -> Option<Reply> {
    let request = request.into();
    loop {
        match tenure.call_for_work(request.clone()).await {
            Ok(reply) => return Some(reply),
            Err(error) if error.is_retryable() => tokio::time::sleep(RETRY_AFTER).await,
            Err(_) => return None,
        }
    }
}

/// Adopts into the fleet the instances that have a heartbeat but are not members.
fn adopt(tenure: &Tenure, found: &BTreeSet<String>, members: &[LiveInstance]) -> Discovery {
    let members: BTreeMap<&InstanceId, &LiveInstance> =
        members.iter().map(|member| (&member.instance, member)).collect();
    let mut outcome = Discovery::Nothing;
    for name in found {
        match members.get(&InstanceId::foreign(name)) {
            Some(ours) if !ours.record.is_empty() => {}
            Some(_) => outcome = Discovery::Found,
            None => {
                outcome = Discovery::Found;
                tenure.call_detached(MembershipRequest::Adopt { group: Group::FLEET, name: name.clone() });
            }
        }
    }
    outcome
}

/// Adds existing documents to the index, and removes those that no longer exist.
fn list_documents(tenure: &Tenure, collection: &str, found: &BTreeSet<String>, listed: &BTreeSet<String>) -> Discovery {
    let (index, announced) = (|| collection.to_owned(), false);
    let added = found.difference(listed).cloned();
    let added = added.map(|entry| DocumentRequest::IndexAdd { index: index(), entry, announced });
    // Conditional: only if it still does not exist.
    let gone = listed.difference(found).cloned().map(|id| {
        let document = DocumentId { collection: index(), id };
        DocumentRequest::Write { document, expected: None, value: None, fresh: false }
    });
    let changes: Vec<DocumentRequest> = added.chain(gone).collect();
    let has_changed = !changes.is_empty();
    changes.into_iter().for_each(|change| tenure.call_detached(change));
    if has_changed {
        // One announcement for all changes, not one for each.
        tenure.call_detached(Request::Announce(Announcement::IndexChanged { index: index() }));
    }
    Discovery::Found
}

/// The outcome of a scan.
enum ScanResult {
    /// Everything found.
    Complete(BTreeSet<String>),
    /// Incomplete: nothing to rely on.
    Interrupted,
    /// The store refuses the scan.
    Refused(String),
    /// This store does not support scans.
    Unsupported,
}

async fn scan(tenure: &Tenure, term: &TermHandle, kind: &ForeignKind) -> ScanResult {
    let (mut found, mut cursor) = (BTreeSet::new(), 0);
    loop {
        let piece: Request = match kind {
            ForeignKind::Heartbeats => MembershipRequest::Scan { cursor }.into(),
            ForeignKind::Documents(collection) => {
                DocumentRequest::Scan { collection: collection.clone(), cursor }.into()
            }
        };
        match tenure.call(piece).await {
            Ok(Reply::Found { names, cursor: next }) => {
                found.extend(names);
                cursor = next;
            }
            Ok(_) => return ScanResult::Unsupported,
            Err(error) if error.is_retryable() => return ScanResult::Interrupted,
            Err(error) => return ScanResult::Refused(error.to_string()),
        }
        if cursor == 0 {
            return ScanResult::Complete(found);
        }
        term.progress();
        tokio::time::sleep(SCAN_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_returns_is_counted_anew() {
        let (mut missing, one, two) = (MissingInstances::default(), "one".to_owned(), "two".to_owned());
        for _ in 1..FORGET_AFTER_ROUNDS {
            assert!(missing.update([&one, &two].into_iter()).is_empty());
        }
        assert_eq!(missing.update([&two].into_iter()), ["two"]);
        assert_eq!(missing.update([&one, &two].into_iter()), ["two"], "two is forgotten; one was back in between");
    }
}
