//! Notes about terms, for later checks of which instance held a lease when, and whether terms overlapped.

use serde::{Deserialize, Serialize};

use crate::ending::Ending;
use crate::json;
use crate::name::{InstanceId, LeaseName};
use crate::time::ServerTime;
use crate::token::Token;

/// Approximate number of notes that a namespace keeps. Older ones are dropped.
pub const MAX_TERM_NOTES: usize = 10_000;

/// A note about a term. The holder writes one when the term begins and one when it is over; a holder that crashed has
/// written only the first. Times are on the store's clock, as precisely as the holder knows it.
///
/// ```
/// use tenure::Tenure;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// # while tenure.admin().terms(10).await?.is_empty() {
/// #     tokio::time::sleep(std::time::Duration::from_millis(20)).await;
/// # }
/// let notes = tenure.admin().terms(10).await?;
/// assert_eq!((&notes[0].holder, notes[0].token), (tenure.instance(), lease.token()));
/// match (&notes[0].ending, notes[0].demoted) {
///     (Some(ending), Some(over)) => println!("{ending}, after {:?}", over.since(notes[0].from)),
///     _ => println!("in progress, or its holder crashed"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demoted: Option<ServerTime>,
    /// When it was released, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<ServerTime>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

impl TermNote {
    /// Encodes it as one line of JSON, which [`decode`](Self::decode) reads.
    pub fn encode(&self) -> String {
        json::encode(self)
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` for anything else.
    pub fn decode(text: &str) -> Option<Self> {
        json::decode(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::{Loss, ReleaseReason};

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
        for bad in ["", "1", "{}", r#"{"name":"r7:leader:a","token":1,"holder":"a b","from":2}"#] {
            assert_eq!(TermNote::decode(bad), None, "{bad}");
        }
    }
}
