//! A session: what to poll, how often, and with which timeout. A JSON document in the store; fields that Tenure does
//! not know are kept. Pure.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use serde_json::{Map, Value};
use thiserror::Error;
use url::{ParseError, Url};
use uuid::Uuid;

use crate::poll::address_policy::{self, ForbiddenAddress};
use crate::result_settings::{BackoffSetting, ResultOverrides};

/// Shortest interval.
pub const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Longest interval.
pub const MAX_INTERVAL: Duration = Duration::from_secs(24 * 3_600);
/// Default interval.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);

/// Shortest timeout.
pub const MIN_TIMEOUT: Duration = Duration::from_millis(50);
/// Longest timeout.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(300);
/// Default timeout.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

/// Largest session document, in bytes.
pub const MAX_SESSION_BYTES: usize = 32 * 1024;

const MAX_NAME_CHARS: usize = 200;
const MAX_URL_BYTES: usize = 2_048;
const MAX_HEADERS: usize = 32;
const MAX_HEADER_BYTES: usize = 8 * 1024;

/// Placeholder shown instead of a secret value; a change with it keeps the value.
pub const REDACTED: &str = "***";

/// Headers that Tenure or HTTP itself sets on every poll.
const RESERVED_HEADERS: [&str; 8] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "tenure-target",
    "tenure-instance",
    "tenure-token",
    "tenure-due",
];

/// Fields of a new session that can be set; all but the id can be changed.
const WRITABLE_FIELDS: [&str; 10] =
    ["id", "name", "url", "interval", "timeout", "headers", "isPaused", "maxBody", "keepResults", "backoff"];

/// Why a session is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct InvalidSession(String);

pub(crate) fn invalid(why: impl Into<String>) -> InvalidSession {
    InvalidSession(why.into())
}

impl From<ForbiddenAddress> for InvalidSession {
    fn from(forbidden: ForbiddenAddress) -> Self {
        invalid(format!("`url`: {forbidden}"))
    }
}

/// A session that can be polled.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Its id.
    pub id: Uuid,
    /// Display name.
    pub name: Option<String>,
    /// URL to poll.
    pub url: Url,
    /// Poll interval.
    pub interval: Duration,
    /// Timeout of a poll.
    pub timeout: Duration,
    /// Headers of every poll.
    pub headers: HeaderMap,
    /// Overrides of the instance's settings for results.
    pub overrides: ResultOverrides,
    /// Whether it is paused.
    pub is_paused: bool,
    /// Creation time, as its creator wrote it.
    pub created_at: Option<String>,
    /// The document as stored, including unknown fields. Every instance keeps every session in memory, and the text
    /// takes a tenth of the memory of the parsed document.
    text: Box<str>,
}

impl Session {
    /// Reads the stored document with this id.
    ///
    /// # Errors
    /// When it is not a session that can be polled.
    ///
    /// ```
    /// use tenure_serve::session::Session;
    ///
    /// let foreign = br#"{"address": "10.0.0.7:9100", "room": 12}"#;
    /// let session = Session::read("0192f0c1-2e4e-7f00-8000-000000000001", foreign)?;
    /// assert_eq!(session.url.as_str(), "http://10.0.0.7:9100/");
    /// assert_eq!(session.to_bytes(), foreign); // unknown fields are kept
    /// assert!(Session::read("not-a-uuid", foreign).is_err());
    /// # Ok::<(), tenure_serve::session::InvalidSession>(())
    /// ```
    pub fn read(id: &str, stored: &[u8]) -> Result<Self, InvalidSession> {
        let id = match Uuid::parse_str(id) {
            Ok(uuid) if uuid.to_string() == id => uuid,
            Ok(uuid) => return Err(invalid(format!("the id is not in canonical form; it should be {uuid}"))),
            Err(_) => return Err(invalid("the id is not a UUID")),
        };
        match serde_json::from_slice(stored) {
            Ok(Value::Object(document)) => {
                let text = String::from_utf8_lossy(stored).into();
                Ok(Self { text, ..Self::from_document(id, document)? })
            }
            Ok(_) => Err(invalid("not a JSON object")),
            Err(error) => Err(invalid(format!("not valid JSON: {error}"))),
        }
    }

