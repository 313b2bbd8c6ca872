//! Metrics, and the headers of a poll.

use std::time::{Duration, Instant};

use tenure_testbed::RedisServer;
use tenure_testbed::web::{self, WebServer};

use crate::harness::{Fixture, wait_until};
use crate::serve::ServeInstance;

const METRICS: &[&str] = &[
    "tenure_leases_held",
    "tenure_store_connected",
    "tenure_work_failures_total",
    "tenure_leases_uncertain",
    "tenure_lease_events_total{event=",
    "tenure_renew_duration_seconds_count",
    "tenure_handover_seconds_count",
    "tenure_takeover_seconds_count",
    "tenure_leader{role=\"janitor\"}",
    "tenure_leader{role=\"aggregator\"}",
    "tenure_leader{role=\"poll-reconciler\"} 1",
    "tenure_leader_last_renewal_timestamp_seconds{role=\"janitor\"}",
    "tenure_leader_last_renewal_timestamp_seconds{role=\"poll-reconciler\"}",
    "tenure_fleet_instances 1",
    "tenure_targets_unheld",
    "tenure_targets_unheld_oldest_seconds",
    "tenure_balance_spread",
    "tenure_moves_total",
    "tenure_polls_total{outcome=\"ok\"}",
    "tenure_polls_total{outcome=\"failed\"}",
    "tenure_publish_refused_total",
    "tenure_keeper_lag_seconds",
    "tenure_events_dropped_total",
];

#[test]
fn every_metric_of_the_contract_is_there() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = ServeInstance::start(&fixture, &[]);
    one.add(&server.url("/"));
    wait_until("the session is polled", || !server.requests().is_empty());
    let metrics = || web::request(one.address(), "GET", "/metrics", &[], "").unwrap().1;
    wait_until("all metrics are present", || METRICS.iter().all(|name| metrics().contains(name)));
    // The session, and the three roles.
    wait_until("all leases are counted", || metrics().contains("tenure_leases_held 4"));
}

#[test]
fn a_poll_carries_the_headers_of_the_contract() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let one = ServeInstance::start(&fixture, &["--name", "header-test"]);
    let id = one.add(&server.url("/"));
    wait_until("the session is polled", || !server.requests().is_empty());
    let visit = &server.requests()[0];
    assert_eq!(visit.headers["tenure-target"], id);
    assert!(visit.headers["tenure-instance"].starts_with("header-test-"));
    assert!(visit.headers["tenure-token"].parse::<u64>().unwrap() < 1 << 53);
    let due: u64 = visit.headers["tenure-due"].parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(now.abs_diff(due) < 60_000, "{due} at {now}");
}

#[test]
fn sessions_lost_in_an_outage_count_as_unheld_and_the_last_renewal_stays() {
    let (redis, server) = (RedisServer::builder().append_only("always").start(), WebServer::start());
    let fixture = Fixture::on(&redis.url());
    let one = ServeInstance::start(&fixture, &[]);
    for _ in 0..3 {
        one.add(&server.url("/"));
    }
    let metric = |name: &str| {
        let text = web::request(one.address(), "GET", "/metrics", &[], "").unwrap().1;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        value.unwrap_or(f64::NAN)
    };
    let leads = "tenure_leader{role=\"janitor\"}";
    let renewed = "tenure_leader_last_renewal_timestamp_seconds{role=\"janitor\"}";
    // The sessions, and the three roles.
    wait_until("all leases are held", || metric("tenure_leases_held") == 6.0);
    let (before, unheld) = (metric(renewed), metric("tenure_targets_unheld"));
    assert!(before > 1e9 && unheld == 0.0, "{before} {unheld}");
    redis.kill();
    wait_until("all leases are lost", || metric("tenure_leases_held") == 0.0 && metric(leads) == 0.0);
    wait_until("all sessions are unheld", || metric("tenure_targets_unheld") == 3.0);
    let last = metric(renewed);
    assert!(last >= before - 0.001, "{last} {before}");
    // The age grows for as long as the outage lasts, whatever is tried meanwhile.
    let begun = Instant::now();
    let mut oldest = 0.0;
    while begun.elapsed() < Duration::from_secs(4) {
        assert_eq!(metric("tenure_targets_unheld"), 3.0);
        let age = metric("tenure_targets_unheld_oldest_seconds");
        assert!(age >= oldest, "{age} after {oldest}");
        oldest = age;
        assert!((metric(renewed) - last).abs() < 0.001, "the time of the last renewal stays");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(oldest > 3.5, "{oldest}");
    redis.restart();
    wait_until("all are held again", || metric("tenure_targets_unheld") == 0.0 && metric("tenure_leases_held") == 6.0);
    wait_until("the next term is renewed", || metric(leads) == 1.0 && metric(renewed) > last);
}

#[test]
fn the_last_renewal_stays_after_a_step_down() {
    let fixture = Fixture::new();
    let (one, two) =
        (ServeInstance::start(&fixture, &["--name", "one"]), ServeInstance::start(&fixture, &["--name", "two"]));
    let metrics = || web::request(one.address(), "GET", "/metrics", &[], "").unwrap().1;
    let path = "/v1/roles/janitor/step-down";
    let lead = |instance: &ServeInstance, name: &str| {
        wait_until("the candidate leads", || {
            let leader = instance.get("/v1/roles/janitor").1["leader"].clone();
            let leads = leader.as_str().is_some_and(|leader| leader.starts_with(name));
            if !leads {
                instance.ask("POST", path, &format!("{{\"to\": \"{name}\"}}"));
            }
            leads
        });
    };
    lead(&one, "one-");
    wait_until("the metric shows the leader", || metrics().contains("tenure_leader{role=\"janitor\"} 1.0"));
    lead(&two, "two-");
    wait_until("the metric shows no leader", || metrics().contains("tenure_leader{role=\"janitor\"} 0.0"));
    assert!(metrics().contains("tenure_leader_last_renewal_timestamp_seconds{role=\"janitor\"}"));
}
