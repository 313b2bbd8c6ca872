//! The instance that somebody means, by its id or by how that begins.

use tenure::InstanceId;

/// The one of these that is meant; or why none is.
pub fn meant(wanted: &str, known: &[InstanceId], what: &str) -> Result<InstanceId, String> {
    // Nothing is how every id begins.
    let begins: Vec<&InstanceId> =
        known.iter().filter(|id| !wanted.is_empty() && id.as_str().starts_with(wanted)).collect();
    let exact = known.iter().find(|id| id.as_str() == wanted);
    match (exact, &begins[..]) {
        (Some(id), _) => Ok(id.clone()),
        (None, [id]) => Ok((*id).clone()),
        (None, _) => {
            let listed: Vec<&str> = known.iter().map(InstanceId::as_str).collect();
            let how_many = if begins.is_empty() { "no" } else { "more than one" };
            let listed = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
            Err(format!("{how_many} {what} is called {wanted}; there are: {listed}"))
        }
    }
}
