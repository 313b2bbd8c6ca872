//! The name of a document.

use serde::{Deserialize, Serialize};

/// A document: its collection, and its id there.
///
/// ```
/// use tenure::store::DocumentId;
///
/// let id = DocumentId { collection: "servers".to_owned(), id: "eu-1".to_owned() };
/// assert_eq!(id.to_string(), "servers/eu-1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DocumentId {
    /// The collection.
    pub collection: String,
    /// The id in the collection.
    pub id: String,
}

impl std::fmt::Display for DocumentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.collection, self.id)
    }
}
