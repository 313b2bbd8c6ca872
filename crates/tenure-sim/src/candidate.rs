//! A candidate for a role, as a program's election is one: it tells where it stands, and paces itself.

use std::time::Duration;

use tenure::Token;
use tenure::election::{Candidacy, ElectionNews, Pace, Setback, Turn};
use tenure::lease::{Ending, LeaseSettings, Outlook, ReleaseReason};
use tenure::time::Moment;

/// What is told, with the term that it is about.
pub type Told = Vec<(Option<Token>, ElectionNews)>;

/// One candidate.
#[derive(Debug, Default)]
pub struct Candidate {
    candidacy: Candidacy,
    pace: Pace,
    outlook: Option<Outlook>,
    /// Since when it leads.
    since: Option<Moment>,
    /// Why it lost what it had.
    loss: Option<Ending>,
}

impl Candidate {
    /// Looks at how its pursuit is going.
    pub fn sees(&mut self, outlook: Outlook) -> Told {
        if self.outlook.as_ref() == Some(&outlook) {
            return Told::new();
        }
        self.outlook = Some(outlook.clone());
        self.candidacy.step(Turn::Sees(outlook))
    }

    /// Work may start. Said again after every doubt.
    pub fn may_start(&mut self, token: Token, local: Moment) -> Told {
        if self.since.is_some() {
            return Told::new();
        }
        self.since = Some(local);
        self.candidacy.step(Turn::Leads(token))
    }

    /// The term was lost; work is told next.
    pub fn lost(&mut self, ending: Ending) {
        self.loss = Some(ending);
    }

    /// Work must stop.
    pub fn must_stop(&mut self, local: Moment) -> (Told, Option<Setback>) {
        let Some(since) = self.since.take() else { return (Told::new(), None) };
        let setback = match &self.loss {
            Some(_) => Setback::Lost { after: local.since(since) },
            None => Setback::Resigned,
        };
        let ending = self.loss.take().unwrap_or(Ending::Released(ReleaseReason::Voluntary));
        (self.candidacy.step(Turn::Ended(ending)), Some(setback))
    }

    /// How long to leave it to others.
    pub fn pause(&mut self, setback: Setback, settings: &LeaseSettings, chance: f64) -> Duration {
        self.outlook = None;
        self.pace.pause(setback, settings, chance)
    }
}
