//! The conformance suite on the memory store, which can be disturbed in every way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::InstanceId;
use tenure::store::memory::{MemoryStore, Snapshot, Survival};
use tenure::store::{BoxFuture, Store};
use tenure::testing::{Disturbance, Disturbed, Subject, Verdict, cases, run_all, run_case};
use tenure::time::ManualClock;

struct Memory {
    clock: Arc<ManualClock>,
    store: MemoryStore,
    remembered: Mutex<Snapshot>,
}

async fn memory() -> Memory {
    let clock = Arc::new(ManualClock::default());
    Memory { store: MemoryStore::with_clock(clock.clone()), clock, remembered: Mutex::default() }
}

impl Subject for Memory {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        self.clock.advance(span);
        Box::pin(std::future::ready(()))
    }

    fn disturb(&self, disturbance: Disturbance) -> BoxFuture<'_, Disturbed> {
        let faults = self.store.faults();
        let remembered = || self.remembered.lock().unwrap().clone();
        match disturbance {
            Disturbance::Flush => faults.flush(),
            Disturbance::Restart => faults.restart(Survival::All),
            Disturbance::RestartEmpty => faults.restart(Survival::None),
            Disturbance::Remember => *self.remembered.lock().unwrap() = faults.snapshot(),
            Disturbance::Restore => faults.restore(remembered()),
            Disturbance::RestartRestored => faults.restart(Survival::Since(remembered())),
            Disturbance::Replace => faults.replace(remembered()),
            Disturbance::SpoilToken { name, token } => faults.spoil_token(&name, token),
            Disturbance::Cut => faults.cut_connections(),
            Disturbance::ForeignLease { name, holder, ttl } => {
                faults.write_foreign(&name, &InstanceId::foreign(&holder), ttl);
            }
            Disturbance::ForeignDelete { name } => faults.delete_foreign(&name),
            Disturbance::ClockBack(span) => faults.step_clock_back(span),
            Disturbance::ClockForward(span) => faults.step_clock_forward(span),
            Disturbance::AgeServer(span) => self.clock.advance(span),
            _ => return Box::pin(std::future::ready(Disturbed::Unsupported)),
        }
        Box::pin(std::future::ready(Disturbed::Done))
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

/// Nothing can be done to this one.
struct Untouchable(Memory);

impl Subject for Untouchable {
    fn store(&self) -> Arc<dyn Store> {
        self.0.store()
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        self.0.pass(span)
    }

    fn disturb(&self, _: Disturbance) -> BoxFuture<'_, Disturbed> {
        Box::pin(std::future::ready(Disturbed::Unsupported))
    }

    fn counts_listeners(&self) -> bool {
        false
    }
}

#[test]
fn a_case_whose_disturbance_is_not_supported_does_not_pass() {
    let untouchable = || async { Untouchable(memory().await) };
    for (case, needs) in [
        ("tokens_grow_across_a_flush", "Flush"),
        ("a_newcomer_closes_when_others_are_listening", "counting who listens"),
    ] {
        assert_eq!(run_case(case, untouchable), Verdict::NotChecked { needs: needs.to_owned() });
    }
    assert_eq!(run_case("a_free_lease_is_granted", untouchable), Verdict::Passed);
}

/// A suite that never failed proves nothing.
#[cfg(feature = "flaws")]
#[test]
fn a_store_with_a_mistake_in_it_fails() {
    use tenure::flaw::Flaw;

    let flawed = |flaw| {
        move || async move {
            let memory = memory().await;
            memory.store.faults().plant(flaw);
            memory
        }
    };
    for (flaw, case) in [
        (Flaw::CompareByHolderOnly, "the_right_holder_under_a_smaller_token_is_refused"),
        (Flaw::RestampingGeneration, "a_newer_generation_is_adopted_and_never_written_over"),
    ] {
        let failed = std::panic::catch_unwind(|| run_case(case, flawed(flaw)));
        assert!(failed.is_err(), "{flaw:?} must make {case} fail");
        let failed = std::panic::catch_unwind(|| run_all(flawed(flaw))).unwrap_err();
        let message = failed.downcast_ref::<String>().unwrap();
        assert!(message.contains(case), "{flaw:?}: {message}");
    }
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let names: BTreeSet<_> = cases().iter().map(|case| case.name()).collect();
    assert_eq!(names.len(), cases().len());
}

/// Each case has a single thread; here the storms meet real parallelism.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn storms_on_many_threads() {
    for case in cases().iter().filter(|case| case.group() == "storm") {
        for _ in 0..5 {
            case.run(&memory().await).await;
        }
    }
}
