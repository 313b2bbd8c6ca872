//! Documents, records beside leases, and indexes.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension, Result, params};

use super::Rows;
use super::columns::{time, token};
use crate::name::LeaseName;
use crate::store::{DocumentId, DocumentRequest, PublishedRecord, Reply, deleted_index};
use crate::time::ServerTime;

impl Rows<'_> {
    pub(super) fn apply_to_documents(&mut self, now: ServerTime, request: &DocumentRequest) -> Result<Reply> {
        match request {
            DocumentRequest::Read { collection, ids } => {
                let document = |id: &String| DocumentId { collection: collection.clone(), id: id.clone() };
                ids.iter().map(|id| self.document(&document(id))).collect::<Result<_>>().map(Reply::Documents)
            }
            DocumentRequest::Write { document, .. } => self.write_document(document, now, request),
            DocumentRequest::Scan { .. } => Ok(self.ledger.apply_to_documents(now, request, &mut self.announcements)),
            DocumentRequest::Publish { holding, .. } => self.with_lease(&holding.name, |rows| {
                rows.ledger.apply_to_documents(now, request, &mut rows.announcements)
            }),
            DocumentRequest::ReadRecord { name, record } => self.read_record(name, record),
            DocumentRequest::IndexAdd { index, entry, .. } | DocumentRequest::IndexRemove { index, entry, .. } => {
                self.apply_to_entry(index, entry, now, request)
            }
            DocumentRequest::IndexList { index } => self.list_entries(index),
        }
    }

    pub(super) fn document(&self, document: &DocumentId) -> Result<Option<Vec<u8>>> {
        self.tx
            .prepare_cached("SELECT value FROM documents WHERE namespace = ?1 AND collection = ?2 AND id = ?3")?
            .query_row([self.namespace, &document.collection, &document.id], |row| row.get(0))
            .optional()
    }

    fn write_document(&mut self, id: &DocumentId, now: ServerTime, request: &DocumentRequest) -> Result<Reply> {
        let before = self.document(id)?;
        self.ledger.documents.extend(before.clone().map(|value| (id.clone(), value)));
        let deleted = deleted_index(&id.collection);
        let was_deleted = self.load_entry(&deleted, &id.id)?;
        let reply = self.apply_to_entry(&id.collection, &id.id, now, request)?;
        self.save_entry(&deleted, &id.id, was_deleted)?;
        let value = self.ledger.documents.remove(id);
        if value != before {
            match value {
                Some(value) => self
                    .tx
                    .prepare_cached(
                        "INSERT OR REPLACE INTO documents (namespace, collection, id, value) VALUES (?1, ?2, ?3, ?4)",
                    )?
                    .execute(params![self.namespace, id.collection, id.id, value])?,
                None => self
                    .tx
                    .prepare_cached("DELETE FROM documents WHERE namespace = ?1 AND collection = ?2 AND id = ?3")?
                    .execute([self.namespace, &id.collection, &id.id])?,
            };
        }
        Ok(reply)
    }

    fn read_record(&self, name: &LeaseName, record: &str) -> Result<Reply> {
        let published = self
            .tx
            .prepare_cached("SELECT token, at, value FROM records WHERE namespace = ?1 AND key = ?2 AND record = ?3")?
            .query_row([self.namespace, name.key(), record], |row| {
                Ok(PublishedRecord { token: token(row, 0)?, at: time(row, 1)?, value: row.get(2)? })
            })
            .optional()?;
        Ok(Reply::Record(published))
    }

    fn apply_to_entry(
        &mut self,
        index: &str,
        entry: &str,
        now: ServerTime,
        request: &DocumentRequest,
    ) -> Result<Reply> {
        let there = self.load_entry(index, entry)?;
        let reply = self.ledger.apply_to_documents(now, request, &mut self.announcements);
        self.save_entry(index, entry, there)?;
        Ok(reply)
    }

    /// Loads whether an entry is in an index into the ledger, and returns it.
    pub(super) fn load_entry(&mut self, index: &str, entry: &str) -> Result<bool> {
        let there = self
            .tx
            .prepare_cached("SELECT 1 FROM entries WHERE namespace = ?1 AND list = ?2 AND entry = ?3")?
            .exists([self.namespace, index, entry])?;
        let loaded: BTreeSet<String> = there.then(|| entry.to_owned()).into_iter().collect();
        self.ledger.indexes.insert(index.to_owned(), loaded);
        Ok(there)
    }

    /// Writes whether an entry is in an index, if that has changed.
    pub(super) fn save_entry(&mut self, index: &str, entry: &str, there: bool) -> Result<()> {
        let wanted = self.ledger.indexes.remove(index).is_some_and(|entries| entries.contains(entry));
        if wanted != there {
            let change = if wanted {
                "INSERT INTO entries (namespace, list, entry) VALUES (?1, ?2, ?3)"
            } else {
                "DELETE FROM entries WHERE namespace = ?1 AND list = ?2 AND entry = ?3"
            };
            self.tx.prepare_cached(change)?.execute([self.namespace, index, entry])?;
        }
        Ok(())
    }

    fn list_entries(&self, index: &str) -> Result<Reply> {
        let mut statement =
            self.tx.prepare_cached("SELECT entry FROM entries WHERE namespace = ?1 AND list = ?2 ORDER BY entry")?;
        let entries = statement.query_map([self.namespace, index], |row| row.get(0))?;
        Ok(Reply::Index(entries.collect::<Result<_>>()?))
    }
}
