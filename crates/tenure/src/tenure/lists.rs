//! Small lists of strings in the store that any instance may read: for notes of an instance that is about to end.

use super::Tenure;
use crate::store::{Reply, Request, StoreError};

impl Tenure {
    /// Adds an entry to a small list in the store, unless the list has it. Any instance can [read](Self::list_entries)
    /// the list.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The entry may or may not be added.
    pub async fn add_to_list(&self, list: &str, entry: &str) -> Result<(), StoreError> {
        let (index, entry) = (list_index(list), entry.to_owned());
        self.call_for_work(Request::IndexAdd { index, entry, announced: false }).await.map(drop)
    }

    /// Reads the entries of a small list.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn list_entries(&self, list: &str) -> Result<Vec<String>, StoreError> {
        match self.call(Request::IndexList { index: list_index(list) }).await? {
            Reply::Index(entries) => Ok(entries),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Removes an entry from a small list.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The entry may or may not be removed.
    pub async fn remove_from_list(&self, list: &str, entry: &str) -> Result<(), StoreError> {
        let (index, entry) = (list_index(list), entry.to_owned());
        self.call(Request::IndexRemove { index, entry, announced: false }).await.map(drop)
    }
}

/// The index that stores a list.
fn list_index(list: &str) -> String {
    format!("words:{list}")
}
