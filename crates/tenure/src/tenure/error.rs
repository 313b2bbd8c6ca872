//! The error of requests to the store outside a term.

use thiserror::Error;

use crate::name::NameError;
use crate::store::StoreError;

/// Why a request to the store was not carried out, or not known to be.
///
/// ```
/// use tenure::{RequestError, Tenure};
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let error = tenure.admin().revoke("not a name").await.unwrap_err();
/// assert!(matches!(error, RequestError::Name(_)) && !error.may_have_changed());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// A name in the request is not valid. Nothing was sent, and nothing has changed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The store could not be reached or refused the request. Nothing has changed. A retry may help if the error is
    /// [retryable](StoreError::is_retryable).
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The change was sent, and no reply came: it may have been made, or may be made later. Repeating it is safe.
    #[error("outcome unknown: {0}; the change may have been made, and repeating it is safe")]
    Unknown(#[source] StoreError),
}

impl RequestError {
    /// Whether the change may have been made all the same.
    pub fn may_have_changed(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }

    /// Whether the same request may succeed later although nothing is reconfigured.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Name(_) => false,
            Self::Store(error) => error.is_retryable(),
            Self::Unknown(_) => true,
        }
    }

    /// The error of the store, if that is the cause.
    pub fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Name(_) => None,
            Self::Store(error) | Self::Unknown(error) => Some(error),
        }
    }
}
