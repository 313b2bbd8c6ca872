//! The name of a pool and the names of its leases.

use super::TargetName;
use crate::name::{LeaseKind, LeaseName, NameError};

/// A pool's name, and the prefix of its targets' leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naming {
    pool: String,
    prefix: Option<String>,
    role_prefix: Option<String>,
}

impl Naming {
    /// A pool whose leases are `<pool>:lease:<target>`.
    pub fn of(pool: &str) -> Self {
        Self { pool: pool.to_owned(), prefix: None, role_prefix: None }
    }

    /// Sets another prefix for the leases.
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self { prefix: Some(prefix.to_owned()), ..self }
    }

    /// Sets another prefix for the pool's own role.
    pub fn with_role_prefix(self, prefix: &str) -> Self {
        Self { role_prefix: Some(prefix.to_owned()), ..self }
    }

    /// The lease of the reconciler role.
    pub fn reconciler_lease(&self) -> Result<LeaseName, NameError> {
        let role = format!("{}-reconciler", self.pool);
        match &self.role_prefix {
            Some(prefix) => LeaseName::with_prefix(LeaseKind::Role, prefix, &role),
            None => LeaseName::role(&role),
        }
    }

    /// The name of the pool.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The lease of a target.
    pub fn lease(&self, target: &str) -> Result<LeaseName, NameError> {
        match &self.prefix {
            Some(prefix) => LeaseName::with_prefix(LeaseKind::Target, prefix, target),
            None => LeaseName::target(&self.pool, target),
        }
    }

    /// The target of a lease, if it is one of this pool's.
    pub fn target(&self, lease: &LeaseName) -> Option<TargetName> {
        self.lease(lease.label()).is_ok_and(|ours| ours == *lease).then(|| TargetName::from(lease.label()))
    }

    /// Checks that the names are valid.
    pub fn check(&self) -> Result<(), NameError> {
        LeaseName::target(&self.pool, "any")
            .and_then(|_| self.lease("any"))
            .and_then(|_| self.reconciler_lease())
            .map(drop)
    }
}
