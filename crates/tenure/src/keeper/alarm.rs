//! A timer that keeps counting while the machine sleeps.
//!
//! The timers of async runtimes stand still in suspend. A deadline that passes meanwhile must fire the moment the
//! machine wakes, not when a timer has caught up.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// An alarm on the boot-time clock.
pub(super) struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    /// Creates an alarm that is not set. Must be called inside a runtime with I/O.
    pub(super) fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(deprecated, reason = "sound for an owned descriptor; what replaces it is an unsafe function")]
        let timer = AsyncFd::new(timer)?;
        Ok(Self(timer))
    }

    /// Sets the alarm to fire once, after this duration. Replaces the previous setting.
    pub(super) fn set(&self, after: Duration) -> io::Result<()> {
        // Zero would disarm it.
        let after = after.max(Duration::from_nanos(1));
        let value = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(
            self.0.get_ref(),
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: never, it_value: value },
        )?;
        Ok(())
    }

    /// Completes when the alarm fires.
    ///
    /// # Cancel safety
    /// Safe: the alarm stays fired until this has completed once.
    pub(super) async fn fired(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            let mut expirations = [0_u8; 8];
            match ready.try_io(|timer| rustix::io::read(timer.get_ref(), &mut expirations).map_err(io::Error::from)) {
                Ok(read) => return read.map(drop),
                Err(_not_yet) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{LeaseClock, SystemClock};

    #[tokio::test]
    async fn an_alarm_fires_at_the_last_time_it_was_set_to_and_not_before() {
        let alarm = Alarm::new().unwrap();
        let start = SystemClock.now();
        alarm.set(Duration::from_secs(3_600)).unwrap();
        alarm.set(Duration::from_millis(20)).unwrap();
        alarm.fired().await.unwrap();
        assert!(SystemClock.now().since(start) >= Duration::from_millis(19));
        alarm.set(Duration::ZERO).unwrap();
        alarm.fired().await.unwrap();
    }
}
