//! Due times: at an interval, or by a cron expression, in the store's time.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::time::ServerTime;

/// The due times of periodic work.
///
/// ```
/// use std::time::Duration;
/// use tenure::schedule::Schedule;
///
/// let often = Schedule::every(Duration::from_secs(60))?;
/// assert_eq!(often.to_string(), "every 60s");
/// assert!(Schedule::every(Duration::ZERO).is_err());
/// # Ok::<(), tenure::schedule::ScheduleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule(ScheduleKind);

#[derive(Clone, Debug)]
enum ScheduleKind {
    /// In microseconds, at its multiples since the Unix epoch, so that due times are the same for every leader.
    Every(u64),
    #[cfg(feature = "cron")]
    Cron(Box<croner::Cron>),
}

/// A schedule that is not valid.
///
/// ```
/// use std::time::Duration;
/// use tenure::schedule::{Schedule, ScheduleError};
///
/// let error = Schedule::every(Duration::ZERO).unwrap_err();
/// assert_eq!(error, ScheduleError::Interval(Duration::ZERO));
/// # #[cfg(feature = "cron")] {
/// match Schedule::cron("0 2 30 2 *") {
///     Ok(schedule) => println!("{schedule}"),
///     Err(error) => println!("{error}"), // the 30th of February never comes
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The interval is too short or too long.
    #[error("schedule interval must be between 1 ms and one year, got {0:?}")]
    Interval(Duration),
    /// The expression cannot be parsed, or never matches.
    #[error("cannot use cron expression `{expression}`: {why}")]
    Cron {
        /// The expression.
        expression: String,
        /// What is wrong with it.
        why: String,
    },
}

const MAX_INTERVAL: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl Schedule {
    /// Due at every multiple of this interval, counted from the Unix epoch.
    ///
    /// # Errors
    /// When it is shorter than a millisecond or longer than a year.
    pub fn every(interval: Duration) -> Result<Self, ScheduleError> {
        if !(Duration::from_millis(1)..=MAX_INTERVAL).contains(&interval) {
            return Err(ScheduleError::Interval(interval));
        }
        Ok(Self(ScheduleKind::Every(u64::try_from(interval.as_micros()).unwrap_or(u64::MAX))))
    }

    /// Due by a cron expression with five fields, or six with seconds first, in UTC.
    ///
    /// # Errors
    /// When it cannot be parsed, or never matches.
    #[cfg(feature = "cron")]
    pub fn cron(expression: &str) -> Result<Self, ScheduleError> {
        let bad = |why: String| ScheduleError::Cron { expression: expression.to_owned(), why };
        let cron: croner::Cron =
            expression.parse().map_err(|error: croner::errors::CronError| bad(error.to_string()))?;
        let schedule = Self(ScheduleKind::Cron(Box::new(cron)));
        // An expression that does not match from 1970 on never matches.
        match schedule.after(ServerTime::from_micros(0)) {
            Some(_) => Ok(schedule),
            None => Err(bad("it never matches".to_owned())),
        }
    }

    /// The first due time after this time.
    pub fn after(&self, time: ServerTime) -> Option<ServerTime> {
        match &self.0 {
            ScheduleKind::Every(interval) => {
                Some(ServerTime::from_micros((time.as_micros() / interval).checked_add(1)?.checked_mul(*interval)?))
            }
            #[cfg(feature = "cron")]
            ScheduleKind::Cron(cron) => from_zoned(&cron.find_next_occurrence(&zoned(time)?, false).ok()?),
        }
    }

    /// The last due time that is not after this time.
    pub fn at_or_before(&self, time: ServerTime) -> Option<ServerTime> {
        match &self.0 {
            ScheduleKind::Every(interval) => Some(ServerTime::from_micros(time.as_micros() / interval * interval)),
            #[cfg(feature = "cron")]
            ScheduleKind::Cron(cron) => from_zoned(&cron.find_previous_occurrence(&zoned(time)?, true).ok()?),
        }
    }
}

#[cfg(feature = "cron")]
fn zoned(time: ServerTime) -> Option<jiff::Zoned> {
    let timestamp = jiff::Timestamp::from_microsecond(i64::try_from(time.as_micros()).ok()?).ok()?;
    Some(timestamp.to_zoned(jiff::tz::TimeZone::UTC))
}

#[cfg(feature = "cron")]
fn from_zoned(time: &jiff::Zoned) -> Option<ServerTime> {
    u64::try_from(time.timestamp().as_microsecond()).ok().map(ServerTime::from_micros)
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ScheduleKind::Every(interval) => write!(f, "every {:?}", Duration::from_micros(*interval)),
            #[cfg(feature = "cron")]
            ScheduleKind::Cron(cron) => write!(f, "at {}", cron.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn at(seconds: u64) -> ServerTime {
        ServerTime::from_micros(seconds * SECOND)
    }

    #[test]
    fn slots_do_not_depend_on_when_they_are_computed() {
        let schedule = Schedule::every(Duration::from_secs(60)).unwrap();
        assert_eq!(schedule.after(at(0)), Some(at(60)));
        assert_eq!(schedule.after(at(59)), Some(at(60)));
        assert_eq!(schedule.after(at(60)), Some(at(120)));
        assert_eq!((schedule.at_or_before(at(119)), schedule.at_or_before(at(120))), (Some(at(60)), Some(at(120))));
        assert_eq!(schedule.after(ServerTime::from_micros(u64::MAX)), None);
    }

    #[cfg(feature = "cron")]
    #[test]
    fn cron_schedules_cross_month_ends() {
        let zoned = |text: &str| {
            let time: jiff::Timestamp = text.parse().unwrap();
            from_zoned(&time.to_zoned(jiff::tz::TimeZone::UTC)).unwrap()
        };
        // Due times beyond the current month, which the original scheduler could not compute.
        for (expression, from, to) in [
            ("0 2 * * *", "2026-01-31T12:00:00Z", "2026-02-01T02:00:00Z"),
            ("0 0 1 * *", "2026-01-15T00:00:00Z", "2026-02-01T00:00:00Z"),
            ("0 9 * * 1", "2026-01-30T10:00:00Z", "2026-02-02T09:00:00Z"),
            ("*/5 * * * *", "2026-01-31T23:58:00Z", "2026-02-01T00:00:00Z"),
            ("0 0 29 2 *", "2026-03-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("30 0 0 1 1 *", "2026-12-31T23:59:59Z", "2027-01-01T00:00:30Z"),
        ] {
            let schedule = Schedule::cron(expression).unwrap();
            assert_eq!(schedule.after(zoned(from)), Some(zoned(to)), "{expression}");
            assert_eq!(schedule.at_or_before(zoned(to)), Some(zoned(to)), "{expression}");
        }
        for bad in ["", "every day", "61 * * * *", "0 0 31 2 *"] {
            assert!(Schedule::cron(bad).is_err(), "{bad}");
        }
    }
}
