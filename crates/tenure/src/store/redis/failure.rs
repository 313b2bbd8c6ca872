//! Classifies errors of the server and of the connection.

use redis::{RedisError, ServerError};

use crate::store::{ErrorKind, StoreError};

/// Errors that go away by themselves: their prefix and a message.
const TRANSIENT_ERRORS: &[(&str, &str)] = &[
    ("LOADING", "the server is loading its data"),
    ("READONLY", "the server is a read-only replica"),
    ("MOVED", "the key has moved to another cluster node"),
    ("ASK", "the key is moving to another cluster node"),
    ("TRYAGAIN", "keys are moving between cluster nodes"),
    ("CLUSTERDOWN", "the cluster is down"),
    ("MASTERDOWN", "the server is a replica that has lost its primary"),
    ("BUSY", "the server is busy with a slow script"),
    ("OOM", "the server has reached its memory limit; raise `maxmemory` or free some"),
    ("MISCONF", "the server cannot write to its disk and refuses writes"),
    ("NOREPLICAS", "the server has fewer replicas than `min-replicas-to-write`"),
    ("max number of clients", "the server has too many connections; raise `maxclients`"),
];

/// Errors that an operator must fix: their prefix and a message with the remedy.
const PERMANENT_ERRORS: &[(&str, &str)] = &[
    ("NOPERM", "the user lacks a right; docs/redis.md has the ACL line with all of them"),
    ("The user executing the script can't", "the user may not do that; it also needs the commands that scripts use"),
    ("NOAUTH", "the server requires a password; set it as redis://:password@host, or redis://user:password@host"),
    ("WRONGPASS", "wrong user name or password"),
    ("invalid password", "wrong password"),
    ("AUTH <password> called without", "the server has no password, and one was given; leave it out of the URL"),
    ("NEWER", "the namespace record was written by a newer tenure; update this program"),
    ("WRONGTYPE", "a key has another type than Tenure's; rename or delete it, or choose another prefix"),
    ("CROSSSLOT", "the keys of one lease are in different cluster slots"),
    ("DB index is out of range", "the server has no database of that number"),
    ("invalid DB index", "the server has no database of that number"),
    ("unknown command", "the server does not know a command that Tenure needs; use Redis 6.2 or later"),
];

/// Errors of a server that is the wrong one to use: connect again, perhaps to another.
const RECONNECT_ERRORS: &[&str] = &["READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOAUTH"];

/// Classifies an error reply. Scripts check before they write, so nothing was done.
pub(super) fn from_server_error(location: &str, error: &ServerError) -> StoreError {
    from_text(location, &text_of(error))
}

/// Whether this error means that the server is the wrong one to use.
pub(super) fn is_reconnect_error(error: &ServerError) -> bool {
    let text = text_of(error);
    let parsed = ErrorText::read(&text);
    RECONNECT_ERRORS.iter().any(|word| parsed.words.starts_with(word))
}

/// Whether a script was not run because the server no longer knows it.
pub(super) fn is_missing_script(error: &ServerError) -> bool {
    error.code() == "NOSCRIPT"
}

/// Whether this user may not run the command, or not on these keys.
pub(super) fn is_forbidden(error: &ServerError) -> bool {
    error.code() == "NOPERM"
}

/// The server has lost its scripts although they were loaded again.
pub(super) fn scripts_flushed(location: &str) -> StoreError {
    let why = "the server loses its scripts as soon as they are loaded; check whether a program runs SCRIPT FLUSH";
    StoreError::new(ErrorKind::Unavailable, format!("{location}: {why}"))
}

fn text_of(error: &ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

/// An error's own text. Names of keys follow it, and may be anything.
struct ErrorText<'a> {
    words: &'a str,
    in_script: bool,
}

impl<'a> ErrorText<'a> {
    /// Skips the position of an error inside a script. Older servers prepend it (`ERR Error running script …
    /// @user_script:9: `), and so does Lua for the script's own errors.
    fn read(text: &'a str) -> Self {
        let mut parsed = Self { words: text.strip_prefix("ERR ").unwrap_or(text), in_script: false };
        while let Some((before, after)) = parsed.words.split_once("user_script:")
            && (before.is_empty() || before == "@" || before.starts_with("Error running script"))
            && let Some((line, rest)) = after.split_once(": ")
            && line.trim_start().bytes().all(|byte| byte.is_ascii_digit())
        {
            let rest = rest.strip_prefix('-').unwrap_or(rest);
            parsed = Self { words: rest.strip_prefix("ERR ").unwrap_or(rest), in_script: true };
        }
        parsed
    }
}

