//! `tenure drain INSTANCE`, `tenure undrain INSTANCE`

use std::time::{Duration, Instant};

use tenure::fleet::{InstanceRecord, Status};
use tenure::store::Member;
use tenure::{InstanceId, Tenure};

use crate::arguments::{Drain, StoreArguments};
use crate::exit::{DONE, Failure, NO};
use crate::meant::meant;

/// How often is looked whether it has happened.
const LOOK: Duration = Duration::from_millis(100);

pub async fn ask(store: &StoreArguments, arguments: Drain, drain: bool) -> Result<u8, Failure> {
    let tenure = store.look().await?;
    let instances: Vec<InstanceId> = tenure.fleet().await?.into_iter().map(|member| member.instance).collect();
    let code = match meant(&arguments.instance, &instances, "instance") {
        Ok(instance) => {
            if drain && instances.len() == 1 {
                eprintln!("tenure: nobody else is there: what {instance} lets go of is polled by nobody");
            }
            if drain {
                tenure.drain(&instance).await?
            } else {
                tenure.undrain(&instance).await?
            }
            wait(&tenure, &instance, drain, arguments.wait).await?
        }
        Err(why) => {
            eprintln!("tenure: {why}");
            NO
        }
    };
    tenure.shutdown().await;
    Ok(code)
}

/// Waits until it has given everything away, or takes part again.
async fn wait(tenure: &Tenure, instance: &InstanceId, drain: bool, limit: Duration) -> Result<u8, Failure> {
    let start = Instant::now();
    loop {
        let members = tenure.fleet().await?;
        let Some(member) = members.iter().find(|member| member.instance == *instance) else {
            eprintln!("tenure: {instance} is gone");
            return Ok(if drain { DONE } else { NO });
        };
        let Some(record) = InstanceRecord::decode(&member.record) else {
            eprintln!("tenure: {instance} is not tenure's: it cannot be asked");
            return Ok(NO);
        };
        let held = record.held.values().fold(0_usize, |sum, held| sum.saturating_add(*held));
        let is_draining = record.status == Status::Draining;
        if is_draining == drain && (!drain || held == 0) {
            println!("{instance}");
            let takes_part = |member: &Member| {
                InstanceRecord::decode(&member.record).is_none_or(|record| record.status != Status::Draining)
            };
            if drain && !members.iter().any(takes_part) {
                eprintln!("tenure: no instance takes part any more: nothing is held until one is undrained or comes");
            }
            return Ok(DONE);
        }
        if start.elapsed() >= limit {
            eprintln!("tenure: {instance} was asked, is {} and holds {held}", record.status.word());
            return Ok(NO);
        }
        tokio::time::sleep(LOOK).await;
    }
}
