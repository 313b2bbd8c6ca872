//! Coming, going, sharing.

use std::time::{Duration, Instant};

use tenure::Happening;
use tenure::lease::ReleaseReason;
use tenure_testbed::{Probe, RedisServer, Reply};

use crate::stage::{Member, TICK, Witness, shares, targets, ttl, until};

#[tokio::test]
async fn one_instance_works_on_everything_and_others_get_their_share() {
    let server = RedisServer::start();
    let (witness, targets) = (Witness::start(), targets(10));
    let one = Member::join(&server.url(), "one", witness.address(), &targets).await;
    shares(&[&one], &[10]).await;
    until("everything is worked on", || witness.seen().len() == 10).await;
    let two = Member::join(&server.url(), "two", witness.address(), &targets).await;
    shares(&[&one, &two], &[5, 5]).await;
    let three = Member::join(&server.url(), "three", witness.address(), &targets).await;
    shares(&[&one, &two, &three], &[3, 3, 4]).await;
    // As `redis-cli` sees it.
    for target in &targets {
        let holder = server.command(&["GET", &format!("poll:lease:{target}")]).as_text().to_owned();
        let owner = [&one, &two, &three].into_iter().find(|member| member.pool.is_owned(target)).unwrap();
        assert_eq!(holder, owner.tenure.instance().as_str());
    }
    for member in [&one, &two, &three] {
        assert_eq!(server.command(&["GET", &format!("poll:node:{}", member.tenure.instance())]), Reply::text("1"));
        assert_eq!(member.pool.live_instances().len(), 3);
    }
    // In the steady state who should hold a target does.
    for target in one.pool.owned() {
        assert_eq!(one.pool.preferred_owner(&target).await.as_ref(), Some(one.tenure.instance()));
        assert_eq!(two.pool.preferred_owner(&target).await.as_ref(), Some(one.tenure.instance()));
    }
    witness.check();
}

#[tokio::test]
async fn whoever_stops_hands_over_and_no_tick_is_missed_or_repeated() {
    let (begun, probe) = (Instant::now(), Probe::start());
    let server = RedisServer::start();
    let (witness, targets) = (Witness::start(), targets(9));
    let one = Member::join(&server.url(), "one", witness.address(), &targets).await;
    let two = Member::join(&server.url(), "two", witness.address(), &targets).await;
    let three = Member::join(&server.url(), "three", witness.address(), &targets).await;
    shares(&[&one, &two, &three], &[3, 3, 3]).await;
    tokio::time::sleep(TICK * 5).await;
    two.pool.stop().await;
    assert_eq!(two.count(), 0);
    assert_eq!(server.command(&["EXISTS", &format!("poll:node:{}", two.tenure.instance())]), Reply::Int(0));
    shares(&[&one, &three], &[4, 5]).await;
    tokio::time::sleep(TICK * 5).await;
    witness.check();
    assert_eq!(witness.seen().len(), 9);
    witness.check_that_none_was_missed(begun, &probe);
}

/// Instances that seem dead because their server has no room for a heartbeat would hand everything around.
#[tokio::test]
async fn a_full_server_keeps_its_fleet() {
    let server = RedisServer::builder().argument("maxmemory-policy", "noeviction").start();
    let (witness, targets) = (Witness::start(), targets(6));
    let one = Member::join(&server.url(), "one", witness.address(), &targets).await;
    let two = Member::join(&server.url(), "two", witness.address(), &targets).await;
    shares(&[&one, &two], &[3, 3]).await;
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]), Reply::text("OK"));
    let begun = Instant::now();
    while begun.elapsed() < ttl() * 2 {
        for member in [&one, &two] {
            let heartbeat = format!("poll:node:{}", member.tenure.instance());
            assert_eq!(server.command(&["EXISTS", &heartbeat]), Reply::Int(1), "after {:?}", begun.elapsed());
            assert_eq!((member.count(), member.pool.live_instances().len()), (3, 2), "after {:?}", begun.elapsed());
        }
        tokio::time::sleep(TICK).await;
    }
    witness.check();
}

