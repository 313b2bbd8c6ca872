//! The settings of a lease: ttl, timing of renewals and waiting. Checked when built.

use std::time::Duration;

use thiserror::Error;

use crate::store::{DEFAULT_TTL, MAX_TTL};
use crate::time::{ClockTolerance, FIXED_SLACK};

/// Upper bound of the default attempt timeout. A reply that takes longer is not coming.
const MAX_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_TTL: Duration = Duration::from_millis(100);

/// The settings of one lease. Every combination that can be built keeps the guarantees.
///
/// ```
/// use std::time::Duration;
/// use tenure::lease::LeaseSettings;
///
/// let settings = LeaseSettings::builder().ttl(Duration::from_secs(15)).build()?;
/// assert_eq!(settings.renew_every(), Duration::from_secs(5));
///
/// let error = LeaseSettings::builder()
///     .ttl(Duration::from_secs(15))
///     .stop_budget(Duration::from_secs(10))
///     .build()
///     .unwrap_err();
/// assert!(error.to_string().contains("two attempts"));
/// # Ok::<(), tenure::lease::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    ttl: Duration,
    renew_every: Duration,
    attempt_timeout: Duration,
    stop_budget: Duration,
    max_drain: Duration,
    stall_after: Option<Duration>,
    take_over_after: Option<Duration>,
    recheck_every: Option<Duration>,
    acquire_delay: Duration,
    expiry_jitter: Duration,
    clock_tolerance: ClockTolerance,
}

impl LeaseSettings {
    /// Starts with the defaults for a ttl of 30 seconds.
    pub fn builder() -> LeaseSettingsBuilder {
        LeaseSettingsBuilder::default()
    }

    /// The time to live of the lease, in whole milliseconds.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// P: the interval between renewals.
    pub fn renew_every(&self) -> Duration {
        self.renew_every
    }

    /// R: how long one attempt may take before its outcome counts as unknown.
    pub fn attempt_timeout(&self) -> Duration {
        self.attempt_timeout
    }

    /// S: the time for cancelled work to stop before the lease can end.
    pub fn stop_budget(&self) -> Duration {
        self.stop_budget
    }

    /// How long a release keeps renewing while it waits for work to end.
    pub fn max_drain(&self) -> Duration {
        self.max_drain
    }

    /// The progress gate: without progress for this long, renewals stop.
    pub fn stall_after(&self) -> Option<Duration> {
        self.stall_after
    }

    /// How long a holder may renew without progress before a *waiter* takes over the lease.
    pub fn take_over_after(&self) -> Option<Duration> {
        self.take_over_after
    }

    /// How often a waiter rechecks, even without an announcement and before the lease can have expired.
    pub fn recheck_every(&self) -> Option<Duration> {
        self.recheck_every
    }

    /// How long a waiter lets others go first when the lease becomes unheld.
    pub fn acquire_delay(&self) -> Duration {
        self.acquire_delay
    }

    /// The upper bound of the random delay after the expiry of another holder's lease.
    pub fn expiry_jitter(&self) -> Duration {
        self.expiry_jitter
    }

    /// ρ: the difference in clock rates that deadlines allow for.
    pub fn clock_tolerance(&self) -> ClockTolerance {
        self.clock_tolerance
    }

    /// How long a lease that was handed over is reserved for the named instance.
    pub fn accept_window(&self) -> Duration {
        (self.ttl / 10).max(Duration::from_secs(1)).min(self.ttl)
    }
}

impl Default for LeaseSettings {
    fn default() -> Self {
        LeaseSettingsBuilder::default().resolve()
    }
}

/// Builds [`LeaseSettings`]. Settings that are not given follow from the ttl.
///
/// ```
/// use std::time::Duration;
/// use tenure::lease::LeaseSettings;
///
/// let minute = LeaseSettings::builder().ttl(Duration::from_secs(60));
/// let settings = minute.renew_every(Duration::from_secs(10)).stop_budget(Duration::from_secs(2)).build()?;
/// assert_eq!(settings.attempt_timeout(), Duration::from_secs(2)); // a fifth of the renewal interval
/// assert_eq!(minute.build()?.renew_every(), Duration::from_secs(20)); // a third of the ttl
/// # Ok::<(), tenure::lease::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct LeaseSettingsBuilder {
    ttl: Duration,
    renew_every: Option<Duration>,
    attempt_timeout: Option<Duration>,
    stop_budget: Option<Duration>,
    max_drain: Duration,
    stall_after: Option<Duration>,
    take_over_after: Option<Duration>,
    recheck_every: Option<Duration>,
    acquire_delay: Duration,
    expiry_jitter: Duration,
    clock_tolerance: ClockTolerance,
}

impl Default for LeaseSettingsBuilder {
    fn default() -> Self {
        Self {
            ttl: DEFAULT_TTL,
            renew_every: None,
            attempt_timeout: None,
            stop_budget: None,
            max_drain: Duration::from_secs(10),
            stall_after: None,
            take_over_after: None,
            recheck_every: None,
            acquire_delay: Duration::ZERO,
            expiry_jitter: Duration::from_millis(25),
            clock_tolerance: ClockTolerance::default(),
        }
    }
}

