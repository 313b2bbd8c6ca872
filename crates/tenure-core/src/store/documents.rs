//! Documents: values that any instance may change, values that only the holder of a lease may change, and indexes.

use serde::{Deserialize, Serialize};

use crate::name::LeaseName;
use crate::time::ServerTime;
use crate::token::Token;

use super::{DocumentId, Holding};

/// The index of the deleted documents of a collection about which records may be left.
///
/// ```
/// use tenure::store::deleted_index;
///
/// assert_eq!(deleted_index("servers"), "servers:deleted");
/// ```
pub fn deleted_index(collection: &str) -> String {
    format!("{collection}:deleted")
}

/// Requests about documents, records beside leases, and indexes.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{AttachRequest, DocumentId, DocumentRequest, Keyspace, Outcome, Reply, open};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = open("memory:", &Keyspace::default())?;
/// let connection = store.attach(AttachRequest::new(fastrand::u64(..))).await?;
/// let document = DocumentId { collection: "servers".to_owned(), id: "eu-1".to_owned() };
/// let value = Some(b"10.0.0.7".to_vec());
/// let write = DocumentRequest::Write { document, expected: None, value, fresh: false };
/// let list = DocumentRequest::IndexList { index: "servers".to_owned() };
/// let outcomes = connection.submit(vec![write.into(), list.into()], Duration::from_secs(1)).await;
/// assert_eq!(outcomes[1], Outcome::Answered(Reply::Index(vec!["eu-1".to_owned()])));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentRequest {
    /// Reads documents of a collection.
    Read {
        /// Which collection.
        collection: String,
        /// The ids, at least one.
        ids: Vec<String>,
    },
    /// Sets or deletes a document, if it still is what its writer has seen or already is as requested. A change is
    /// announced. The index with the collection's name has the ids of its documents; that of [deleted](deleted_index)
    /// ones those about which records may be left.
    Write {
        /// Which document.
        document: DocumentId,
        /// What the writer has seen; `None` if there was no document.
        expected: Option<Vec<u8>>,
        /// The new value; `None` to delete the document.
        value: Option<Vec<u8>>,
        /// Whether to refuse while anything is left of a deleted document with this id.
        fresh: bool,
    },
    /// Scans for documents that any program may have written without adding them to the index, one piece at a time. It
    /// finds every document of the collection that exists from the first piece to the last.
    Scan {
        /// Which collection.
        collection: String,
        /// Where the last piece ended; 0 at the beginning.
        cursor: u64,
    },
    /// Writes a record beside the lease, unless the term is over.
    Publish {
        /// The term.
        holding: Holding,
        /// Which record.
        record: String,
        /// The value.
        value: Vec<u8>,
        /// Whether to announce it.
        announced: bool,
    },
    /// Reads a record beside a lease.
    ReadRecord {
        /// Which lease.
        name: LeaseName,
        /// Which record.
        record: String,
    },
    /// Adds an entry to an index.
    IndexAdd {
        /// Which index.
        index: String,
        /// The entry.
        entry: String,
        /// Whether to announce it.
        announced: bool,
    },
    /// Removes an entry from an index.
    IndexRemove {
        /// Which index.
        index: String,
        /// The entry.
        entry: String,
        /// Whether to announce it.
        announced: bool,
    },
    /// Lists the entries of an index.
    IndexList {
        /// Which index.
        index: String,
    },
}

/// A record beside a lease.
///
/// ```
/// use tenure::Tenure;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let lease = tenure.lease("import").acquire().await?;
/// lease.publish("position", "row 17").await?;
///
/// let record = tenure.read("import", "position").await?.ok_or("not published")?;
/// assert_eq!(record.text(), Some("row 17"));
/// if record.token < lease.token() {
///     println!("written in an earlier term");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedRecord {
    /// The term it was published in.
    pub token: Token,
    /// When, by the store's clock.
    pub at: ServerTime,
    /// The published value.
    pub value: Vec<u8>,
}

impl PublishedRecord {
    /// The value as text, if it is text.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.value).ok()
    }
}
