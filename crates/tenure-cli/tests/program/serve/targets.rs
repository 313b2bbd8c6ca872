//! Misbehaving targets, and addresses that are not polled.

use super::*;

#[test]
fn misbehaving_targets_delay_no_other_target() {
    let server = WebServer::with_handler(|path| match path {
        "/never" => (Duration::from_secs(3), web::ok_response("late")),
        "/metadata" => (
            Duration::ZERO,
            "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n".to_owned(),
        ),
        "/round" => (Duration::ZERO, "HTTP/1.1 302 Found\r\nlocation: /round\r\ncontent-length: 0\r\n\r\n".to_owned()),
        "/flood" => (Duration::ZERO, format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(100_000))),
        path => (Duration::ZERO, web::ok_response(path)),
    });
    let fixture = Fixture::new();
    let one = ServeInstance::start(&fixture, &[]);
    let add = |path: &str| {
        let request = json!({"url": server.url(path), "interval": "250ms", "timeout": "300ms"}).to_string();
        one.ask("POST", "/v1/sessions", &request).1["id"].as_str().unwrap().to_owned()
    };
    let error = |id: &str, says: &str| {
        wait_until(says, || {
            let state = one.get(&format!("/v1/sessions/{id}/state")).1;
            state["error"].as_str().is_some_and(|error| error.contains(says))
        });
    };
    let (never, metadata, round, flood) = (add("/never"), add("/metadata"), add("/round"), add("/flood"));
    error(&never, "no complete response within 300ms");
    error(&metadata, "169.254.169.254 is not polled");
    error(&round, "more than 5 times");
    wait_until("the flood is cut", || {
        let state = one.get(&format!("/v1/sessions/{flood}/state")).1;
        state["truncated"] == json!(true) && state["body"].as_str().is_some_and(|body| body.len() == 65_536)
    });
    let well = add("/well");
    wait_until("other sessions are polled", || one.get(&format!("/v1/sessions/{well}/state")).1["ok"] == json!(true));
}

#[test]
fn session_headers_are_not_sent_to_other_origins() {
    let other = WebServer::start();
    let elsewhere = format!("HTTP/1.1 302 Found\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", other.url("/there"));
    let server = WebServer::with_handler(move |_| (Duration::ZERO, elsewhere.clone()));
    let fixture = Fixture::new();
    let one = ServeInstance::start(&fixture, &[]);
    one.add(&server.url("/"));
    wait_until("the redirect is followed", || !other.requests().is_empty());
    assert!(server.requests().iter().all(|visit| visit.headers["x-key"] == "secret"));
    assert!(other.requests().iter().all(|visit| !visit.headers.contains_key("x-key")), "{:?}", other.requests());
}

#[test]
fn a_hostname_is_polled_only_if_its_address_is_allowed() {
    let server = WebServer::start();
    let named = server.url("/").replace("127.0.0.1", "localhost");
    let state = |fixture: &Fixture, flags: &[&str]| {
        let one = ServeInstance::start(fixture, &[&["--listen", "0.0.0.0:0", "--insecure"], flags].concat());
        // An address that needs no lookup is refused at once.
        let by_address = json!({"url": server.url("/")}).to_string();
        assert_eq!(one.ask("POST", "/v1/sessions", &by_address).0, if flags.is_empty() { 422 } else { 201 });
        let id = one.add(&named);
        let (path, move_it) = (format!("/v1/sessions/{id}"), json!({"url": server.url("/"), "headers": {}}));
        assert_eq!(one.patch(&path, &move_it) == 422, flags.is_empty());
        assert_eq!(one.patch(&path, &json!({"url": named})), 200);
        let mut state = Value::Null;
        wait_until("the session is polled", || {
            state = one.get(&format!("/v1/sessions/{id}/state")).1;
            state["sessionId"] == json!(id)
        });
        state
    };
    let refused = state(&Fixture::new(), &[]);
    assert!(
        refused["error"].as_str().is_some_and(|error| error.contains("--allow-targets") && !error.contains("dns")),
        "{refused}"
    );
    assert!(server.requests().is_empty());
    let allowed = state(&Fixture::new(), &["--allow-targets", "127.0.0.0/8,::1/128"]);
    assert_eq!(allowed["ok"], json!(true), "{allowed}");
}

