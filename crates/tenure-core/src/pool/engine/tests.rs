//! Transitions of the engine, each with the exact actions.

use std::time::UNIX_EPOCH;

use super::*;
use crate::ending::{Ending, Loss};
use crate::fleet::InstanceRecord;
use crate::placement::{FULL_WEIGHT, MoveReason};
use crate::store::LiveInstance;

/// Settings of a pool with a ttl of 30 s.
pub(super) fn settings() -> EngineSettings {
    let secs = Duration::from_secs;
    EngineSettings {
        max_claim_delay: secs(1),
        settle: secs(3),
        max_settle: secs(30),
        accept_window: secs(3),
        read_every: secs(10),
        late_recheck_every: secs(5),
        reconcile_every: secs(10),
        outage_grace: secs(30),
        hand_back: true,
    }
}

fn id(name: &str) -> InstanceId {
    InstanceId::foreign(name)
}

fn target(name: &str) -> TargetName {
    TargetName::from(name)
}

fn heartbeat(name: &str, held: usize) -> LiveInstance {
    let mut record = InstanceRecord::new(name, UNIX_EPOCH);
    record.held.insert("poll".to_owned(), held);
    LiveInstance { instance: id(name), record: record.encode(), remaining: Duration::from_secs(30) }
}

/// An engine of the instance `me`, and a clock that tests move by hand.
struct EngineHarness {
    engine: Engine,
    now: Moment,
}

impl EngineHarness {
    /// An engine that knows these instances and these targets, which the store has not been asked about.
    fn new(instances: &[(&str, usize)], targets: &[&str]) -> Self {
        let mut harness = Self {
            engine: Engine::new(id("me"), "poll", FULL_WEIGHT, settings()),
            now: Moment::ZERO + Duration::from_secs(1_000),
        };
        harness.step(PoolInput::Targets(targets.iter().map(|name| target(name)).collect()));
        harness.read(instances);
        harness
    }

    fn step(&mut self, input: PoolInput) -> Vec<PoolAction> {
        self.engine.step(self.now, input)
    }

    fn read(&mut self, instances: &[(&str, usize)]) -> Vec<PoolAction> {
        let heartbeats = instances.iter().map(|(name, held)| heartbeat(name, *held)).collect();
        self.step(PoolInput::Instances(heartbeats))
    }

    fn holders(&mut self, holders: &[(&str, Option<&str>)]) -> Vec<PoolAction> {
        let holders = holders.iter().map(|(name, holder)| (target(name), holder.map(id))).collect();
        self.step(PoolInput::Holders(holders))
    }

    fn hold(&mut self, name: &str) {
        self.step(PoolInput::ClaimNow(target(name)));
        self.step(PoolInput::Granted(target(name)));
    }

    fn wait(&mut self, span: Duration) -> Vec<PoolAction> {
        self.now = self.now + span;
        self.step(PoolInput::Tick)
    }
}

#[test]
fn new_targets_and_heartbeats_are_asked_for_at_the_start() {
    let mut engine = Engine::new(id("me"), "poll", FULL_WEIGHT, settings());
    let now = Moment::ZERO + Duration::from_secs(1);
    let actions = engine.step(now, PoolInput::Targets([target("a"), target("b")].into()));
    assert_eq!(actions, [PoolAction::QueryHolders(vec![target("a"), target("b")]), PoolAction::ReadInstances]);
}

#[test]
fn an_unheld_target_is_claimed_at_once_by_the_only_instance() {
    let mut harness = EngineHarness::new(&[("me", 0)], &["a"]);
    assert_eq!(harness.holders(&[("a", None)]), [PoolAction::Claim(target("a"))]);
    assert_eq!(harness.step(PoolInput::Granted(target("a"))), [PoolAction::PublishRecord]);
    assert_eq!(harness.engine.holder("a"), Some(&id("me")));
}

