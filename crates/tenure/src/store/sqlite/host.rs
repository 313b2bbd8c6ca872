//! This host and its clock.
//!
//! Ttls are counted on `CLOCK_BOOTTIME`: it runs while the machine sleeps, it cannot be set, and every process of the
//! host reads the same time. It restarts with every boot, and a time namespace may shift it. So the file records which
//! boot, as seen from which time namespace, its times belong to.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A boot of a host, as seen from a time namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) identity: String,
}

impl Host {
    /// The host that this process runs on.
    pub(super) fn current() -> std::io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        // Kernels without time namespaces do not have this file, and then nothing is shifted.
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        Ok(Self::from_files(&boot, &offsets))
    }

    fn from_files(boot: &str, offsets: &str) -> Self {
        let offset = offsets.lines().find_map(|line| line.strip_prefix("boottime")).unwrap_or("0 0");
        let offset = offset.split_whitespace().collect::<Vec<_>>().join(".");
        Self { identity: format!("{}+{offset}", boot.trim()) }
    }
}

/// Microseconds since boot.
pub(super) fn since_boot() -> i64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1_000)
}

/// Microseconds since the Unix epoch, by the wall clock.
pub(super) fn wall() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_boot_or_another_time_namespace_is_another_host() {
        let plain =
            Host::from_files("1234-abcd\n", "monotonic           0         0\nboottime            0         0\n");
        assert_eq!(plain.identity, "1234-abcd+0.0");
        assert_eq!(plain, Host::from_files("1234-abcd\n", ""));
        assert_ne!(plain, Host::from_files("9999-abcd\n", ""));
        assert_ne!(plain, Host::from_files("1234-abcd\n", "monotonic 5 0\nboottime  86400  0\n"));
    }
}
