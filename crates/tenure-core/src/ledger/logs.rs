//! Logs beside leases, and notes about terms.

use std::time::Duration;

use super::{Ledger, LogRecord};
use crate::name::LeaseName;
use crate::store::{
    Announcement, EntryId, Holding, LogEntry, LogRequest, MAX_TERM_NOTES, PublishedRecord, Reply, TermNote,
};
use crate::time::ServerTime;
use crate::token::Nonce;

/// An entry to be appended.
struct NewEntry<'a> {
    value: &'a [u8],
    kept: usize,
    nonce: Nonce,
    records: &'a [(String, Vec<u8>)],
}

impl Ledger {
    /// Carries out one request of this group.
    pub fn apply_to_logs(
        &mut self,
        now: ServerTime,
        request: &LogRequest,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        match request {
            LogRequest::Append { holding, log, value, kept, nonce, records } => {
                let entry = NewEntry { value, kept: *kept, nonce: *nonce, records };
                self.append(now, holding, log, &entry, announcements)
            }
            LogRequest::Read { name, log, after, limit } => self.read_log(name, log, *after, *limit),
            LogRequest::Watch { name, ttl } => self.watch(now, name, *ttl),
            LogRequest::Note(note) => self.write_note(note),
            LogRequest::Notes { limit } => self.latest_notes(*limit),
        }
    }

    fn append(
        &mut self,
        now: ServerTime,
        holding: &Holding,
        log: &str,
        entry: &NewEntry<'_>,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        if let Err(refusal) = self.check_accepted(now, holding) {
            return Reply::Refused(refusal);
        }
        for (record, value) in entry.records {
            let published = PublishedRecord { token: holding.token, at: now, value: value.clone() };
            self.records.insert((holding.name.key().to_owned(), record.clone()), published);
        }
        let entries = self.logs.entry((holding.name.key().to_owned(), log.to_owned())).or_default();
        if entries.last().is_some_and(|last| last.nonce == entry.nonce) {
            return Reply::Done;
        }
        let millis = now.as_micros() / 1_000;
        let id = match entries.last().map(|last| last.entry.id) {
            Some(last) if last.millis >= millis => EntryId { number: last.number + 1, ..last },
            _ => EntryId { millis, number: 0 },
        };
        let added = LogEntry { id, token: holding.token, value: entry.value.to_vec() };
        entries.push(LogRecord { entry: added, nonce: entry.nonce });
        entries.drain(..entries.len().saturating_sub(entry.kept.max(1)));
        if self.watched.get(holding.name.key()).is_some_and(|until| *until > now) {
            let (name, log, token) = (holding.name.clone(), log.to_owned(), holding.token);
            announcements.push(Announcement::Appended { name, log, token });
        }
        Reply::Done
    }

    fn read_log(&self, name: &LeaseName, log: &str, after: Option<EntryId>, limit: usize) -> Reply {
        let entries = self.logs.get(&(name.key().to_owned(), log.to_owned())).map_or(&[][..], Vec::as_slice);
        let entries = entries.iter().map(|record| &record.entry);
        Reply::LogEntries(match after {
            Some(after) => entries.filter(|entry| entry.id > after).take(limit).cloned().collect(),
            None => entries.clone().skip(entries.len().saturating_sub(limit)).cloned().collect(),
        })
    }

    fn watch(&mut self, now: ServerTime, name: &LeaseName, ttl: Duration) -> Reply {
        self.watched.retain(|_, until| *until > now);
        self.watched.insert(name.key().to_owned(), now + ttl);
        Reply::Done
    }

    fn write_note(&mut self, note: &TermNote) -> Reply {
        if self.notes.len() >= MAX_TERM_NOTES {
            self.notes.pop_front();
        }
        self.notes.push_back(note.clone());
        Reply::Done
    }

    fn latest_notes(&self, limit: usize) -> Reply {
        let older = self.notes.len().saturating_sub(limit);
        Reply::Notes(self.notes.iter().skip(older).cloned().collect())
    }
}
