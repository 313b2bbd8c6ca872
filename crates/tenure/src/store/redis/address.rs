//! Parses a URL into an address. Secrets stay in here.

use std::sync::Arc;

use redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

#[cfg(feature = "tls")]
use super::tls::{Tls, TlsOptions};
use crate::store::{BoxFuture, ErrorKind, StoreError};

/// A user and a password.
///
/// ```
/// use tenure::store::redis::{Credentials, RedisStore};
/// use tenure::store::{ErrorKind, Keyspace, StoreError};
///
/// # fn main() -> Result<(), StoreError> {
/// let store = RedisStore::open("redis://cache.internal", &Keyspace::default())?.credentials(|| async {
///     let password = std::fs::read_to_string("/run/secrets/redis"); // again for each connection
///     let password = password.map_err(|error| StoreError::new(ErrorKind::Configuration, error.to_string()))?;
///     Ok(Credentials::password(password.trim_end()))
/// });
/// assert_eq!(format!("{:?}", Credentials::new("tenure", "secret")), "Credentials(***)");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Credentials {
    user: Option<String>,
    password: String,
}

impl Credentials {
    /// A user and its password.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: password.into() }
    }

    /// The password of the server's default user.
    pub fn password(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into() }
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(***)")
    }
}

/// Called for credentials before each connection.
pub(super) type CredentialsProvider =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Credentials, StoreError>> + Send + Sync>;

/// The address of a server and its login.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    login: RedisConnectionInfo,
    pub(super) credentials: Option<CredentialsProvider>,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
    /// The URL without user and password.
    pub(super) location: String,
}

impl Address {
    /// Parses `redis://[user:password@]host[:port][/database]`, or
    /// `rediss://…[?ca=FILE&cert=FILE&key=FILE&server-name=NAME]`.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let bad = |why: &str| {
            let form = "use redis://[user:password@]host[:port][/database], or rediss://…[?ca=FILE&cert=FILE&key=FILE&server-name=NAME] \
                        with TLS, and escape characters that have a meaning in URLs as %2F, %40 and so on";
            StoreError::new(ErrorKind::Address, format!("{why}; {form}"))
        };
        let (plain, options) = url.split_once('?').map_or((url, None), |(plain, options)| (plain, Some(options)));
        let (scheme, rest) = plain.split_once("://").ok_or_else(|| bad("the host is missing"))?;
        let encrypted = matches!(scheme, "rediss" | "valkeys");
        if encrypted && !cfg!(feature = "tls") {
            return Err(bad("this build of tenure has no TLS support; enable the feature `tls`"));
        }
        if options.is_some() && !encrypted {
            return Err(bad("only rediss:// takes options after `?`"));
        }
        let info = format!("redis://{rest}").into_connection_info().map_err(|error| {
            // The error's detail, which contains no part of the URL.
            bad(error.detail().unwrap_or("cannot parse the URL"))
        })?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return Err(bad("only TCP addresses are supported"));
        };
        if host.is_empty() {
            return Err(bad("the host is missing"));
        }
        let login = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
        let database = login.db();
        let shown = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let path = if database == 0 { String::new() } else { format!("/{database}") };
        let scheme = if encrypted { "rediss" } else { "redis" };
        Ok(Self {
            host: host.clone(),
            port: *port,
            login,
            credentials: None,
            #[cfg(feature = "tls")]
            tls: encrypted.then(|| Tls::new(host, tls_options(options, bad)?)).transpose()?,
            location: format!("{scheme}://{shown}:{port}{path}"),
        })
    }

    /// Whether connections are not encrypted.
    pub(super) fn is_plain(&self) -> bool {
        self.location.starts_with("redis://")
    }

    /// The number of the database.
    pub(super) fn database(&self) -> i64 {
        self.login.db()
    }

    /// The login to use now: passwords may be tokens that expire.
    pub(super) async fn login(&self) -> Result<RedisConnectionInfo, StoreError> {
        let Some(provider) = &self.credentials else { return Ok(self.login.clone()) };
        let Credentials { user, password } = provider().await?;
        let login = self.login.clone().set_password(password);
        Ok(match user {
            Some(user) => login.set_username(user),
            None => login,
        })
    }
}

#[cfg(feature = "tls")]
fn tls_options(options: Option<&str>, bad: impl Fn(&str) -> StoreError) -> Result<TlsOptions, StoreError> {
    let mut read = TlsOptions::default();
    for option in options.unwrap_or_default().split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').ok_or_else(|| bad("an option after `?` must be NAME=VALUE"))?;
        let value = percent_encoding::percent_decode_str(value);
        let value = value.decode_utf8().map_err(|_| bad("an option after `?` is not valid UTF-8"))?.into_owned();
        match name {
            "ca" => read.ca = Some(value.into()),
            "cert" => read.cert = Some(value.into()),
            "key" => read.key = Some(value.into()),
            "server-name" => read.server_name = Some(value),
            _ => return Err(bad("the only options after `?` are ca, cert, key and server-name")),
        }
    }
    Ok(read)
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
    fn an_invalid_address_is_refused_without_repeating_it() {
        for url in [
            "redis://",
            "redis://:hunter2@",
            "redis://h:hunter2/",
            "redis://h/hunter2",
            "redis+unix:///hunter2",
            "redis://h?ca=hunter2",
            "rediss://h?password=hunter2",
        ] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
