//! What one instance of a fleet does for all of them: it sees whether targets are held by nobody, and looks for what programs that are not
//! Tenure's have written beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::PoolSettings;
use super::driver::{held_by, holders_of, until_answered};
use super::naming::Naming;
use crate::event::Happening;
use crate::fleet::DRAINING;
use crate::name::{Group, InstanceId};
use crate::store::{Announcement, Member, Reply, Request, SESSIONS, Wild};
use crate::tenure::{Tenure, TermHandle};

/// Whoever scouts says that it gets on several times in this many ttls or rounds, or is not the scout any more.
const STALLED: u32 = 3;

/// Programs that are not Tenure's are looked for in one round of so many, as long as none is found. A whole store is looked through for it.
const SELDOM: u32 = 6;

/// What was asked of an instance is forgotten when it was gone whenever somebody tidied up, so many times in a row: whoever was only away is still
/// asked when it is back.
const LONG_GONE: u32 = 10;

/// How many of the targets of one who is gone are looked at in one go.
const AT_ONCE: usize = 500;

/// How long is waited between two pieces of a scan: the server has others to serve.
const BREATH: Duration = Duration::from_millis(2);

/// An instance that would scout.
pub(super) struct Scout {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Scout {
    /// Wants to be the scout. Says whenever this instance begins to scout, and when it does not any more.
    pub(super) fn stands(
        tenure: Tenure,
        naming: &Naming,
        settings: &PoolSettings,
        wild: Vec<Wild>,
        scouting: Scouting,
    ) -> (Self, mpsc::UnboundedReceiver<bool>) {
        let (stop, stopped) = oneshot::channel();
        let (tell, scouts) = mpsc::unbounded_channel();
        let (name, naming) = (naming.scout(), naming.clone());
        let (ttl, every) = (settings.lease.ttl(), settings.read_every);
        let task = tokio::spawn(async move {
            let mut stopped = pin!(stopped);
            let Ok(name) = name else { return };
            loop {
                // A lease, and no election: nobody need know who else would do it.
                let lease =
                    tenure.lease_named(name.clone()).ttl(ttl).stall_after(ttl.max(every).saturating_mul(STALLED));
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
                let office = Office::taken(&tell, &scouting, (*term).clone());
                let stops = tokio::select! {
                    _ = term.run(scout(&tenure, &term, &naming, &wild, every)) => false,
                    () = term.leaving() => false,
                    _ = &mut stopped => true,
                };
                drop(office);
                if stops {
                    let _ = term.release().await;
                    return;
                }
                drop(term);
                // Somebody else's turn: we were asked to go, or do not get on.
                tokio::select! {
                    () = tokio::time::sleep(ttl) => {}
                    _ = &mut stopped => return,
                }
            }
        });
        (Self { stop, task }, scouts)
    }

    pub(super) async fn stop(self) {
        drop(self.stop);
        let _ = self.task.await;
    }
}

/// Says when it is taken and when it is dropped.
struct Office {
    tell: mpsc::UnboundedSender<bool>,
    scouting: Scouting,
}

impl Office {
    fn taken(tell: &mpsc::UnboundedSender<bool>, scouting: &Scouting, term: TermHandle) -> Self {
        let _ = tell.send(true);
        scouting.set(Some(term));
        Self { tell: tell.clone(), scouting: scouting.clone() }
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        self.scouting.set(None);
        let _ = self.tell.send(false);
    }
}

/// The term of the scout, while this instance is it.
#[derive(Clone, Debug, Default)]
pub(super) struct Scouting(Arc<Mutex<Option<TermHandle>>>);

impl Scouting {
    fn set(&self, term: Option<TermHandle>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }

    pub(super) fn term(&self) -> Option<TermHandle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(TermHandle::is_valid)
    }
}

