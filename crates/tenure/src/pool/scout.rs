//! What one instance of a fleet does for all of them: it sees whether targets are held by nobody, and looks for what programs that are not
//! Tenure's have written beside it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::PoolSettings;
use super::driver::until_answered;
use super::source::SESSIONS;
use crate::event::Happening;
use crate::name::{Group, InstanceId};
use crate::store::{Announcement, Reply, Request, Wild};
use crate::tenure::{Tenure, TermHandle};

/// Whoever scouts says that it gets on several times in this many ttls or rounds, or is not the scout any more.
const STALLED: u32 = 3;

/// How long is waited between two pieces of a scan: the server has others to serve.
const BREATH: Duration = Duration::from_millis(2);

/// An instance that would scout.
pub(super) struct Scout {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Scout {
    /// Stands for election. Says whenever this instance begins to scout, and when it does not any more.
    pub(super) fn stands(
        tenure: Tenure,
        pool: &str,
        settings: &PoolSettings,
        wild: Vec<Wild>,
    ) -> (Self, mpsc::UnboundedReceiver<bool>) {
        let (stop, stopped) = oneshot::channel();
        let (tell, scouts) = mpsc::unbounded_channel();
        let (ttl, every) = (settings.lease.ttl(), settings.read_every);
        let election = tenure.election(&format!("{pool}-scout")).ttl(ttl).stall_after(ttl.max(every) * STALLED);
        let task = tokio::spawn(async move {
            let scouting = election.lead(move |term| {
                let (tenure, office, wild) = (tenure.clone(), Office::taken(&tell), wild.clone());
                async move {
                    let _office = office;
                    scout(&tenure, &term, &wild, every).await
                }
            });
            // It can only fail when everything is shut down.
            let _ = scouting.until(stopped).await;
        });
        (Self { stop, task }, scouts)
    }

    pub(super) async fn stop(self) {
        drop(self.stop);
        let _ = self.task.await;
    }
}

/// Says when it is taken and when it is dropped.
struct Office(mpsc::UnboundedSender<bool>);

impl Office {
    fn taken(tell: &mpsc::UnboundedSender<bool>) -> Self {
        let _ = tell.send(true);
        Self(tell.clone())
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        let _ = self.0.send(false);
    }
}

/// Round after round, for as long as this is the scout.
async fn scout(tenure: &Tenure, term: &TermHandle, wild: &[Wild], every: Duration) -> Result<(), Infallible> {
    let mut wild = wild.to_vec();
    loop {
        let mut worthwhile = Vec::new();
        for what in wild {
            if discover(tenure, term, what).await {
                worthwhile.push(what);
            }
        }
        wild = worthwhile;
        term.progress();
        tokio::time::sleep(every).await;
    }
}

/// Brings the index into line with what there is. Whether that is worth doing again.
async fn discover(tenure: &Tenure, term: &TermHandle, what: Wild) -> bool {
    // Before the scan: whatever was there all the while is found by it.
    let Some(listed) = listed(tenure, what).await else { return false };
    let found = match scan(tenure, term, what).await {
        Scan::Whole(found) => found,
        Scan::Interrupted => return true,
        Scan::Useless => return false,
    };
    match what {
        Wild::Nodes => {
            let unknown = |name: &&String| !listed.contains(InstanceId::foreign(name).as_str());
            for name in found.iter().filter(unknown).cloned() {
                tenure.say(Request::Enlist { group: Group::FLEET, name });
            }
        }
        Wild::Sessions => {
            let mut changes: Vec<Request> = Vec::new();
            let (index, announced) = (|| SESSIONS.to_owned(), false);
            let added = found.difference(&listed).cloned();
            changes.extend(added.map(|entry| Request::IndexAdd { index: index(), entry, announced }));
            let gone = listed.difference(&found).cloned();
            changes.extend(gone.map(|entry| Request::IndexRemove { index: index(), entry, announced }));
            if !changes.is_empty() {
                // All of them once, and not each of them.
                changes.push(Request::Announce(Announcement::IndexChanged { index: index() }));
            }
            changes.into_iter().for_each(|change| tenure.say(change));
        }
    }
    true
}

async fn listed(tenure: &Tenure, what: Wild) -> Option<BTreeSet<String>> {
    let request = match what {
        Wild::Nodes => Request::Members { group: Group::FLEET },
        Wild::Sessions => Request::IndexList { index: SESSIONS.to_owned() },
    };
    match until_answered(tenure, request).await? {
        Reply::Members(members) => Some(members.into_iter().map(|member| member.instance.to_string()).collect()),
        Reply::Index(entries) => Some(entries.into_iter().collect()),
        _ => None,
    }
}

/// What has come of a scan.
enum Scan {
    /// Everything that was there.
    Whole(BTreeSet<String>),
    /// Nothing that could be relied on.
    Interrupted,
    /// There is nothing to be looked for here, or nobody may.
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
            Err(error) => {
                tenure.tell(Happening::StoreRefused { error: error.to_string() });
                return Scan::Useless;
            }
        }
        if cursor == 0 {
            return Scan::Whole(found);
        }
        term.progress();
        tokio::time::sleep(BREATH).await;
    }
}
