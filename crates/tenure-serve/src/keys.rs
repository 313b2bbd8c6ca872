//! Configurable key prefixes of leases.

use tenure::{LeaseKind, LeaseName, NameError};

/// Key prefixes. Those of sessions and of the fleet's heartbeats belong to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPrefixes {
    /// Prefix of a session's lease, before its id.
    pub lease: String,
    /// Prefix of a leadership, before the role.
    pub leader: String,
    /// Prefix of the heartbeats of candidates, before the role and a colon.
    pub heartbeat: String,
}

impl Default for KeyPrefixes {
    fn default() -> Self {
        Self { lease: "poll:lease:".to_owned(), leader: "leader:".to_owned(), heartbeat: "heartbeat:".to_owned() }
    }
}

impl KeyPrefixes {
    /// Returns the lease of a session.
    ///
    /// # Errors
    /// When the id is not valid in a lease name.
    pub fn session(&self, id: &str) -> Result<LeaseName, NameError> {
        LeaseName::with_prefix(LeaseKind::Target, &self.lease, id)
    }

    /// Returns the lease of a role's leadership.
    ///
    /// # Errors
    /// When the role is not valid in a lease name.
    pub fn role(&self, role: &str) -> Result<LeaseName, NameError> {
        LeaseName::with_prefix(LeaseKind::Role, &self.leader, role)
    }

    /// Returns the prefix of the heartbeats of a role's candidates.
    pub fn heartbeats(&self, role: &str) -> String {
        format!("{}{role}:", self.heartbeat)
    }
}
