//! Small lists of words in the store, which anybody may read: for what an instance leaves behind that is about to end.

use super::Tenure;
use crate::store::{Reply, Request, StoreError};

impl Tenure {
    /// Puts a word into a small list in the store, for whoever [reads](Self::list_entries) it; of one word there is one.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// It may or may not be written.
    pub async fn add_to_list(&self, list: &str, entry: &str) -> Result<(), StoreError> {
        let (index, entry) = (list_index(list), entry.to_owned());
        self.call_for_work(Request::IndexAdd { index, entry, announced: false }).await.map(drop)
    }

    /// The words of a small list.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn list_entries(&self, list: &str) -> Result<Vec<String>, StoreError> {
        match self.call(Request::IndexList { index: list_index(list) }).await? {
            Reply::Index(entries) => Ok(entries),
            other => Err(self.unexpected_reply(&other)),
        }
    }

    /// Takes a word out of a small list.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// It may or may not be taken out.
    pub async fn remove_from_list(&self, list: &str, entry: &str) -> Result<(), StoreError> {
        let (index, entry) = (list_index(list), entry.to_owned());
        self.call(Request::IndexRemove { index, entry, announced: false }).await.map(drop)
    }
}

/// The index that a list is.
fn list_index(list: &str) -> String {
    format!("words:{list}")
}
