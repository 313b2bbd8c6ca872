//! How long a namespace is closed, and what a closed one still does.

use std::time::Duration;

use crate::store::{Announcement, Entry, Quarantine, QuarantineReason, Reply, Request};
use crate::testing::Disturbance;
use crate::testing::player::{Player, Term, acquire, granted, take_over};
use crate::testing::trial::{BRIEF, Checked, LONG, SHORT, Trial, Unsupported, instance, job, lease};

const HOUR: Duration = Duration::from_secs(3_600);

/// A namespace that was just closed by the loss of its record, in which a lease of this ttl was held.
async fn closed(trial: &Trial<'_>, ttl: Duration) -> Result<Player, Unsupported> {
    let mut alice = trial.player("alice").await;
    alice.wins(&job(), ttl).await;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again(trial).await;
    Ok(alice)
}

/// How long the store says that nothing is granted.
async fn remaining(player: &Player) -> Duration {
    match player.send(acquire(&player.claim(&job(), SHORT))).await {
        Reply::Quarantined(Quarantine { remaining, .. }) => remaining,
        Reply::Granted(_) => Duration::ZERO,
        other => panic!("a free lease is granted unless the namespace is closed; the store answered {other:?}"),
    }
}

pub(super) async fn a_closing_is_over_after_the_longest_ttl(trial: &Trial<'_>) -> Checked {
    let alice = closed(trial, BRIEF).await?;
    trial.outlast(BRIEF).await;
    alice.wins(&job(), SHORT).await;
    Ok(())
}

pub(super) async fn what_is_left_of_a_closing_only_shrinks(trial: &Trial<'_>) -> Checked {
    let alice = closed(trial, LONG).await?;
    let mut before = remaining(&alice).await;
    assert!(!before.is_zero(), "the namespace must be closed");
    for _ in 0..3 {
        trial.pass(SHORT).await;
        let now = remaining(&alice).await;
        assert!(now < before, "{now:?} left after {before:?}: asking must not make it longer");
        before = now;
    }
    Ok(())
}

pub(super) async fn entering_again_does_not_make_a_closing_longer(trial: &Trial<'_>) -> Checked {
    let mut alice = closed(trial, LONG).await?;
    let before = remaining(&alice).await;
    trial.pass(SHORT).await;
    alice.enters_again(trial).await;
    let entered = alice.entered();
    assert_eq!(entered.began_because(), None, "this entry found nothing new: {entered:?}");
    assert!(
        !entered.quarantined_for().is_zero() && entered.quarantined_for() < before,
        "the closing goes on: {entered:?}"
    );
    Ok(())
}

pub(super) async fn a_clock_set_back_does_not_make_a_closing_longer_than_the_longest_ttl(trial: &Trial<'_>) -> Checked {
    let alice = closed(trial, BRIEF).await?;
    trial.disturb(Disturbance::ClockBack(HOUR)).await?;
    assert!(remaining(&alice).await <= BRIEF, "a closing never lasts longer than the longest ttl");
    trial.outlast(BRIEF).await;
    alice.wins(&lease("another"), SHORT).await;
    Ok(())
}

pub(super) async fn entering_after_a_clock_was_set_back_finds_no_longer_closing(trial: &Trial<'_>) -> Checked {
    let mut alice = closed(trial, BRIEF).await?;
    trial.disturb(Disturbance::ClockBack(HOUR)).await?;
    alice.enters_again(trial).await;
    let closed_for = alice.entered().quarantined_for();
    assert!(closed_for <= BRIEF, "a closing never lasts longer than the longest ttl: {closed_for:?}");
    trial.outlast(BRIEF).await;
    alice.wins(&job(), SHORT).await;
    Ok(())
}

pub(super) async fn a_clock_set_back_closes_nothing_that_is_open(trial: &Trial<'_>) -> Checked {
    let alice = trial.player_with("alice", LONG).await;
    trial.disturb(Disturbance::ClockBack(HOUR)).await?;
    alice.wins(&job(), LONG).await;
    let bob = trial.player_with("bob", LONG).await;
    assert!(bob.entered().quarantined_for().is_zero(), "nothing was lost: {:?}", bob.entered());
    Ok(())
}

