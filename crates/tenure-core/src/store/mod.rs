//! What a store is asked, answers and announces.

mod announcement;
mod attach;
mod document_id;
mod documents;
mod error;
mod leases;
mod logs;
mod membership;
mod namespace;
mod note;
mod reply;
mod request;

use std::time::Duration;

pub use announcement::{Announcement, SubscriptionItem};
pub use attach::{AttachRequest, Attached, Continuity, NamespaceMemory};
pub use document_id::DocumentId;
pub use documents::{DocumentRequest, PublishedRecord, deleted_index};
pub use error::{ErrorKind, Outcome, StoreError};
pub use leases::{
    Ask, Claim, Grant, Held, Holding, LeaseReport, LeaseRequest, NamespaceReport, PreviousTerm, RecordedEnd, Refusal,
};
pub use logs::{EntryId, LogEntry, LogRequest, ParseEntryIdError};
pub use membership::{LiveInstance, MembershipRequest};
pub use namespace::{Generation, Lineage, Quarantine, QuarantineReason, ServerRun};
pub use note::{MAX_TERM_NOTES, TermNote};
pub use reply::Reply;
pub use request::Request;

/// The ttl of a lease by default.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The longest ttl allowed. No quarantine lasts longer.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The index of all roles that ever had a leader.
pub const ROLES: &str = "roles";