#[test]
fn a_target_of_an_instance_that_announces_needs_no_query() {
    let mut harness = EngineHarness::new(&[("me", 0), ("other", 1)], &["a"]);
    assert_eq!(harness.holders(&[("a", Some("other"))]), []);
    assert_eq!(harness.engine.holder("a"), Some(&id("other")));
    assert_eq!(
        harness.step(PoolInput::HandedOver { target: target("a"), to: id("me") }),
        [PoolAction::Claim(target("a"))]
    );
}

#[test]
fn the_lease_of_an_instance_that_is_not_there_is_watched() {
    let mut harness = EngineHarness::new(&[("me", 0)], &["a"]);
    assert_eq!(harness.holders(&[("a", Some("gone"))]), [PoolAction::Inspect(target("a"))]);
    let ends = harness.now + Duration::from_secs(7);
    let report = PoolInput::Report { target: target("a"), held: Some((id("gone"), Some(ends))) };
    assert_eq!(harness.step(report), []);
    assert_eq!(harness.wait(Duration::from_secs(6)), [], "it may come back");
    let actions = harness.wait(Duration::from_millis(1_010));
    assert!(actions.contains(&PoolAction::Claim(target("a"))), "its lease has expired: {actions:?}");
}

#[test]
fn a_reply_that_an_announcement_has_overtaken_is_asked_for_again() {
    let mut harness = EngineHarness::new(&[("me", 0), ("other", 1)], &["a"]);
    harness.step(PoolInput::HandedOver { target: target("a"), to: id("other") });
    assert_eq!(harness.holders(&[("a", None)]), [PoolAction::Inspect(target("a"))]);
    assert_eq!(harness.engine.holder("a"), Some(&id("other")), "the announcement is newer");
}

#[test]
fn a_refused_claim_waits_for_the_holder() {
    let mut harness = EngineHarness::new(&[("me", 0), ("other", 0)], &["a"]);
    harness.step(PoolInput::ClaimNow(target("a")));
    let remaining = Some(Duration::from_secs(20));
    let actions = harness.step(PoolInput::Refused { target: target("a"), holder: id("other"), remaining });
    assert_eq!(actions, []);
    assert_eq!(harness.engine.holder("a"), Some(&id("other")));
}

#[test]
fn a_failed_claim_is_retried_when_it_may_succeed() {
    let mut harness = EngineHarness::new(&[("me", 0)], &["a"]);
    harness.holders(&[("a", None)]);
    let retry_after = Duration::from_secs(5);
    assert_eq!(harness.step(PoolInput::Failed { target: target("a"), retry_after }), []);
    assert_eq!(harness.wait(retry_after - Duration::from_millis(1)), []);
    let asks = harness.wait(Duration::from_millis(1));
    assert_eq!(asks, [PoolAction::QueryHolders(vec![target("a")])], "it may have another holder by now");
    assert_eq!(harness.holders(&[("a", None)]), [PoolAction::Claim(target("a"))]);
}

#[test]
fn a_lost_target_is_looked_up_and_a_taken_one_counts_as_held() {
    let mut harness = EngineHarness::new(&[("me", 0)], &["a", "b"]);
    ["a", "b"].into_iter().for_each(|name| harness.hold(name));
    let lost = PoolInput::TermEnded { target: target("a"), ending: Ending::Lost(Loss::Unreachable) };
    assert_eq!(harness.step(lost), [PoolAction::Inspect(target("a")), PoolAction::PublishRecord]);
    let ending = Ending::Lost(Loss::Taken { holder: id("other") });
    let actions = harness.step(PoolInput::TermEnded { target: target("b"), ending });
    assert_eq!(actions, [PoolAction::Inspect(target("b")), PoolAction::PublishRecord]);
    assert_eq!((harness.engine.held(), harness.engine.status(harness.now).unheld), (0, 1), "only a is unheld");
}

