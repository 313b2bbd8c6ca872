//! A session: what is polled, how often, and with what patience. A JSON document in the store, of which every field that is not ours stays as
//! it is. Pure.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use serde_json::{Map, Value};
use thiserror::Error;
use url::{ParseError, Url};
use uuid::Uuid;

use crate::keeping::{Backoff, Keeping};
use crate::poll::safety::{self, Forbidden};

/// What an interval may be, and what it is when nobody says.
pub const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// The longest.
pub const LONGEST_INTERVAL: Duration = Duration::from_secs(24 * 3_600);
/// The usual one.
pub const USUAL_INTERVAL: Duration = Duration::from_secs(5);

/// What a time-out may be, and what it is when nobody says.
pub const SHORTEST_TIMEOUT: Duration = Duration::from_millis(50);
/// The longest.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(300);
/// The usual one.
pub const USUAL_TIMEOUT: Duration = Duration::from_secs(2);

/// No session is larger than this, as it stands in the store.
pub const LARGEST: usize = 32 * 1024;

const LONGEST_NAME: usize = 200;
const LONGEST_URL: usize = 2_048;
const MOST_HEADERS: usize = 32;
const LARGEST_HEADERS: usize = 8 * 1024;

/// Shown instead of the value of a header, and left as it is when it comes back.
pub const HIDDEN: &str = "***";

/// Set by Tenure on every poll, or by HTTP itself.
const NOT_TO_BE_SET: [&str; 8] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "tenure-target",
    "tenure-instance",
    "tenure-token",
    "tenure-due",
];

/// What can be set of a new session; all but its id can be changed.
const CREATABLE: [&str; 10] =
    ["id", "name", "url", "interval", "timeout", "headers", "isPaused", "maxBody", "keepResults", "backoff"];

/// What is wrong with a session.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Invalid(String);

pub(crate) fn invalid(why: impl Into<String>) -> Invalid {
    Invalid(why.into())
}

impl From<Forbidden> for Invalid {
    fn from(forbidden: Forbidden) -> Self {
        invalid(format!("`url`: {forbidden}"))
    }
}

/// A session that can be polled.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Its id.
    pub id: Uuid,
    /// What people call it.
    pub name: Option<String>,
    /// What is polled.
    pub url: Url,
    /// How often.
    pub interval: Duration,
    /// How long an answer is waited for.
    pub timeout: Duration,
    /// Sent with every poll.
    pub headers: HeaderMap,
    /// What is kept of its results, where that is not what its instance keeps.
    pub keeping: Keeping,
    /// Whether it is left alone for now.
    pub is_paused: bool,
    /// When it was made, as its maker wrote it.
    pub created_at: Option<String>,
    /// The document as it stands in the store, with whatever else stands in it. Every instance knows every session: a text takes a tenth of the
    /// room of what is read from it.
    text: Box<str>,
}

impl Session {
    /// Reads what stands in the store under an id.
    ///
    /// # Errors
    /// When it is nothing that can be polled.
    ///
    /// ```
    /// use tenure_serve::session::Session;
    ///
    /// let foreign = br#"{"address": "10.0.0.7:9100", "room": 12}"#;
    /// let session = Session::read("0192f0c1-2e4e-7f00-8000-000000000001", foreign)?;
    /// assert_eq!(session.url.as_str(), "http://10.0.0.7:9100/");
    /// assert_eq!(session.stored(), foreign); // what is not ours stays
    /// assert!(Session::read("not-a-uuid", foreign).is_err());
    /// # Ok::<(), tenure_serve::session::Invalid>(())
    /// ```
    pub fn read(id: &str, stored: &[u8]) -> Result<Self, Invalid> {
        let id = match Uuid::parse_str(id) {
            Ok(uuid) if uuid.to_string() == id => uuid,
            Ok(uuid) => return Err(invalid(format!("the id is not written as UUIDs are; it should be {uuid}"))),
            Err(_) => return Err(invalid("the id is no UUID")),
        };
        match serde_json::from_slice(stored) {
            Ok(Value::Object(document)) => {
                let text = String::from_utf8_lossy(stored).into();
                Ok(Self { text, ..Self::of(id, document)? })
            }
            Ok(_) => Err(invalid("it is JSON, but no object")),
            Err(error) => Err(invalid(format!("it is no JSON: {error}"))),
        }
    }

