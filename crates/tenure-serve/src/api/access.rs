//! Who may use the API.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::ApiError;
use crate::service::Service;

/// A secret that whoever uses the API knows.
#[derive(Clone)]
pub struct ApiToken(String);

impl ApiToken {
    /// From what stands in a file: the first line, without spaces around it. `None` when that is empty.
    pub fn read(text: &str) -> Option<Self> {
        text.lines().next().map(str::trim).filter(|token| !token.is_empty()).map(|token| Self(token.to_owned()))
    }

    /// Takes as long for a wrong one as for the right one, whatever they have in common.
    fn matches(&self, other: &str) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), other.as_bytes());
        let differences = ours.iter().enumerate().fold(ours.len() ^ theirs.len(), |differences, (at, byte)| {
            let other = theirs.get(at).copied().unwrap_or(0);
            differences | usize::from(std::hint::black_box(byte ^ other))
        });
        differences == 0
    }
}

impl std::fmt::Debug for ApiToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiToken(***)")
    }
}

pub(super) async fn authorize(State(service): State<Service>, request: Request, next: Next) -> Response {
    match refusal(&service, request.headers()) {
        Some(refusal) => refusal.into_response(),
        None => next.run(request).await,
    }
}

fn refusal(service: &Service, headers: &HeaderMap) -> Option<ApiError> {
    let said = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(token) = service.token() else {
        let is_strange = !is_local_request(said(header::HOST), said(header::ORIGIN));
        let message = "without a token this is for programs of this host, and not for pages of other places: start it with --api-token-file";
        return (service.is_loopback_only() && is_strange)
            .then(|| ApiError::new(StatusCode::FORBIDDEN, "forbidden", message));
    };
    let given = said(header::AUTHORIZATION).and_then(|value| value.split_once(' '));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, given)| given);
    if given.is_some_and(|given| token.matches(given.trim())) {
        return None;
    }
    let message = "this needs the header `Authorization: Bearer …` with the token that the service was started with";
    Some(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message))
}

/// Whether a request comes from a program of this host: a browser says for which name it asks and for whose page, and a page of another
/// place may have a name that stands for this host.
fn is_local_request(host: Option<&str>, origin: Option<&str>) -> bool {
    let Some(host) = host else { return origin.is_none() };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let is_ours = is_address || name.eq_ignore_ascii_case("localhost");
    is_ours && origin.is_none_or(|origin| origin.split_once("://").is_some_and(|(_, place)| place == host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_origin_pages_are_refused() {
        for host in ["127.0.0.1:8368", "localhost:8368", "LOCALHOST", "[::1]:8368", "127.0.0.1"] {
            assert!(is_local_request(Some(host), None), "{host}");
            assert!(is_local_request(Some(host), Some(&format!("http://{host}"))), "{host}");
            for origin in ["http://evil.example", "null", "http://localhost:1", ""] {
                assert!(!is_local_request(Some(host), Some(origin)), "{host} {origin}");
            }
        }
        for host in ["evil.example", "evil.example:8368", "127.0.0.1.evil.example", ""] {
            assert!(!is_local_request(Some(host), None), "{host}");
        }
    }

    #[test]
    fn only_the_exact_token_matches() {
        let token = ApiToken::read("  s3cret \nmore").unwrap();
        assert!(token.matches("s3cret"));
        for wrong in ["", "s3cre", "s3crett", "S3cret", "s3cret ", "xxxxxx"] {
            assert!(!token.matches(wrong), "{wrong:?}");
        }
        assert!(ApiToken::read(" \n").is_none());
    }
}