pub(super) async fn every_answer_about_a_lease_tells_the_longest_ttl(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player_with("alice", SHORT).await, trial.player_with("bob", SHORT).await);
    let term = alice.wins(&job(), LONG).await;
    assert_eq!(term.grant.max_ttl, LONG, "a claim for longer has raised it");
    assert_eq!(bob.finds_held(&job()).await.max_ttl, LONG, "whoever waits must learn how long a closing has to last");
    match alice.send(term.renewal_for(LONG * 2)).await {
        Reply::Renewed { max_ttl, .. } => assert_eq!(max_ttl, LONG * 2, "so must whoever holds"),
        other => panic!("the holder must be able to renew; the store answered {other:?}"),
    }
}

pub(super) async fn nothing_is_granted_in_a_closed_namespace(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Restart).await?;
    alice.enters_again(trial).await;
    let rival = trial.player("rival").await;
    let requests = [
        acquire(&rival.claim(&lease("free"), LONG)),
        acquire(&rival.claim(&job(), LONG)),
        take_over(&rival.claim(&job(), LONG), term.token(), Duration::ZERO),
        take_over(&rival.claim(&lease("free"), LONG), term.token(), Duration::ZERO),
    ];
    for request in requests {
        let reply = rival.send(request.clone()).await;
        assert!(matches!(reply, Reply::Quarantined(_)), "{request:?} must wait; the store answered {reply:?}");
    }
    let renewed = alice.send(term.renewal()).await;
    assert!(matches!(renewed, Reply::Renewed { .. }), "whoever still holds a lease goes on: {renewed:?}");
    Ok(())
}

pub(super) async fn a_missing_record_grants_nothing_until_somebody_enters(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Flush).await?;
    for request in [
        acquire(&alice.claim(&job(), LONG)),
        acquire(&term.claim),
        take_over(&alice.claim(&job(), LONG), term.token(), Duration::ZERO),
    ] {
        let reply = alice.send(request.clone()).await;
        assert_eq!(reply, Reply::NotEntered, "a store without a record must be entered first: {request:?}");
    }
    assert_eq!(alice.inspect(&job()).await.held, None, "nothing was granted");
    Ok(())
}

pub(super) async fn a_generation_minted_by_another_must_be_entered_first(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    trial.disturb(Disturbance::Flush).await?;
    trial.player("newcomer").await;
    assert_eq!(alice.tries(&job()).await, Reply::NotEntered, "the namespace is not the one that alice entered");
    alice.enters_again(trial).await;
    let reply = alice.tries(&job()).await;
    assert!(matches!(reply, Reply::Granted(_) | Reply::Quarantined(_)), "from then on it is: {reply:?}");
    Ok(())
}

pub(super) async fn entering_raises_nothing(trial: &Trial<'_>) {
    let alice = trial.player_with("alice", LONG).await;
    assert_eq!(alice.longest_ttl().await, Duration::ZERO, "only leases can be relied on");
    alice.wins(&job(), SHORT).await;
    let bob = trial.player_with("bob", LONG).await;
    assert_eq!(bob.longest_ttl().await, SHORT, "whatever those who enter use");
}

pub(super) async fn a_longer_ttl_of_a_claim_raises_the_longest(trial: &Trial<'_>) {
    let alice = trial.player_with("alice", SHORT).await;
    alice.wins(&job(), LONG).await;
    assert_eq!(alice.longest_ttl().await, LONG, "a lease that long may be relied on after a loss");
}

pub(super) async fn a_longer_ttl_of_a_renewal_raises_the_longest(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    alice.send(term.renewal_for(LONG * 2)).await;
    assert_eq!(alice.longest_ttl().await, LONG * 2, "a lease that long may be relied on after a loss");
}

pub(super) async fn a_longer_ttl_for_an_offer_raises_the_longest(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    alice.send(term.hand_over(&bob.id, LONG)).await;
    bob.wins(&job(), LONG * 2).await;
    assert_eq!(bob.longest_ttl().await, LONG * 2, "a lease that long may be relied on after a loss");
}

