//! From a URL to an address. Secrets stay in here.

use redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

use crate::store::{ErrorKind, StoreError};

/// Where a server is and how to log in.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) login: RedisConnectionInfo,
    /// The URL without user and password.
    pub(super) location: String,
}

impl Address {
    /// Reads `redis://[user:password@]host[:port][/database]`.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let bad = |why: &str| {
            let form = "a Redis store is written redis://[user:password@]host[:port][/database], with whatever has a \
                        meaning in URLs written as %2F, %40 and so on";
            StoreError::new(ErrorKind::Address, format!("{why}; {form}"))
        };
        if url.contains('?') {
            return Err(bad("nothing can be set with `?`"));
        }
        let info = url.into_connection_info().map_err(|error| {
            // The error's own text, which has no part of the URL in it.
            bad(error.detail().unwrap_or("this is no such URL"))
        })?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return Err(bad("only TCP addresses can be used"));
        };
        if host.is_empty() {
            return Err(bad("the host is missing"));
        }
        let login = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
        let database = login.db();
        let shown = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let path = if database == 0 { String::new() } else { format!("/{database}") };
        Ok(Self { host: host.clone(), port: *port, login, location: format!("redis://{shown}:{port}{path}") })
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.location)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_location_has_everything_but_the_secrets() {
        let address = Address::parse("redis://me:hunter2@10.0.0.7:7000/3").unwrap();
        assert_eq!(address.location, "redis://10.0.0.7:7000/3");
        assert!(!format!("{address:?}").contains("hunter2"));
        assert_eq!(Address::parse("redis://localhost").unwrap().location, "redis://localhost:6379");
        assert_eq!(Address::parse("valkey://[::1]/").unwrap().location, "redis://[::1]:6379");
    }

    #[test]
    fn what_is_no_address_is_refused_without_repeating_it() {
        for url in ["redis://", "redis://:hunter2@", "redis://h:hunter2/", "redis://h/hunter2", "redis+unix:///hunter2"]
        {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
