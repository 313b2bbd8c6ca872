//! The conformance suite on the memory store, which supports every fault.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::InstanceId;
use tenure::store::memory::{MemoryStore, Snapshot, Survival};
use tenure::store::{BoxFuture, Store};
use tenure::testing::{FaultInjection, StoreFault, StoreFixture, Verdict, cases, run_all, run_case};
use tenure::time::ManualClock;

struct MemoryFixture {
    clock: Arc<ManualClock>,
    store: MemoryStore,
    snapshot: Mutex<Snapshot>,
}

async fn memory() -> MemoryFixture {
    let clock = Arc::new(ManualClock::default());
    MemoryFixture { store: MemoryStore::with_clock(clock.clone()), clock, snapshot: Mutex::default() }
}

impl StoreFixture for MemoryFixture {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    fn advance_time(&self, span: Duration) -> BoxFuture<'_, ()> {
        self.clock.advance(span);
        Box::pin(std::future::ready(()))
    }

    fn inject(&self, fault: StoreFault) -> BoxFuture<'_, FaultInjection> {
        let faults = self.store.faults();
        let snapshot = || self.snapshot.lock().unwrap().clone();
        match fault {
            StoreFault::Flush => faults.flush(),
            StoreFault::Restart => faults.restart(Survival::All),
            StoreFault::RestartEmpty => faults.restart(Survival::None),
            StoreFault::TakeSnapshot => *self.snapshot.lock().unwrap() = faults.snapshot(),
            StoreFault::RestoreSnapshot => faults.restore(snapshot()),
            StoreFault::RestartFromSnapshot => faults.restart(Survival::Since(snapshot())),
            StoreFault::ReplaceData => faults.replace(snapshot()),
            StoreFault::CorruptToken { name, token } => faults.corrupt_token(&name, token),
            StoreFault::CutConnections => faults.cut_connections(),
            StoreFault::WriteForeignLease { name, holder, ttl } => {
                faults.write_foreign(&name, &InstanceId::foreign(&holder), ttl);
            }
            StoreFault::DeleteLease { name } => faults.delete_foreign(&name),
            StoreFault::StepClockBack(span) => faults.step_clock_back(span),
            StoreFault::StepClockForward(span) => faults.step_clock_forward(span),
            StoreFault::AgeServer(span) => self.clock.advance(span),
            _ => return Box::pin(std::future::ready(FaultInjection::Unsupported)),
        }
        Box::pin(std::future::ready(FaultInjection::Injected))
    }
}

mod one_by_one {
    tenure::conformance_tests!(super::memory);
}

#[test]
fn the_memory_store_passes_every_case_and_leaves_none_unchecked() {
    let report = run_all(memory);
    assert_eq!(report.not_checked, []);
    assert_eq!(report.passed.len(), cases().len());
}

/// A fixture that supports no fault.
struct FixtureWithoutFaults(MemoryFixture);

impl StoreFixture for FixtureWithoutFaults {
    fn store(&self) -> Arc<dyn Store> {
        self.0.store()
    }

    fn advance_time(&self, span: Duration) -> BoxFuture<'_, ()> {
        self.0.advance_time(span)
    }

    fn inject(&self, _: StoreFault) -> BoxFuture<'_, FaultInjection> {
        Box::pin(std::future::ready(FaultInjection::Unsupported))
    }

    fn can_count_subscribers(&self) -> bool {
        false
    }
}

#[test]
fn a_case_whose_fault_is_not_supported_does_not_pass() {
    let without_faults = || async { FixtureWithoutFaults(memory().await) };
    for (case, needs) in [
        ("tokens_grow_across_a_flush", "Flush"),
        ("a_newcomer_begins_a_quarantine_when_others_are_subscribed", "counting subscribers"),
    ] {
        assert_eq!(run_case(case, without_faults), Verdict::NotChecked { needs: needs.to_owned() });
    }
    assert_eq!(run_case("a_free_lease_is_granted", without_faults), Verdict::Passed);
}

/// Proves that the suite can fail.
#[cfg(feature = "mutations")]
#[test]
fn a_store_with_a_mutation_fails() {
    use tenure::mutation::Mutation;

    let mutated = |mutation| {
        move || async move {
            let memory = memory().await;
            memory.store.faults().plant(mutation);
            memory
        }
    };
    for (mutation, case) in [
        (Mutation::CompareByHolderOnly, "the_right_holder_under_a_smaller_token_is_refused"),
        (Mutation::OverwriteNewerGeneration, "a_newer_generation_is_adopted_and_never_written_over"),
    ] {
        let failed = std::panic::catch_unwind(|| run_case(case, mutated(mutation)));
        assert!(failed.is_err(), "{mutation:?} must make {case} fail");
        let failed = std::panic::catch_unwind(|| run_all(mutated(mutation))).unwrap_err();
        let message = failed.downcast_ref::<String>().unwrap();
        assert!(message.contains(case), "{mutation:?}: {message}");
    }
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let names: BTreeSet<_> = cases().iter().map(|case| case.name()).collect();
    assert_eq!(names.len(), cases().len());
}

/// Each case uses a single thread; here the storms run in parallel.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn storms_pass_on_many_threads() {
    for case in cases().iter().filter(|case| case.group() == "storm") {
        for _ in 0..5 {
            case.run(&memory().await).await;
        }
    }
}
