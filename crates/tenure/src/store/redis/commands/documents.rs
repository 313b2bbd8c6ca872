//! Requests about documents, records beside leases, and indexes.

use redis::Cmd;

use super::{CommandEncoder, add_term_args, cmd, flag};
use crate::store::redis::scripts::Script;
use crate::store::{Announcement, DocumentId, DocumentRequest, deleted_index};

impl CommandEncoder {
    pub(super) fn encode_document_request(&self, request: &DocumentRequest) -> Cmd {
        let keys = &self.keys;
        match request {
            DocumentRequest::Read { collection, ids } => {
                let prefix = keys.document_prefix(collection);
                let documents: Vec<String> = ids.iter().map(|id| format!("{prefix}{id}")).collect();
                self.evalsha(Script::ReadDocuments, &documents.iter().map(String::as_str).collect::<Vec<_>>())
            }
            DocumentRequest::Write { document, expected, value, fresh } => {
                let DocumentId { collection, id } = document;
                let (listed, deleted) = (keys.index(collection), keys.index(&deleted_index(collection)));
                let mut command = self.evalsha(Script::WriteDocument, &[&keys.document(document), &listed, &deleted]);
                for text in [expected, value] {
                    command.arg(flag(text.is_some())).arg(text.as_deref().unwrap_or_default());
                }
                let changed = Announcement::DocumentChanged { document: document.clone() };
                command.arg(id).arg(changed.encode()).arg(&keys.channel).arg(flag(*fresh));
                command
            }
            DocumentRequest::Scan { collection, cursor } => self.scan(keys.document_prefix(collection), *cursor),
            DocumentRequest::Publish { holding, record, value, announced } => {
                let (lease, term) = (keys.lease(&holding.name), keys.term(&holding.name));
                let mut command = self.evalsha(Script::Publish, &[&lease, &term, &keys.records(&holding.name)]);
                add_term_args(&mut command, holding).arg(record).arg(value.as_slice());
                command.arg(flag(*announced)).arg(holding.name.encode()).arg(&keys.channel);
                command
            }
            DocumentRequest::ReadRecord { name, record } => cmd("HGET").arg(keys.records(name)).arg(record).take(),
            DocumentRequest::IndexAdd { index, entry, announced } => {
                self.change_index("SADD", index, entry, *announced)
            }
            DocumentRequest::IndexRemove { index, entry, announced } => {
                self.change_index("SREM", index, entry, *announced)
            }
            DocumentRequest::IndexList { index } => cmd("SMEMBERS").arg(keys.index(index)).take(),
        }
    }

    fn change_index(&self, verb: &str, index: &str, entry: &str, announced: bool) -> Cmd {
        if !announced {
            return cmd(verb).arg(self.keys.index(index)).arg(entry).take();
        }
        let mut command = self.evalsha(Script::Index, &[&self.keys.index(index)]);
        let changed = Announcement::IndexChanged { index: index.to_owned() };
        command.arg(verb).arg(entry).arg(changed.encode()).arg(&self.keys.channel);
        command
    }
}
