//! Metrics, and the headers of a poll.

use tenure_testbed::web::{self, WebServer};

use crate::serve::Instance;
use crate::stage::{Place, until};

const METRICS: &[&str] = &[
    "tenure_leases_held",
    "tenure_leases_uncertain",
    "tenure_lease_events_total{event=",
    "tenure_renew_duration_seconds_count",
    "tenure_handover_seconds_count",
    "tenure_takeover_seconds_count",
    "tenure_leader{role=\"janitor\"}",
    "tenure_leader{role=\"aggregator\"}",
    "tenure_leader{role=\"poll-scout\"} 1",
    "tenure_leader_last_renewal_timestamp_seconds{role=\"janitor\"}",
    "tenure_leader_last_renewal_timestamp_seconds{role=\"poll-scout\"}",
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
    let (server, place) = (WebServer::start(), Place::new());
    let one = Instance::start(&place, &[]);
    one.add(&server.url("/"));
    until("it is polled", || !server.visits().is_empty());
    let metrics = || web::ask(one.address(), "GET", "/metrics", &[], "").unwrap().1;
    until("all metrics are there", || METRICS.iter().all(|name| metrics().contains(name)));
    // The session, and the three roles.
    until("all leases are counted", || metrics().contains("tenure_leases_held 4"));
}

#[test]
fn a_poll_carries_the_headers_of_the_contract() {
    let (server, place) = (WebServer::start(), Place::new());
    let one = Instance::start(&place, &["--name", "header-test"]);
    let id = one.add(&server.url("/"));
    until("it is polled", || !server.visits().is_empty());
    let visit = &server.visits()[0];
    assert_eq!(visit.headers["tenure-target"], id);
    assert!(visit.headers["tenure-instance"].starts_with("header-test-"));
    assert!(visit.headers["tenure-token"].parse::<u64>().unwrap() < 1 << 53);
    let due: u64 = visit.headers["tenure-due"].parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(now.abs_diff(due) < 60_000, "{due} at {now}");
}
