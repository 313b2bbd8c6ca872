//! How a term ends: released or lost.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::InstanceId;

/// Why a term was lost. A loss is final: acquiring the lease again starts a new term with a new token.
///
/// ```
/// use tenure::lease::Loss;
///
/// assert_eq!(Loss::ClockStep.as_str(), "clock_step");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Loss {
    /// The deadline came nearer than the stop budget before the lease was renewed.
    Expired,
    /// Another holder has the lease.
    Taken {
        /// The new holder.
        holder: InstanceId,
    },
    /// The lease is no longer in the store.
    Missing,
    /// The store has lost its data or was restored from older data.
    StoreReset,
    /// The store's clock and ours disagree about how much time has passed.
    ClockStep,
    /// An operator ended the term.
    Revoked,
    /// Renewals failed until work had to stop.
    Unreachable,
    /// The work made no progress for too long.
    Stalled,
}

impl Loss {
    /// The name used in logs and events.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Taken { .. } => "taken",
            Self::Missing => "missing",
            Self::StoreReset => "store_reset",
            Self::ClockStep => "clock_step",
            Self::Revoked => "revoked",
            Self::Unreachable => "unreachable",
            Self::Stalled => "stalled",
        }
    }

    /// Whether the store may still list the term, so that a release helps waiters.
    pub(super) fn is_maybe_listed(&self) -> bool {
        match self {
            Self::Expired | Self::ClockStep | Self::Revoked | Self::Unreachable | Self::Stalled => true,
            Self::Taken { .. } | Self::Missing | Self::StoreReset => false,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { holder } => write!(f, "taken by {holder}"),
            other => f.write_str(other.as_str()),
        }
    }
}

/// Why a term was released.
///
/// ```
/// use tenure::Tenure;
/// use tenure::lease::{Ending, ReleaseReason};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// tenure.admin().step_down(lease.name(), None).await?; // an operator does this
/// match lease.cancelled().await {
///     Ending::Released(ReleaseReason::StepDown) => println!("an operator asked for it"),
///     Ending::Released(reason) => println!("released: {reason}"),
///     other => println!("{other}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReleaseReason {
    /// Its holder was finished.
    Voluntary,
    /// Its process is ending.
    Shutdown,
    /// Another instance should hold it.
    Rebalance,
    /// It was handed to a named instance.
    HandedOver,
    /// Its target is paused.
    Paused,
    /// Its target was removed.
    Removed,
    /// An operator requested it.
    StepDown,
    /// Its holder cannot work at present.
    Unable,
}

impl ReleaseReason {
    /// The name used in logs and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Voluntary => "voluntary",
            Self::Shutdown => "shutdown",
            Self::Rebalance => "rebalance",
            Self::HandedOver => "handed_over",
            Self::Paused => "paused",
            Self::Removed => "removed",
            Self::StepDown => "step_down",
            Self::Unable => "unable",
        }
    }
}

impl fmt::Display for ReleaseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a lease ended.
///
/// ```
/// use tenure::Tenure;
/// use tenure::lease::{Ending, Loss};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// tenure.admin().revoke("import").await?; // an operator does this
/// match lease.cancelled().await {
///     Ending::Lost(loss) => assert_eq!(loss, Loss::Revoked), // the work may be incomplete
///     Ending::Released(reason) => println!("released: {reason}"),
///     other => println!("{other}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The lease was never granted; the acquisition was given up.
    GivenUp,
    /// The term was released after its work had ended.
    Released(ReleaseReason),
    /// The term was lost.
    Lost(Loss),
}

impl Ending {
    /// The name used in logs and events.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Released(reason) => reason.as_str(),
            Self::Lost(loss) => loss.as_str(),
            Self::GivenUp => "given_up",
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GivenUp => f.write_str("given up"),
            Self::Released(reason) => write!(f, "released ({reason})"),
            Self::Lost(loss) => write!(f, "lost ({loss})"),
        }
    }
}

impl Loss {
    fn parse(word: &str, holder: Option<&str>) -> Option<Self> {
        let plain = [
            Self::Expired,
            Self::Missing,
            Self::StoreReset,
            Self::ClockStep,
            Self::Revoked,
            Self::Unreachable,
            Self::Stalled,
        ];
        match holder {
            Some(holder) if word == "taken" => Some(Self::Taken { holder: InstanceId::foreign(holder) }),
            Some(_) => None,
            None => plain.into_iter().find(|loss| loss.as_str() == word),
        }
    }
}

impl ReleaseReason {
    const ALL: [Self; 8] = [
        Self::Voluntary,
        Self::Shutdown,
        Self::Rebalance,
        Self::HandedOver,
        Self::Paused,
        Self::Removed,
        Self::StepDown,
        Self::Unable,
    ];
}

impl Ending {
    /// Encodes the ending as text that [`decode`](Self::decode) reads.
    pub fn encode(&self) -> String {
        match self {
            Self::GivenUp => "given_up".to_owned(),
            Self::Released(reason) => format!("released {reason}"),
            Self::Lost(Loss::Taken { holder }) => format!("lost taken {holder}"),
            Self::Lost(loss) => format!("lost {}", loss.as_str()),
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` for anything else.
    pub fn decode(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ' ');
        match (words.next()?, words.next(), words.next()) {
            ("given_up", None, None) => Some(Self::GivenUp),
            ("released", Some(reason), None) => {
                ReleaseReason::ALL.into_iter().find(|known| known.as_str() == reason).map(Self::Released)
            }
            ("lost", Some(loss), holder) => Loss::parse(loss, holder).map(Self::Lost),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_round_trip_through_text() {
        let losses = ["expired", "missing", "store_reset", "clock_step", "revoked", "unreachable", "stalled"];
        let losses = losses.into_iter().map(|word| Loss::parse(word, None).unwrap());
        let taken = Loss::Taken { holder: InstanceId::new("api-2").unwrap() };
        let all = losses
            .chain([taken])
            .map(Ending::Lost)
            .chain(ReleaseReason::ALL.map(Ending::Released))
            .chain([Ending::GivenUp]);
        for ending in all {
            assert_eq!(Ending::decode(&ending.encode()), Some(ending));
        }
        for bad in ["", "lost", "lost taken", "lost expired api-1", "released", "released never", "given_up now"] {
            assert_eq!(Ending::decode(bad), None, "{bad}");
        }
    }
}
