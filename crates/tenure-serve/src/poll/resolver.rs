//! Resolves names as the system is configured (`/etc/resolv.conf`, `/etc/hosts`), but without its threads, so that a
//! lookup without a waiter can be cancelled.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;

use super::lookup::LookupFn;

/// The configuration files.
const CONFIG_FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// Interval of checking whether they have changed.
const CONFIG_CHECK_EVERY: Duration = Duration::from_secs(5);

/// Longest time that a reply is cached. An operator who moves a target expects it to be found soon.
const MAX_DNS_TTL: Duration = Duration::from_secs(30);

/// Returns the lookup of the system's configuration.
pub(super) fn system_lookup() -> LookupFn {
    let resolver = Arc::new(SystemResolver::default());
    Arc::new(move |name| {
        let resolver = resolver.clone();
        Box::pin(async move {
            let found = resolver.current()?.lookup_ip(name).await.map_err(to_io_error)?;
            Ok(found.iter().map(|address| SocketAddr::new(address, 0)).collect())
        })
    })
}

#[derive(Default)]
struct SystemResolver(Mutex<Option<LoadedResolver>>);

struct LoadedResolver {
    resolver: TokioResolver,
    changed: [Option<SystemTime>; 2],
    checked_at: Instant,
}

impl SystemResolver {
    /// Returns the resolver, rebuilt when the system's configuration has changed.
    fn current(&self) -> io::Result<TokioResolver> {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(loaded) = &*loaded
            && now.duration_since(loaded.checked_at) < CONFIG_CHECK_EVERY
        {
            return Ok(loaded.resolver.clone());
        }
        let changed = CONFIG_FILES.map(|file| fs::metadata(file).and_then(|file| file.modified()).ok());
        let resolver = match &*loaded {
            Some(loaded) if loaded.changed == changed => loaded.resolver.clone(),
            _ => load().map_err(to_io_error)?,
        };
        *loaded = Some(LoadedResolver { resolver: resolver.clone(), changed, checked_at: now });
        Ok(resolver)
    }
}

fn load() -> Result<TokioResolver, NetError> {
    let mut builder = TokioResolver::builder_tokio().unwrap_or_else(|_| {
        // Without a readable file, use a name server on this host, as the C library does.
        let here = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![here]);
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    });
    let options = builder.options_mut();
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.positive_max_ttl = Some(MAX_DNS_TTL);
    options.negative_max_ttl = Some(Duration::from_secs(1));
    builder.build()
}

/// Keeps the errno of a local error, which says nothing about the name.
fn to_io_error(error: NetError) -> io::Error {
    match &error {
        NetError::Io(inner) => {
            inner.raw_os_error().map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
        }
        _ => io::Error::other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_of_the_hosts_file_are_found() {
        let found = system_lookup()("localhost".to_owned()).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback()) && !found.is_empty(), "{found:?}");
    }

    #[tokio::test]
    async fn an_invalid_name_is_not_found() {
        let error = system_lookup()("a..b".to_owned()).await.unwrap_err();
        assert_eq!(error.raw_os_error(), None, "{error}");
    }
}
