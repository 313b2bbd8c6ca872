//! Opens a store by its URL.

use std::sync::Arc;

use super::{ErrorKind, Keyspace, Store, StoreError};

/// The supported URLs, for error messages.
const SUPPORTED_URLS: &str = "use `redis://host`, `rediss://host`, `sqlite:PATH` or `memory:`";

/// Opens the store at a URL. It connects only when a client attaches.
///
/// | URL | store |
/// |---|---|
/// | `redis://[user:password@]host[:port][/database]` | a Redis or Valkey server; `valkey://` is the same |
/// | `rediss://…[?ca=FILE&cert=FILE&key=FILE&server-name=NAME]` | the same over TLS (feature `tls`); without `ca` the system's roots; `valkeys://` is the same |
/// | `sqlite:PATH` | a file that the processes of one host share |
/// | `memory:` | this process alone; each call opens a new, empty one |
///
/// ```
/// use tenure::store::{Keyspace, open};
///
/// # #[cfg(feature = "memory")] {
/// let store = open("memory:", &Keyspace::default())?;
/// assert_eq!(store.location(), "memory:");
/// # }
/// let error = open("redsi://me:secret@localhost", &Keyspace::default()).unwrap_err();
/// assert!(!error.to_string().contains("secret"));
/// # Ok::<(), tenure::store::StoreError>(())
/// ```
///
/// # Errors
/// When this build does not support the URL. The error does not repeat secrets in it.
pub fn open(url: &str, keyspace: &Keyspace) -> Result<Arc<dyn Store>, StoreError> {
    let bad = |message: String| Err(StoreError::new(ErrorKind::Address, message));
    let Some((scheme, rest)) = url.split_once(':') else {
        return bad(format!("cannot open the store: not a URL; {SUPPORTED_URLS}"));
    };
    match scheme {
        "memory" => memory(rest),
        "sqlite" => sqlite(rest, keyspace),
        "redis" | "valkey" => redis(url, keyspace),
        "rediss" | "valkeys" => encrypted_redis(url, keyspace),
        "redis+sentinel" | "redis+cluster" | "rediss+sentinel" | "rediss+cluster" | "valkey+sentinel"
        | "valkey+cluster" | "valkeys+sentinel" | "valkeys+cluster" => {
            bad(format!("`{scheme}` stores are not part of tenure {} yet; {SUPPORTED_URLS}", env!("CARGO_PKG_VERSION")))
        }
        _ => {
            // The part before the first colon of a wrong URL may be a secret, unless it looks like a scheme.
            let shown = if scheme.len() <= 20 && scheme.bytes().all(|b| b.is_ascii_lowercase() || b == b'+') {
                format!("`{scheme}:`")
            } else {
                "this URL".to_owned()
            };
            bad(format!("{shown} is not a supported store; {SUPPORTED_URLS}"))
        }
    }
}

#[cfg(feature = "memory")]
fn memory(rest: &str) -> Result<Arc<dyn Store>, StoreError> {
    if !rest.is_empty() {
        let message = "`memory:` takes no path: it lives in this process and ends with it";
        return Err(StoreError::new(ErrorKind::Address, message));
    }
    Ok(Arc::new(super::memory::MemoryStore::default()))
}

#[cfg(not(feature = "memory"))]
fn memory(_rest: &str) -> Result<Arc<dyn Store>, StoreError> {
    Err(not_built("memory"))
}

#[cfg(feature = "sqlite")]
fn sqlite(path: &str, keyspace: &Keyspace) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(super::sqlite::SqliteStore::open(path, keyspace)?))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_path: &str, _keyspace: &Keyspace) -> Result<Arc<dyn Store>, StoreError> {
    Err(not_built("sqlite"))
}

#[cfg(feature = "redis")]
fn redis(url: &str, keyspace: &Keyspace) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(super::redis::RedisStore::open(url, keyspace)?))
}

#[cfg(not(feature = "redis"))]
fn redis(_url: &str, _keyspace: &Keyspace) -> Result<Arc<dyn Store>, StoreError> {
    Err(not_built("redis"))
}

#[cfg(feature = "tls")]
fn encrypted_redis(url: &str, keyspace: &Keyspace) -> Result<Arc<dyn Store>, StoreError> {
    redis(url, keyspace)
}

#[cfg(not(feature = "tls"))]
fn encrypted_redis(_url: &str, _keyspace: &Keyspace) -> Result<Arc<dyn Store>, StoreError> {
    Err(not_built("tls"))
}

#[cfg(not(all(feature = "memory", feature = "sqlite", feature = "redis", feature = "tls")))]
fn not_built(feature: &str) -> StoreError {
    let message = format!(
        "this build of tenure does not have the feature `{feature}`, which this store needs; add it to Cargo.toml: \
         tenure = {{ …, features = [\"{feature}\"] }}"
    );
    StoreError::new(ErrorKind::Address, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(feature = "sqlite"))]
    fn the_error_for_a_store_that_is_not_compiled_in_names_the_feature() {
        let error = open("sqlite:jobs.db", &Keyspace::default()).unwrap_err().to_string();
        assert!(error.contains("features = [\"sqlite\"]"), "{error}");
    }

    #[test]
    fn wrong_urls_are_refused_without_repeating_them() {
        for url in [
            "",
            "localhost",
            "memory:/tmp/x",
            "sqlite:",
            "http://user:hunter2@host",
            "hunter2:6379",
            "Hunter2-secret:6379",
            "redis://:hunter2@",
            "rediss://:hunter2@",
            "rediss://host?ca=/no/such/file",
            "redis+cluster://:hunter2@host",
            "valkey+sentinel://:hunter2@host",
        ] {
            let error = open(url, &Keyspace::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Address, "{url}");
            assert!(!error.to_string().contains("hunter"), "{error}");
            assert!(!error.is_retryable());
        }
    }
}
