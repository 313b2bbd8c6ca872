//! From a URL to a store.

use std::sync::Arc;

use super::{ErrorKind, Store, StoreError};

/// Opens the store at a URL. Nothing is connected until the store is entered.
///
/// `memory:` is a store of this process alone; each call opens a new, empty one.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// let store = tenure::store::open("memory:")?;
/// assert_eq!(store.location(), "memory:");
/// # }
/// let error = tenure::store::open("redis://me:secret@localhost").unwrap_err();
/// assert!(!error.to_string().contains("secret"));
/// # Ok::<(), tenure::store::StoreError>(())
/// ```
///
/// # Errors
/// When the URL is of no kind that this build knows. Secrets in it are not repeated.
pub fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let bad = |message: String| Err(StoreError::new(ErrorKind::Address, message));
    let Some((scheme, rest)) = url.split_once(':') else {
        return bad("a store is given as a URL, such as `memory:`".to_owned());
    };
    match scheme {
        #[cfg(feature = "memory")]
        "memory" if rest.is_empty() => Ok(Arc::new(super::memory::MemoryStore::default())),
        "memory" if !rest.is_empty() => {
            bad("`memory:` has no path: it lives in this process and ends with it".to_owned())
        }
        "memory" => bad("this build of tenure has no memory store; enable the feature `memory`".to_owned()),
        "sqlite" | "redis" | "rediss" | "redis+sentinel" | "redis+cluster" | "valkey" | "valkeys"
        | "valkey+sentinel" | "valkey+cluster" => {
            bad(format!("`{scheme}` stores are not part of tenure {} yet; use `memory:`", env!("CARGO_PKG_VERSION")))
        }
        _ => {
            // What stands before the first colon of a wrong URL may be a secret, unless it looks like a scheme.
            let shown = if scheme.len() <= 20 && scheme.bytes().all(|b| b.is_ascii_lowercase() || b == b'+') {
                format!("`{scheme}:`")
            } else {
                "this URL".to_owned()
            };
            bad(format!("{shown} names no store that tenure knows; use `memory:`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_urls_are_refused_without_repeating_them() {
        for url in [
            "",
            "localhost",
            "memory:/tmp/x",
            "http://user:hunter2@host",
            "hunter2:6379",
            "Hunter2-secret:6379",
            "redis://:hunter2@host",
        ] {
            let error = open(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Address, "{url}");
            assert!(!error.to_string().contains("hunter"), "{error}");
            assert!(!error.is_retryable());
        }
    }
}
