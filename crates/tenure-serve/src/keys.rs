//! What leases are called, as far as that can be chosen.

use tenure::{LeaseKind, LeaseName, NameError};

/// The prefixes of keys. Those of sessions and of heartbeats of the fleet are the store's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPrefixes {
    /// Before a session's id, of its lease.
    pub lease: String,
    /// Before a role, of its leadership.
    pub leader: String,
    /// Before a role and a colon, of the heartbeats of its candidates.
    pub heartbeat: String,
}

impl Default for KeyPrefixes {
    fn default() -> Self {
        Self { lease: "poll:lease:".to_owned(), leader: "leader:".to_owned(), heartbeat: "heartbeat:".to_owned() }
    }
}

impl KeyPrefixes {
    /// The lease of a session.
    ///
    /// # Errors
    /// When it cannot be a session.
    pub fn session(&self, id: &str) -> Result<LeaseName, NameError> {
        LeaseName::with_prefix(LeaseKind::Target, &self.lease, id)
    }

    /// The lease that is the leadership of a role.
    ///
    /// # Errors
    /// When it cannot be a role.
    pub fn role(&self, role: &str) -> Result<LeaseName, NameError> {
        LeaseName::with_prefix(LeaseKind::Role, &self.leader, role)
    }

    /// What the heartbeats of a role's candidates begin with.
    pub fn heartbeats(&self, role: &str) -> String {
        format!("{}{role}:", self.heartbeat)
    }
}
