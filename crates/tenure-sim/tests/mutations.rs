//! Self-test of the simulator: each mutation must be caught by the invariant that is meant to catch it, and without a
//! mutation the same worlds must hold.

#![expect(clippy::panic, reason = "helpers of tests fail like tests")]

use tenure_core::mutation::Mutation;
use tenure_sim::campaign;
use tenure_sim::mutation::SimMutation;
use tenure_sim::reduction::{self, Reduction};
use tenure_sim::world::{World, WorldOptions};

/// Number of worlds tried before a mutation counts as missed.
const WORLDS: u64 = 400;

#[track_caller]
fn must_be_caught(mutation: SimMutation, by: &[&str]) {
    must_be_caught_within(WORLDS, mutation, by);
}

#[track_caller]
fn must_be_caught_within(worlds: u64, mutation: SimMutation, by: &[&str]) {
    let summary = campaign::run(0, worlds, Some(mutation), 1);
    let Some((seed, violation)) = summary.failure else { panic!("the mutation was not caught in {worlds} worlds") };
    assert!(
        by.contains(&violation.invariant),
        "seed {seed}: caught by {:?} instead: {}",
        violation.invariant,
        violation.message
    );
}

#[test]
fn without_a_mutation_the_same_worlds_hold() {
    let summary = campaign::run(0, WORLDS, None, 1);
    assert!(summary.failure.is_none(), "{:?}", summary.failure);
}

#[test]
fn a_deadline_counted_from_receipt_is_caught() {
    must_be_caught(SimMutation::Core(Mutation::DeadlineFromReceipt), &["no work after its guard's validity"]);
}

#[test]
fn a_release_before_the_work_has_ended_is_caught() {
    must_be_caught(SimMutation::Core(Mutation::ReleaseBeforeJoin), &["a lease is released after its work"]);
}

#[test]
fn a_store_that_compares_holders_only_is_caught() {
    must_be_caught(
        SimMutation::Core(Mutation::CompareByHolderOnly),
        &["a request about a term touches only that term", "no publication outside its term"],
    );
}

#[test]
fn a_cached_boolean_is_caught() {
    must_be_caught(
        SimMutation::CachedBoolean,
        &["no work after its guard's validity", "no two terms of a lease have work running"],
    );
}

#[test]
fn a_generation_written_over_a_newer_one_is_caught() {
    must_be_caught(
        SimMutation::Core(Mutation::OverwriteNewerGeneration),
        &["a quarantine ends", "no two terms of a lease have work running"],
    );
}

#[test]
fn a_renewal_after_the_loss_is_caught() {
    must_be_caught(SimMutation::Core(Mutation::RenewAfterLost), &["a loss is final"]);
}

#[test]
fn counted_tokens_are_caught() {
    must_be_caught(SimMutation::Core(Mutation::SequentialTokens), &["tokens strictly increase"]);
}

#[test]
fn a_loss_without_a_quarantine_is_caught() {
    must_be_caught(SimMutation::Core(Mutation::NoQuarantine), &["no two terms of a lease have work running"]);
}

#[test]
fn a_quarantine_that_waits_for_expired_ttls_is_caught() {
    must_be_caught(SimMutation::Core(Mutation::MaxTtlNeverFalls), &["a quarantine ends"]);
}

#[test]
fn a_publication_of_an_expired_term_is_caught() {
    must_be_caught(SimMutation::Core(Mutation::PublishAfterExpiry), &["no publication outside its term"]);
}

#[test]
fn a_waiter_that_relies_on_announcements_is_caught() {
    must_be_caught(SimMutation::Core(Mutation::AnnouncementsOnly), &["an unheld lease is held within the bound"]);
}

#[test]
fn an_unreported_demotion_is_caught() {
    must_be_caught(SimMutation::SilentDemotion, &["candidates report their state truthfully and in order"]);
}

#[test]
fn a_grant_by_replaced_data_is_caught() {
    must_be_caught(SimMutation::Core(Mutation::IgnoreLineage), &["no two terms of a lease have work running"]);
}