impl LeaseSettingsBuilder {
    /// Sets the time to live of the lease: 100 ms to 24 h, 30 s by default. A longer one survives longer stalls of the
    /// store; a shorter one replaces a crashed holder sooner.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets P, the interval between renewals; a third of the ttl by default.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.renew_every = Some(interval);
        self
    }

    /// Sets R, the timeout of one attempt; a fifth of P and at most 5 s by default.
    pub fn attempt_timeout(mut self, limit: Duration) -> Self {
        self.attempt_timeout = Some(limit);
        self
    }

    /// Sets S, the stop budget; a sixth of the ttl and at most 5 s by default.
    pub fn stop_budget(mut self, budget: Duration) -> Self {
        self.stop_budget = Some(budget);
        self
    }

    /// Sets how long a release waits for work to end, 10 s by default.
    pub fn max_drain(mut self, limit: Duration) -> Self {
        self.max_drain = limit;
        self
    }

    /// Enables the progress gate: when the work has reported no progress for this long, renewals stop and the term ends
    /// as stalled. At least P.
    pub fn stall_after(mut self, limit: Duration) -> Self {
        self.stall_after = Some(limit);
        self
    }

    /// Makes a waiter take over the lease from a holder that renews but has made no progress for this long. At least P,
    /// since progress is reported with renewals.
    pub fn take_over_after(mut self, limit: Duration) -> Self {
        self.take_over_after = Some(limit);
        self
    }

    /// Makes a waiter recheck at this interval even without an announcement. By default a waiter rechecks when a
    /// release is announced and when the ttl that it last saw has ended. A missed announcement thus costs at most that
    /// ttl, or this interval.
    pub fn recheck_every(mut self, interval: Duration) -> Self {
        self.recheck_every = Some(interval);
        self
    }

    /// Makes a waiter let others go first: it acquires this much later than it could when the lease becomes unheld.
    /// Zero by default, and at most a ttl.
    pub fn acquire_delay(mut self, span: Duration) -> Self {
        self.acquire_delay = span;
        self
    }

    /// Sets the upper bound of a random delay before a waiter acquires an expired lease, so that waiters do not all
    /// send at once. 25 ms by default, and at most a ttl.
    pub fn expiry_jitter(mut self, longest: Duration) -> Self {
        self.expiry_jitter = longest;
        self
    }

    /// Sets ρ, the tolerated difference in clock rates; one percent by default.
    pub fn clock_tolerance(mut self, error: ClockTolerance) -> Self {
        self.clock_tolerance = error;
        self
    }

    /// Checks that the settings fit together.
    ///
    /// # Errors
    /// When they do not; the message contains the values.
    pub fn build(self) -> Result<LeaseSettings, SettingsError> {
        if !(MIN_TTL..=MAX_TTL).contains(&self.ttl) {
            return Err(SettingsError::TtlOutOfRange { ttl: self.ttl });
        }
        let settings = self.resolve();
        let (interval, attempt) = (settings.renew_every, settings.attempt_timeout);
        if attempt.is_zero() || attempt > interval {
            return Err(SettingsError::AttemptTimeout { attempt, interval });
        }
        let available = settings
            .ttl
            .saturating_sub(settings.clock_tolerance.of(settings.ttl))
            .saturating_sub(FIXED_SLACK)
            .saturating_sub(settings.stop_budget);
        let needed = interval.saturating_add(attempt).saturating_mul(2);
        if needed > available {
            return Err(SettingsError::TooTight {
                ttl: settings.ttl,
                interval,
                attempt,
                stop_budget: settings.stop_budget,
                available,
                needed,
            });
        }
        if let Some(recheck) = settings.recheck_every.filter(|recheck| *recheck < attempt) {
            return Err(SettingsError::RecheckEvery { recheck, attempt });
        }
        for (what, delay) in [("acquire_delay", settings.acquire_delay), ("expiry_jitter", settings.expiry_jitter)] {
            if delay > settings.ttl {
                return Err(SettingsError::Delay { what, delay, ttl: settings.ttl });
            }
        }
        for (what, limit) in [("stall_after", settings.stall_after), ("take_over_after", settings.take_over_after)] {
            if let Some(limit) = limit.filter(|limit| *limit < interval) {
                return Err(SettingsError::ProgressLimit { what, limit, interval });
            }
        }
        Ok(settings)
    }

    fn resolve(self) -> LeaseSettings {
        // The server counts whole milliseconds; a fraction would put our deadline after the end of the lease.
        let ttl = Duration::from_millis(u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX));
        let renew_every = self.renew_every.unwrap_or(ttl / 3);
        LeaseSettings {
            ttl,
            renew_every,
            attempt_timeout: self.attempt_timeout.unwrap_or((renew_every / 5).min(MAX_ATTEMPT_TIMEOUT)),
            stop_budget: self.stop_budget.unwrap_or((ttl / 6).min(Duration::from_secs(5))),
            max_drain: self.max_drain,
            stall_after: self.stall_after,
            take_over_after: self.take_over_after,
            recheck_every: self.recheck_every,
            acquire_delay: self.acquire_delay,
            expiry_jitter: self.expiry_jitter,
            clock_tolerance: self.clock_tolerance,
        }
    }
}

