//! Many requests at once.

use crate::name::Group;
use crate::store::{DocumentRequest, LeaseRequest, MembershipRequest, Outcome, Refusal, Reply, Request};
use crate::testing::client::{ClientTerm, acquire, granted};
use crate::testing::harness::{CaseHarness, LONG_TTL, REPLY_TIMEOUT, job, lease};

/// The replies of a batch, whose requests must all have been answered.
#[track_caller]
fn answers(outcomes: Vec<Outcome>) -> Vec<Reply> {
    let answer = |outcome| match outcome {
        Outcome::Answered(reply) => reply,
        other => panic!("every request of a batch must be answered, not {other:?}"),
    };
    outcomes.into_iter().map(answer).collect()
}

pub(super) async fn an_empty_batch_has_no_outcomes(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    assert_eq!(alice.submit(Vec::<Request>::new()).await, [], "no requests, no outcomes");
    alice.acquire(&job(), LONG_TTL).await;
}

pub(super) async fn each_request_of_a_batch_has_its_own_outcome_in_the_same_order(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let mine = alice.acquire(&lease("mine"), LONG_TTL).await;
    let theirs = bob.acquire(&lease("theirs"), LONG_TTL).await;
    let gone = alice.acquire(&lease("gone"), LONG_TTL).await;
    alice.send(gone.release()).await;
    let batch = vec![
        mine.renewal(),
        theirs.claimed_by(&alice.id).renewal(),
        gone.renewal(),
        acquire(&alice.claim(&lease("free"), LONG_TTL)),
        acquire(&alice.claim(&lease("theirs"), LONG_TTL)),
        acquire(&gone.claim),
        MembershipRequest::List { group: Group::FLEET }.into(),
        DocumentRequest::IndexList { index: "none".to_owned() }.into(),
        DocumentRequest::ReadRecord { name: job(), record: "none".to_owned() }.into(),
        LeaseRequest::Inspect { name: lease("mine") }.into(),
    ];
    let replies = answers(alice.submit(batch).await);
    assert_eq!(replies.len(), 10, "one outcome for each request");
    assert!(matches!(replies[0], Reply::Renewed { .. }), "our term continues: {:?}", replies[0]);
    assert_eq!(replies[1], Reply::Refused(Refusal::Taken { holder: bob.id.clone() }), "bob holds his lease");
    assert_eq!(replies[2], Reply::Refused(Refusal::Missing), "a released term is over");
    assert!(matches!(replies[3], Reply::Granted(_)), "an unheld lease is granted: {:?}", replies[3]);
    assert!(matches!(&replies[4], Reply::Held(held) if held.holder == bob.id), "a held one is not: {:?}", replies[4]);
    assert_eq!(replies[5], Reply::TermOver, "a claim is good for one term");
    assert_eq!(replies[6], Reply::Instances(Vec::new()), "there are no heartbeats");
    assert_eq!(replies[7], Reply::Index(Vec::new()), "nothing is listed");
    assert_eq!(replies[8], Reply::Record(None), "nothing was published");
    let held =
        matches!(&replies[9], Reply::Lease(report) if report.held.as_ref().is_some_and(|h| h.holder == alice.id));
    assert!(held, "we hold our lease: {:?}", replies[9]);
}

pub(super) async fn a_refused_request_does_not_touch_the_rest_of_its_batch(harness: &CaseHarness<'_>) {
    let (alice, bob) = (harness.client("alice").await, harness.client("bob").await);
    let theirs = bob.acquire(&lease("theirs"), LONG_TTL).await.claimed_by(&alice.id);
    let mut terms = Vec::new();
    for n in 0..10 {
        terms.push(alice.acquire(&lease(&format!("mine-{n}")), LONG_TTL).await);
    }
    let batch = terms.iter().flat_map(|term| [theirs.release(), term.publication("n", b"1"), theirs.renewal()]);
    let replies = answers(alice.submit(batch.collect()).await);
    for three in replies.chunks(3) {
        assert!(matches!(three[0], Reply::Refused(_)), "not ours to release: {:?}", three[0]);
        assert_eq!(three[1], Reply::Done, "ours to publish, whatever else is in the batch");
        assert!(matches!(three[2], Reply::Refused(_)), "not ours to renew: {:?}", three[2]);
    }
}

pub(super) async fn a_claim_twice_in_one_batch_is_one_term(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let claim = alice.claim(&job(), LONG_TTL);
    let replies = answers(alice.submit(vec![acquire(&claim); 5]).await);
    let tokens: Vec<_> = replies
        .iter()
        .map(|reply| match reply {
            Reply::Granted(grant) => grant.token,
            other => panic!("each repetition must be granted, not {other:?}"),
        })
        .collect();
    assert!(tokens.iter().all(|token| *token == tokens[0]), "a repeated claim is one term: {tokens:?}");
}

pub(super) async fn rival_claims_in_one_batch_have_one_winner(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let batch = (0..50).map(|_| acquire(&alice.claim(&job(), LONG_TTL))).collect();
    let replies = answers(alice.submit(batch).await);
    let winners = replies.iter().filter(|reply| matches!(reply, Reply::Granted(_))).count();
    assert_eq!(winners, 1, "a lease has one holder: {replies:?}");
}

pub(super) async fn a_large_batch_is_answered_completely_and_in_order(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let claims: Vec<_> = (0..2_000).map(|n| alice.claim(&lease(&format!("job-{n}")), LONG_TTL)).collect();
    let replies = answers(alice.submit(claims.iter().map(acquire).collect()).await);
    assert_eq!(replies.len(), claims.len(), "one outcome for each request");
    let publications = claims.iter().zip(replies).enumerate().map(|(n, (claim, reply))| {
        let grant = granted(reply, "every lease is unheld");
        ClientTerm { claim: claim.clone(), grant }.publication("n", n.to_string().as_bytes())
    });
    for reply in answers(alice.submit(publications.collect()).await) {
        assert_eq!(reply, Reply::Done, "every term may publish");
    }
    let reads =
        claims.iter().map(|claim| DocumentRequest::ReadRecord { name: claim.name.clone(), record: "n".to_owned() });
    for (n, reply) in answers(alice.submit(reads.collect()).await).into_iter().enumerate() {
        assert_eq!(value(&reply), n.to_string(), "outcomes have the order of the requests");
    }
}

pub(super) async fn batches_at_the_same_time_keep_their_answers_apart(harness: &CaseHarness<'_>) {
    let alice = harness.client("alice").await;
    let term = alice.acquire(&job(), LONG_TTL).await;
    let records: Vec<_> = (0..1_000).map(|n| format!("record-{n}")).collect();
    alice.submit(records.iter().map(|record| term.publication(record, record.as_bytes())).collect()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for records in records.chunks(20) {
        let (records, connection) = (records.to_vec(), alice.connection.clone());
        let read = |record: &String| DocumentRequest::ReadRecord { name: job(), record: record.clone() }.into();
        let batch: Vec<_> = records.iter().map(read).collect();
        tasks.spawn(async move { (records, connection.submit(batch, REPLY_TIMEOUT).await) });
    }
    while let Some(joined) = tasks.join_next().await {
        let Ok((records, outcomes)) = joined else { panic!("a batch must not panic") };
        let values: Vec<_> = answers(outcomes).iter().map(value).collect();
        assert_eq!(values, records, "each batch must get its own replies");
    }
}

/// The value that was read, as text.
fn value(reply: &Reply) -> String {
    match reply {
        Reply::Record(Some(published)) => String::from_utf8_lossy(&published.value).into_owned(),
        other => panic!("a record that was published must be there, not {other:?}"),
    }
}
