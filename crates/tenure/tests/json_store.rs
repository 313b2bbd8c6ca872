//! The store of `docs/writing-a-store.md` passes the conformance suite, and the page shows the store as it is.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[path = "../examples/json_store.rs"]
mod json_store;

use std::sync::Arc;
use std::time::Duration;

use json_store::JsonStore;
use tenure::store::{BoxFuture, Store};
use tenure::testing::{FaultInjection, StoreFault, StoreFixture};

struct JsonFixture {
    store: JsonStore,
    folder: tempfile::TempDir,
}

async fn json() -> JsonFixture {
    let folder = tempfile::tempdir().unwrap();
    JsonFixture { store: JsonStore::new(&folder.path().join("leases.json")), folder }
}

impl StoreFixture for JsonFixture {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    fn advance_time(&self, span: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn inject(&self, fault: StoreFault) -> BoxFuture<'_, FaultInjection> {
        let (file, copy) = (self.folder.path().join("leases.json"), self.folder.path().join("copy.json"));
        let done = match fault {
            StoreFault::Flush => std::fs::remove_file(file),
            StoreFault::TakeSnapshot => std::fs::copy(file, copy).map(drop),
            StoreFault::RestoreSnapshot => std::fs::copy(copy, file).map(drop),
            // Without a server, nothing is lost that must not be.
            StoreFault::AgeServer(_) => Ok(()),
            _ => return Box::pin(std::future::ready(FaultInjection::Unsupported)),
        };
        done.unwrap();
        Box::pin(std::future::ready(FaultInjection::Injected))
    }

    fn can_count_subscribers(&self) -> bool {
        false
    }

    fn remembers_served_namespaces(&self) -> bool {
        false
    }
}

mod conformance {
    tenure::conformance_tests!(super::json);
}

#[test]
fn every_excerpt_of_the_page_is_in_the_store() {
    let (page, store) = (include_str!("../../../docs/writing-a-store.md"), include_str!("../examples/json_store.rs"));
    let excerpts: Vec<&str> = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(excerpts.len() >= 4, "{}", excerpts.len());
    for excerpt in excerpts {
        for part in excerpt.split("// …\n") {
            let part = part.trim_end_matches([' ', '\n']);
            assert!(store.contains(part.trim_start_matches('\n')), "not in json_store.rs:\n{part}");
        }
    }
}