/// The settings of a lease that do not fit together.
///
/// ```
/// use std::time::Duration;
/// use tenure::lease::SettingsError;
/// use tenure::{AcquireError, Tenure};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// match tenure.lease("import").ttl(Duration::from_millis(50)).acquire().await {
///     Ok(lease) => lease.release().await?,
///     Err(AcquireError::Settings(SettingsError::TtlOutOfRange { ttl })) => println!("{ttl:?} is out of range"),
///     Err(AcquireError::Settings(error)) => println!("{error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The ttl is too short or too long.
    #[error("ttl must be between {MIN_TTL:?} and 24 h, got {ttl:?}")]
    TtlOutOfRange {
        /// The rejected ttl.
        ttl: Duration,
    },
    /// One attempt must be able to fail before the next is due.
    #[error("attempt_timeout must be above zero and at most the renewal interval of {interval:?}, got {attempt:?}")]
    AttemptTimeout {
        /// R.
        attempt: Duration,
        /// P.
        interval: Duration,
    },
    /// A recheck must be able to fail before the next is due.
    #[error("recheck_every must be at least the attempt timeout of {attempt:?}, got {recheck:?}")]
    RecheckEvery {
        /// The interval between rechecks.
        recheck: Duration,
        /// R.
        attempt: Duration,
    },
    /// Two full attempts must fit before work has to be cancelled.
    #[error(
        "cannot fit two attempts to renew: every {interval:?} with {attempt:?} each needs {needed:?}, but a ttl of \
         {ttl:?} leaves {available:?} after the clock error and a stop budget of {stop_budget:?}; renew more often, \
         stop faster, or lengthen the ttl"
    )]
    TooTight {
        /// The ttl.
        ttl: Duration,
        /// P.
        interval: Duration,
        /// R.
        attempt: Duration,
        /// S.
        stop_budget: Duration,
        /// The time that the ttl leaves.
        available: Duration,
        /// The time that two attempts need.
        needed: Duration,
    },
    /// A delay must not be longer than the time until a crashed holder's lease expires.
    #[error("{what} of {delay:?} is longer than the ttl of {ttl:?}; shorten it")]
    Delay {
        /// The name of the setting.
        what: &'static str,
        /// Its value.
        delay: Duration,
        /// The ttl.
        ttl: Duration,
    },
    /// All settings were given at once, and single ones as well.
    #[error("cannot use `settings` together with `ttl` or another single setting: one would override the other")]
    SetTwice,
    /// Progress is reported with renewals, so its limit cannot be shorter than their interval.
    #[error(
        "{what} of {limit:?} is shorter than the renewal interval of {interval:?}; progress is reported with renewals"
    )]
    ProgressLimit {
        /// The name of the setting.
        what: &'static str,
        /// Its value.
        limit: Duration,
        /// P.
        interval: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn defaults_follow_from_the_ttl_and_fit_at_every_length() {
        let settings = LeaseSettings::default();
        assert_eq!(settings, LeaseSettings::builder().build().unwrap());
        assert_eq!(settings.renew_every(), ms(10_000));
        assert_eq!(settings.attempt_timeout(), ms(2_000));
        assert_eq!(settings.stop_budget(), ms(5_000));
        assert_eq!(settings.accept_window(), ms(3_000));
        for ttl in [100, 101, 333, 1_000, 5_000, 60_000, 86_400_000] {
            assert!(LeaseSettings::builder().ttl(ms(ttl)).build().is_ok(), "{ttl} ms");
        }
    }

    #[test]
    fn settings_that_do_not_fit_are_rejected_with_their_values() {
        let base = LeaseSettings::builder().ttl(ms(9_000));
        let cases = [
            (LeaseSettings::builder().ttl(ms(99)), "99ms"),
            (LeaseSettings::builder().ttl(ms(86_400_001)), "24 h"),
            (base.renew_every(ms(4_000)), "4s"),
            (base.stop_budget(ms(3_000)), "3s"),
            (base.attempt_timeout(ms(0)), "0ns"),
            (base.attempt_timeout(ms(3_001)), "3.001s"),
            (base.renew_every(Duration::MAX), "attempt"),
            (base.stall_after(ms(2_999)), "stall_after of 2.999s"),
            (base.take_over_after(ms(10)), "take_over_after of 10ms"),
            (base.acquire_delay(ms(9_001)), "acquire_delay of 9.001s"),
            (base.expiry_jitter(ms(10_000)), "expiry_jitter of 10s"),
        ];
        for (builder, expected) in cases {
            let message = builder.build().unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} does not mention {expected:?}");
        }
    }

    #[test]
    fn fractions_of_a_millisecond_are_dropped() {
        let settings = LeaseSettings::builder().ttl(Duration::from_micros(1_500_900)).build().unwrap();
        assert_eq!(settings.ttl(), ms(1_500));
    }
}