    /// A new one, from what somebody asks for.
    ///
    /// # Errors
    /// When it cannot be like this.
    pub fn create(request: Map<String, Value>, now: Timestamp) -> Result<Self, Invalid> {
        let id = match request.get("id") {
            None | Some(Value::Null) => Uuid::now_v7(),
            Some(Value::String(id)) => Uuid::parse_str(id).map_err(|_| invalid("`id` must be a UUID"))?,
            Some(_) => return Err(invalid("`id` must be text")),
        };
        if request.get("url").is_none() {
            return Err(invalid("`url` is missing"));
        }
        only_known(&request, &CREATABLE)?;
        let mut document = Map::new();
        document.insert("id".to_owned(), Value::String(id.to_string()));
        for (field, usual) in [
            ("name", Value::Null),
            ("url", Value::Null),
            ("interval", Value::String(written(USUAL_INTERVAL))),
            ("timeout", Value::String(written(USUAL_TIMEOUT))),
            ("headers", Value::Object(Map::new())),
            ("isPaused", Value::Bool(false)),
        ] {
            document.insert(field.to_owned(), request.get(field).cloned().unwrap_or(usual));
        }
        // What is not said here is the instance's to say.
        for field in ["maxBody", "keepResults", "backoff"] {
            if let Some(value) = request.get(field).filter(|value| !value.is_null()) {
                document.insert(field.to_owned(), value.clone());
            }
        }
        document.insert("createdAt".to_owned(), Value::String(now.to_string()));
        Self::of(id, document)?.with_real_values()?.fits()
    }