#[tokio::test]
async fn targets_come_and_go_at_once() {
    let server = RedisServer::start();
    let witness = Witness::start();
    let one = Member::join(&server.url(), "one", witness.address(), &targets(4)).await;
    let two = Member::join(&server.url(), "two", witness.address(), &targets(4)).await;
    shares(&[&one, &two], &[2, 2]).await;
    let begun = Instant::now();
    for member in [&one, &two] {
        member.pool.retarget(["endpoint-1", "new-1", "new-2"]).unwrap();
        assert!(member.pool.retarget(["bad name"]).is_err());
    }
    let held = || [one.pool.owned(), two.pool.owned()].concat();
    until("the new ones are held and the old ones are not", || {
        let mut held = held();
        held.sort_unstable();
        held.iter().map(|target| &**target).eq(["endpoint-1", "new-1", "new-2"])
    })
    .await;
    println!("{:?}", begun.elapsed());
    until("nothing is left of them", || {
        (2..=4).all(|n| server.command(&["EXISTS", &format!("poll:lease:endpoint-{n}")]) == Reply::Int(0))
    })
    .await;
    witness.check();
}

#[tokio::test]
async fn a_drained_instance_gives_everything_away_and_takes_part_again_when_told() {
    let server = RedisServer::start();
    let (witness, targets) = (Witness::start(), targets(6));
    let one = Member::join(&server.url(), "one", witness.address(), &targets).await;
    let two = Member::join(&server.url(), "two", witness.address(), &targets).await;
    shares(&[&one, &two], &[3, 3]).await;
    one.pool.drain();
    until("two has everything", || two.count() == 6 && one.count() == 0).await;
    one.pool.undrain();
    shares(&[&one, &two], &[3, 3]).await;
    witness.check();
}

#[tokio::test]
async fn an_instance_that_cannot_work_gives_its_targets_to_those_that_can() {
    let server = RedisServer::start();
    let (witness, targets) = (Witness::start(), targets(6));
    let one = Member::join(&server.url(), "one", witness.address(), &targets).await;
    let two = Member::join(&server.url(), "two", witness.address(), &targets).await;
    shares(&[&one, &two], &[3, 3]).await;
    let mut events = one.tenure.news();
    one.pool.set_able(false);
    until("two has everything", || two.count() == 6 && one.count() == 0).await;
    let mut reasons = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(200), events.next()).await {
        if let Happening::Released(reason) = event.what {
            reasons.push(reason);
        }
    }
    assert_eq!(reasons, [ReleaseReason::Unable; 3]);
    // There is no other now: it keeps them.
    two.pool.set_able(false);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((one.count(), two.count()), (0, 6));
    one.pool.set_able(true);
    until("one has everything", || one.count() == 6 && two.count() == 0).await;
    two.pool.set_able(true);
    shares(&[&one, &two], &[3, 3]).await;
    witness.check();
}

#[tokio::test]
async fn the_same_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("leases.db").display());
    let (witness, targets) = (Witness::start(), targets(9));
    let one = Member::join(&url, "one", witness.address(), &targets).await;
    let two = Member::join(&url, "two", witness.address(), &targets).await;
    let three = Member::join(&url, "three", witness.address(), &targets).await;
    shares(&[&one, &two, &three], &[3, 3, 3]).await;
    two.pool.stop().await;
    shares(&[&one, &three], &[4, 5]).await;
    witness.check();
}

#[tokio::test]
async fn an_outage_stops_the_work_and_afterwards_everybody_has_what_it_had() {
    let server = RedisServer::start();
    let (witness, targets) = (Witness::start(), targets(9));
    let members = [
        Member::join(&server.url(), "one", witness.address(), &targets).await,
        Member::join(&server.url(), "two", witness.address(), &targets).await,
        Member::join(&server.url(), "three", witness.address(), &targets).await,
    ];
    shares(&[&members[0], &members[1], &members[2]], &[3, 3, 3]).await;
    let before: Vec<_> = members.iter().map(|member| member.pool.owned()).collect();
    server.stop();
    tokio::time::sleep(ttl() * 2).await;
    assert!(members.iter().all(|member| member.count() == 0), "work stops while nobody knows");
    let then = Instant::now();
    server.cont();
    until("all is held again", || members.iter().map(Member::count).sum::<usize>() == 9).await;
    let after: Vec<_> = members.iter().map(|member| member.pool.owned()).collect();
    assert_eq!(before, after);
    until("work goes on", || witness.since(then).len() == 9).await;
    witness.check();
}
