//! The lists beside a pool's leases: which instances hold targets, and which targets each holds.

use super::TargetName;
use crate::name::InstanceId;
use crate::store::DocumentRequest;

/// The record beside a lease that says why the target moved to its holder.
pub const MOVE_RECORD: &str = "moved";

/// The index of the instances that hold, or held, targets of a pool.
pub fn holders_index(pool: &str) -> String {
    format!("holders:{pool}")
}

/// The index of the targets that an instance holds.
pub fn held_index(pool: &str, instance: &InstanceId) -> String {
    format!("held:{pool}:{instance}")
}

/// Lists an instance among those that hold targets, or removes it.
pub fn list_holder(pool: &str, instance: &InstanceId, is_listed: bool) -> DocumentRequest {
    change(holders_index(pool), instance.to_string(), is_listed)
}

/// Lists a target among those that an instance holds, or removes it.
pub fn list_held(pool: &str, instance: &InstanceId, target: &TargetName, is_listed: bool) -> DocumentRequest {
    change(held_index(pool, instance), target.to_string(), is_listed)
}

fn change(index: String, entry: String, is_listed: bool) -> DocumentRequest {
    let announced = false;
    if is_listed {
        DocumentRequest::IndexAdd { index, entry, announced }
    } else {
        DocumentRequest::IndexRemove { index, entry, announced }
    }
}
