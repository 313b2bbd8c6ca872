//! Targets as the work sees them: a name, and the payload that the program gave with it.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

use super::TargetName;

/// A target with its payload. It dereferences to the payload, prints as its name, and compares by its name.
///
/// ```
/// use std::collections::HashMap;
/// use tenure::Tenure;
///
/// struct Server {
///     url: String,
/// }
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = tenure
///     .pool("poll")
///     .targets([("eu-1", Server { url: "http://10.0.0.7".to_owned() })])
///     .run(async |target, term| {
///         println!("{target} is at {}", target.url);
///         term.draining().await;
///         Ok(())
///     })
///     .start()?;
/// # while pool.owned().is_empty() { tokio::time::sleep(std::time::Duration::from_millis(5)).await; }
/// let by_name: HashMap<String, u32> = HashMap::from([("eu-1".to_owned(), 17)]);
/// for target in pool.owned() {
///     assert_eq!(by_name.get(target.name()), Some(&17));
/// }
/// pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Target<T = ()> {
    name: TargetName,
    payload: Arc<T>,
    updates: watch::Receiver<Arc<T>>,
}

impl<T> Target<T> {
    /// The name of the target.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The payload, as of the last [`refresh`](Self::refresh) or [`changed`](Self::changed).
    pub fn payload(&self) -> &Arc<T> {
        &self.payload
    }

    /// Takes over the latest payload: the one given with the last [set of targets](super::Pool::retarget). Returns
    /// whether one was given since the last call.
    pub fn refresh(&mut self) -> bool {
        let latest = self.updates.borrow_and_update();
        let is_new = latest.has_changed();
        self.payload = latest.clone();
        is_new
    }

    /// Waits until another payload is given, even an equal one, and takes it over. Does not return when the target is
    /// removed: then its term ends.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn changed(&mut self) {
        if self.updates.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.refresh();
    }
}

impl<T> Clone for Target<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), payload: self.payload.clone(), updates: self.updates.clone() }
    }
}

impl<T> Deref for Target<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.payload
    }
}

impl<T> AsRef<str> for Target<T> {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

impl<T> PartialEq for Target<T> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl<T> Eq for Target<T> {}

impl<T> PartialOrd for Target<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Target<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl<T> fmt::Display for Target<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

impl<T> fmt::Debug for Target<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.name)
    }
}

/// A target as a program gives it to a pool: its name, or a pair of its name and a payload.
///
/// ```
/// use tenure::Tenure;
/// use tenure::pool::{IntoTarget, TargetName};
///
/// struct Server {
///     id: u32,
///     url: &'static str,
/// }
///
/// impl IntoTarget for Server {
///     type Payload = Self;
///
///     fn into_target(self) -> (TargetName, Self) {
///         (format!("server-{}", self.id).into(), self)
///     }
/// }
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let servers = [Server { id: 7, url: "http://10.0.0.7" }]; // from a database
/// let pool = tenure.pool("poll").targets(servers).run(async |server, term| {
///     println!("{server} is at {}", server.url);
///     term.draining().await;
///     Ok(())
/// });
/// # pool.start()?.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait IntoTarget {
    /// The payload; `()` for a name alone.
    type Payload;

    /// The name and the payload.
    fn into_target(self) -> (TargetName, Self::Payload);
}

impl<N: AsRef<str>, T> IntoTarget for (N, T) {
    type Payload = T;

    fn into_target(self) -> (TargetName, T) {
        (self.0.as_ref().into(), self.1)
    }
}

macro_rules! names_are_targets {
    ($($name:ty),+) => {$(
        impl IntoTarget for $name {
            type Payload = ();

            fn into_target(self) -> (TargetName, ()) {
                (TargetName::from(self.to_owned()), ())
            }
        }
    )+};
}

names_are_targets!(&str, String, TargetName);

impl IntoTarget for &String {
    type Payload = ();

    fn into_target(self) -> (TargetName, ()) {
        self.as_str().into_target()
    }
}

/// The payloads of a pool's targets. The driver knows only names.
pub(super) struct Payloads<T>(Arc<RwLock<HashMap<TargetName, watch::Sender<Arc<T>>>>>);

impl<T> Payloads<T> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Replaces the set of targets, updates the payloads of those that stay, and passes the names on, before another
    /// caller can replace the set again.
    pub(super) fn replace<R>(
        &self,
        targets: impl IntoIterator<Item = (TargetName, T)>,
        pass_on: impl FnOnce(BTreeSet<TargetName>) -> R,
    ) -> R {
        let mut payloads = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut names = BTreeSet::new();
        for (name, payload) in targets {
            let payload = Arc::new(payload);
            match payloads.get(&name) {
                Some(sender) => drop(sender.send_replace(payload)),
                None => drop(payloads.insert(name.clone(), watch::Sender::new(payload))),
            }
            names.insert(name);
        }
        payloads.retain(|name, _| names.contains(name));
        pass_on(names)
    }

    /// A target with its present payload. `None` when there is no such target any more.
    pub(super) fn target(&self, name: &TargetName) -> Option<Target<T>> {
        let payloads = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let updates = payloads.get(name)?.subscribe();
        let payload = updates.borrow().clone();
        Some(Target { name: name.clone(), payload, updates })
    }
}

impl<T> Clone for Payloads<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<T>(payloads: &Payloads<T>, all: &[&str]) -> Vec<String> {
        let found = all.iter().filter_map(|name| payloads.target(&TargetName::from(*name)));
        found.map(|target| target.to_string()).collect()
    }

    #[test]
    fn a_new_set_replaces_the_old_one_and_updates_payloads_in_place() {
        let payloads = Payloads::new();
        payloads.replace([("a".into(), 1), ("b".into(), 2)], drop);
        let mut kept = payloads.target(&"a".into()).unwrap();
        let mut removed = payloads.target(&"b".into()).unwrap();
        assert_eq!((*kept, kept.refresh()), (1, false));
        let set = payloads.replace([("a".into(), 10), ("c".into(), 3)], |set| set);
        assert_eq!(set.into_iter().collect::<Vec<_>>(), ["a".into(), "c".into()] as [TargetName; 2]);
        assert_eq!(*kept, 1, "the work sees another payload when it asks for it");
        assert!(kept.refresh());
        assert_eq!((*kept, kept.refresh()), (10, false));
        assert!(!removed.refresh());
        assert_eq!(*removed, 2, "a removed target keeps its last payload until its term has ended");
        assert_eq!(names(&payloads, &["a", "b", "c"]), ["a", "c"]);
    }

    #[test]
    fn a_target_is_its_name_in_order_and_in_texts() {
        let payloads = Payloads::new();
        payloads.replace([("a".into(), ()), ("b".into(), ())], drop);
        let target = payloads.target(&"a".into()).unwrap();
        assert_eq!(format!("{target:>3}|{target:?}"), "  a|Target(a)");
        assert!(target < payloads.target(&"b".into()).unwrap());
    }
}
