//! `tenure role`: lists all roles that ever had a leader, and forgets one.

use serde_json::{Value, json};
use tenure::Tenure;
use tenure_serve::ownership;

use crate::arguments::{RoleCommand, StoreArguments};
use crate::exit::{CliError, DONE, NO};
use crate::notice::failure;
use crate::output::{TextTable, print_line};

pub async fn manage(store: &StoreArguments, command: RoleCommand, json: bool) -> Result<u8, CliError> {
    let tenure = store.connect_existing().await?;
    let done = match command {
        RoleCommand::Ls => list(&tenure, json).await,
        RoleCommand::Rm(role) => remove(&tenure, store, &role.role, json).await,
    };
    tenure.shutdown().await;
    done
}

async fn list(tenure: &Tenure, json: bool) -> Result<u8, CliError> {
    let roles = read(tenure).await?;
    if json {
        return print_line(&Value::Array(roles.iter().map(Role::to_json).collect()).to_string());
    }
    print_table(&roles)
}

/// A listed role.
pub struct Role {
    pub name: String,
    pub leader: Option<String>,
    pub token: Option<u64>,
    pub remaining_ms: Option<u64>,
    pub is_revoked: bool,
    /// Why its lease cannot be read: the key and the error.
    pub error: Option<(String, String)>,
}

impl Role {
    pub fn to_json(&self) -> Value {
        json!({
            "role": self.name,
            "leader": self.leader,
            "token": self.token,
            "remainingMs": self.remaining_ms,
            "revoked": self.is_revoked,
        })
    }
}

/// Reads all roles that ever had a leader.
pub async fn read(tenure: &Tenure) -> Result<Vec<Role>, CliError> {
    let role = |(name, inspection): (tenure::LeaseName, ownership::LeaseInspection)| {
        let (report, error) = match inspection {
            Ok(report) => (Some(report), None),
            Err((key, error)) => (None, Some((key, error.to_string()))),
        };
        let held = report.as_ref().and_then(|report| report.held.as_ref());
        Role {
            name: name.label().to_owned(),
            leader: held.map(|held| held.holder.to_string()),
            token: held.and_then(|held| held.token).map(|token| token.get()),
            remaining_ms: held.and_then(|held| held.remaining).map(|left| left.as_millis() as u64),
            is_revoked: report.as_ref().is_some_and(tenure::store::LeaseReport::is_revoked),
            error,
        }
    };
    Ok(ownership::role_leases(tenure).await?.into_iter().map(role).collect())
}

pub fn print_table(roles: &[Role]) -> Result<u8, CliError> {
    let mut table = TextTable::new(&["ROLE", "LEADER", "ENDS IN"]);
    for role in roles {
        let ends = match (role.is_revoked, role.remaining_ms) {
            (true, _) => "revoked".to_owned(),
            (false, Some(left)) => format!("{:.1} s", left as f64 / 1_000.0),
            (false, None) => "-".to_owned(),
        };
        table.row([role.name.clone(), role.leader.clone().unwrap_or_else(|| "none".to_owned()), ends]);
    }
    table.print()
}

async fn remove(tenure: &Tenure, store: &StoreArguments, role: &str, json: bool) -> Result<u8, CliError> {
    let known = tenure.fleet().roles().await?;
    let name = known.into_iter().find(|known| known.label() == role);
    let forgotten = match &name {
        Some(name) => tenure.admin().forget_role(name).await?,
        None => false,
    };
    if json {
        print_line(&json!({"role": role, "removed": forgotten}).to_string())?;
    }
    match (&name, forgotten) {
        (_, true) if !json => drop(print_line(role)?),
        (Some(_), false) => {
            failure!("cannot forget {role}: it has or just had a leader; run `tenure step-down {role}` first")
        }
        (None, _) => {
            failure!("no such role: {role}; its key would be {}", tenure.admin().lease_key(&store.role(role)?))
        }
        _ => {}
    }
    Ok(if forgotten { DONE } else { NO })
}