/// Round after round, for as long as this is the scout.
async fn scout(tenure: &Tenure, term: &TermHandle, naming: &Naming, wild: &[Wild], every: Duration) -> Infallible {
    let mut wild: Vec<(Wild, Outcome)> = wild.iter().map(|what| (*what, Outcome::Found)).collect();
    let mut away = Away::default();
    for round in 0_u32.. {
        for (what, last) in &mut wild {
            let due = match last {
                Outcome::Found => true,
                Outcome::Nothing | Outcome::Refused(_) => round.is_multiple_of(SELDOM),
                Outcome::Useless => false,
            };
            if !due {
                continue;
            }
            let outcome = discover(tenure, term, *what).await;
            if let Outcome::Refused(error) = &outcome
                && !matches!(last, Outcome::Refused(_))
            {
                tenure.tell(Happening::StoreRefused { error: error.clone() });
            }
            *last = outcome;
        }
        if round.is_multiple_of(SELDOM) {
            tidy_up(tenure, naming, &mut away).await;
        }
        term.progress();
        tokio::time::sleep(every).await;
    }
    std::future::pending().await
}

/// Clears away what those have left who are gone: lists of what they held, and, when they were `away` for long, what was asked of them.
async fn tidy_up(tenure: &Tenure, naming: &Naming, away: &mut Away) -> Option<()> {
    // Whoever comes after this was read is not in the list of those who are gone.
    let index = |index: String| until_answered(tenure, Request::IndexList { index });
    let Reply::Index(holders) = index(holders_of(naming.pool())).await? else { return None };
    let Reply::Index(asked) = index(DRAINING.to_owned()).await? else { return None };
    let Reply::Members(members) = until_answered(tenure, Request::Members { group: Group::FLEET }).await? else {
        return None;
    };
    let is_gone = |id: &&String| members.iter().all(|member| member.instance.as_str() != id.as_str());
    for entry in away.see(asked.iter().filter(is_gone)) {
        tenure.say(Request::IndexRemove { index: DRAINING.to_owned(), entry, announced: false });
    }
    for gone in holders.iter().filter(is_gone) {
        let list = held_by(naming.pool(), &InstanceId::foreign(gone));
        // What an outsider has spoilt stays; the others do not wait for it.
        let Some(Reply::Index(targets)) = index(list.clone()).await else { continue };
        let mut holds = false;
        let forget = |target: &String| {
            tenure.say(Request::IndexRemove { index: list.clone(), entry: target.clone(), announced: false });
        };
        let (named, unnamed): (Vec<&String>, Vec<&String>) =
            targets.iter().partition(|target| naming.lease(target).is_ok());
        unnamed.into_iter().for_each(forget);
        for some in named.chunks(AT_ONCE) {
            let names = some.iter().filter_map(|target| naming.lease(target).ok()).collect();
            let Some(Reply::Holders(now)) = until_answered(tenure, Request::Holders { names }).await else {
                holds = true;
                continue;
            };
            for (target, holder) in some.iter().zip(now) {
                // What it still holds is looked for in this list by those who take over from it.
                if holder.is_some_and(|holder| holder.as_str() == gone) {
                    holds = true;
                } else {
                    forget(target);
                }
            }
        }
        if !holds {
            let (index, entry) = (holders_of(naming.pool()), gone.clone());
            tenure.say(Request::IndexRemove { index, entry, announced: false });
        }
    }
    Some(())
}

/// Those of whom something is asked and who are not there, and how many times in a row that was seen.
#[derive(Default)]
struct Away(BTreeMap<String, u32>);

impl Away {
    /// These are not there now. Returns those who have been gone for long.
    fn see<'a>(&mut self, gone: impl Iterator<Item = &'a String>) -> Vec<String> {
        self.0 = gone.map(|id| (id.clone(), self.0.get(id).map_or(1, |times| times.saturating_add(1)))).collect();
        self.0.iter().filter(|(_, times)| **times >= LONG_GONE).map(|(id, _)| id.clone()).collect()
    }
}

/// What has come of looking for something.
enum Outcome {
    /// There is something of other programs.
    Found,
    /// There is nothing of other programs now.
    Nothing,
    /// Nobody may look, for now.
    Refused(String),
    /// There never will be anything.
    Useless,
}

