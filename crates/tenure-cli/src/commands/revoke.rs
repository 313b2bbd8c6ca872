//! `tenure revoke NAME`

use tenure::{LeaseKind, LeaseName};

use crate::arguments::{Revoke, StoreArguments};
use crate::exit::{DONE, Failure, NO};

pub async fn revoke(store: &StoreArguments, arguments: Revoke) -> Result<u8, Failure> {
    let names = names(store, &arguments.name)?;
    let tenure = store.connect().await?;
    let mut code = NO;
    for name in names {
        if let Some(held) = tenure.revoke(&name).await? {
            println!("{name} was {held}'s");
            code = DONE;
            break;
        }
    }
    if code == NO {
        eprintln!("nobody holds {}", arguments.name);
    }
    tenure.shutdown().await;
    Ok(code)
}

/// What the word may mean: a role, a lease, or a key as it stands in the store.
fn names(store: &StoreArguments, word: &str) -> Result<Vec<LeaseName>, Failure> {
    let mut names = vec![store.role(word)?];
    names.extend(LeaseName::lease(word));
    if let Some(at) = word.rfind(':') {
        let (prefix, label) = word.split_at(at + 1);
        names.extend(LeaseName::with_prefix(LeaseKind::Lease, prefix, label));
    }
    Ok(names)
}