    /// The same with some fields changed. Values of headers that are [hidden](HIDDEN) stay what they are.
    ///
    /// # Errors
    /// When it cannot be like that.
    pub fn change(&self, request: Map<String, Value>) -> Result<Self, Invalid> {
        only_known(&request, &CREATABLE[1..])?;
        let mut document = self.document();
        let keeps_headers = match request.get("headers") {
            Some(Value::Object(headers)) => headers.values().any(|value| value == HIDDEN),
            Some(_) => false,
            None => !self.headers.is_empty(),
        };
        for (field, mut value) in request {
            if let ("headers", Value::Object(headers)) = (field.as_str(), &mut value) {
                let before = document.get("headers").cloned().unwrap_or_default();
                for (name, value) in headers.iter_mut().filter(|(_, value)| *value == HIDDEN) {
                    let mut known = before.as_object().into_iter().flatten();
                    let known = known.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value);
                    *value = known
                        .ok_or_else(|| invalid(format!("there is no header `{name}` to be left as it is")))?
                        .clone();
                }
            }
            if let ("url", Some(url)) = (field.as_str(), value.as_str().and_then(|url| Url::parse(url).ok())) {
                let mut url = url;
                if keeps_headers && url.origin() != self.url.origin() {
                    let message = "its headers would be told to another place: give them again, or none";
                    return Err(invalid(message));
                }
                if url.password() == Some(HIDDEN) {
                    let known = self.url.password().filter(|_| url.origin() == self.url.origin());
                    let known = known.ok_or_else(|| invalid("there is no password to be left as it is"))?.to_owned();
                    let _ = url.set_password(Some(&known));
                    value = Value::String(url.to_string());
                }
            }
            if field == "url" {
                // What it was called before it was ours.
                document.remove("address");
            }
            document.insert(field, value);
        }
        Self::of(self.id, document)?.fits()
    }

    /// The same, paused or not.
    ///
    /// # Errors
    /// When it has grown too large.
    pub fn paused(&self, paused: bool) -> Result<Self, Invalid> {
        self.change([("isPaused".to_owned(), Value::Bool(paused))].into_iter().collect())
    }

    /// Refuses placeholders: a new session has no value that one of them could stand for.
    fn with_real_values(self) -> Result<Self, Invalid> {
        let header = self.headers.iter().find(|(_, value)| *value == HIDDEN);
        let hidden = header.map(|(name, _)| format!("the header `{name}`"));
        let hidden =
            hidden.or_else(|| (self.url.password() == Some(HIDDEN)).then(|| "the password of `url`".to_owned()));
        match hidden {
            Some(what) => {
                Err(invalid(format!("{what} is `{HIDDEN}`, which stands for a hidden value; give the value")))
            }
            None => Ok(self),
        }
    }

    fn fits(self) -> Result<Self, Invalid> {
        let size = self.stored().len();
        if size > LARGEST {
            Err(invalid(format!("the session has {size} bytes; {LARGEST} are allowed")))
        } else {
            Ok(self)
        }
    }

    fn of(id: Uuid, document: Map<String, Value>) -> Result<Self, Invalid> {
        let text = |field: &str| match document.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) if matches!(field, "interval" | "timeout") => {
                Err(invalid(format!("`{field}` must be text, such as \"5s\"")))
            }
            Some(_) => Err(invalid(format!("`{field}` must be text"))),
        };
        if let Some(other) = text("id")?.filter(|other| Uuid::parse_str(other).ok() != Some(id)) {
            return Err(invalid(format!("its `id` is another: {}", shortened(other))));
        }
        let name = text("name")?.map(str::to_owned);
        if name.as_ref().is_some_and(|name| name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control)) {
            return Err(invalid(format!(
                "`name` must have at most {LONGEST_NAME} characters, and none that cannot be seen"
            )));
        }
        let url = match (text("url")?, text("address")?) {
            (Some(url), _) => target(url)?,
            (None, Some(address)) if address.contains("://") => target(address)?,
            (None, Some(address)) => target(&format!("http://{address}"))?,
            (None, None) => return Err(invalid("it has neither `url` nor `address`")),
        };
        let interval = span("interval", text("interval")?, USUAL_INTERVAL, SHORTEST_INTERVAL, LONGEST_INTERVAL)?;
        let timeout = span("timeout", text("timeout")?, USUAL_TIMEOUT, SHORTEST_TIMEOUT, LONGEST_TIMEOUT)?;
        let is_paused = match document.get("isPaused") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(paused)) => *paused,
            Some(_) => return Err(invalid("`isPaused` must be true or false")),
        };
        let keeping = Keeping::read(&document)?;
        let created_at = text("createdAt")?.map(str::to_owned);
        let headers = headers(document.get("headers"))?;
        let text = Value::Object(document).to_string().into();
        Ok(Self { id, name, url, interval, timeout, headers, keeping, is_paused, created_at, text })
    }

    fn document(&self) -> Map<String, Value> {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Whether this is what it was read from.
    pub fn is(&self, stored: &[u8]) -> bool {
        self.text.as_bytes() == stored
    }

    /// As it stands in the store.
    pub fn stored(&self) -> Vec<u8> {
        self.text.as_bytes().to_vec()
    }

    /// For another store: the whole document, with its id.
    pub fn exported(&self) -> Value {
        let mut document = self.document();
        document.insert("id".to_owned(), Value::String(self.id.to_string()));
        Value::Object(document)
    }

    /// Reads what was [exported](Self::exported), or written by hand: a session without an id is a new one.
    ///
    /// # Errors
    /// When it is nothing that can be polled, or has a [placeholder](HIDDEN) instead of a value.
    pub fn imported(line: &[u8], now: Timestamp) -> Result<Self, Invalid> {
        let document: Value =
            serde_json::from_slice(line).map_err(|error| invalid(format!("it is no JSON: {error}")))?;
        match document.get("id") {
            Some(Value::String(id)) => Self::read(id, line)
                .and_then(Self::with_real_values)
                .and_then(Self::fits)
                .map_err(|error| invalid(format!("session {}: {error}", shortened(id)))),
            Some(Value::Null) | None => {
                let Value::Object(mut document) = document else { return Err(invalid("it is JSON, but no object")) };
                let id = Uuid::now_v7();
                document.insert("id".to_owned(), Value::String(id.to_string()));
                document.entry("createdAt").or_insert_with(|| Value::String(now.to_string()));
                Self::of(id, document)?.with_real_values()?.fits()
            }
            Some(_) => Err(invalid("`id` must be text")),
        }
    }

    /// As it is shown: values of headers are nobody's business, and a URL's password is not either.
    pub fn shown(&self) -> Value {
        let hidden = self.headers.keys().map(|name| (name.to_string(), Value::String(HIDDEN.to_owned()))).collect();
        let mut url = self.url.clone();
        if url.password().is_some() {
            let _ = url.set_password(Some(HIDDEN));
        }
        serde_json::json!({
            "id": self.id.to_string(),
            "name": self.name,
            "url": url.as_str(),
            "interval": written(self.interval),
            "timeout": written(self.timeout),
            "headers": Value::Object(hidden),
            "isPaused": self.is_paused,
            "maxBody": self.keeping.max_body,
            "keepResults": self.keeping.keep_results,
            "backoff": self.keeping.backoff.map(Backoff::shown),
            "createdAt": self.created_at,
        })
    }
}

