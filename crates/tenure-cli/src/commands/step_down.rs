//! `tenure step-down ROLE`

use std::time::{Duration, Instant};

use tenure::InstanceId;

use crate::arguments::{StepDown, StoreArguments};
use crate::exit::{DONE, Failure, NO};

/// How often is looked whether it has happened.
const LOOK: Duration = Duration::from_millis(50);

pub async fn ask(store: &StoreArguments, arguments: StepDown) -> Result<u8, Failure> {
    let name = store.role(&arguments.role)?;
    let to = arguments.to.as_deref().map(InstanceId::new).transpose();
    let to = to.map_err(|error| Failure::Usage(error.to_string()))?;
    let tenure = store.connect().await?;
    let code = match tenure.step_down(&name, to.as_ref()).await? {
        None => {
            eprintln!("nobody leads {}", arguments.role);
            NO
        }
        Some(token) => {
            let start = Instant::now();
            loop {
                let leader = tenure.leader_of(&name).await?;
                match leader {
                    Some(leader) if leader.token == Some(token) && start.elapsed() < arguments.wait => {
                        tokio::time::sleep(LOOK).await;
                    }
                    Some(leader) if leader.token == Some(token) => {
                        eprintln!("{} was asked, and still leads {}", leader.instance, arguments.role);
                        break NO;
                    }
                    Some(leader) => {
                        println!("{}", leader.instance);
                        break DONE;
                    }
                    None => break DONE,
                }
            }
        }
    };
    tenure.shutdown().await;
    Ok(code)
}
