//! Names of leases and ids of processes.

use std::sync::Arc;

use tenure_core::store::{DocumentRequest, LeaseRequest, Request};
use tenure_core::{InstanceId, LeaseKind, LeaseName, NameError};

use crate::observation::{LeaseIndex, ProcessId};

/// The names of the leases and the current ids of the processes.
#[derive(Clone, Debug)]
pub struct NameTable {
    names: Arc<[LeaseName]>,
    instances: Vec<InstanceId>,
}

impl NameTable {
    /// Creates names for this many leases and processes.
    ///
    /// # Errors
    /// Never, as long as the names made here are valid ones.
    pub fn new(leases: usize, processes: usize) -> Result<Self, NameError> {
        let names: Result<Arc<[LeaseName]>, NameError> =
            (0..leases).map(|n| LeaseName::with_prefix(LeaseKind::Lease, "lease:", &n.to_string())).collect();
        let instances: Result<Vec<InstanceId>, NameError> = (0..processes).map(|n| instance(ProcessId(n), 0)).collect();
        Ok(Self { names: names?, instances: instances? })
    }

    /// The name of a lease.
    pub fn name(&self, lease: LeaseIndex) -> &LeaseName {
        &self.names[lease.0]
    }

    /// Number of leases.
    pub fn leases(&self) -> usize {
        self.names.len()
    }

    /// Number of processes.
    pub fn processes(&self) -> usize {
        self.instances.len()
    }

    /// The current id of a process.
    pub fn instance(&self, process: ProcessId) -> &InstanceId {
        &self.instances[process.0]
    }

    /// Assigns a new id to a restarted process.
    ///
    /// # Errors
    /// Never, as long as the names made here are valid ones.
    pub fn assign_new_id(&mut self, process: ProcessId, incarnation: u64) -> Result<(), NameError> {
        self.instances[process.0] = instance(process, incarnation)?;
        Ok(())
    }

    /// The process that has this id, or had it before a restart.
    pub fn process_of(&self, instance: &InstanceId) -> Option<ProcessId> {
        instance.as_str().strip_prefix('p')?.split('-').next()?.parse().ok().map(ProcessId)
    }

    /// The lease that a request is about.
    pub fn lease_of(&self, request: &Request) -> Option<LeaseIndex> {
        use {DocumentRequest as D, LeaseRequest as L};
        let name = match request {
            Request::Lease(L::Acquire { claim, .. } | L::TakeOver { claim, .. }) => &claim.name,
            Request::Lease(L::Renew { holding, .. } | L::Release { holding, .. } | L::HandOver { holding, .. })
            | Request::Document(D::Publish { holding, .. }) => &holding.name,
            Request::Lease(
                L::Abandon { name, .. } | L::Revoke { name, .. } | L::Ask { name, .. } | L::Inspect { name },
            )
            | Request::Document(D::ReadRecord { name, .. }) => name,
            _ => return None,
        };
        self.names.iter().position(|known| known == name).map(LeaseIndex)
    }
}

fn instance(process: ProcessId, incarnation: u64) -> Result<InstanceId, NameError> {
    InstanceId::new(&format!("p{}-{incarnation}", process.0))
}
