//! Documents: small values in the store that any instance may change, such as descriptions of the work.

use std::time::Duration;

use thiserror::Error;

use super::{RequestError, Tenure};
use crate::name::{LeaseName, NameError};
use crate::store::{DocumentId, DocumentRequest, LeaseRequest, Reply, deleted_index};

/// One collection of documents: [`Tenure::documents`] returns it. Clones are cheap.
///
/// A document is a small value under an id. Writes are conditional, so that no change is lost. The keys of a collection
/// have the prefix `tenure:doc:<collection>:`, or [another one](crate::TenureBuilder::document_prefix).
///
/// ```
/// use tenure::{DocumentError, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let servers = Tenure::connect("memory:").await?.documents("servers");
/// servers.write("eu-1", None, Some(b"10.0.0.7")).await?;
/// let late = servers.write("eu-1", None, Some(b"10.0.0.9")).await;
/// assert!(matches!(late, Err(DocumentError::Changed(Some(now))) if now == b"10.0.0.7"));
/// servers.write("eu-1", Some(b"10.0.0.7"), None).await?;
/// assert!(servers.ids().await?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Documents {
    pub(crate) tenure: Tenure,
    pub(crate) collection: Result<String, NameError>,
}

impl Tenure {
    /// The documents of a collection.
    pub fn documents(&self, collection: &str) -> Documents {
        let collection = crate::name::check("collection", collection).map(|()| collection.to_owned());
        Documents { tenure: self.clone(), collection }
    }
}

impl Documents {
    /// The ids of all documents.
    ///
    /// # Errors
    /// When the name of the collection is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ids(&self) -> Result<Vec<String>, RequestError> {
        self.index(self.collection.clone()?).await
    }

    /// The key of a document in the store.
    pub fn key(&self, id: &str) -> String {
        let collection = self.collection.as_deref().unwrap_or_default();
        format!("{}{id}", self.tenure.keyspace.documents(collection))
    }

    /// Reads these documents, in the same order; `None` for each that does not exist.
    ///
    /// # Errors
    /// When the name of the collection is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read(&self, ids: Vec<String>) -> Result<Vec<Option<Vec<u8>>>, RequestError> {
        let collection = self.collection.clone()?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        match self.tenure.call(DocumentRequest::Read { collection, ids }).await? {
            Reply::Documents(documents) => Ok(documents),
            other => Err(self.tenure.unexpected_reply(&other).into()),
        }
    }

    /// Writes a document, or deletes it with `None`, if it still has the value `seen` or already has the new one. The
    /// change is announced to every instance.
    ///
    /// # Errors
    /// When the document has another value by now, when the name of the collection is not valid, or the store cannot be
    /// reached or refuses the request.
    ///
    /// # Cancel safety
    /// The document may or may not be written.
    pub async fn write(&self, id: &str, seen: Option<&[u8]>, value: Option<&[u8]>) -> Result<(), DocumentError> {
        self.change(id, seen, value, false).await
    }

    /// Creates a document, if none exists with this id and no data of a deleted one is left. The new document is
    /// announced to every instance.
    ///
    /// # Errors
    /// When the document exists, when data of a deleted one is [left](DocumentError::Leftovers), when the name of the
    /// collection is not valid, or when the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The document may or may not be created.
    pub async fn create(&self, id: &str, value: &[u8]) -> Result<(), DocumentError> {
        self.change(id, None, Some(value), true).await
    }

    async fn change(
        &self,
        id: &str,
        seen: Option<&[u8]>,
        value: Option<&[u8]>,
        fresh: bool,
    ) -> Result<(), DocumentError> {
        let document = self.document(id).map_err(RequestError::from)?;
        let (expected, value) = (seen.map(<[u8]>::to_vec), value.map(<[u8]>::to_vec));
        match self.tenure.write(DocumentRequest::Write { document, expected, value, fresh }).await? {
            Reply::Done => Ok(()),
            Reply::Conflict(now) => Err(DocumentError::Changed(now)),
            Reply::InUse => Err(DocumentError::Leftovers),
            other => Err(RequestError::from(self.tenure.unexpected_reply(&other)).into()),
        }
    }

    /// Purges the data of deleted documents that described targets: the last terms, records and logs of their leases.
    /// Tokens keep increasing. Data that is in use, or was until just now, is left for a later purge. Returns the number
    /// of documents purged.
    ///
    /// # Errors
    /// When the name of the collection is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// Some documents may have been purged.
    pub async fn purge_deleted(
        &self,
        lease: impl Fn(&str) -> Option<LeaseName>,
        logs: &[&str],
        idle_for: Duration,
    ) -> Result<usize, RequestError> {
        let index = deleted_index(&self.collection.clone()?);
        let mut purged = 0;
        for id in self.index(index.clone()).await? {
            let is_purged = match lease(&id) {
                Some(name) => self.purge(&id, name, logs, idle_for).await,
                // A document that cannot have a lease has left no data.
                None => {
                    let remove = DocumentRequest::IndexRemove { index: index.clone(), entry: id, announced: false };
                    self.tenure.write(remove).await.map(|_| true)
                }
            };
            match is_purged {
                Ok(is_purged) => purged += usize::from(is_purged),
                Err(error) if error.is_retryable() => return Err(error),
                // Data that another program has corrupted stays; the other documents do not wait for it.
                Err(_) => {}
            }
        }
        Ok(purged)
    }

    /// Purges the data of one deleted document with this lease. Returns whether no data is left: `false` while the
    /// document exists, its lease is held, or its last term began less than `idle_for` ago.
    ///
    /// # Errors
    /// When the name of the collection is not valid, or the store cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    /// The data may or may not have been purged.
    pub async fn purge(
        &self,
        id: &str,
        lease: LeaseName,
        logs: &[&str],
        idle_for: Duration,
    ) -> Result<bool, RequestError> {
        let (document, logs) = (Some(self.document(id)?), logs.iter().map(|log| (*log).to_owned()).collect());
        let reply = self.tenure.write(LeaseRequest::Forget { name: lease, logs, idle_for, document }).await?;
        Ok(reply == Reply::Done)
    }

    fn document(&self, id: &str) -> Result<DocumentId, NameError> {
        Ok(DocumentId { collection: self.collection.clone()?, id: id.to_owned() })
    }

    async fn index(&self, index: String) -> Result<Vec<String>, RequestError> {
        match self.tenure.call(DocumentRequest::IndexList { index }).await? {
            Reply::Index(ids) => Ok(ids),
            other => Err(self.tenure.unexpected_reply(&other).into()),
        }
    }
}

/// Why a document was not written.
///
/// ```
/// use tenure::{DocumentError, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let servers = Tenure::connect("memory:").await?.documents("servers");
/// # servers.create("eu-1", b"10.0.0.7").await?;
/// let mut seen = None;
/// loop {
///     match servers.write("eu-1", seen.as_deref(), Some(b"10.0.0.9")).await {
///         Ok(()) => break,
///         Err(DocumentError::Changed(now)) => seen = now, // decide again, by the value it has now
///         Err(error) => return Err(error.into()),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The document does not have the value its writer has seen. Contains the current value, if any. Nothing was changed.
    #[error("cannot write the document: it was changed meanwhile; read it again")]
    Changed(Option<Vec<u8>>),
    /// A deleted document with this id has left data: the log of its lease, or a holder that has not released it. Nothing
    /// was changed. See [`purge`](Documents::purge).
    #[error("cannot create the document: data of a deleted one with this id is left; purge it first")]
    Leftovers,
    /// The request was not carried out, or its outcome is [unknown](RequestError::Unknown).
    #[error(transparent)]
    Request(#[from] RequestError),
}