/// Brings the index into line with what there is. What is listed is read before the scan: whatever was there all the while is found by it.
async fn discover(tenure: &Tenure, term: &TermHandle, what: Wild) -> Outcome {
    let listed = match what {
        Wild::Nodes => until_answered(tenure, Request::Members { group: Group::FLEET }).await,
        Wild::Sessions => until_answered(tenure, Request::IndexList { index: SESSIONS.to_owned() }).await,
    };
    let found = match scan(tenure, term, what).await {
        Scan::Whole(found) => found,
        Scan::Interrupted => return Outcome::Found,
        Scan::Refused(error) => return Outcome::Refused(error),
        Scan::Useless => return Outcome::Useless,
    };
    match listed {
        Some(Reply::Members(members)) => enlist(tenure, &found, &members),
        Some(Reply::Index(entries)) => correct_sessions(tenure, &found, &entries.into_iter().collect()),
        _ => Outcome::Nothing,
    }
}

/// Puts those among the fleet who have a heartbeat and are not there.
fn enlist(tenure: &Tenure, found: &BTreeSet<String>, members: &[Member]) -> Outcome {
    let members: BTreeMap<&InstanceId, &Member> = members.iter().map(|member| (&member.instance, member)).collect();
    let mut outcome = Outcome::Nothing;
    for name in found {
        match members.get(&InstanceId::foreign(name)) {
            Some(ours) if !ours.record.is_empty() => {}
            Some(_) => outcome = Outcome::Found,
            None => {
                outcome = Outcome::Found;
                tenure.say(Request::Enlist { group: Group::FLEET, name: name.clone() });
            }
        }
    }
    outcome
}

/// Puts sessions into the list that are there, and takes those out that are not.
fn correct_sessions(tenure: &Tenure, found: &BTreeSet<String>, listed: &BTreeSet<String>) -> Outcome {
    let (index, announced) = (|| SESSIONS.to_owned(), false);
    let added = found.difference(listed).cloned().map(|entry| Request::IndexAdd { index: index(), entry, announced });
    // Only if it is not there again by now.
    let gone =
        listed.difference(found).cloned().map(|id| Request::WriteSession { id, seen: None, value: None, fresh: false });
    let mut changes: Vec<Request> = added.chain(gone).collect();
    if !changes.is_empty() {
        // All of them once, and not each of them.
        changes.push(Request::Announce(Announcement::IndexChanged { index: index() }));
    }
    changes.into_iter().for_each(|change| tenure.say(change));
    Outcome::Found
}

/// What has come of a scan.
enum Scan {
    /// Everything that was there.
    Whole(BTreeSet<String>),
    /// Nothing that could be relied on.
    Interrupted,
    /// Nobody may look.
    Refused(String),
    /// There is nothing to be looked for here.
    Useless,
}

async fn scan(tenure: &Tenure, term: &TermHandle, what: Wild) -> Scan {
    let (mut found, mut cursor) = (BTreeSet::new(), 0);
    loop {
        match tenure.ask(Request::Scan { what, cursor }).await {
            Ok(Reply::Found { names, cursor: next }) => {
                found.extend(names);
                cursor = next;
            }
            Ok(_) => return Scan::Useless,
            Err(error) if error.is_retryable() => return Scan::Interrupted,
            Err(error) => return Scan::Refused(error.to_string()),
        }
        if cursor == 0 {
            return Scan::Whole(found);
        }
        term.progress();
        tokio::time::sleep(BREATH).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_back_was_never_long_gone() {
        let (mut away, one, two) = (Away::default(), "one".to_owned(), "two".to_owned());
        for _ in 1..LONG_GONE {
            assert!(away.see([&one, &two].into_iter()).is_empty());
        }
        assert_eq!(away.see([&two].into_iter()), ["two"]);
        assert_eq!(away.see([&one, &two].into_iter()), ["two"], "until it is forgotten, and one was there");
    }
}
