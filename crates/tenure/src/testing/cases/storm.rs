//! Many concurrent requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::name::LeaseName;
use crate::store::{AttachRequest, Claim, Connection, Outcome, Reply, Request};
use crate::testing::StoreFault;
use crate::testing::client::{ClientTerm, acquire};
use crate::testing::harness::{CaseHarness, Checked, LONG_TTL, REPLY_TIMEOUT, instance, job, lease, nonce};
use crate::token::Token;

const TASK_COUNT: usize = 200;

/// Number of connections that the tasks share, as the leases of one process do.
const CONNECTION_COUNT: usize = 20;

async fn connections(harness: &CaseHarness<'_>) -> Vec<Arc<dyn Connection>> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTION_COUNT {
        connections.push(harness.client("any").await.connection);
    }
    connections
}

fn claim(task: usize, name: &LeaseName) -> Claim {
    Claim { name: name.clone(), holder: instance(&format!("racer-{task}")), nonce: nonce(), ttl: LONG_TTL }
}

/// Sends one request, which must be answered.
async fn send(connection: &dyn Connection, request: Request) -> Reply {
    match connection.submit(vec![request], REPLY_TIMEOUT).await.pop() {
        Some(Outcome::Answered(reply)) => reply,
        other => panic!("the store must answer in a storm too, not {other:?}"),
    }
}

/// Sends all claims at once, each from its own task.
async fn race(connections: &[Arc<dyn Connection>], claims: Vec<Claim>) -> Vec<(Claim, Reply)> {
    let mut tasks = tokio::task::JoinSet::new();
    for (task, claim) in claims.into_iter().enumerate() {
        let connection = connections[task % connections.len()].clone();
        tasks.spawn(async move {
            let reply = send(&*connection, acquire(&claim)).await;
            (claim, reply)
        });
    }
    tasks.join_all().await
}

/// The one winner among these. All other claimants must have learned of it.
fn winner(replies: &[(Claim, Reply)]) -> ClientTerm {
    let mut winners = replies.iter().filter_map(|(claim, reply)| match reply {
        Reply::Granted(grant) => Some(ClientTerm { claim: claim.clone(), grant: grant.clone() }),
        _ => None,
    });
    let Some(winner) = winners.next() else { panic!("an unheld lease must be granted: {replies:?}") };
    assert_eq!(winners.next().map(|term| term.claim), None, "{} was granted to another as well", winner.claim.holder);
    for (claim, reply) in replies {
        match reply {
            Reply::Held(held) => {
                assert_eq!(held.holder, winner.claim.holder, "{} must learn who won", claim.holder);
                assert_eq!(held.token, Some(winner.token()), "{} must learn the term", claim.holder);
            }
            Reply::Granted(_) => {}
            other => panic!("a claim in a race is granted or refused with the winner, not {other:?}"),
        }
    }
    winner
}

pub(super) async fn of_two_hundred_claims_on_one_lease_one_wins_every_round(harness: &CaseHarness<'_>) {
    let connections = connections(harness).await;
    let mut last = Token::ZERO;
    for round in 0..5 {
        let replies = race(&connections, (0..TASK_COUNT).map(|task| claim(task, &job())).collect()).await;
        let term = winner(&replies);
        assert!(term.token() > last, "round {round}: the token {} must be above {last}", term.token());
        last = term.token();
        assert_eq!(send(&*connections[0], term.release()).await, Reply::Done, "round {round}: the winner may release");
    }
}

pub(super) async fn of_two_hundred_claims_on_twenty_leases_one_wins_each(harness: &CaseHarness<'_>) {
    let connections = connections(harness).await;
    let names: Vec<_> = (0..20).map(|n| lease(&format!("job-{n}"))).collect();
    let claims = (0..TASK_COUNT).map(|task| claim(task, &names[task % names.len()])).collect();
    let mut by_name: BTreeMap<LeaseName, Vec<_>> = BTreeMap::new();
    for (claim, reply) in race(&connections, claims).await {
        by_name.entry(claim.name.clone()).or_default().push((claim, reply));
    }
    assert_eq!(by_name.len(), names.len(), "every lease was claimed");
    for replies in by_name.values() {
        winner(replies);
    }
}