    /// Creates a session from a request.
    ///
    /// # Errors
    /// When the request is invalid.
    pub fn create(request: Map<String, Value>, now: Timestamp) -> Result<Self, InvalidSession> {
        let id = match request.get("id") {
            None | Some(Value::Null) => Uuid::now_v7(),
            Some(Value::String(id)) => Uuid::parse_str(id).map_err(|_| invalid("`id` must be a UUID"))?,
            Some(_) => return Err(invalid("`id` must be text")),
        };
        if request.get("url").is_none() {
            return Err(invalid("`url` is missing"));
        }
        check_fields(&request, &WRITABLE_FIELDS)?;
        let mut document = Map::new();
        document.insert("id".to_owned(), Value::String(id.to_string()));
        for (field, usual) in [
            ("name", Value::Null),
            ("url", Value::Null),
            ("interval", Value::String(format_duration(DEFAULT_INTERVAL))),
            ("timeout", Value::String(format_duration(DEFAULT_TIMEOUT))),
            ("headers", Value::Object(Map::new())),
            ("isPaused", Value::Bool(false)),
        ] {
            document.insert(field.to_owned(), request.get(field).cloned().unwrap_or(usual));
        }
        // Absent settings are left to the instance.
        for field in ["maxBody", "keepResults", "backoff"] {
            if let Some(value) = request.get(field).filter(|value| !value.is_null()) {
                document.insert(field.to_owned(), value.clone());
            }
        }
        document.insert("createdAt".to_owned(), Value::String(now.to_string()));
        Self::from_document(id, document)?.with_real_values()?.check_size()
    }