#[test]
fn a_removed_target_is_released_and_forgotten() {
    let mut harness = EngineHarness::new(&[("me", 0)], &["a"]);
    harness.hold("a");
    let reason = ReleaseReason::Removed;
    assert_eq!(
        harness.step(PoolInput::Targets(BTreeSet::new())),
        [PoolAction::Release { target: target("a"), reason }]
    );
    harness.step(PoolInput::TermEnded { target: target("a"), ending: Ending::Released(reason) });
    assert_eq!(harness.engine.target_status(harness.now, "a"), None);
}

#[test]
fn the_surplus_is_handed_over_by_a_new_read_after_a_quiet_period() {
    let mut harness = EngineHarness::new(&[("me", 0)], &["a", "b"]);
    ["a", "b"].into_iter().for_each(|name| harness.hold(name));
    harness.read(&[("me", 2), ("other", 0)]);
    assert_eq!(harness.wait(settings().settle - Duration::from_millis(1)), []);
    assert_eq!(harness.wait(Duration::from_millis(1)), [PoolAction::ReadInstances]);
    let actions = harness.read(&[("me", 2), ("other", 0)]);
    let [PoolAction::HandOver { target: moved, to, reason }] = &actions[..] else {
        panic!("not one move: {actions:?}")
    };
    assert_eq!((to, *reason), (&id("other"), MoveReason::Surplus { held: 2, quota: 1 }));
    let ending = Ending::Released(ReleaseReason::Rebalance);
    let actions = harness.step(PoolInput::TermEnded { target: moved.clone(), ending });
    assert_eq!(actions, [PoolAction::PublishRecord]);
    assert_eq!(harness.engine.holder(moved), Some(&id("other")));
    let checks = harness.wait(settings().accept_window + EXPIRY_MARGIN);
    assert!(checks.contains(&PoolAction::QueryHolders(vec![moved.clone()])), "it may not be accepted: {checks:?}");
}

#[test]
fn a_draining_instance_hands_everything_over_and_releases_what_no_instance_takes() {
    let mut harness = EngineHarness::new(&[("me", 0), ("other", 0)], &["a"]);
    harness.hold("a");
    assert_eq!(harness.step(PoolInput::Drain), [PoolAction::ReadInstances]);
    let reason = MoveReason::Draining;
    assert_eq!(
        harness.read(&[("me", 1), ("other", 0)]),
        [PoolAction::HandOver { target: target("a"), to: id("other"), reason }]
    );

    let mut alone = EngineHarness::new(&[("me", 0)], &["a"]);
    alone.hold("a");
    alone.step(PoolInput::Drain);
    let reason = ReleaseReason::Shutdown;
    assert_eq!(alone.read(&[("me", 1)]), [PoolAction::Release { target: target("a"), reason }]);

    let mut unable = EngineHarness::new(&[("me", 0)], &["a"]);
    unable.hold("a");
    unable.step(PoolInput::Able(false));
    assert_eq!(unable.read(&[("me", 1)]), [], "it may be able again before another instance joins");
}

#[test]
fn missed_announcements_are_made_up_for_by_queries() {
    let mut harness = EngineHarness::new(&[("me", 0), ("other", 1)], &["a", "b"]);
    harness.hold("b");
    harness.holders(&[("a", Some("other"))]);
    assert_eq!(harness.step(PoolInput::Gap), [PoolAction::QueryHolders(vec![target("a")]), PoolAction::ReadInstances]);
}

#[test]
fn the_reconciler_tells_others_of_an_unheld_target_that_they_believe_held() {
    let mut harness = EngineHarness::new(&[("me", 0), ("other", 1)], &["a"]);
    harness.holders(&[("a", Some("other"))]);
    harness.step(PoolInput::Reconciler(true));
    let actions = harness.holders(&[("a", None)]);
    assert!(actions.contains(&PoolAction::AnnounceUnheld(target("a"))), "{actions:?}");
}
