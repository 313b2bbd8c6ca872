//! `tenure revoke NAME`

use tenure::{LeaseKind, LeaseName};

use crate::arguments::{Revoke, StoreArguments};
use crate::exit::{DONE, Failure, NO};
use crate::notice::note;
use crate::store::by_key;

pub async fn revoke(store: &StoreArguments, arguments: Revoke) -> Result<u8, Failure> {
    let names = names(store, &arguments.lease)?;
    let tenure = store.look().await?;
    let mut code = NO;
    let mut foreign = None;
    for name in names {
        if let Some(held) = tenure.revoke(&name).await? {
            println!("{name} was {held}'s");
            code = DONE;
            break;
        }
        foreign = foreign.or(tenure.inspect(&name).await?.held.map(|held| (name, held.by)));
    }
    match foreign {
        Some((name, holder)) if code == NO => {
            note!(
                "{name} is {holder}'s, which is not tenure's: it cannot be revoked; delete the key if nobody relies on it"
            );
        }
        None if code == NO => note!("nobody holds {}", arguments.lease),
        _ => {}
    }
    tenure.shutdown().await;
    Ok(code)
}

/// What the word may mean: a role, a lease, or a key as it stands in the store.
fn names(store: &StoreArguments, word: &str) -> Result<Vec<LeaseName>, Failure> {
    let mut names = vec![store.role(word)?];
    names.extend(LeaseName::lease(word));
    names.extend(by_key(LeaseKind::Lease, word));
    Ok(names)
}