pub(super) async fn another_longest_ttl_is_announced(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let mut listener = trial.listener().await;
    alice.wins(&lease("short"), LONG).await;
    let term = alice.wins(&job(), LONG * 2).await;
    alice.wins(&lease("another"), LONG * 2).await;
    alice.send(term.renewal_for(LONG * 3)).await;
    alice.send(term.release()).await;
    let mut announced = Vec::new();
    while announced.len() < 4 {
        if let Announcement::LongestTtl { ttl, .. } = listener.hears_anything().await {
            announced.push(ttl);
        }
    }
    assert_eq!(announced, [LONG, LONG * 2, LONG * 3, LONG * 2], "whoever remembers must learn of it");
}

pub(super) async fn a_released_lease_is_no_longer_relied_on(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let kept = alice.wins(&lease("kept"), LONG).await;
    let long = alice.wins(&job(), LONG * 100).await;
    let as_long = alice.wins(&lease("another"), LONG * 100).await;
    alice.send(long.release()).await;
    assert_eq!(alice.longest_ttl().await, LONG * 100, "another one is still held");
    alice.send(as_long.release()).await;
    assert_eq!(alice.longest_ttl().await, LONG, "none of those is held");
    alice.send(kept.renewal()).await;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again(trial).await;
    assert_eq!(alice.entered().quarantined_for(), LONG, "a quarantine waits for what can be relied on");
    Ok(())
}

pub(super) async fn what_was_released_makes_no_quarantine_after_a_restart_long(trial: &Trial<'_>) -> Checked {
    let alice = trial.player("alice").await;
    alice.wins(&lease("kept"), LONG).await;
    let long = alice.wins(&job(), LONG * 100).await;
    alice.send(long.release()).await;
    trial.disturb(Disturbance::Restart).await?;
    let newcomer = trial.player_with("newcomer", SHORT).await;
    assert_eq!(newcomer.entered().quarantined_for(), LONG, "the record says what can be relied on");
    Ok(())
}

pub(super) async fn a_lease_that_was_handed_over_is_no_longer_relied_on_by_its_sender(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG * 100).await;
    alice.send(term.hand_over(&bob.id, LONG)).await;
    assert_eq!(bob.longest_ttl().await, Duration::ZERO, "nor by its receiver, before it has taken it up");
    let taken = bob.wins(&job(), LONG).await;
    assert_eq!(bob.longest_ttl().await, LONG, "from then on it is");
    bob.send(taken.release()).await;
    assert_eq!(bob.longest_ttl().await, Duration::ZERO, "and was counted once");
}

pub(super) async fn a_claim_repeated_counts_once(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    for _ in 0..3 {
        granted(alice.send(acquire(&term.claim)).await, "a claim that was granted is granted again");
    }
    alice.send(term.release()).await;
    alice.send(term.release()).await;
    assert_eq!(alice.longest_ttl().await, Duration::ZERO, "it is held no more");
}

pub(super) async fn a_term_replaced_by_its_own_process_counts_once(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let first = alice.wins(&job(), LONG).await;
    let claim = alice.claim(&job(), LONG);
    let ended = Some(first.token());
    let grant =
        granted(alice.send(Request::Acquire { claim: claim.clone(), ended }).await, "its process is done with it");
    alice.send(Term { claim, grant }.release()).await;
    assert_eq!(alice.longest_ttl().await, Duration::ZERO, "both terms are over");
}

pub(super) async fn an_expired_lease_is_no_longer_relied_on(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let renewed = alice.wins(&lease("renewed"), BRIEF).await;
    alice.wins(&job(), BRIEF * 2).await;
    for _ in 0..12 {
        trial.pass(BRIEF / 4).await;
        alice.send(renewed.renewal()).await;
    }
    assert_eq!(alice.longest_ttl().await, BRIEF, "one has expired, and the other was renewed");
    trial.outlast(BRIEF + BRIEF / 8).await;
    assert_eq!(alice.longest_ttl().await, Duration::ZERO, "both have expired");
}

pub(super) async fn an_expired_lease_is_not_waited_for_after_a_restart(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let renewed = alice.wins(&lease("renewed"), BRIEF).await;
    alice.wins(&job(), BRIEF * 2).await;
    for _ in 0..12 {
        trial.pass(BRIEF / 4).await;
        alice.send(renewed.renewal()).await;
    }
    trial.disturb(Disturbance::Restart).await?;
    alice.enters_again_as(trial, |entry| Entry { max_ttl: BRIEF, ..entry }).await;
    let left = alice.entered().quarantined_for();
    assert!(left <= BRIEF, "the longer one had expired long before: {left:?}");
    Ok(())
}

