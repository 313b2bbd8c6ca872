//! Streams of results and events.

use super::*;

#[test]
fn results_are_streamed_and_a_reader_can_resume() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let (one, two) = (ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]));
    let id = one.add(&server.url("/"));
    let path = format!("/v1/sessions/{id}/events");
    wait_until("both instances know the session", || two.get(&format!("/v1/sessions/{id}/state")).0 == 200);
    let first = two.events(&path, &[], 3);
    assert!(first.windows(2).all(|pair| pair[0].1["dueAt"].as_str() < pair[1].1["dueAt"].as_str()), "{first:?}");
    let seen = format!("last-event-id: {}", first[0].0);
    assert_eq!(one.events(&path, &[&seen], 2), first[1..], "another instance streams the results after that one");
    assert_eq!(web::request(&one.address, "GET", &path, &["last-event-id: yesterday"], "").unwrap().0, 400);
}

#[test]
fn every_instance_streams_the_events_of_the_fleet() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let (one, two) = (ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]));
    let told = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            two.events_until("/v1/events", |event| event["event"] == "lease.released" && event["reason"] == "removed")
        });
        wait_until("the stream is open", || {
            web::request(&two.address, "GET", "/metrics", &[], "").unwrap().1.contains("tenure_streams_open 1")
        });
        let ids: Vec<String> = (0..4).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
        wait_until("both instances poll", || polling_instances(&server, 4) == Some(2));
        for id in &ids {
            one.ask("DELETE", &format!("/v1/sessions/{id}"), "");
        }
        reading.join().unwrap()
    });
    let acquired = told.iter().filter(|event| event["event"] == "lease.acquired" && event["endpoint_id"].is_string());
    let mut instances: Vec<&str> = acquired.filter_map(|event| event["instance_id"].as_str()).collect();
    instances.sort_unstable();
    instances.dedup();
    assert_eq!(instances.len(), 2, "{told:?}");
    assert!(told.iter().all(|event| event["timestamp"].is_string() && event["level"].is_string()), "{told:?}");
    assert!(told.iter().all(|event| event["event"] != "lease.renewed" && event["event"] != "poll.finished"));
}

#[test]
fn five_hundred_readers_are_served_and_no_poll_is_missed() {
    let (server, fixture, probe) = (WebServer::start(), Fixture::new(), LagProbe::start());
    let (one, two) = (ServeInstance::start(&fixture, &[]), ServeInstance::start(&fixture, &[]));
    let ids: Vec<String> = (0..20).map(|n| one.add(&server.url(&format!("/{n}")))).collect();
    wait_until("both instances poll", || polling_instances(&server, 20) == Some(2));
    let begun = Instant::now();
    let seen: Vec<usize> = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..500)
            .map(|n| {
                let (instance, id) = (if n % 2 == 0 { &one } else { &two }, &ids[n % 20]);
                scope.spawn(move || instance.events(&format!("/v1/sessions/{id}/events"), &[], 4).len())
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    assert!(seen.iter().all(|count| *count == 4));
    let missed_slots = missed_slots(server.requests(), begun);
    assert!(missed_slots == 0 || probe.lag() > MAX_LATENESS, "{missed_slots} slots missed");
    assert_polled_once(server.requests());
    wait_until("all streams are closed", || {
        web::request(&one.address, "GET", "/metrics", &[], "").unwrap().1.contains("tenure_streams_open 0")
    });
}

#[test]
fn a_stalled_reader_delays_no_other_and_gets_the_latest() {
    let large = "x".repeat(4_000);
    let server = WebServer::with_handler(move |_| (Duration::ZERO, web::ok_response(&large)));
    let (fixture, probe) = (Fixture::new(), LagProbe::start());
    let one = ServeInstance::start(&fixture, &[]);
    let request = json!({"url": server.url("/"), "interval": "100ms", "keepResults": 20}).to_string();
    let id = one.ask("POST", "/v1/sessions", &request).1["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sessions/{id}/events");
    wait_until("the session is polled", || one.get(&format!("/v1/sessions/{id}/state")).0 == 200);
    let slow = web::connect_with_tiny_buffer(&one.address);
    write!(&slow, "GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", one.address).unwrap();
    let quick = one.events(&path, &[], 150);
    let gaps = quick.windows(2).filter(|pair| pair[0].1["dueAt"] == pair[1].1["dueAt"]).count();
    assert_eq!(gaps, 0, "no result is streamed twice");
    // All slots of that time were polled, despite the slow client.
    let slots: Vec<u64> = server.requests().iter().map(|visit| header_number(visit, "tenure-due") / 100).collect();
    let missed_slots = slots.windows(2).map(|pair| pair[1] - pair[0] - 1).sum::<u64>();
    assert!(missed_slots == 0 || probe.lag() > Duration::from_millis(50), "{missed_slots} slots missed");
    // The slow client's results are in order, and continue with the latest.
    let late = read_events(slow, |events| events.last().is_some_and(|(id, _)| order(id) > order(&quick[149].0)));
    assert!(late.windows(2).all(|pair| order(&pair[0].0) < order(&pair[1].0)), "in order");
    assert!(late.len() < 150, "the slow client has missed some: {}", late.len());
}

fn order(id: &str) -> (u64, u64) {
    let (millis, number) = id.split_once('-').unwrap();
    (millis.parse().unwrap(), number.parse().unwrap())
}
