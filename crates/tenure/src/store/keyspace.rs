//! The names of keys: the namespace prefix of all of them, and the configurable prefixes.

use std::collections::BTreeMap;

use crate::name::{NameError, check, check_prefix};

/// The words with which keys begin by default.
const KEY_WORDS: [&str; 5] = ["heartbeat", "leader", "lease", "poll", "tenure"];

/// The keys of one deployment.
///
/// Two deployments with different namespaces can share a store and never interfere.
///
/// ```
/// use tenure::store::Keyspace;
///
/// let keyspace = Keyspace::default().namespace("staging")?;
/// assert!(Keyspace::default().namespace("a{b").is_err());
/// assert!(Keyspace::default().namespace("a:leader").is_err());
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyspace {
    prefix: String,
    node: String,
    /// The prefixes of collections with a prefix of their own.
    documents: BTreeMap<String, String>,
}

impl Default for Keyspace {
    fn default() -> Self {
        Self { prefix: String::new(), node: "poll:node:".to_owned(), documents: BTreeMap::new() }
    }
}

impl Keyspace {
    /// Puts `NAME:` before every key.
    ///
    /// # Errors
    /// When the name is empty, too long, or has a character that is not allowed. Braces are not allowed: a hash tag
    /// belongs in the prefix of a lease. Words with which keys begin are not allowed, as in `a:leader`: its keys would
    /// be leaderships of the namespace `a`.
    pub fn namespace(mut self, name: &str) -> Result<Self, NameError> {
        check("namespace", name)?;
        if let Some(word) = name.split(':').find(|word| KEY_WORDS.contains(word)) {
            return Err(NameError::KeyWord { namespace: name.to_owned(), word: word.to_owned() });
        }
        self.prefix = format!("{name}:");
        Ok(self)
    }

    /// Sets the prefix of heartbeat keys, `poll:node:` by default.
    ///
    /// # Errors
    /// When the prefix is empty, too long, or has a character that is not allowed.
    pub fn node_prefix(mut self, prefix: &str) -> Result<Self, NameError> {
        check_prefix(prefix)?;
        self.node = prefix.to_owned();
        Ok(self)
    }

    /// Sets the prefix of the keys of a collection of documents, `tenure:doc:<collection>:` by default.
    ///
    /// # Errors
    /// When the collection or the prefix is empty, too long, or has a character that is not allowed.
    pub fn document_prefix(mut self, collection: &str, prefix: &str) -> Result<Self, NameError> {
        check("collection", collection)?;
        check_prefix(prefix)?;
        self.documents.insert(collection.to_owned(), prefix.to_owned());
        Ok(self)
    }

    /// The prefix of every key: empty, or the namespace and a colon.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The prefix of heartbeats, namespace included.
    pub fn node(&self) -> String {
        format!("{}{}", self.prefix, self.node)
    }

    /// The prefix of the documents of a collection, namespace included.
    pub fn documents(&self, collection: &str) -> String {
        match self.documents.get(collection) {
            Some(prefix) => format!("{}{prefix}", self.prefix),
            None => format!("{}tenure:doc:{collection}:", self.prefix),
        }
    }
}
