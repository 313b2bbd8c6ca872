//! Documents, which any instance may change if it has seen the present value; records beside leases, which only their
//! holder may change; and indexes.

use super::Ledger;
use crate::mutation::Mutation;
use crate::name::LeaseName;
use crate::store::{Announcement, DocumentId, DocumentRequest, Holding, PublishedRecord, Reply, deleted_index};
use crate::time::ServerTime;

impl Ledger {
    /// Carries out one request of this group.
    pub fn apply_to_documents(
        &mut self,
        now: ServerTime,
        request: &DocumentRequest,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        match request {
            DocumentRequest::Read { collection, ids } => {
                let document = |id: &String| DocumentId { collection: collection.clone(), id: id.clone() };
                Reply::Documents(ids.iter().map(|id| self.documents.get(&document(id)).cloned()).collect())
            }
            DocumentRequest::Write { document, expected, value, fresh } => {
                self.write_document(document, expected.as_deref(), value.as_deref(), *fresh, announcements)
            }
            // Only Tenure writes to this store, so every document is in its index already.
            DocumentRequest::Scan { .. } => Reply::Done,
            DocumentRequest::Publish { holding, record, value, announced } => {
                self.publish(now, holding, record, value, announced.then_some(announcements))
            }
            DocumentRequest::ReadRecord { name, record } => self.read_record(name, record),
            DocumentRequest::IndexAdd { index, entry, announced } => {
                self.index_add(index, entry, *announced, announcements)
            }
            DocumentRequest::IndexRemove { index, entry, announced } => {
                self.index_remove(index, entry, *announced, announcements)
            }
            DocumentRequest::IndexList { index } => self.index_list(index),
        }
    }

    fn write_document(
        &mut self,
        document: &DocumentId,
        seen: Option<&[u8]>,
        value: Option<&[u8]>,
        fresh: bool,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        let (deleted, id) = (deleted_index(&document.collection), &document.id);
        let now = self.documents.get(document).map(Vec::as_slice);
        let was_there = now.is_some();
        if now != value {
            if now != seen {
                return Reply::Conflict(now.map(<[u8]>::to_vec));
            }
            if fresh && self.indexes.get(&deleted).is_some_and(|deleted| deleted.contains(id)) {
                return Reply::InUse;
            }
            match value {
                Some(value) => drop(self.documents.insert(document.clone(), value.to_vec())),
                None => drop(self.documents.remove(document)),
            }
            announcements.push(Announcement::DocumentChanged { document: document.clone() });
        }
        let listed = self.indexes.entry(document.collection.clone()).or_default();
        if value.is_some() {
            listed.insert(id.clone());
            self.indexes.entry(deleted).or_default().remove(id);
        } else if listed.remove(id) || was_there {
            self.indexes.entry(deleted).or_default().insert(id.clone());
        }
        Reply::Done
    }

    fn publish(
        &mut self,
        now: ServerTime,
        holding: &Holding,
        record: &str,
        value: &[u8],
        announcements: Option<&mut Vec<Announcement>>,
    ) -> Reply {
        let is_last = self.terms.get(holding.name.key()).is_some_and(|term| term.token == holding.token);
        let is_accepted_by_mutation = is_last && self.mutations.has(Mutation::PublishAfterExpiry);
        if let Err(refusal) = self.check_accepted(now, holding)
            && !is_accepted_by_mutation
        {
            return Reply::Refused(refusal);
        }
        let published = PublishedRecord { token: holding.token, at: now, value: value.to_vec() };
        self.records.insert((holding.name.key().to_owned(), record.to_owned()), published);
        if let Some(announcements) = announcements {
            let (name, record, token) = (holding.name.clone(), record.to_owned(), holding.token);
            announcements.push(Announcement::Published { name, record, token });
        }
        Reply::Done
    }

    fn read_record(&self, name: &LeaseName, record: &str) -> Reply {
        Reply::Record(self.records.get(&(name.key().to_owned(), record.to_owned())).cloned())
    }

    fn index_add(&mut self, index: &str, entry: &str, announced: bool, announcements: &mut Vec<Announcement>) -> Reply {
        if self.indexes.entry(index.to_owned()).or_default().insert(entry.to_owned()) && announced {
            announcements.push(Announcement::IndexChanged { index: index.to_owned() });
        }
        Reply::Done
    }

    fn index_remove(
        &mut self,
        index: &str,
        entry: &str,
        announced: bool,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        if self.indexes.get_mut(index).is_some_and(|entries| entries.remove(entry)) && announced {
            announcements.push(Announcement::IndexChanged { index: index.to_owned() });
        }
        Reply::Done
    }

    fn index_list(&self, index: &str) -> Reply {
        Reply::Index(self.indexes.get(index).into_iter().flatten().cloned().collect())
    }
}
