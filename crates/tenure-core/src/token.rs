//! The token and the nonce, which distinguish one term from every other.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::ServerTime;

/// How far ahead of the store's clock a token may be and still count for leases other than its own. A clock that was
/// ahead and is set back leaves tokens in the future.
const MAX_AHEAD_OF_CLOCK: Duration = Duration::from_secs(366 * 24 * 3_600);

/// The fencing token of a term. Within a lease it only ever grows, so the larger of two tokens is from the later term.
///
/// Pass it with every effect on the outside world and refuse smaller ones there. Only this fencing covers a holder that
/// was frozen without noticing.
///
/// ```
/// use tenure::Token;
///
/// let token = Token::new(1_736_598_400_000_000).ok_or("too large")?;
/// assert_eq!(token.to_string(), "1736598400000000");
/// assert!(Token::new(u64::MAX).is_none());
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u64", try_from = "u64")]
pub struct Token(u64);

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.0
    }
}

impl TryFrom<u64> for Token {
    type Error = &'static str;

    fn try_from(number: u64) -> Result<Self, Self::Error> {
        Self::new(number).ok_or("a token is below 2^53")
    }
}

impl Token {
    /// Smaller than every token that is ever granted.
    pub const ZERO: Self = Self(0);
    /// The largest token. Up to here a double holds every integer, so Lua and JavaScript can compare tokens.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Creates the token with this value, unless it is above [`Token::MAX`].
    pub const fn new(number: u64) -> Option<Self> {
        if number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// The value.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether a store whose clock shows this time can have granted this token: clocks are set back, but not by years.
    pub(crate) fn is_credible(self, now: ServerTime) -> bool {
        self.0 <= (now + MAX_AHEAD_OF_CLOCK).as_micros()
    }

    /// This token, or the largest credible one.
    pub(crate) fn bounded(self, now: ServerTime) -> Self {
        Self(self.0.min((now + MAX_AHEAD_OF_CLOCK).as_micros()))
    }

    /// The next token: above both this one and the floor, and at least the server's microseconds, so that tokens keep
    /// growing when the store has lost its counters. `None` when no larger token is left.
    pub fn next(self, floor: Self, server_micros: u64) -> Option<Self> {
        Self::new((self.max(floor).0 + 1).max(server_micros))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A random number that identifies one attempt to acquire a term.
///
/// A repeated request with the same nonce is the same attempt. Another nonce is another attempt, even under the same
/// instance id.
///
/// ```
/// use tenure::Nonce;
///
/// let nonce = Nonce::new(fastrand::u128(..)); // once for each attempt, not for each retry
/// assert_eq!(Nonce::parse(&nonce.to_string()), Some(nonce));
/// assert_eq!(Nonce::parse("17"), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Nonce([u64; 2]);

impl Nonce {
    /// Creates a nonce from a random number, which must be new for every attempt.
    pub const fn new(random: u128) -> Self {
        // In halves: the alignment of a `u128` would enlarge every type that contains a nonce.
        Self([(random >> 64) as u64, random as u64])
    }

    /// Reads the 32 hexadecimal digits that [`Display`](fmt::Display) writes.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(Self::new)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_token_is_above_everything_known() {
        let token = |n| Token::new(n).unwrap();
        assert_eq!(token(5).next(token(9), 3), Some(token(10)));
        assert_eq!(token(9).next(token(5), 3), Some(token(10)));
        assert_eq!(token(5).next(token(9), 1_000), Some(token(1_000)));
        assert_eq!(Token::MAX.next(Token::ZERO, 0), None);
        assert_eq!(Token::ZERO.next(Token::ZERO, u64::MAX), None);
    }

    #[test]
    fn nonces_round_trip_and_anything_else_is_rejected() {
        let nonce = Nonce::new(0x12);
        assert_eq!(Nonce::parse(&nonce.to_string()), Some(nonce));
        for bad in ["", "abc", &"g".repeat(32), &format!("+{}", "0".repeat(31)), &"A".repeat(32)] {
            assert_eq!(Nonce::parse(bad), None, "{bad}");
        }
    }
}