fn from_text(location: &str, text: &str) -> StoreError {
    let parsed = ErrorText::read(text);
    let known = |table: &[(&str, &'static str)]| {
        table.iter().find(|(beginning, _)| parsed.words.starts_with(beginning)).map(|(_, why)| *why)
    };
    let shown: String = text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let (kind, why) = match (known(PERMANENT_ERRORS), known(TRANSIENT_ERRORS)) {
        (Some(why), _) => (ErrorKind::Configuration, why),
        (None, Some(why)) => (ErrorKind::Unavailable, why),
        (None, None) if parsed.in_script => (
            ErrorKind::Corrupt,
            "a record of Tenure's was written by another program or a newer version and cannot be read; delete it (`tenure:ns` only when no instance runs)",
        ),
        (None, None) => (ErrorKind::Unavailable, "the server answered with an error"),
    };
    StoreError::new(kind, format!("{location}: {why} (the server said: {shown})"))
}

/// Classifies an error of the connection.
pub(super) fn from_redis_error(location: &str, error: &RedisError) -> StoreError {
    if error.is_io_error() || error.is_connection_dropped() || error.is_timeout() {
        let text = error.to_string();
        // A server that requires a client certificate reports it only after the handshake.
        if let Some((_, word)) = text.split_once("received fatal alert: ") {
            return StoreError::new(ErrorKind::Configuration, format!("{location}: {}", tls_alert(word)));
        }
        return unreachable(location, &text);
    }
    if error.kind() == redis::ErrorKind::AuthenticationFailed {
        let why = "wrong user name or password; set them as redis://user:password@host, or redis://:password@host when there are no users";
        return StoreError::new(ErrorKind::Configuration, format!("{location}: {why}"));
    }
    if error.kind() == redis::ErrorKind::Parse {
        let why = "not a Redis server: its reply cannot be read; check the address";
        return StoreError::new(ErrorKind::Configuration, format!("{location}: {why}"));
    }
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => error.to_string(),
    };
    from_text(location, &text)
}

/// The message for a server that refuses TLS.
pub(super) fn tls_alert(word: &str) -> String {
    format!("the server refused TLS ({word}); if it requires a client certificate, add `?cert=FILE&key=FILE`")
}

pub(super) fn unreachable(location: &str, why: &str) -> StoreError {
    StoreError::new(ErrorKind::Unreachable, format!("{location}: {why}"))
}

/// `INFO server` does not report the run of the server.
pub(super) fn missing_run_id(location: &str) -> StoreError {
    let why = "`INFO server` does not report the run of the server (`run_id`, `uptime_in_seconds`), so a restart would go \
               unnoticed; a proxy or a managed service may hide it: connect to the server itself";
    StoreError::new(ErrorKind::Configuration, format!("{location}: {why}"))
}

/// The server sent a reply that does not match the request.
pub(super) fn unreadable(location: &str, what: &str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("{location}: cannot read the reply about {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_errors_are_retried_and_permanent_ones_are_not() {
        for (text, kind) in [
            ("LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable),
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::Unavailable),
            ("ERR Error running script (call to f_1): @user_script:9: OOM command not allowed", ErrorKind::Unavailable),
            ("WRONGPASS invalid username-password pair or user is disabled.", ErrorKind::Configuration),
            ("NOPERM this user has no permissions to run the 'evalsha' command", ErrorKind::Configuration),
            ("ERR @user_script:9: WRONGTYPE Operation against a key", ErrorKind::Configuration),
            ("ERR Error running script (call to f_1): @user_script:1: WRONGTYPE Operation", ErrorKind::Configuration),
            (
                "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed",
                ErrorKind::Unavailable,
            ),
            (
                "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: The user executing the \
                 script can't run this command or subcommand",
                ErrorKind::Configuration,
            ),
            ("ERR user_script:12: attempt to compare nil with number", ErrorKind::Corrupt),
            (
                "ERR user_script:25: CORRUPT lease:OOM-READONLY-NOPERM script: f, on @user_script:25.",
                ErrorKind::Corrupt,
            ),
            (
                "ERR Error running script (call to f_1): @user_script:9: user_script:9: CORRUPT WRONGTYPE: OOM",
                ErrorKind::Corrupt,
            ),
            ("ERR AUTH <password> called without any password configured", ErrorKind::Configuration),
            ("ERR unknown command `WAITAOF`, with args beginning with: `LOADING`", ErrorKind::Configuration),
            ("ERR something new", ErrorKind::Unavailable),
        ] {
            let error = from_text("redis://host", text);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains("redis://host"), "{error}");
        }
    }
}
