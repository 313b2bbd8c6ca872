//! Resolution of instance names given by an operator.

use tenure::store::StoreError;
use tenure::{Group, InstanceId, Tenure};

use crate::keys::KeyPrefixes;

/// Resolves an instance by its id or by an unambiguous beginning of it.
///
/// # Errors
/// A message for the user when no known id, or more than one, begins like this. `noun` is what the message calls them.
pub fn resolve_instance(wanted: &str, known: &[InstanceId], noun: &str) -> Result<InstanceId, String> {
    // Every id begins with the empty string.
    let begins: Vec<&InstanceId> =
        known.iter().filter(|id| !wanted.is_empty() && id.as_str().starts_with(wanted)).collect();
    let exact = known.iter().find(|id| id.as_str() == wanted);
    match (exact, &begins[..]) {
        (Some(id), _) => Ok(id.clone()),
        (None, [id]) => Ok((*id).clone()),
        (None, _) => {
            let listed: Vec<&str> = known.iter().map(InstanceId::as_str).collect();
            let count = if begins.is_empty() { "no" } else { "more than one" };
            let listed = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
            Err(format!("{count} {noun} matches {wanted:?}; known: {listed}"))
        }
    }
}

/// Resolves the instance that should lead a role next: one of its candidates, or of the fleet if the role has no
/// candidates with heartbeats. Without either, any valid id is accepted: heartbeats may use a prefix of their own.
///
/// A hand-over to an instance that does not exist would leave the role without a leader for the accept window.
///
/// # Errors
/// When a request to the store fails; the inner error is a message for the user.
pub async fn resolve_candidate(
    tenure: &Tenure,
    keys: &KeyPrefixes,
    role: &str,
    wanted: &str,
) -> Result<Result<InstanceId, String>, StoreError> {
    let group = match Group::candidates(&keys.heartbeats(role)) {
        Ok(group) => group,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let candidates: Vec<InstanceId> =
        tenure.candidates(&group).await?.into_iter().map(|candidate| candidate.instance).collect();
    if !candidates.is_empty() {
        return Ok(resolve_instance(wanted, &candidates, "candidate"));
    }
    let fleet: Vec<InstanceId> = tenure.fleet().await?.into_iter().map(|member| member.instance).collect();
    if !fleet.is_empty() {
        return Ok(resolve_instance(wanted, &fleet, "instance"));
    }
    Ok(InstanceId::new(wanted).map_err(|error| error.to_string()))
}
