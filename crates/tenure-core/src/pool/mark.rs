//! The record of a target's ticks (pure).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::json;
use crate::time::ServerTime;

/// How much earlier than this instance the last holder may have considered a tick due.
const MAX_HOLDER_SKEW: Duration = Duration::from_millis(100);

/// The record of a target's ticks: the last one that was worked on, and the one that the holder has claimed ahead of
/// its due time, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The last tick that was worked on.
    pub worked: ServerTime,
    /// A later tick that the holder has claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<ServerTime>,
}

impl Mark {
    /// Encodes the mark as JSON.
    pub fn encode(self) -> Vec<u8> {
        json::encode(&self).into_bytes()
    }

    /// Decodes the output of [`encode`](Self::encode); `None` for anything else.
    pub fn decode(value: &[u8]) -> Option<Self> {
        json::decode(value)
    }

    /// The last tick for an instance that becomes the holder now. A tick claimed ahead that is not due yet was not
    /// begun: the new holder runs it. If it is due, the last holder may have begun its work, so it is not repeated.
    pub fn last(self, now: ServerTime) -> ServerTime {
        self.ahead.filter(|ahead| *ahead <= now + MAX_HOLDER_SKEW).unwrap_or(self.worked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::next_due;

    fn at(millis: u64) -> ServerTime {
        ServerTime::from_micros(millis * 1_000)
    }

    #[test]
    fn a_tick_that_was_claimed_ahead_is_the_next_holders_until_it_is_due() {
        let mark = Mark { worked: at(10_300), ahead: Some(at(11_300)) };
        let next = |now: u64| next_due(at(now), mark.last(at(now)), Duration::from_secs(1), 300_000);
        assert_eq!(next(10_800), at(11_300), "the tick claimed ahead was not begun");
        assert_eq!(next(11_250), at(12_300), "by the last holder's clock it may have begun");
        assert_eq!(next(11_800), at(12_300), "it is not begun a second time");
        assert_eq!(next(12_800), at(12_300), "one tick makes up for the missed ones");
    }

    #[test]
    fn marks_are_read_as_they_were_written() {
        for ahead in [None, Some(at(11_300))] {
            let mark = Mark { worked: at(10_300), ahead };
            assert_eq!(Mark::decode(&mark.encode()), Some(mark));
        }
        for spoilt in ["", "junk", "17", "{}", r#"{"worked":-1}"#, r#"{"worked":"1"}"#] {
            assert_eq!(Mark::decode(spoilt.as_bytes()), None, "{spoilt:?}");
        }
    }
}