    /// Returns the session with some fields changed. Header values given as [placeholders](REDACTED) are kept.
    ///
    /// # Errors
    /// When the change is invalid.
    pub fn change(&self, request: Map<String, Value>) -> Result<Self, InvalidSession> {
        check_fields(&request, &WRITABLE_FIELDS[1..])?;
        let mut document = self.document();
        let keeps_headers = match request.get("headers") {
            Some(Value::Object(headers)) => headers.values().any(|value| value == REDACTED),
            Some(_) => false,
            None => !self.headers.is_empty(),
        };
        for (field, mut value) in request {
            if let ("headers", Value::Object(headers)) = (field.as_str(), &mut value) {
                let before = document.get("headers").cloned().unwrap_or_default();
                for (name, value) in headers.iter_mut().filter(|(_, value)| *value == REDACTED) {
                    let mut known = before.as_object().into_iter().flatten();
                    let known = known.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value);
                    *value =
                        known.ok_or_else(|| invalid(format!("no header `{name}` whose value could be kept")))?.clone();
                }
            }
            if let ("url", Some(url)) = (field.as_str(), value.as_str().and_then(|url| Url::parse(url).ok())) {
                let mut url = url;
                if keeps_headers && url.origin() != self.url.origin() {
                    let message = "its headers would be sent to another origin; give them again, or none";
                    return Err(invalid(message));
                }
                if url.password() == Some(REDACTED) {
                    let known = self.url.password().filter(|_| url.origin() == self.url.origin());
                    let known = known.ok_or_else(|| invalid("no password that could be kept"))?.to_owned();
                    let _ = url.set_password(Some(&known));
                    value = Value::String(url.to_string());
                }
            }
            if field == "url" {
                // The name of the field in documents of other programs.
                document.remove("address");
            }
            document.insert(field, value);
        }
        Self::from_document(self.id, document)?.check_size()
    }

    /// Returns the session paused or resumed.
    ///
    /// # Errors
    /// When the document becomes too large.
    pub fn with_paused(&self, paused: bool) -> Result<Self, InvalidSession> {
        self.change([("isPaused".to_owned(), Value::Bool(paused))].into_iter().collect())
    }

    /// Refuses placeholders: a new session has no values that they could stand for.
    fn with_real_values(self) -> Result<Self, InvalidSession> {
        let header = self.headers.iter().find(|(_, value)| *value == REDACTED);
        let hidden = header.map(|(name, _)| format!("the header `{name}`"));
        let hidden =
            hidden.or_else(|| (self.url.password() == Some(REDACTED)).then(|| "the password of `url`".to_owned()));
        match hidden {
            Some(what) => {
                Err(invalid(format!("{what} is `{REDACTED}`, which stands for a hidden value; give the value")))
            }
            None => Ok(self),
        }
    }

    fn check_size(self) -> Result<Self, InvalidSession> {
        let size = self.to_bytes().len();
        if size > MAX_SESSION_BYTES {
            Err(invalid(format!("the session has {size} bytes; at most {MAX_SESSION_BYTES} are allowed")))
        } else {
            Ok(self)
        }
    }

    fn from_document(id: Uuid, document: Map<String, Value>) -> Result<Self, InvalidSession> {
        let text = |field: &str| match document.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) if matches!(field, "interval" | "timeout") => {
                Err(invalid(format!("`{field}` must be text, such as \"5s\"")))
            }
            Some(_) => Err(invalid(format!("`{field}` must be text"))),
        };
        if let Some(other) = text("id")?.filter(|other| Uuid::parse_str(other).ok() != Some(id)) {
            return Err(invalid(format!("its `id` differs: {}", shorten(other))));
        }
        let name = text("name")?.map(str::to_owned);
        if name.as_ref().is_some_and(|name| name.chars().count() > MAX_NAME_CHARS || name.chars().any(char::is_control))
        {
            return Err(invalid(format!(
                "`name` must have at most {MAX_NAME_CHARS} characters, and no control characters"
            )));
        }
        let url = match (text("url")?, text("address")?) {
            (Some(url), _) => parse_url(url)?,
            (None, Some(address)) if address.contains("://") => parse_url(address)?,
            (None, Some(address)) => parse_url(&format!("http://{address}"))?,
            (None, None) => return Err(invalid("it has neither `url` nor `address`")),
        };
        let interval = duration_field("interval", text("interval")?, DEFAULT_INTERVAL, MIN_INTERVAL, MAX_INTERVAL)?;
        let timeout = duration_field("timeout", text("timeout")?, DEFAULT_TIMEOUT, MIN_TIMEOUT, MAX_TIMEOUT)?;
        let is_paused = match document.get("isPaused") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(paused)) => *paused,
            Some(_) => return Err(invalid("`isPaused` must be true or false")),
        };
        let overrides = ResultOverrides::read(&document)?;
        let created_at = text("createdAt")?.map(str::to_owned);
        let headers = parse_headers(document.get("headers"))?;
        let text = Value::Object(document).to_string().into();
        Ok(Self { id, name, url, interval, timeout, headers, overrides, is_paused, created_at, text })
    }

    fn document(&self) -> Map<String, Value> {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Returns whether the session was read from this text.
    pub fn is_stored_as(&self, stored: &[u8]) -> bool {
        self.text.as_bytes() == stored
    }

    /// Returns the document as stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.text.as_bytes().to_vec()
    }

    /// Returns the whole document with its id, for another store.
    pub fn to_export(&self) -> Value {
        let mut document = self.document();
        document.insert("id".to_owned(), Value::String(self.id.to_string()));
        Value::Object(document)
    }

    /// Reads an [exported](Self::to_export) or handwritten document. A session without an id is a new one.
    ///
    /// # Errors
    /// When it is not a session that can be polled, or has a [placeholder](REDACTED) instead of a value.
    pub fn from_export(line: &[u8], now: Timestamp) -> Result<Self, InvalidSession> {
        let document: Value =
            serde_json::from_slice(line).map_err(|error| invalid(format!("not valid JSON: {error}")))?;
        match document.get("id") {
            Some(Value::String(id)) => Self::read(id, line)
                .and_then(Self::with_real_values)
                .and_then(Self::check_size)
                .map_err(|error| invalid(format!("session {}: {error}", shorten(id)))),
            Some(Value::Null) | None => {
                let Value::Object(mut document) = document else { return Err(invalid("not a JSON object")) };
                let id = Uuid::now_v7();
                document.insert("id".to_owned(), Value::String(id.to_string()));
                document.entry("createdAt").or_insert_with(|| Value::String(now.to_string()));
                Self::from_document(id, document)?.with_real_values()?.check_size()
            }
            Some(_) => Err(invalid("`id` must be text")),
        }
    }

    /// Returns the JSON of the API, with header values and the URL's password hidden.
    pub fn to_json(&self) -> Value {
        let hidden = self.headers.keys().map(|name| (name.to_string(), Value::String(REDACTED.to_owned()))).collect();
        let mut url = self.url.clone();
        if url.password().is_some() {
            let _ = url.set_password(Some(REDACTED));
        }
        serde_json::json!({
            "id": self.id.to_string(),
            "name": self.name,
            "url": url.as_str(),
            "interval": format_duration(self.interval),
            "timeout": format_duration(self.timeout),
            "headers": Value::Object(hidden),
            "isPaused": self.is_paused,
            "maxBody": self.overrides.max_body,
            "keepResults": self.overrides.keep_results,
            "backoff": self.overrides.backoff.map(BackoffSetting::to_text),
            "createdAt": self.created_at,
        })
    }
}

fn check_fields(request: &Map<String, Value>, known: &[&str]) -> Result<(), InvalidSession> {
    match request.keys().find(|field| !known.contains(&field.as_str())) {
        Some(other) => Err(invalid(format!("`{}` cannot be set; allowed are {}", shorten(other), known.join(", ")))),
        None => Ok(()),
    }
}

