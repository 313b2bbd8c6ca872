//! Joining, leaving and sharing targets.

use std::time::{Duration, Instant};

use tenure::EventKind;
use tenure::lease::ReleaseReason;
use tenure::pool::Target;
use tenure_testbed::{LagProbe, RedisReply, RedisServer};

use crate::harness::{TICK, TestInstance, Witness, targets, ttl, wait_for_counts, wait_until};

#[tokio::test]
async fn one_instance_holds_everything_until_others_join() {
    let server = RedisServer::start();
    let (witness, targets) = (Witness::start(), targets(10));
    let one = TestInstance::join(&server.url(), "one", witness.address(), &targets).await;
    wait_for_counts(&[&one], &[10]).await;
    wait_until("every target is worked on", || witness.seen().len() == 10).await;
    let two = TestInstance::join(&server.url(), "two", witness.address(), &targets).await;
    wait_for_counts(&[&one, &two], &[5, 5]).await;
    let three = TestInstance::join(&server.url(), "three", witness.address(), &targets).await;
    wait_for_counts(&[&one, &two, &three], &[3, 3, 4]).await;
    // As `redis-cli` sees it.
    for target in &targets {
        let holder = server.command(&["GET", &format!("poll:lease:{target}")]).as_text().to_owned();
        let owner = [&one, &two, &three].into_iter().find(|instance| instance.pool.is_owned(target)).unwrap();
        assert_eq!(holder, owner.tenure.instance().as_str());
    }
    for instance in [&one, &two, &three] {
        assert_eq!(
            server.command(&["GET", &format!("poll:node:{}", instance.tenure.instance())]),
            RedisReply::text("1")
        );
        assert_eq!(instance.pool.live_instances().len(), 3);
    }
    // In the steady state the placement's choice for a target is its holder.
    for target in one.pool.owned() {
        assert_eq!(one.pool.preferred_owner(target.name()).await.as_ref(), Some(one.tenure.instance()));
        assert_eq!(two.pool.preferred_owner(target.name()).await.as_ref(), Some(one.tenure.instance()));
    }
    witness.check();
}

#[tokio::test]
async fn a_stopping_instance_hands_over_without_missing_or_repeating_a_tick() {
    let (begun, probe) = (Instant::now(), LagProbe::start());
    let server = RedisServer::start();
    let (witness, targets) = (Witness::start(), targets(9));
    let one = TestInstance::join(&server.url(), "one", witness.address(), &targets).await;
    let two = TestInstance::join(&server.url(), "two", witness.address(), &targets).await;
    let three = TestInstance::join(&server.url(), "three", witness.address(), &targets).await;
    wait_for_counts(&[&one, &two, &three], &[3, 3, 3]).await;
    tokio::time::sleep(TICK * 5).await;
    two.pool.stop().await;
    assert_eq!(two.count(), 0);
    assert_eq!(server.command(&["EXISTS", &format!("poll:node:{}", two.tenure.instance())]), RedisReply::Int(0));
    wait_for_counts(&[&one, &three], &[4, 5]).await;
    tokio::time::sleep(TICK * 5).await;
    witness.check();
    assert_eq!(witness.seen().len(), 9);
    witness.check_no_slot_missed(begun, &probe);
}

/// Instances that seem dead because the server is too full for heartbeats would keep moving targets.
#[tokio::test]
async fn a_full_server_keeps_its_fleet() {
    let server = RedisServer::builder().directive("maxmemory-policy", "noeviction").start();
    let (witness, targets) = (Witness::start(), targets(6));
    let one = TestInstance::join(&server.url(), "one", witness.address(), &targets).await;
    let two = TestInstance::join(&server.url(), "two", witness.address(), &targets).await;
    wait_for_counts(&[&one, &two], &[3, 3]).await;
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]), RedisReply::text("OK"));
    let begun = Instant::now();
    while begun.elapsed() < ttl() * 2 {
        for instance in [&one, &two] {
            let heartbeat = format!("poll:node:{}", instance.tenure.instance());
            assert_eq!(server.command(&["EXISTS", &heartbeat]), RedisReply::Int(1), "after {:?}", begun.elapsed());
            assert_eq!((instance.count(), instance.pool.live_instances().len()), (3, 2), "after {:?}", begun.elapsed());
        }
        tokio::time::sleep(TICK).await;
    }
    witness.check();
}