#[test]
fn an_attach_that_waits_for_longer_than_leases_last_is_caught() {
    // About 1 of 400 worlds: the last fault of a storm must swallow the reply to an attach.
    must_be_caught_within(
        WORLDS * 5,
        SimMutation::Core(Mutation::LongAttachTimeout),
        &["an unheld lease is held within the bound", "a quarantine ends"],
    );
}

#[test]
fn the_worlds_cover_every_fault_loss_and_transition() {
    let summary = campaign::run(0, WORLDS, None, 1);
    for what in ["expired", "taken", "missing", "store_reset", "clock_step", "revoked", "unreachable", "stalled"] {
        assert!(summary.counts.contains_key(what), "no term was lost with the reason {what}");
    }
    for what in ["hand-overs", "take-overs from the stalled", "leaderships won"] {
        assert!(summary.counts.contains_key(what), "no {what}");
    }
    // Every transition of a term, every event and every refusal that a process with a store of this kind can have.
    let transitions = [
        "a term begins",
        "a term waits for its predecessor",
        "starts are permitted again",
        "starts are held back",
        "running work is cancelled",
        "work is cancelled while starts are held back",
        "the time to stop changes",
        "cancelled work must be gone",
        "work must be gone at once",
        "a term is drained",
        "lease.acquired",
        "lease.waiting",
        "lease.acquire_failed",
        "lease.renewed",
        "lease.renew_failed",
        "lease.uncertain",
        "lease.recovered",
        "lease.released",
        "lease.release_failed",
        "lease.lost",
        "lease.taken_over",
        "publish.refused",
        "store.attached",
        "store.lost",
        "store.quarantined",
        "refused: held",
        "refused: quarantined",
        "refused: timed out",
        "refused: store error",
    ];
    for transition in transitions {
        assert!(summary.counts.contains_key(transition), "no world reached {transition:?}");
    }
    assert!(!summary.counts.contains_key("another change of permission"), "a transition without a name");
    let faults = [
        "crash",
        "stop",
        "freeze",
        "partition",
        "connection reset",
        "slow network",
        "store stall",
        "restart with all data",
        "restart without the last writes",
        "restart from a backup",
        "restart with nothing",
        "flush",
        "wall clock step",
        "server clock step",
        "foreign delete of a lease",
        "deafness",
        "eviction of a term",
        "eviction of the namespace record",
        "removal of what is known of a lease",
        "replaced data",
    ];
    for fault in faults {
        assert!(summary.counts.contains_key(fault), "no fault of the kind {fault:?}");
    }
}

#[test]
fn a_seed_determines_the_run() {
    let run = || format!("{:?}", campaign::run(17, 3, None, 1));
    assert_eq!(run(), run());
}

/// What a developer reads when a world has failed.
#[test]
fn a_failing_world_is_reduced_to_the_faults_that_it_needs() {
    for mutation in [Mutation::NoQuarantine, Mutation::CompareByHolderOnly, Mutation::DeadlineFromReceipt] {
        let mutation = Some(SimMutation::Core(mutation));
        let (seed, _) = campaign::run(0, WORLDS, mutation, 1).failure.unwrap_or_else(|| panic!("{mutation:?}"));
        let run = |reduction: &Reduction, has_trace| {
            World::run(seed, WorldOptions { mutation, reduction: reduction.clone(), has_trace })
        };
        let whole = run(&Reduction::default(), false);
        let smallest = reduction::reduce(&whole, |reduction| run(reduction, false)).reduction;
        let outcome = run(&smallest, true);
        let (found, first) =
            (outcome.violation.map(|found| found.invariant), whole.violation.map(|found| found.invariant));
        assert_eq!(found, first, "it fails alike");
        let kept = smallest.faults.clone().unwrap_or_default();
        for needed in &kept {
            let faults = kept.iter().copied().filter(|fault| fault != needed).collect();
            let without = run(&Reduction { faults: Some(faults), ..smallest.clone() }, false);
            assert_ne!(without.violation.map(|found| found.invariant), first, "fault {needed} is not needed");
        }
        let traced = outcome.trace.iter().filter(|line| line.contains("FAULT")).count();
        assert!(traced <= kept.len(), "the trace has only what has happened: {:#?}", outcome.trace);
    }
}
