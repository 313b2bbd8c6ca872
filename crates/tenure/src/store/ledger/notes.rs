//! Notes about terms.

use super::Ledger;
use crate::store::note::MAX_TERM_NOTES;
use crate::store::{Reply, TermNote};

impl Ledger {
    pub(super) fn write_note(&mut self, note: &TermNote) -> Reply {
        if self.notes.len() >= MAX_TERM_NOTES {
            self.notes.pop_front();
        }
        self.notes.push_back(note.clone());
        Reply::Done
    }

    pub(super) fn latest_notes(&self, limit: usize) -> Reply {
        let older = self.notes.len().saturating_sub(limit);
        Reply::Notes(self.notes.iter().skip(older).cloned().collect())
    }
}
