//! Notes about terms, for later checks of which instance held a lease when, and whether terms overlapped.

use crate::lease::Ending;
use crate::name::{InstanceId, LeaseName};
use crate::time::ServerTime;
use crate::token::Token;

/// Approximate number of notes that a namespace keeps. Older ones are dropped.
pub(super) const MAX_TERM_NOTES: usize = 10_000;

/// A note about a term. The holder writes one when the term begins and one when it is over; a holder that crashed has
/// written only the first. Times are on the store's clock, as precisely as the holder knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermNote {
    /// Which lease.
    pub name: LeaseName,
    /// Its token.
    pub token: Token,
    /// Its holder.
    pub holder: InstanceId,
    /// When it began.
    pub from: ServerTime,
    /// When its work was over. The holder did nothing under the term after this.
    pub demoted: Option<ServerTime>,
    /// When it was released, if it was.
    pub released: Option<ServerTime>,
    /// How it ended.
    pub ending: Option<Ending>,
}

impl TermNote {
    /// Encodes it as one line of text, which [`decode`](Self::decode) reads. A dash stands for `None`.
    pub fn encode(&self) -> String {
        let time = |time: Option<ServerTime>| time.map_or_else(|| "-".to_owned(), |time| time.as_micros().to_string());
        let ending = self.ending.as_ref().map_or_else(|| "-".to_owned(), Ending::encode);
        let (from, demoted, released) = (time(Some(self.from)), time(self.demoted), time(self.released));
        format!("{} {from} {demoted} {released} {} {} {ending}", self.token, self.name.encode(), self.holder)
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` for anything else.
    pub fn decode(text: &str) -> Option<Self> {
        let mut words = text.splitn(7, ' ');
        let token = Token::new(words.next()?.parse().ok()?)?;
        let mut time = || match words.next()? {
            "-" => Some(None),
            digits => Some(Some(ServerTime::from_micros(digits.parse().ok()?))),
        };
        let (from, demoted, released) = (time()??, time()?, time()?);
        let name = LeaseName::decode(words.next()?)?;
        let holder = InstanceId::new(words.next()?).ok()?;
        let ending = match words.next()? {
            "-" => None,
            ending => Some(Ending::decode(ending)?),
        };
        Some(Self { name, token, holder, from, demoted, released, ending })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Loss, ReleaseReason};

    #[test]
    fn notes_read_back_as_they_were_written() {
        let holder = InstanceId::new("api-2").unwrap();
        let endings =
            [Ending::Lost(Loss::Taken { holder }), Ending::Released(ReleaseReason::StepDown), Ending::GivenUp];
        for ending in endings.into_iter().map(Some).chain([None]) {
            for demoted in [None, Some(ServerTime::from_micros(7))] {
                let note = TermNote {
                    name: LeaseName::role("cleanup").unwrap(),
                    token: Token::MAX,
                    holder: InstanceId::new("api-1").unwrap(),
                    from: ServerTime::from_micros(u64::MAX),
                    demoted,
                    released: demoted,
                    ending: ending.clone(),
                };
                assert_eq!(TermNote::decode(&note.encode()), Some(note));
            }
        }
        for bad in ["", "1", "1 - - - r7:leader:a api-1 -", "1 2 - - r7:leader:a api-1 sideways"] {
            assert_eq!(TermNote::decode(bad), None, "{bad}");
        }
    }
}