fn parse_url(text: &str) -> Result<Url, InvalidSession> {
    if text.len() > MAX_URL_BYTES {
        return Err(invalid(format!("`url` has {} bytes; at most {MAX_URL_BYTES} are allowed", text.len())));
    }
    let url = Url::parse(text).map_err(|error| match error {
        ParseError::RelativeUrlWithoutBase => invalid("`url` must begin with http:// or https://"),
        error => invalid(format!("`url` is not a valid URL: {error}")),
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid(format!("`url` must begin with http:// or https://, not {}:", url.scheme())));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(invalid("`url` has no host"));
    }
    if address_policy::is_never_allowed(&url) {
        return Err(invalid(format!(
            "`url`: {} is an address that is never polled",
            url.host_str().unwrap_or_default()
        )));
    }
    Ok(url)
}

fn duration_field(
    field: &str,
    text: Option<&str>,
    usual: Duration,
    least: Duration,
    most: Duration,
) -> Result<Duration, InvalidSession> {
    let Some(text) = text else { return Ok(usual) };
    let span = humantime::parse_duration(text)
        .map_err(|error| invalid(format!("`{field}`: {error}; expected a duration such as 500ms, 5s or 1m30s")))?;
    if span < least || span > most {
        return Err(invalid(format!(
            "`{field}` must be between {} and {}",
            format_duration(least),
            format_duration(most)
        )));
    }
    Ok(span)
}

fn parse_headers(value: Option<&Value>) -> Result<HeaderMap, InvalidSession> {
    let given = match value {
        None | Some(Value::Null) => return Ok(HeaderMap::new()),
        Some(Value::Object(given)) => given,
        Some(_) => return Err(invalid("`headers` must be an object of names and values")),
    };
    if given.len() > MAX_HEADERS {
        return Err(invalid(format!("there are {} headers; at most {MAX_HEADERS} are allowed", given.len())));
    }
    let (mut headers, mut size) = (HeaderMap::new(), 0);
    for (name, value) in given {
        let shown = shorten(name);
        let value = value.as_str().ok_or_else(|| invalid(format!("the value of header `{shown}` must be text")))?;
        size += name.len() + value.len();
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| invalid(format!("`{shown}` is not a valid header name")))?;
        if RESERVED_HEADERS.contains(&name.as_str()) {
            return Err(invalid(format!("header `{name}` is reserved")));
        }
        // Never show the value: it may be a secret.
        let value = HeaderValue::from_str(value)
            .map_err(|_| invalid(format!("the value of header `{name}` has invalid characters")))?;
        headers.insert(name, value);
    }
    if size > MAX_HEADER_BYTES {
        return Err(invalid(format!("the headers have {size} bytes; at most {MAX_HEADER_BYTES} are allowed")));
    }
    Ok(headers)
}

/// Formats a duration such as `1m30s`.
pub fn format_duration(span: Duration) -> String {
    let (hours, rest) = (span.as_secs() / 3_600, Duration::from_secs(span.as_secs() % 3_600));
    let rest = rest + Duration::from_nanos(u64::from(span.subsec_nanos()));
    match (hours, rest.is_zero()) {
        (0, _) => humantime::format_duration(rest).to_string().replace(' ', ""),
        (hours, true) => format!("{hours}h"),
        (hours, false) => format!("{hours}h{}", humantime::format_duration(rest)).replace(' ', ""),
    }
}

