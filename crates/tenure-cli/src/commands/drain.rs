//! `tenure drain INSTANCE`, `tenure undrain INSTANCE`

use std::time::{Duration, Instant};

use serde_json::json;
use tenure::fleet::{InstanceRecord, Status};
use tenure::store::Member;
use tenure::{InstanceId, Tenure};
use tenure_serve::instances::resolve_instance;

use crate::arguments::{Drain, StoreArguments};
use crate::exit::{DONE, Failure, NO};
use crate::notice::{failure, note, warning};
use crate::output::say;

/// How often is looked whether it has happened.
const LOOK: Duration = Duration::from_millis(100);

pub async fn ask(store: &StoreArguments, arguments: Drain, drain: bool, json: bool) -> Result<u8, Failure> {
    let tenure = store.look().await?;
    let members = tenure.fleet().await?;
    let instances: Vec<InstanceId> = members.iter().map(|member| member.instance.clone()).collect();
    let code = match resolve_instance(&arguments.instance, &instances, "instance") {
        Ok(instance) => {
            if drain && !members.iter().any(|member| member.instance != instance && takes_part(member)) {
                warning!("nobody else takes part: what {instance} lets go of is polled by nobody");
            }
            if drain {
                tenure.drain(&instance).await?
            } else {
                tenure.undrain(&instance).await?
            }
            wait(&tenure, &instance, drain, arguments.wait, json).await?
        }
        Err(why) => {
            failure!("{why}");
            NO
        }
    };
    tenure.shutdown().await;
    Ok(code)
}

/// Whether an instance takes what others give away. Those of other programs always do.
fn takes_part(member: &Member) -> bool {
    InstanceRecord::decode(&member.record).is_none_or(|record| record.status != Status::Draining)
}

fn answer(instance: &InstanceId, status: &str, held: usize, json: bool) -> Result<u8, Failure> {
    if json {
        say(&json!({"instanceId": instance.as_str(), "status": status, "held": held}).to_string())
    } else {
        say(instance.as_str())
    }
}

/// Waits until it has given everything away, or takes part again.
async fn wait(tenure: &Tenure, instance: &InstanceId, drain: bool, limit: Duration, json: bool) -> Result<u8, Failure> {
    let start = Instant::now();
    loop {
        let members = tenure.fleet().await?;
        let Some(member) = members.iter().find(|member| member.instance == *instance) else {
            if drain {
                note!("{instance} is gone");
            } else {
                failure!("{instance} is gone");
            }
            if json {
                answer(instance, "gone", 0, json)?;
            }
            return Ok(if drain { DONE } else { NO });
        };
        let Some(record) = InstanceRecord::decode(&member.record) else {
            failure!("{instance} is not tenure's: it cannot be asked");
            return Ok(NO);
        };
        let held = record.held.values().fold(0_usize, |sum, held| sum.saturating_add(*held));
        let is_draining = record.status == Status::Draining;
        if is_draining == drain && (!drain || held == 0) {
            answer(instance, record.status.word(), held, json)?;
            return Ok(DONE);
        }
        if start.elapsed() >= limit {
            failure!("{instance} was asked, is {} and holds {held}", record.status.word());
            if json {
                answer(instance, record.status.word(), held, json)?;
            }
            return Ok(NO);
        }
        tokio::time::sleep(LOOK).await;
    }
}
