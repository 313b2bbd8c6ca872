//! Resolution of instance names given by an operator.

use tenure::{InstanceId, RequestError, Tenure};

use crate::keys::KeyPrefixes;

/// Resolves an instance by its id, by an unambiguous beginning of it, or as `status` shortens it: `web-1…56f6cfa8`, or only
/// the last letters.
///
/// # Errors
/// A message for the user when no known id, or more than one, begins like this. `noun` is what the message calls them.
pub fn resolve_instance(wanted: &str, known: &[InstanceId], noun: &str) -> Result<InstanceId, String> {
    let is_meant = |id: &InstanceId| match wanted.split_once('…') {
        Some((start, end)) => id.as_str().starts_with(start) && id.as_str().ends_with(end),
        None => id.as_str().starts_with(wanted) || id.as_str().ends_with(&format!("-{wanted}")),
    };
    // Every id begins with the empty string.
    let begins: Vec<&InstanceId> = known.iter().filter(|id| !wanted.is_empty() && is_meant(id)).collect();
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
) -> Result<Result<InstanceId, String>, RequestError> {
    let candidates = match tenure.fleet().candidates_under(&keys.heartbeats(role)).await {
        Err(RequestError::Name(error)) => return Ok(Err(error.to_string())),
        candidates => candidates?,
    };
    let candidates: Vec<InstanceId> = candidates.into_iter().map(|candidate| candidate.instance).collect();
    if !candidates.is_empty() {
        return Ok(resolve_instance(wanted, &candidates, "candidate"));
    }
    let fleet: Vec<InstanceId> = tenure.fleet().instances().await?.into_iter().map(|member| member.instance).collect();
    if !fleet.is_empty() {
        return Ok(resolve_instance(wanted, &fleet, "instance"));
    }
    Ok(InstanceId::new(wanted).map_err(|error| error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_found_by_its_id_its_beginning_and_its_short_form() {
        let known = ["web-1-1795010479391557447-56f6cfa8", "web-2-1795010481792674385-1b4cb13c"];
        let known: Vec<InstanceId> = known.iter().map(|id| InstanceId::foreign(id)).collect();
        for wanted in [known[0].as_str(), "web-1", "web-1…56f6cfa8", "56f6cfa8"] {
            assert_eq!(resolve_instance(wanted, &known, "instance").as_ref(), Ok(&known[0]), "{wanted}");
        }
        for wanted in ["", "web-", "…", "web-1…1b4cb13c", "6f6cfa8"] {
            assert!(resolve_instance(wanted, &known, "instance").is_err(), "{wanted}");
        }
    }
}
