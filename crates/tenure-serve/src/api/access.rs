//! Access control of the API.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::error::ApiError;
use crate::service::Service;

/// Secret that clients of the API must send.
#[derive(Clone)]
pub struct ApiToken(String);

impl ApiToken {
    /// Reads a token from the text of a file: the first line, trimmed.
    ///
    /// # Errors
    /// When it is empty, or has a character that no client can send in a header.
    pub fn read(text: &str) -> Result<Self, &'static str> {
        let token = text.lines().next().unwrap_or_default().trim();
        if token.is_empty() {
            return Err("the first line is empty");
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the first line has a space or a character outside ASCII, such as a byte order mark");
        }
        Ok(Self(token.to_owned()))
    }

    /// Compares in constant time, whatever prefix they share.
    fn matches(&self, other: &str) -> bool {
        self.0.as_bytes().ct_eq(other.as_bytes()).into()
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
        let message = "without a token only programs on this host may use the API, not pages of other sites; start the service with --api-token-file";
        return (service.is_loopback_only() && is_strange)
            .then(|| ApiError::new(StatusCode::FORBIDDEN, "forbidden", message));
    };
    let given = said(header::AUTHORIZATION).and_then(|value| value.split_once(' '));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, given)| given);
    if given.is_some_and(|given| token.matches(given.trim())) {
        return None;
    }
    let message = "send the header `Authorization: Bearer …` with the token of the service";
    Some(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message))
}

/// Returns whether a request comes from a program on this host. A browser sends the requested host name and the origin
/// of the page. A page of another site may use a name that resolves to this host.
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
        assert!(ApiToken::read(" \n").is_err());
        assert!(ApiToken::read("\u{feff}s3cret\n").is_err(), "a byte order mark");
        assert!(ApiToken::read("s3\u{e4}cret\n").is_err());
    }
}
