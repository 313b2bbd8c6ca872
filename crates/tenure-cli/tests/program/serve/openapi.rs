//! `openapi.json` matches the API.

use std::collections::BTreeSet;

use super::*;

/// The routes in the code.
const ROUTES: &str = include_str!("../../../../tenure-serve/src/api/mod.rs");

#[test]
fn every_route_is_described() {
    let fixture = Fixture::new();
    let (_, description) = ServeInstance::start(&fixture, &[]).get("/openapi.json");
    let described: BTreeSet<&str> = description["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    let routes: BTreeSet<&str> =
        ROUTES.split(".route(\"").skip(1).map(|rest| rest.split_once('"').unwrap().0).collect();
    assert_eq!(described, routes);
    for (path, operations) in description["paths"].as_object().unwrap() {
        let handlers = ROUTES.split_once(&format!(".route(\"{path}\"")).unwrap().1.lines().next().unwrap();
        for method in ["get", "post", "patch", "delete"] {
            let is_routed = handlers.contains(&format!("{method}("));
            assert_eq!(operations.get(method).is_some(), is_routed, "{method} {path}");
        }
    }
}

#[test]
fn every_response_matches_its_schema() {
    let (server, fixture) = (WebServer::start(), Fixture::new());
    let file = fixture.path("token");
    std::fs::write(&file, "s3cret").unwrap();
    let flags = ["--api-token-file", &file.display().to_string(), "--allow-targets", "127.0.0.0/8"];
    let one = ServeInstance::start(&fixture, &flags);
    let token = "authorization: Bearer s3cret";
    let ask = |method: &str, path: &str, headers: &[&str], body: &str| {
        let (status, body) = web::request(&one.address, method, path, headers, body).unwrap();
        (status, serde_json::from_str::<Value>(&body).unwrap_or(Value::String(body)))
    };
    let (_, description) = ask("GET", "/openapi.json", &[token], "");
    let is_described = |method: &str, template: &str, (status, body): &(u16, Value)| {
        let operation = &description["paths"][template][method.to_ascii_lowercase()];
        let mut response = &operation["responses"][status.to_string()];
        assert!(response.is_object(), "{method} {template} answers {status}, which is not described");
        if let Some(reference) = response["$ref"].as_str() {
            response = description.pointer(reference.trim_start_matches('#')).unwrap();
        }
        let schema = response["content"].as_object().and_then(|content| content.values().next());
        let Some(schema) = schema.map(|content| content["schema"].clone()) else { return };
        let schema = json!({"allOf": [schema], "components": description["components"]});
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> = validator.iter_errors(body).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{method} {template} {status}: {errors:?} in {body}");
    };
    let new = json!({"url": server.url("/"), "interval": "250ms", "headers": {"x": "y"}}).to_string();
    let (_, session) = ask("POST", "/v1/sessions", &[token], &new);
    let id = session["id"].as_str().unwrap();
    wait_until("the session is polled", || ask("GET", &format!("/v1/sessions/{id}/state"), &[token], "").0 == 200);
    wait_until("totals are added up", || ask("GET", "/v1/stats", &[token], "").0 == 200);
    let unknown_id = "01a1e478-f45d-7685-907d-7d47de532c2c";
    let concrete = |template: &str, id: &str| template.replace("{id}", id).replace("{role}", "janitor");
    for (template, operations) in description["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys().filter(|method| *method != "parameters") {
            let method = method.to_ascii_uppercase();
            // Streams do not end.
            if template.ends_with("/events") || method == "DELETE" {
                continue;
            }
            let body = match method.as_str() {
                "POST" => new.as_str(),
                "PATCH" => r#"{"name": "new"}"#,
                _ => "",
            };
            let path = concrete(template, id);
            is_described(&method, template, &ask(&method, &path, &[token], body));
            let unknown = concrete(template, unknown_id).replace("janitor", "unknown");
            is_described(&method, template, &ask(&method, &unknown, &[token], body));
            let (without, is_open) = (ask(&method, &path, &[], body), template == "/healthz" || template == "/readyz");
            assert_eq!(without.0 == 401, !is_open, "{method} {template}");
            is_described(&method, template, &without);
            if !body.is_empty() {
                for wrong in ["", "[]", "{\"url\": 5}", "{\"interval\": \"soon\", \"url\": \"http://a\"}"] {
                    is_described(&method, template, &ask(&method, &path, &[token], wrong));
                }
            }
        }
    }
    is_described("GET", "/v1/sessions", &ask("GET", "/v1/sessions?limit=0", &[token], ""));
    is_described("DELETE", "/v1/sessions/{id}", &ask("DELETE", &format!("/v1/sessions/{id}"), &[token], ""));
    is_described("DELETE", "/v1/sessions/{id}", &ask("DELETE", &format!("/v1/sessions/{id}"), &[token], ""));
}
