//! The interface of a store under test.

use std::sync::Arc;
use std::time::Duration;

use tenure::LeaseName;
use tenure::store::{Keyspace, ServerInfo, Store};

/// A store under test, with the operations of foreign programs.
pub(crate) trait DifferentialFixture: Send + Sync {
    fn store(&self, namespace: &str) -> Arc<dyn Store>;
    /// What it knows about itself, regardless of the time, depending on whether the namespace was attached before and
    /// has records of terms.
    fn server_info(&self, subscribers: usize, was_attached: bool, has_terms: bool) -> ServerInfo;
    fn flush(&self, namespace: &str);
    fn write_foreign(&self, namespace: &str, name: &LeaseName, holder: &str, ttl: Option<Duration>);
    fn delete_foreign(&self, namespace: &str, name: &LeaseName);
}

pub(crate) fn keyspace(namespace: &str) -> Keyspace {
    Keyspace::default().namespace(namespace).unwrap()
}