/// An endless response is read up to the kept size, and no further.
#[test]
fn an_endless_response_is_cut_off() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let fixture = Fixture::new();
    let one = ServeInstance::start(&fixture, &[]);
    let request = json!({"url": url, "interval": "250ms", "timeout": "5s"}).to_string();
    let id = one.ask("POST", "/v1/sessions", &request).1["id"].as_str().unwrap().to_owned();
    let (mut stream, _) = listener.accept().unwrap();
    let asked = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok).find(|line| line.is_empty());
    assert!(asked.is_some());
    write!(stream, "HTTP/1.1 200 OK\r\n\r\n").unwrap();
    // Write until the connection is closed.
    let mut written = 0_usize;
    while stream.write_all(&[b'x'; 1_000]).is_ok() {
        written += 1_000;
        assert!(written < 100_000_000, "the instance does not stop reading");
    }
    wait_until("the result is shown", || {
        let (_, history) = one.get(&format!("/v1/sessions/{id}/history"));
        history["results"]
            .as_array()
            .is_some_and(|results| results.iter().any(|result| result["truncated"] == json!(true)))
    });
}

#[test]
fn ten_thousand_sessions_created_at_once_are_all_polled() {
    let (server, redis) = (WebServer::start(), RedisServer::start());
    let fixture = Fixture::on(&redis.url());
    let (one, two) =
        (ServeInstance::start(&fixture, &["--ttl", "10s"]), ServeInstance::start(&fixture, &["--ttl", "10s"]));
    let request = json!({"url": server.url("/"), "interval": "1h"}).to_string();
    std::thread::scope(|scope| {
        for n in 0..16 {
            let (instance, request) = (if n % 2 == 0 { &one } else { &two }, &request);
            scope.spawn(move || {
                let mut line = web::HttpConnection::open(&instance.address);
                for _ in 0..625 {
                    assert_eq!(line.request("POST", "/v1/sessions", request).unwrap().0, 201);
                }
            });
        }
    });
    let held = |instance: &ServeInstance| {
        let metrics = web::request(&instance.address, "GET", "/metrics", &[], "").unwrap_or_default().1;
        let line = metrics.lines().find_map(|line| line.strip_prefix("tenure_leases_held ").map(str::to_owned));
        line.and_then(|number| number.parse::<f64>().ok()).unwrap_or(0.0)
    };
    // Besides the leaderships.
    wait_until("all sessions are held", || (10_000.0..10_010.0).contains(&(held(&one) + held(&two))));
    let (mut count, mut cursor) = (0, String::new());
    loop {
        let (_, page) = two.get(&format!("/v1/sessions?limit=1000{cursor}"));
        count += page["sessions"].as_array().unwrap().len();
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(count, 10_000);
}

#[test]
fn a_target_is_polled_over_tls_if_its_certificate_is_trusted() {
    let fixture = Fixture::new();
    let (server, certificate) = WebServer::with_tls(&fixture.path(""));
    let url = server.url("/secure").replace("http://127.0.0.1", "https://localhost");
    let one = ServeInstance::of(ServeInstance::command(&fixture, &[]).env("SSL_CERT_FILE", &certificate));
    wait_until("the instance is ready", || one.get("/readyz").0 == 200);
    let id = one.add(&url);
    let state = |instance: &ServeInstance| instance.get(&format!("/v1/sessions/{id}/state")).1;
    wait_until("the session is polled", || state(&one)["ok"] == json!(true));
    assert_eq!(state(&one)["body"], json!("/secure"));
    drop(one);
    // This instance does not trust the certificate.
    let two = ServeInstance::start(&fixture, &[]);
    wait_until("it fails", || state(&two)["error"].as_str().is_some_and(|error| error.contains("certificate")));
}