pub(super) async fn however_many_ttls_there_are_each_counts_and_none_is_left_behind(trial: &Trial<'_>) {
    let alice = trial.player("alice").await;
    let mut terms = Vec::new();
    for n in 1..=60 {
        let ttl = LONG + Duration::from_millis(n * 777);
        terms.push(alice.wins(&lease(&format!("lease-{n}")), ttl).await);
        let longest = alice.longest_ttl().await;
        assert!(longest >= ttl && longest <= ttl + ttl / 8, "{longest:?} for leases of up to {ttl:?}");
    }
    for term in &terms {
        let renewed = alice.send(term.renewal_for(term.claim.ttl)).await;
        assert!(matches!(renewed, Reply::Renewed { .. }), "each is renewed as it was granted: {renewed:?}");
    }
    while let Some(term) = terms.pop() {
        alice.send(term.release()).await;
        let longest = alice.longest_ttl().await;
        let least = terms.last().map_or(Duration::ZERO, |term| term.claim.ttl);
        assert!(longest >= least && longest <= least + least / 8, "{longest:?} when {least:?} is the longest left");
    }
}

/// Waiters may correct a lease that seems to last too long. A holder that was promised its ttl must not lose it so.
pub(super) async fn whoever_waits_does_not_shorten_a_lease(trial: &Trial<'_>) {
    let (alice, bob) = (trial.player("alice").await, trial.player("bob").await);
    let term = alice.wins(&job(), LONG).await;
    alice.send(term.renewal_for(LONG * 4)).await;
    let other = bob.wins(&lease("another"), LONG * 4).await;
    bob.send(other.release()).await;
    let held = bob.finds_held(&job()).await;
    let left = bob.remaining(&job()).await;
    assert!(left > LONG * 2, "the holder was promised {:?}, and {left:?} are left", LONG * 4);
    assert!(held.remaining > Some(LONG * 2), "and whoever waits is told so: {held:?}");
}

pub(super) async fn whoever_remembers_longer_leases_makes_a_quarantine_longer(trial: &Trial<'_>) -> Checked {
    let mut bob = trial.player("bob").await;
    bob.wins(&lease("another"), LONG * 2).await;
    let mut alice = trial.player("alice").await;
    alice.memory().max_ttl = LONG;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again(trial).await;
    bob.enters_again(trial).await;
    let left = bob.entered().quarantined_for();
    assert!(left > LONG && left <= LONG * 2, "a longer lease was granted before: {left:?}");
    Ok(())
}

pub(super) async fn whoever_only_assumes_longer_leases_does_not(trial: &Trial<'_>) -> Checked {
    closed(trial, LONG).await?;
    let entry = Entry { max_ttl: LONG * 2, ..Entry::default() };
    let newcomer = Player::new(instance("newcomer"), trial.enter(entry).await);
    let left = newcomer.entered().quarantined_for();
    assert!(left <= LONG, "alice remembers, and the newcomer does not: {left:?}");
    Ok(())
}

pub(super) async fn an_instance_that_remembers_corrects_what_a_newcomer_assumed(trial: &Trial<'_>) -> Checked {
    trial.needs_marker()?;
    let mut alice = trial.player("alice").await;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Flush).await?;
    let newcomer = trial.enter(Entry { max_ttl: LONG * 10, ..Entry::default() }).await;
    let newcomer = Player::new(instance("newcomer"), newcomer);
    assert!(newcomer.entered().quarantined_for() > LONG, "it can only assume: {:?}", newcomer.entered());
    let mut listener = trial.listener().await;
    alice.enters_again(trial).await;
    let left = alice.entered().quarantined_for();
    assert!(!left.is_zero() && left <= LONG, "alice remembers that no lease was longer: {left:?}");
    assert_eq!(listener.hears().await, Announcement::Reopened, "those who were told of a later end look again");
    assert!(remaining(&newcomer).await <= LONG, "and find out");
    let another = trial.player_with("another", LONG * 10).await;
    let left = another.entered().quarantined_for();
    assert!(left <= LONG, "no later assumption counts: {left:?}");
    Ok(())
}

