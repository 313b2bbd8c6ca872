//! Values in columns, as Tenure writes them. Anything else is another program's, and is refused.

use std::time::Duration;

use rusqlite::{Error, Result, Row};

use crate::name::{Group, InstanceId};
use crate::store::RecordedEnd;
use crate::time::ServerTime;
use crate::token::Token;

/// Decoded text, or `None` for NULL.
pub(super) fn decoded<T>(row: &Row<'_>, at: usize, decode: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
    match row.get::<_, Option<String>>(at)? {
        Some(text) => decode(&text).map(Some).ok_or_else(|| unreadable(at)),
        None => Ok(None),
    }
}

pub(super) fn ended(row: &Row<'_>, at: usize) -> Result<RecordedEnd> {
    decoded(row, at, RecordedEnd::from_word)?.ok_or_else(|| unreadable(at))
}

pub(super) fn instance(row: &Row<'_>, at: usize) -> Result<InstanceId> {
    Ok(InstanceId::foreign(&row.get::<_, String>(at)?))
}

pub(super) fn token(row: &Row<'_>, at: usize) -> Result<Token> {
    Token::new(unsigned(row, at)?).ok_or_else(|| unreadable(at))
}

pub(super) fn time(row: &Row<'_>, at: usize) -> Result<ServerTime> {
    unsigned(row, at).map(ServerTime::from_micros)
}

pub(super) fn optional_time(row: &Row<'_>, at: usize) -> Result<Option<ServerTime>> {
    match row.get::<_, Option<i64>>(at)? {
        Some(_) => time(row, at).map(Some),
        None => Ok(None),
    }
}

pub(super) fn unsigned(row: &Row<'_>, at: usize) -> Result<u64> {
    u64::try_from(row.get::<_, i64>(at)?).map_err(|_| unreadable(at))
}

/// A value that Tenure did not write.
pub(super) fn unreadable(at: usize) -> Error {
    Error::InvalidColumnType(at, "a value that tenure did not write".to_owned(), rusqlite::types::Type::Null)
}

/// The name of a group in the rows.
pub(super) fn group_column(group: &Group) -> &str {
    group.prefix().unwrap_or_default()
}

pub(super) fn from_token(token: Token) -> i64 {
    signed(token.get())
}

pub(super) fn from_time(time: ServerTime) -> i64 {
    signed(time.as_micros())
}

pub(super) fn from_span(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
