//! Small lists of words in the store, which anybody may read: for what an instance leaves behind that is about to end.

use super::Tenure;
use crate::store::{Reply, Request, StoreError};

impl Tenure {
    /// Puts a word into a small list in the store, for whoever [reads](Self::words) it; of one word there is one.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// It may or may not be written.
    pub async fn leave_word(&self, list: &str, word: &str) -> Result<(), StoreError> {
        let (index, entry) = (words_of(list), word.to_owned());
        self.ask_for_work(Request::IndexAdd { index, entry, announced: false }).await.map(drop)
    }

    /// The words of a small list.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn words(&self, list: &str) -> Result<Vec<String>, StoreError> {
        match self.ask(Request::IndexList { index: words_of(list) }).await? {
            Reply::Index(words) => Ok(words),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Takes a word out of a small list.
    ///
    /// # Errors
    /// When the store cannot be asked.
    ///
    /// # Cancel safety
    /// It may or may not be taken out.
    pub async fn strike_word(&self, list: &str, word: &str) -> Result<(), StoreError> {
        let (index, entry) = (words_of(list), word.to_owned());
        self.ask(Request::IndexRemove { index, entry, announced: false }).await.map(drop)
    }
}

/// The index that a list is.
fn words_of(list: &str) -> String {
    format!("words:{list}")
}