pub(super) async fn of_those_who_only_assume_the_longest_counts(trial: &Trial<'_>) -> Checked {
    trial.disturb(Disturbance::RestartEmpty).await?;
    for (max_ttl, least) in [(LONG, Duration::ZERO), (LONG * 2, LONG), (SHORT, LONG)] {
        let newcomer = trial.enter(Entry { max_ttl, ..Entry::default() }).await;
        let left = newcomer.entered().quarantined_for();
        assert!(left > least && left <= LONG * 2, "nobody knows better: {left:?}");
    }
    Ok(())
}

pub(super) async fn what_is_remembered_of_the_longest_ttl_survives_a_loss(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    let term = alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again_as(trial, |entry| Entry { max_ttl: SHORT, ..entry }).await;
    let entered = alice.entered();
    assert!(entered.max_ttl >= term.claim.ttl, "alice remembers longer leases than it uses now: {entered:?}");
    assert!(entered.quarantined_for() >= term.claim.ttl, "which may be relied on: {entered:?}");
    Ok(())
}

pub(super) async fn a_quarantine_is_remembered_while_it_lasts(trial: &Trial<'_>) -> Checked {
    let mut alice = closed(trial, LONG).await?;
    assert_eq!(alice.longest_ttl().await, LONG, "that is what it waits for");
    trial.disturb(Disturbance::Flush).await?;
    alice.enters_again(trial).await;
    assert_eq!(alice.entered().quarantined_for(), LONG, "a second loss does not make it shorter");
    Ok(())
}

pub(super) async fn a_quarantine_says_why(trial: &Trial<'_>) -> Checked {
    let alice = closed(trial, LONG).await?;
    let expected = QuarantineReason::RecordMissing;
    match alice.tries(&job()).await {
        Reply::Quarantined(Quarantine { reason, .. }) => assert_eq!(reason, expected, "for whoever is refused"),
        other => panic!("nothing may be granted; the store answered {other:?}"),
    }
    let found = alice.namespace().await.quarantine.map(|quarantine| quarantine.reason);
    assert_eq!(found, Some(expected), "for whoever looks");
    let newcomer = trial.player("newcomer").await;
    let found = newcomer.entered().quarantine.map(|quarantine| quarantine.reason);
    assert_eq!(found, Some(expected), "for whoever comes later");
    Ok(())
}

pub(super) async fn an_operator_ends_a_quarantine(trial: &Trial<'_>) -> Checked {
    let alice = closed(trial, LONG).await?;
    let generation = alice.entered().generation;
    let other = crate::store::Generation { stamp: generation.stamp ^ 1, ..generation };
    assert_eq!(alice.send(Request::Reopen { generation: other }).await, Reply::NotEntered, "it is not that one");
    assert!(!remaining(&alice).await.is_zero(), "so it lasts");
    let mut listener = trial.listener().await;
    assert_eq!(alice.send(Request::Reopen { generation }).await, Reply::Done, "an operator may end it");
    assert_eq!(listener.hears().await, Announcement::Reopened, "and those who wait are told");
    assert_eq!(alice.namespace().await.quarantine, None, "it is over");
    alice.wins(&job(), LONG).await;
    assert_eq!(alice.send(Request::Reopen { generation }).await, Reply::Done, "said again it changes nothing");
    Ok(())
}

pub(super) async fn an_observer_leaves_no_trace(trial: &Trial<'_>) -> Checked {
    let mut alice = trial.player("alice").await;
    alice.wins(&job(), LONG).await;
    trial.disturb(Disturbance::Flush).await?;
    let observer = trial.enter(Entry { observer: true, max_ttl: LONG * 2, ..Entry::default() }).await;
    let observer = Player::new(instance("observer"), observer);
    let entered = observer.entered();
    assert!(!entered.minted && entered.quarantine.is_none(), "there is no record, and it writes none: {entered:?}");
    assert_eq!(observer.tries(&job()).await, Reply::NotEntered, "it acquires nothing");
    alice.enters_again(trial).await;
    assert_eq!(alice.entered().began_because(), Some(QuarantineReason::RecordMissing), "{:?}", alice.entered());
    assert_eq!(alice.entered().quarantined_for(), LONG, "and nothing is longer for it");
    Ok(())
}
