//! `tenure drain INSTANCE`, `tenure undrain INSTANCE`

use std::time::{Duration, Instant};

use serde_json::json;
use tenure::fleet::{InstanceRecord, InstanceStatus};
use tenure::store::LiveInstance;
use tenure::{InstanceId, Tenure};
use tenure_serve::instances::resolve_instance;

use crate::arguments::{DrainArguments, StoreArguments};
use crate::exit::{CliError, DONE, NO};
use crate::notice::{failure, note, warning};
use crate::output::print_line;

/// Poll interval for the status of the instance.
const CHECK_EVERY: Duration = Duration::from_millis(100);

pub async fn request(
    store: &StoreArguments,
    arguments: DrainArguments,
    drain: bool,
    json: bool,
) -> Result<u8, CliError> {
    let tenure = store.connect_existing().await?;
    let members = tenure.fleet().instances().await?;
    let instances: Vec<InstanceId> = members.iter().map(|member| member.instance.clone()).collect();
    let code = match resolve_instance(&arguments.instance, &instances, "instance") {
        Ok(instance) => {
            if drain && !members.iter().any(|member| member.instance != instance && accepts_targets(member)) {
                warning!("no other instance can take sessions: those of {instance} stay unheld until one joins");
            }
            if drain {
                tenure.admin().drain(&instance).await?
            } else {
                tenure.admin().undrain(&instance).await?
            }
            wait_for_status(&tenure, &instance, drain, arguments.wait, json).await?
        }
        Err(why) => {
            failure!("{why}");
            NO
        }
    };
    tenure.shutdown().await;
    Ok(code)
}

/// Returns whether an instance accepts sessions from others. Instances of other programs always do.
fn accepts_targets(member: &LiveInstance) -> bool {
    InstanceRecord::decode(&member.record).is_none_or(|record| record.status != InstanceStatus::Draining)
}

fn print_result(instance: &InstanceId, status: &str, held: usize, json: bool) -> Result<u8, CliError> {
    if json {
        print_line(&json!({"instanceId": instance.as_str(), "status": status, "held": held}).to_string())
    } else {
        print_line(instance.as_str())
    }
}

/// Waits until the instance has handed over all sessions, or accepts sessions again.
async fn wait_for_status(
    tenure: &Tenure,
    instance: &InstanceId,
    drain: bool,
    timeout: Duration,
    json: bool,
) -> Result<u8, CliError> {
    let start = Instant::now();
    loop {
        let members = tenure.fleet().instances().await?;
        let Some(member) = members.iter().find(|member| member.instance == *instance) else {
            if drain {
                note!("{instance} has left the fleet");
            } else {
                failure!("{instance} has left the fleet");
            }
            if json {
                print_result(instance, "gone", 0, json)?;
            }
            return Ok(if drain { DONE } else { NO });
        };
        let Some(record) = InstanceRecord::decode(&member.record) else {
            failure!("cannot drain or undrain {instance}: it is not a tenure instance");
            return Ok(NO);
        };
        let held = record.held.values().fold(0_usize, |sum, held| sum.saturating_add(*held));
        let is_draining = record.status == InstanceStatus::Draining;
        if is_draining == drain && (!drain || held == 0) {
            print_result(instance, record.status.as_str(), held, json)?;
            return Ok(DONE);
        }
        if start.elapsed() >= timeout {
            failure!("{instance} was asked and is not done: status {}, sessions held: {held}", record.status.as_str());
            if json {
                print_result(instance, record.status.as_str(), held, json)?;
            }
            return Ok(NO);
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}
