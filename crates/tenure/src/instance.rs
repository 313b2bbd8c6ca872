//! The id of an instance that the program gives no name.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::name::InstanceId;

/// Generates an id for this process from the name of its host.
pub(crate) fn id_for_this_process() -> InstanceId {
    let uname = rustix::system::uname();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let host = String::from_utf8_lossy(uname.nodename().to_bytes());
    InstanceId::generate_lossy(&host, u64::try_from(started.as_nanos()).unwrap_or(u64::MAX), fastrand::u32(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_gets_an_id_of_its_own() {
        assert_ne!(id_for_this_process(), id_for_this_process());
    }
}
