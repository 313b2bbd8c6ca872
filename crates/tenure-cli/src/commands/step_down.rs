//! `tenure step-down ROLE`

use std::time::{Duration, Instant};

use serde_json::json;
use tenure::{InstanceId, LeaseName, Tenure, Token};
use tenure_serve::instances::resolve_candidate;

use crate::arguments::{StepDownArguments, StoreArguments};
use crate::exit::{CliError, DONE, NO};
use crate::notice::{failure, note};
use crate::output::print_line;

/// Poll interval for the leader.
const CHECK_EVERY: Duration = Duration::from_millis(50);

pub async fn request(store: &StoreArguments, arguments: StepDownArguments, json: bool) -> Result<u8, CliError> {
    let names = store.resolve_roles(&arguments.role)?;
    let tenure = store.connect_existing().await?;
    let to = match &arguments.to {
        Some(wanted) => resolve_candidate(&tenure, &store.keys(), &arguments.role, wanted).await?.map(Some),
        None => Ok(None),
    };
    let code = match to {
        Ok(to) => request_first(&tenure, &names, to.as_ref(), &arguments, json).await?,
        Err(why) => {
            failure!("{why}");
            NO
        }
    };
    if json {
        let mut leader = None;
        for name in &names {
            leader = leader.or(tenure.fleet().leader_of(name).await?);
        }
        let leader = leader.as_ref().map(|leader| leader.instance.as_str());
        print_line(&json!({"role": arguments.role, "leader": leader, "steppedDown": code == DONE}).to_string())?;
    }
    tenure.shutdown().await;
    Ok(code)
}

async fn request_first(
    tenure: &Tenure,
    names: &[LeaseName],
    to: Option<&InstanceId>,
    arguments: &StepDownArguments,
    json: bool,
) -> Result<u8, CliError> {
    for name in names {
        if let Some(to) = to
            && tenure.fleet().leader_of(name).await?.is_some_and(|leader| leader.instance == *to && !leader.is_revoked)
        {
            note!("{to} leads {} already", arguments.role);
            if !json {
                print_line(to.as_str())?;
            }
            return Ok(DONE);
        }
        if let Some(token) = tenure.admin().step_down(name, to).await? {
            return wait_for_handover(tenure, name, token, to, arguments, json).await;
        }
        if let Some(leader) = tenure.fleet().leader_of(name).await? {
            match leader.token {
                None => failure!("cannot ask the leader {} to step down: it is not a tenure instance", leader.instance),
                Some(_) => failure!("{} is already stepping down", leader.instance),
            }
            return Ok(NO);
        }
    }
    failure!("{} has no leader", arguments.role);
    Ok(NO)
}

/// Waits until the term has ended, and until the requested candidate, if any, has confirmed its leadership.
async fn wait_for_handover(
    tenure: &Tenure,
    name: &LeaseName,
    token: Token,
    to: Option<&InstanceId>,
    arguments: &StepDownArguments,
    json: bool,
) -> Result<u8, CliError> {
    let start = Instant::now();
    loop {
        let leader = tenure.fleet().leader_of(name).await?;
        let next = leader.as_ref().filter(|leader| leader.token != Some(token));
        let late = start.elapsed() >= arguments.wait;
        match (leader.as_ref(), next, to) {
            (Some(leader), None, _) if late => {
                failure!("{} was asked to step down, and still leads {}", leader.instance, arguments.role);
                return Ok(NO);
            }
            (None, _, None) => return Ok(DONE),
            (_, Some(next), None) => {
                if !json {
                    print_line(next.instance.as_str())?;
                }
                return Ok(DONE);
            }
            (_, Some(next), Some(to)) if next.instance == *to && next.is_confirmed => {
                if !json {
                    print_line(to.as_str())?;
                }
                return Ok(DONE);
            }
            (_, Some(next), Some(to)) if next.instance != *to => {
                failure!("{to} did not take over; {} leads", next.instance);
                return Ok(NO);
            }
            (None, _, Some(to)) if late => {
                failure!("{to} did not take over; the role has no leader");
                return Ok(NO);
            }
            _ => {}
        }
        if late {
            failure!("the role is kept for {}, which has not taken over", to.map_or("no instance", InstanceId::as_str));
            return Ok(NO);
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}
