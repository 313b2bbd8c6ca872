//! Who may use the API.

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::failure::Failure;
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
    fn is(&self, other: &str) -> bool {
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

pub(super) async fn guard(State(service): State<Service>, request: Request, next: Next) -> Response {
    let Some(token) = service.token() else { return next.run(request).await };
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer "));
    if given.is_some_and(|given| token.is(given.trim())) {
        return next.run(request).await;
    }
    let message = "this needs the header `Authorization: Bearer …` with the token that the service was started with";
    Failure::new(StatusCode::UNAUTHORIZED, "unauthorized", message).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        let token = ApiToken::read("  s3cret \nmore").unwrap();
        assert!(token.is("s3cret"));
        for wrong in ["", "s3cre", "s3crett", "S3cret", "s3cret ", "xxxxxx"] {
            assert!(!token.is(wrong), "{wrong:?}");
        }
        assert!(ApiToken::read(" \n").is_none());
    }
}