/// Shortens a text for an error message.
fn shorten(text: &str) -> String {
    text.chars().take(64).map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const ID: &str = "0192f0c1-2e4e-7f00-8000-000000000001";

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    fn create(value: Value) -> Result<Session, InvalidSession> {
        Session::create(map(value), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_session_needs_a_url_and_nothing_else() {
        let session = create(json!({"url": "https://example.org/health"})).unwrap();
        assert_eq!((session.interval, session.timeout, session.is_paused), (DEFAULT_INTERVAL, DEFAULT_TIMEOUT, false));
        assert_eq!(session.id.get_version_num(), 7);
        let again = Session::read(&session.id.to_string(), &session.to_bytes()).unwrap();
        assert_eq!(again, session);
        assert_eq!(session.to_json()["interval"], "5s");
        assert_eq!(session.to_json()["createdAt"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn unknown_fields_are_kept_and_header_values_hidden() {
        let stored = json!({"id": ID, "url": "http://a", "headers": {"X-Key": "secret"}, "room": {"n": 1.50}, "isPaused": false});
        let session = Session::read(ID, stored.to_string().as_bytes()).unwrap();
        let changed =
            session.change(map(json!({"headers": {"x-key": "***", "other": "1"}, "isPaused": true}))).unwrap();
        let document: Value = serde_json::from_slice(&changed.to_bytes()).unwrap();
        assert_eq!(document["room"], json!({"n": 1.50}));
        assert_eq!(document["headers"], json!({"x-key": "secret", "other": "1"}));
        assert!(changed.is_paused);
        assert!(!changed.to_json().to_string().contains("secret"));
        let unknown = session.change(map(json!({"headers": {"unknown": "***"}})));
        assert!(unknown.is_err_and(|error| error.to_string().contains("no header `unknown`")));
    }

    #[test]
    fn invalid_sessions_are_refused_with_a_reason() {
        for (request, why) in [
            (json!({}), "`url` is missing"),
            (json!({"url": 1}), "must be text"),
            (json!({"url": "ftp://a"}), "http:// or https://"),
            (json!({"url": "file:///etc/passwd"}), "http:// or https://"),
            (json!({"url": "no url"}), "http:// or https://"),
            (json!({"url": "http://[::"}), "is not a valid URL"),
            (json!({"url": "http://169.254.169.254/"}), "never polled"),
            (json!({"url": "http://[::ffff:169.254.169.254]/"}), "never polled"),
            (json!({"url": format!("http://a/{}", "x".repeat(3_000))}), "bytes"),
            (json!({"url": "http://a", "id": "1"}), "UUID"),
            (json!({"url": "http://a", "interval": "1ms"}), "between 100ms and 24h"),
            (json!({"url": "http://a", "interval": "25h"}), "between"),
            (json!({"url": "http://a", "interval": 5}), "must be text"),
            (json!({"url": "http://a", "timeout": "soon"}), "expected a duration"),
            (json!({"url": "http://a", "headers": {"a\r\nb": "c"}}), "not a valid header name"),
            (json!({"url": "http://a", "headers": {"a": "b\r\nc: d"}}), "invalid characters"),
            (json!({"url": "http://a", "headers": {"Host": "b"}}), "is reserved"),
            (json!({"url": "http://a", "headers": {"tenure-token": "1"}}), "is reserved"),
            (json!({"url": "http://a", "headers": []}), "object"),
            (json!({"url": "http://a", "name": "x".repeat(201)}), "`name`"),
            (json!({"url": "http://a", "isPaused": "yes"}), "true or false"),
            (json!({"url": "http://u:***@a"}), "stands for a hidden value"),
            (json!({"url": "http://a", "headers": {"x": "***"}}), "stands for a hidden value"),
            (json!({"url": "http://a", "createdAt": "now"}), "cannot be set"),
        ] {
            let error = create(request.clone()).unwrap_err().to_string();
            assert!(error.contains(why), "{request}: {error}");
        }
    }

    #[test]
    fn hidden_values_are_kept_and_sent_to_no_other_origin() {
        let change = |session: &Session, change: Value| match change {
            Value::Object(change) => session.change(change),
            _ => Err(invalid("no change")),
        };
        let session = create(json!({"url": "http://u:secret@a/", "headers": {"X": "schlüssel"}})).unwrap();
        let shown = session.to_json();
        assert_eq!(shown["url"], "http://u:***@a/");
        let same = change(&session, json!({"url": "http://u:***@a/b", "headers": {"x": "***"}})).unwrap();
        assert_eq!((same.url.as_str(), &same.headers), ("http://u:secret@a/b", &session.headers));
        for elsewhere in [
            json!({"url": "http://b/"}),
            json!({"url": "http://b/", "headers": {"x": "***"}}),
            json!({"url": "http://u:***@b/", "headers": {}}),
        ] {
            assert!(change(&session, elsewhere.clone()).is_err(), "{elsewhere}");
        }
        assert!(change(&session, json!({"url": "http://b/", "headers": {}})).is_ok());
    }

    #[test]
    fn an_id_has_one_notation() {
        let stored = br#"{"url": "http://a"}"#;
        assert!(Session::read(ID, stored).is_ok());
        let error = Session::read(&ID.to_uppercase(), stored).unwrap_err().to_string();
        assert!(ID.to_uppercase() == ID || error.contains(ID), "{error}");
    }

    proptest! {
        #[test]
        fn any_stored_document_is_read_or_refused(stored in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Session::read(ID, &stored);
        }

        #[test]
        fn any_request_is_accepted_or_refused(field in "[a-zA-Z]{1,9}|url|interval|headers|name", text in ".*") {
            let _ = create(json!({"url": "http://a", field.clone(): text.clone()}));
            let _ = create(json!({"url": "http://a", field: {text.clone(): text}}));
        }
    }
}
