//! What a pool is called, and the leases of its targets.

use super::Target;
use crate::name::{LeaseKind, LeaseName, NameError};

/// A pool's name, and the prefix of the leases of its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Naming {
    pool: String,
    prefix: Option<String>,
    role_prefix: Option<String>,
}

impl Naming {
    /// A pool whose leases are `<pool>:lease:<target>`.
    pub(super) fn of(pool: &str) -> Self {
        Self { pool: pool.to_owned(), prefix: None, role_prefix: None }
    }

    /// The same pool with leases under another prefix.
    pub(super) fn with_prefix(self, prefix: &str) -> Self {
        Self { prefix: Some(prefix.to_owned()), ..self }
    }

    /// The same pool with its own role under another prefix.
    pub(super) fn with_role_prefix(self, prefix: &str) -> Self {
        Self { role_prefix: Some(prefix.to_owned()), ..self }
    }

    /// The lease of the role that one instance has for all.
    pub(super) fn reconciler_lease(&self) -> Result<LeaseName, NameError> {
        let role = format!("{}-scout", self.pool);
        match &self.role_prefix {
            Some(prefix) => LeaseName::with_prefix(LeaseKind::Role, prefix, &role),
            None => LeaseName::role(&role),
        }
    }

    pub(super) fn pool(&self) -> &str {
        &self.pool
    }

    /// The lease of a target.
    pub(super) fn lease(&self, target: &str) -> Result<LeaseName, NameError> {
        match &self.prefix {
            Some(prefix) => LeaseName::with_prefix(LeaseKind::Target, prefix, target),
            None => LeaseName::target(&self.pool, target),
        }
    }

    /// The target that a lease is of, when it is one of this pool's.
    pub(super) fn target(&self, lease: &LeaseName) -> Option<Target> {
        self.lease(lease.label()).is_ok_and(|ours| ours == *lease).then(|| Target::from(lease.label()))
    }

    /// Whether it can be called that.
    pub(super) fn check(&self) -> Result<(), NameError> {
        LeaseName::target(&self.pool, "any")
            .and_then(|_| self.lease("any"))
            .and_then(|_| self.reconciler_lease())
            .map(drop)
    }
}
