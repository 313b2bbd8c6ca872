//! What an instance knows of a pool, for whoever asks: it changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::engine::Engine;
use super::signal::Target;
use super::table::{Entry, Fate};
use crate::name::InstanceId;
use crate::placement::{self, InstanceScore, Peer, Presence};
use crate::time::Moment;

/// How it stands with a pool, as far as one instance knows.
#[derive(Clone, Debug)]
pub struct Overview {
    /// Who counts as there, with how many targets; this instance last.
    pub peers: Vec<Peer>,
    /// How many targets there are.
    pub targets: usize,
    /// How many of them nobody holds.
    pub unheld: usize,
    /// For how long that has been so with the one that nobody has held for the longest.
    pub longest_unheld: Duration,
}

impl Overview {
    /// How many targets more whoever holds most has than whoever holds least, of those who take part.
    pub fn spread(&self) -> usize {
        let ready = || self.peers.iter().filter(|peer| peer.presence == Presence::Ready).map(|peer| peer.held);
        ready().max().unwrap_or(0) - ready().min().unwrap_or(0)
    }
}

/// How it stands with one target, as far as one instance knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Who should hold it: who holds it, unless it should move; whom it suits best among those who have room, when nobody does.
    pub preferred: Option<InstanceId>,
    /// For how long nobody has held it, if nobody does.
    pub unheld_for: Option<Duration>,
}

/// What all targets are judged by, worked out once.
struct View {
    peers: Vec<Peer>,
    /// What is to be given away, and to whom.
    gifts: BTreeMap<Target, InstanceId>,
    /// Who has room.
    free: Vec<(InstanceId, InstanceScore)>,
}

impl Engine {
    /// How it stands with the pool, as far as is known.
    pub fn overview(&self, now: Moment) -> Overview {
        let wanted = self.targets.iter().filter(|(_, entry)| entry.wanted);
        let unheld: Vec<Moment> = wanted.filter_map(|(_, entry)| entry.unheld_since()).collect();
        Overview {
            peers: self.peers(now),
            targets: self.targets.len(),
            unheld: unheld.len(),
            longest_unheld: unheld.into_iter().min().map(|since| now.since(since)).unwrap_or_default(),
        }
    }

    /// How it stands with a target, as far as is known. `None` when there is no such target.
    pub fn outlook(&self, now: Moment, target: &str) -> Option<Outlook> {
        let entry = self.targets.get(target)?;
        Some(self.judge(now, &self.view(now), target, entry))
    }

    /// The same of every target.
    pub fn survey(&self, now: Moment) -> BTreeMap<Target, Outlook> {
        let view = self.view(now);
        let outlook = |(target, entry): (&Target, &Entry)| (target.clone(), self.judge(now, &view, target, entry));
        self.targets.iter().map(outlook).collect()
    }

    fn view(&self, now: Moment) -> View {
        let peers = self.peers(now);
        let shares = placement::shares(&peers, self.unheld(&peers));
        // Worked out only if there is anything to give.
        let has_surplus = shares.last().is_some_and(|share| self.targets.mine() > *share);
        let gifts = if has_surplus { self.gifts(now, usize::MAX) } else { Vec::new() };
        let free = peers.iter().zip(&shares).filter(|(peer, share)| peer.held < **share);
        let free = free.map(|(peer, _)| (peer.instance.clone(), InstanceScore::of(&peer.instance))).collect();
        View { gifts: gifts.into_iter().collect(), free, peers }
    }

    fn judge(&self, now: Moment, view: &View, target: &str, entry: &Entry) -> Outlook {
        let is_there = |holder: &InstanceId| view.peers.iter().any(|peer| peer.instance == *holder);
        let preferred = match entry.fate() {
            Fate::Theirs { holder } if is_there(holder) => Some(holder.clone()),
            Fate::Leaving { to: Some(to) } => Some(to.clone()),
            Fate::Mine => Some(view.gifts.get(target).unwrap_or(&self.me).clone()),
            _ => {
                view.free.iter().max_by_key(|(_, score)| score.with(entry.score)).map(|(instance, _)| instance.clone())
            }
        };
        Outlook { preferred, unheld_for: entry.unheld_since().map(|since| now.since(since)) }
    }
}
