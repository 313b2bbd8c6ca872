//! Where a candidate stands, and what is told of it: a state machine without I/O, clock or async.

use crate::event::Standing;
use crate::lease::{Ending, Outlook};
use crate::token::Token;

use super::ElectionNews;

/// Something that happened to a [`Candidacy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The outlook changed.
    Sees(Outlook),
    /// A term began.
    Leads(Token),
    /// It is over.
    Ended(Ending),
    /// The leadership cannot be asked for.
    Failed(String),
    /// Nobody wants it any more.
    Stopped,
}

/// Where one candidate for one role stands: a state machine that takes in what happened and says what is to be told.
///
/// ```
/// use tenure::election::{Candidacy, Turn};
/// use tenure::lease::Outlook;
/// use tenure::{Standing, Token};
///
/// let mut candidacy = Candidacy::default();
/// candidacy.step(Turn::Sees(Outlook::Asking));
/// let told = candidacy.step(Turn::Leads(Token::new(42).ok_or("too large")?));
/// let told: Vec<String> = told.into_iter().map(|(_, news)| news.to_string()).collect();
/// assert_eq!(told, ["candidate → leader", "leadership acquired"]);
/// assert_eq!(candidacy.standing(), Standing::Leader);
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug)]
pub struct Candidacy {
    standing: Standing,
    term: Option<Token>,
    /// What was last said to be wrong, so that it is said once.
    complaint: Option<String>,
}

impl Default for Candidacy {
    fn default() -> Self {
        Self { standing: Standing::Follower, term: None, complaint: None }
    }
}

impl Candidacy {
    /// Where it stands.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Takes in what happened and returns what is to be told, in order, each with the term that it is about.
    pub fn step(&mut self, turn: Turn) -> Vec<(Option<Token>, ElectionNews)> {
        let mut told = Vec::new();
        match turn {
            // While it leads there is nothing to be seen from behind.
            Turn::Sees(_) if self.standing == Standing::Leader => {}
            Turn::Sees(Outlook::Asking) => self.moves(Standing::Candidate, &mut told),
            Turn::Sees(Outlook::Behind { .. }) => {
                self.complaint = None;
                self.moves(Standing::Follower, &mut told);
            }
            Turn::Sees(Outlook::Waiting { why }) => {
                self.moves(Standing::Follower, &mut told);
                self.fails(why, &mut told);
            }
            Turn::Failed(why) => {
                self.moves(Standing::Follower, &mut told);
                self.fails(Some(why), &mut told);
            }
            Turn::Leads(token) => {
                self.complaint = None;
                // Nobody leads who was not a candidate, however quickly it went.
                self.moves(Standing::Candidate, &mut told);
                self.term = Some(token);
                self.moves(Standing::Leader, &mut told);
                told.push((self.term, ElectionNews::LeadershipAcquired));
            }
            Turn::Ended(reason) => self.ends(&reason, &mut told),
            Turn::Stopped => self.moves(Standing::Follower, &mut told),
        }
        told
    }

    fn ends(&mut self, reason: &Ending, told: &mut Vec<(Option<Token>, ElectionNews)>) {
        if self.standing == Standing::Leader {
            self.moves(Standing::Follower, told);
            told.push((self.term.take(), ElectionNews::LeadershipLost { reason: reason.clone() }));
        }
    }

    fn moves(&mut self, to: Standing, told: &mut Vec<(Option<Token>, ElectionNews)>) {
        let from = std::mem::replace(&mut self.standing, to);
        if from != to {
            told.push((self.term, ElectionNews::StateChanged { from, to }));
        }
    }

    fn fails(&mut self, why: Option<String>, told: &mut Vec<(Option<Token>, ElectionNews)>) {
        if why.is_some() && why != self.complaint {
            self.complaint.clone_from(&why);
            told.extend(why.map(|cause| (None, ElectionNews::ElectionFailed { cause })));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Loss, ReleaseReason};
    use crate::name::InstanceId;

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn behind() -> Turn {
        Turn::Sees(Outlook::Behind { owner: InstanceId::new("bob").unwrap() })
    }

    fn words(told: Vec<(Option<Token>, ElectionNews)>) -> Vec<String> {
        let word = |(token, news): (Option<Token>, ElectionNews)| match token {
            Some(token) => format!("{news} {token}"),
            None => news.to_string(),
        };
        told.into_iter().map(word).collect()
    }

    #[test]
    fn every_state_is_entered_and_told_before_what_it_means() {
        let mut candidacy = Candidacy::default();
        assert_eq!(words(candidacy.step(Turn::Sees(Outlook::Asking))), ["follower → candidate"]);
        assert_eq!(words(candidacy.step(behind())), ["candidate → follower"]);
        assert_eq!(words(candidacy.step(Turn::Sees(Outlook::Asking))), ["follower → candidate"]);
        assert_eq!(words(candidacy.step(Turn::Leads(token(7)))), ["candidate → leader 7", "leadership acquired 7"]);
        let lost = Ending::Lost(Loss::Missing);
        let told = words(candidacy.step(Turn::Ended(lost)));
        assert_eq!(told, ["leader → follower 7", "leadership lost (missing) 7"]);
        assert_eq!(words(candidacy.step(Turn::Ended(Ending::GivenUp))), [""; 0], "it is lost once");
    }

    #[test]
    fn nobody_leads_who_was_not_a_candidate() {
        let mut candidacy = Candidacy::default();
        candidacy.step(behind());
        let told = words(candidacy.step(Turn::Leads(token(7))));
        assert_eq!(told, ["follower → candidate", "candidate → leader 7", "leadership acquired 7"]);
    }

    #[test]
    fn what_is_wrong_is_told_once_and_everybody_is_a_follower() {
        let mut candidacy = Candidacy::default();
        candidacy.step(Turn::Sees(Outlook::Asking));
        let down = || Turn::Sees(Outlook::Waiting { why: Some("the store is down".to_owned()) });
        assert_eq!(words(candidacy.step(down())), ["candidate → follower", "election failed: the store is down"]);
        assert_eq!(words(candidacy.step(down())), [""; 0]);
        candidacy.step(behind());
        assert_eq!(words(candidacy.step(down())), ["election failed: the store is down"], "again");
    }

    #[test]
    fn a_stop_ends_as_a_follower_whatever_it_was() {
        for leads in [false, true] {
            let mut candidacy = Candidacy::default();
            candidacy.step(Turn::Sees(Outlook::Asking));
            if leads {
                candidacy.step(Turn::Leads(token(7)));
                let reason = Ending::Released(ReleaseReason::Shutdown);
                assert_eq!(words(candidacy.step(Turn::Ended(reason)))[1], "leadership lost (shutdown) 7");
            }
            candidacy.step(Turn::Stopped);
            assert_eq!(candidacy.standing(), Standing::Follower);
        }
    }
}