#[tokio::test]
async fn changed_targets_take_effect_at_once() {
    let server = RedisServer::start();
    let witness = Witness::start();
    let one = TestInstance::join(&server.url(), "one", witness.address(), &targets(4)).await;
    let two = TestInstance::join(&server.url(), "two", witness.address(), &targets(4)).await;
    wait_for_counts(&[&one, &two], &[2, 2]).await;
    let begun = Instant::now();
    for instance in [&one, &two] {
        instance.pool.retarget(["endpoint-1", "new-1", "new-2"]).unwrap();
        assert!(instance.pool.retarget(["bad name"]).is_err());
    }
    let held = || [one.pool.owned(), two.pool.owned()].concat();
    wait_until("the new targets are held and the old ones are not", || {
        let mut held = held();
        held.sort_unstable();
        held.iter().map(Target::name).eq(["endpoint-1", "new-1", "new-2"])
    })
    .await;
    println!("{:?}", begun.elapsed());
    wait_until("no lease of the old targets is left", || {
        (2..=4).all(|n| server.command(&["EXISTS", &format!("poll:lease:endpoint-{n}")]) == RedisReply::Int(0))
    })
    .await;
    witness.check();
}

#[tokio::test]
async fn a_drained_instance_hands_over_everything_until_it_is_undrained() {
    let server = RedisServer::start();
    let (witness, targets) = (Witness::start(), targets(6));
    let one = TestInstance::join(&server.url(), "one", witness.address(), &targets).await;
    let two = TestInstance::join(&server.url(), "two", witness.address(), &targets).await;
    wait_for_counts(&[&one, &two], &[3, 3]).await;
    one.pool.drain();
    wait_until("two holds every target", || two.count() == 6 && one.count() == 0).await;
    one.pool.undrain();
    wait_for_counts(&[&one, &two], &[3, 3]).await;
    witness.check();
}

#[tokio::test]
async fn an_unable_instance_hands_its_targets_to_able_ones() {
    let server = RedisServer::start();
    let (witness, targets) = (Witness::start(), targets(6));
    let one = TestInstance::join(&server.url(), "one", witness.address(), &targets).await;
    let two = TestInstance::join(&server.url(), "two", witness.address(), &targets).await;
    wait_for_counts(&[&one, &two], &[3, 3]).await;
    let mut events = one.tenure.events().notable();
    one.pool.set_able(false);
    wait_until("two holds every target", || two.count() == 6 && one.count() == 0).await;
    let mut reasons = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(200), events.next()).await {
        if let EventKind::Released(reason) = event.kind {
            reasons.push(reason);
        }
    }
    assert_eq!(reasons, [ReleaseReason::Unable; 3]);
    // No other instance is able now, so it keeps its targets.
    two.pool.set_able(false);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((one.count(), two.count()), (0, 6));
    one.pool.set_able(true);
    wait_until("one holds every target", || one.count() == 6 && two.count() == 0).await;
    two.pool.set_able(true);
    wait_for_counts(&[&one, &two], &[3, 3]).await;
    witness.check();
}

#[tokio::test]
async fn three_instances_share_targets_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("leases.db").display());
    let (witness, targets) = (Witness::start(), targets(9));
    let one = TestInstance::join(&url, "one", witness.address(), &targets).await;
    let two = TestInstance::join(&url, "two", witness.address(), &targets).await;
    let three = TestInstance::join(&url, "three", witness.address(), &targets).await;
    wait_for_counts(&[&one, &two, &three], &[3, 3, 3]).await;
    two.pool.stop().await;
    wait_for_counts(&[&one, &three], &[4, 5]).await;
    witness.check();
}

#[tokio::test]
async fn an_outage_stops_the_work_and_afterwards_every_instance_holds_what_it_held() {
    let server = RedisServer::start();
    let (witness, targets) = (Witness::start(), targets(9));
    let instances = [
        TestInstance::join(&server.url(), "one", witness.address(), &targets).await,
        TestInstance::join(&server.url(), "two", witness.address(), &targets).await,
        TestInstance::join(&server.url(), "three", witness.address(), &targets).await,
    ];
    wait_for_counts(&[&instances[0], &instances[1], &instances[2]], &[3, 3, 3]).await;
    let before: Vec<_> = instances.iter().map(|instance| instance.pool.owned()).collect();
    server.stop();
    tokio::time::sleep(ttl() * 2).await;
    assert!(instances.iter().all(|instance| instance.count() == 0), "work must stop during the outage");
    let then = Instant::now();
    server.cont();
    wait_until("every target is held again", || instances.iter().map(TestInstance::count).sum::<usize>() == 9).await;
    let after: Vec<_> = instances.iter().map(|instance| instance.pool.owned()).collect();
    assert_eq!(before, after);
    wait_until("every target is worked on again", || witness.since(then).len() == 9).await;
    witness.check();
}