fn only_known(request: &Map<String, Value>, known: &[&str]) -> Result<(), Invalid> {
    match request.keys().find(|field| !known.contains(&field.as_str())) {
        Some(other) => Err(invalid(format!("`{}` cannot be set; what can is {}", shortened(other), known.join(", ")))),
        None => Ok(()),
    }
}

fn target(text: &str) -> Result<Url, Invalid> {
    if text.len() > LONGEST_URL {
        return Err(invalid(format!("`url` has {} bytes; {LONGEST_URL} are allowed", text.len())));
    }
    let url = Url::parse(text).map_err(|error| match error {
        ParseError::RelativeUrlWithoutBase => invalid("`url` must begin with http:// or https://"),
        error => invalid(format!("`url` is no URL: {error}")),
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid(format!("`url` must begin with http:// or https://, not {}:", url.scheme())));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(invalid("`url` names no host"));
    }
    if safety::is_never(&url) {
        return Err(invalid(format!(
            "`url`: {} is an address that is never polled",
            url.host_str().unwrap_or_default()
        )));
    }
    Ok(url)
}

fn span(
    field: &str,
    text: Option<&str>,
    usual: Duration,
    least: Duration,
    most: Duration,
) -> Result<Duration, Invalid> {
    let Some(text) = text else { return Ok(usual) };
    let span = humantime::parse_duration(text)
        .map_err(|error| invalid(format!("`{field}`: {error}; durations are written 500ms, 5s, 1m30s")))?;
    if span < least || span > most {
        return Err(invalid(format!("`{field}` must be between {} and {}", written(least), written(most))));
    }
    Ok(span)
}

fn headers(value: Option<&Value>) -> Result<HeaderMap, Invalid> {
    let given = match value {
        None | Some(Value::Null) => return Ok(HeaderMap::new()),
        Some(Value::Object(given)) => given,
        Some(_) => return Err(invalid("`headers` must be an object of names and values")),
    };
    if given.len() > MOST_HEADERS {
        return Err(invalid(format!("there are {} headers; {MOST_HEADERS} are allowed", given.len())));
    }
    let (mut headers, mut size) = (HeaderMap::new(), 0);
    for (name, value) in given {
        let shown = shortened(name);
        let value = value.as_str().ok_or_else(|| invalid(format!("the value of header `{shown}` must be text")))?;
        size += name.len() + value.len();
        let name =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid(format!("`{shown}` can be no header")))?;
        if NOT_TO_BE_SET.contains(&name.as_str()) {
            return Err(invalid(format!("header `{name}` is not yours to set")));
        }
        // Never the value itself: it may be a secret.
        let value = HeaderValue::from_str(value)
            .map_err(|_| invalid(format!("the value of header `{name}` has characters that no header may have")))?;
        headers.insert(name, value);
    }
    if size > LARGEST_HEADERS {
        return Err(invalid(format!("the headers have {size} bytes; {LARGEST_HEADERS} are allowed")));
    }
    Ok(headers)
}

/// A span as people write it.
pub fn written(span: Duration) -> String {
    let (hours, rest) = (span.as_secs() / 3_600, Duration::from_secs(span.as_secs() % 3_600));
    let rest = rest + Duration::from_nanos(u64::from(span.subsec_nanos()));
    match (hours, rest.is_zero()) {
        (0, _) => humantime::format_duration(rest).to_string().replace(' ', ""),
        (hours, true) => format!("{hours}h"),
        (hours, false) => format!("{hours}h{}", humantime::format_duration(rest)).replace(' ', ""),
    }
}

