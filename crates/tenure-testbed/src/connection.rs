//! A minimal Redis client.

use std::io::{self, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::reply::{self, RedisReply};

/// Default timeout for connecting, reading and writing.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection to a server, or to a [`Proxy`](crate::Proxy) in front of it.
#[derive(Debug)]
pub struct RawConnection {
    stream: BufReader<TcpStream>,
}

impl RawConnection {
    /// Connects. Every later wait on this connection times out after ten seconds.
    ///
    /// # Errors
    /// If the connection is refused or times out.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, DEFAULT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(DEFAULT_TIMEOUT))?;
        let connection = Self { stream: BufReader::new(stream) };
        connection.set_timeout(DEFAULT_TIMEOUT)?;
        Ok(connection)
    }

    /// Sets the timeout for each reply.
    ///
    /// # Errors
    /// If `time` is zero.
    pub fn set_timeout(&self, time: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(time))
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    /// If the connection is closed or the reply times out.
    pub fn command<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<RedisReply> {
        self.send(words)?;
        self.receive()
    }

    /// Sends a command without waiting for its reply.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<()> {
        self.stream.get_mut().write_all(&reply::encode_command(words))
    }

    /// Sends all commands at once, then waits for all replies.
    ///
    /// # Errors
    /// If the connection is closed or a reply times out.
    pub fn pipeline<W: AsRef<[u8]>>(&mut self, commands: &[&[W]]) -> io::Result<Vec<RedisReply>> {
        let bytes: Vec<_> = commands.iter().flat_map(|words| reply::encode_command(words)).collect();
        self.stream.get_mut().write_all(&bytes)?;
        commands.iter().map(|_| self.receive()).collect()
    }

    /// Waits for a reply or for a message to a subscriber.
    ///
    /// # Errors
    /// If the connection is closed or the reply times out.
    pub fn receive(&mut self) -> io::Result<RedisReply> {
        RedisReply::read(&mut self.stream)
    }
}
