//! Replies of a Redis server in RESP2.

use std::io::{self, BufRead, Read};

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisReply {
    /// Null, of strings and of arrays.
    Nil,
    /// A string, either simple (`+OK`) or bulk.
    Text(String),
    /// A bulk string that is not UTF-8.
    Bytes(Vec<u8>),
    /// An integer.
    Int(i64),
    /// An array of replies.
    Array(Vec<RedisReply>),
    /// An error with its code: `NOPERM this user has no permissions…`.
    Error(String),
}

impl RedisReply {
    /// Creates the string `text` to compare with.
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    /// The string.
    ///
    /// # Panics
    /// If it is not a string.
    pub fn as_text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("not a text reply: {other:?}"),
        }
    }

    /// The number, even if it came as text.
    ///
    /// # Panics
    /// If it is not a number.
    pub fn as_int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            Self::Text(text) => text.parse().unwrap_or_else(|_| panic!("not a valid number: {text:?}")),
            other => panic!("not a numeric reply: {other:?}"),
        }
    }

    /// The replies of the array.
    ///
    /// # Panics
    /// If it is not an array.
    pub fn as_array(&self) -> &[RedisReply] {
        match self {
            Self::Array(replies) => replies,
            other => panic!("not an array reply: {other:?}"),
        }
    }

    /// Returns whether the reply is an error with this code, for example `NOPERM`.
    pub fn is_error(&self, code: &str) -> bool {
        matches!(self, Self::Error(text) if text.split_whitespace().next() == Some(code))
    }

    /// Reads one reply.
    pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let line = read_line(from)?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| invalid_reply(&line))?;
        Ok(match kind {
            "+" => Self::Text(rest.to_owned()),
            "-" => Self::Error(rest.to_owned()),
            ":" => Self::Int(rest.parse().map_err(|_| invalid_reply(&line))?),
            "$" | "*" if rest == "-1" => Self::Nil,
            "$" => {
                let mut bytes = vec![0; rest.parse().map_err(|_| invalid_reply(&line))?];
                from.read_exact(&mut bytes)?;
                from.read_exact(&mut [0; 2])?;
                String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
            }
            "*" => {
                let count: usize = rest.parse().map_err(|_| invalid_reply(&line))?;
                Self::Array((0..count).map(|_| Self::read(from)).collect::<io::Result<_>>()?)
            }
            _ => return Err(invalid_reply(&line)),
        })
    }
}

/// Encodes a command.
pub(crate) fn encode_command<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words.iter().map(AsRef::as_ref) {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.take(64 * 1024).read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.to_owned()),
        None if line.is_empty() => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
        None => Err(invalid_reply(&line)),
    }
}

fn invalid_reply(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a valid reply: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut bytes: &[u8]) -> io::Result<RedisReply> {
        RedisReply::read(&mut bytes)
    }

    #[test]
    fn every_kind_of_reply_is_read() {
        assert_eq!(read(b"+OK\r\n").unwrap(), RedisReply::text("OK"));
        assert_eq!(read(b"$4\r\na\r\nb\r\n").unwrap(), RedisReply::text("a\r\nb"));
        assert_eq!(read(b"$1\r\n\xff\r\n").unwrap(), RedisReply::Bytes(vec![0xff]));
        assert_eq!(read(b":-7\r\n").unwrap(), RedisReply::Int(-7));
        assert_eq!(read(b"$-1\r\n").unwrap(), RedisReply::Nil);
        assert_eq!(read(b"*-1\r\n").unwrap(), RedisReply::Nil);
        assert_eq!(
            read(b"*3\r\n$0\r\n\r\n*1\r\n:1\r\n-ERR no\r\n").unwrap(),
            RedisReply::Array(vec![
                RedisReply::text(""),
                RedisReply::Array(vec![RedisReply::Int(1)]),
                RedisReply::Error("ERR no".to_owned())
            ])
        );
    }

    #[test]
    fn an_invalid_reply_is_an_error() {
        for bytes in [&b""[..], b"+OK", b"\r\n", b":x\r\n", b"$5\r\nab\r\n", b"%1\r\n", b"$x\r\n"] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_command_is_an_array_of_strings() {
        assert_eq!(encode_command(&["GET", "it's"]), b"*2\r\n$3\r\nGET\r\n$4\r\nit's\r\n");
    }
}