/// Enough of a text to know it again.
fn shortened(text: &str) -> String {
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

    fn create(value: Value) -> Result<Session, Invalid> {
        Session::create(map(value), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_session_needs_a_url_and_nothing_else() {
        let session = create(json!({"url": "https://example.org/health"})).unwrap();
        assert_eq!((session.interval, session.timeout, session.is_paused), (USUAL_INTERVAL, USUAL_TIMEOUT, false));
        assert_eq!(session.id.get_version_num(), 7);
        let again = Session::read(&session.id.to_string(), &session.stored()).unwrap();
        assert_eq!(again, session);
        assert_eq!(session.shown()["interval"], "5s");
        assert_eq!(session.shown()["createdAt"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn what_is_not_ours_stays_and_what_is_seen_of_headers_is_their_names() {
        let stored = json!({"id": ID, "url": "http://a", "headers": {"X-Key": "secret"}, "room": {"n": 1.50}, "isPaused": false});
        let session = Session::read(ID, stored.to_string().as_bytes()).unwrap();
        let changed =
            session.change(map(json!({"headers": {"x-key": "***", "other": "1"}, "isPaused": true}))).unwrap();
        let document: Value = serde_json::from_slice(&changed.stored()).unwrap();
        assert_eq!(document["room"], json!({"n": 1.50}));
        assert_eq!(document["headers"], json!({"x-key": "secret", "other": "1"}));
        assert!(changed.is_paused);
        assert!(!changed.shown().to_string().contains("secret"));
        let unknown = session.change(map(json!({"headers": {"unknown": "***"}})));
        assert!(unknown.is_err_and(|error| error.to_string().contains("no header `unknown`")));
    }

    #[test]
    fn what_cannot_be_polled_is_refused_with_a_reason() {
        for (request, why) in [
            (json!({}), "`url` is missing"),
            (json!({"url": 1}), "must be text"),
            (json!({"url": "ftp://a"}), "http:// or https://"),
            (json!({"url": "file:///etc/passwd"}), "http:// or https://"),
            (json!({"url": "no url"}), "http:// or https://"),
            (json!({"url": "http://[::"}), "is no URL"),
            (json!({"url": "http://169.254.169.254/"}), "never polled"),
            (json!({"url": "http://[::ffff:169.254.169.254]/"}), "never polled"),
            (json!({"url": format!("http://a/{}", "x".repeat(3_000))}), "bytes"),
            (json!({"url": "http://a", "id": "1"}), "UUID"),
            (json!({"url": "http://a", "interval": "1ms"}), "between 100ms and 24h"),
            (json!({"url": "http://a", "interval": "25h"}), "between"),
            (json!({"url": "http://a", "interval": 5}), "must be text"),
            (json!({"url": "http://a", "timeout": "soon"}), "durations are written"),
            (json!({"url": "http://a", "headers": {"a\r\nb": "c"}}), "no header"),
            (json!({"url": "http://a", "headers": {"a": "b\r\nc: d"}}), "no header may have"),
            (json!({"url": "http://a", "headers": {"Host": "b"}}), "not yours"),
            (json!({"url": "http://a", "headers": {"tenure-token": "1"}}), "not yours"),
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
    fn what_is_hidden_is_kept_and_told_to_no_other_place() {
        let change = |session: &Session, change: Value| match change {
            Value::Object(change) => session.change(change),
            _ => Err(invalid("no change")),
        };
        let session = create(json!({"url": "http://u:secret@a/", "headers": {"X": "schlüssel"}})).unwrap();
        let shown = session.shown();
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
    fn an_id_is_written_in_one_way() {
        let stored = br#"{"url": "http://a"}"#;
        assert!(Session::read(ID, stored).is_ok());
        let error = Session::read(&ID.to_uppercase(), stored).unwrap_err().to_string();
        assert!(ID.to_uppercase() == ID || error.contains(ID), "{error}");
    }

    proptest! {
        #[test]
        fn whatever_stands_in_the_store_is_read_or_refused(stored in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Session::read(ID, &stored);
        }

        #[test]
        fn whatever_is_asked_for_is_made_or_refused(field in "[a-zA-Z]{1,9}|url|interval|headers|name", text in ".*") {
            let _ = create(json!({"url": "http://a", field.clone(): text.clone()}));
            let _ = create(json!({"url": "http://a", field: {text.clone(): text}}));
        }
    }
}