pub(super) async fn one_claim_sent_two_hundred_times_at_once_is_one_term(harness: &CaseHarness<'_>) {
    let connections = connections(harness).await;
    let replies = race(&connections, vec![claim(0, &job()); TASK_COUNT]).await;
    let tokens: BTreeSet<_> = replies
        .iter()
        .map(|(_, reply)| match reply {
            Reply::Granted(grant) => grant.token,
            other => panic!("each repetition must be granted, not {other:?}"),
        })
        .collect();
    assert_eq!(tokens.len(), 1, "a repeated claim is one term");
}

pub(super) async fn an_offer_in_a_storm_is_taken_up_once(harness: &CaseHarness<'_>) {
    let connections = connections(harness).await;
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    let receiver = claim(7, &job());
    let Reply::HandedOver { token } = alice.send(term.hand_over(&receiver.holder, LONG_TTL)).await else {
        panic!("the holder must be able to hand over");
    };
    // Half of the claims are the receiver's, each with its own nonce.
    let claims = (0..TASK_COUNT).map(|task| claim(if task % 2 == 0 { 7 } else { task }, &job())).collect();
    let taken = winner(&race(&connections, claims).await);
    assert_eq!((taken.claim.holder.clone(), taken.token()), (receiver.holder, token), "only the receiver can win");
}

/// Every task acquires the lease, checks that no other task is inside, and releases it again.
pub(super) async fn a_storm_of_grants_and_releases_has_one_holder_at_a_time_and_no_repeated_token(
    harness: &CaseHarness<'_>,
) {
    let connections = connections(harness).await;
    let inside = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASK_COUNT {
        let (connection, inside) = (connections[task % CONNECTION_COUNT].clone(), inside.clone());
        tasks.spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..5 {
                let claim = claim(task, &job());
                let Reply::Granted(grant) = send(&*connection, acquire(&claim)).await else { continue };
                assert!(!inside.swap(true, Ordering::SeqCst), "two tasks hold the lease at once");
                tokens.push(grant.token);
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                let released = send(&*connection, ClientTerm { claim, grant }.release()).await;
                assert_eq!(released, Reply::Done, "the holder may release");
            }
            tokens
        });
    }
    let tokens: Vec<_> = tasks.join_all().await.concat();
    assert!(!tokens.is_empty(), "a claim must have won");
    let distinct: BTreeSet<_> = tokens.iter().collect();
    assert_eq!(distinct.len(), tokens.len(), "every term has a token of its own");
}

pub(super) async fn twenty_concurrent_attaches_after_a_loss_agree_on_one_generation(
    harness: &CaseHarness<'_>,
) -> Checked {
    let mut players = Vec::new();
    for n in 0..20 {
        players.push(harness.client(&format!("client-{n}")).await);
    }
    let before = players[0].attached().generation.number;
    harness.inject(StoreFault::Flush).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for client in players {
        let (store, memory, stamp) = (harness.store(), Some(client.memory().clone()), fastrand::u64(..));
        tasks.spawn(async move {
            store
                .attach(AttachRequest { memory, stamp, max_ttl: LONG_TTL, ..AttachRequest::new(fastrand::u64(..)) })
                .await
        });
    }
    let attached = tasks.join_all().await.into_iter().map(|attached| match attached {
        Ok(connection) => connection.attached().clone(),
        Err(error) => panic!("every instance must be able to attach: {error}"),
    });
    let attached: Vec<_> = attached.collect();
    assert_eq!(attached.iter().filter(|attached| attached.minted).count(), 1, "one of them writes it: {attached:?}");
    let generation = attached[0].generation;
    assert!(generation.number > before, "a loss is a new generation");
    assert!(attached.iter().all(|attached| attached.generation == generation), "all of them see it: {attached:?}");
    assert!(
        attached.iter().all(|attached| !attached.quarantine_remaining().is_zero()),
        "and its quarantine: {attached:?}"
    );
    Ok(())
}
