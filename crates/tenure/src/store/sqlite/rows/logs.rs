//! Logs beside leases, and notes about terms.

use rusqlite::{OptionalExtension, Result, Row, params};

use super::Rows;
use super::columns::{from_time, from_token, signed, time, token, unsigned};
use crate::name::LeaseName;
use crate::store::{EntryId, Holding, LogEntry, LogRequest, MAX_TERM_NOTES, Reply, TermNote};
use crate::time::ServerTime;
use crate::token::Nonce;
use tenure_core::ledger::LogRecord;

impl Rows<'_> {
    pub(super) fn apply_to_logs(&mut self, now: ServerTime, request: &LogRequest) -> Result<Reply> {
        match request {
            LogRequest::Append { holding, log, kept, .. } => self.append(holding, log, *kept, now, request),
            LogRequest::Read { name, log, after, limit } => {
                self.read_log(name, log, *after, *limit).map(Reply::LogEntries)
            }
            LogRequest::Watch { name, .. } => self.watch(name, now, request),
            LogRequest::Note(note) => self.write_note(note),
            LogRequest::Notes { limit } => self.latest_notes(*limit),
        }
    }

    /// Loads only the last entry, which is all that the ledger needs.
    fn append(
        &mut self,
        holding: &Holding,
        log: &str,
        kept: usize,
        now: ServerTime,
        request: &LogRequest,
    ) -> Result<Reply> {
        let key = holding.name.key();
        let last = self.last_entry(&holding.name, log)?;
        let before = last.as_ref().map(|last| last.entry.id);
        self.ledger.logs.insert((key.to_owned(), log.to_owned()), last.into_iter().collect());
        let watched = self.watched_until(&holding.name)?;
        self.ledger.watched.extend(watched.map(|until| (key.to_owned(), until)));
        let reply =
            self.with_lease(&holding.name, |rows| rows.ledger.apply_to_logs(now, request, &mut rows.announcements))?;
        self.ledger.watched.clear();
        let decided = std::mem::take(&mut self.ledger.logs).into_values().flatten();
        for LogRecord { entry, nonce } in decided.filter(|added| Some(added.entry.id) > before) {
            self.tx
                .prepare_cached(
                    "INSERT INTO logs (namespace, key, log, millis, entry, token, value, nonce)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                )?
                .execute(params![
                    self.namespace,
                    key,
                    log,
                    signed(entry.id.millis),
                    signed(entry.id.number),
                    from_token(entry.token),
                    entry.value,
                    nonce.to_string()
                ])?;
            let forget = "DELETE FROM logs WHERE namespace = ?1 AND key = ?2 AND log = ?3 AND number <=
                          (SELECT number FROM logs WHERE namespace = ?1 AND key = ?2 AND log = ?3
                           ORDER BY number DESC LIMIT 1 OFFSET ?4)";
            let kept = i64::try_from(kept.max(1)).unwrap_or(i64::MAX);
            self.tx.prepare_cached(forget)?.execute(params![self.namespace, key, log, kept])?;
        }
        Ok(reply)
    }

    fn last_entry(&self, name: &LeaseName, log: &str) -> Result<Option<LogRecord>> {
        self.tx
            .prepare_cached(
                "SELECT millis, entry, token, value, nonce FROM logs WHERE namespace = ?1 AND key = ?2 AND log = ?3
                 ORDER BY number DESC LIMIT 1",
            )?
            .query_row([self.namespace, name.key(), log], |row| {
                // Earlier layouts had no nonces.
                let nonce = Nonce::parse(&row.get::<_, String>(4)?).unwrap_or(Nonce::new(0));
                Ok(LogRecord { entry: read_entry(row)?, nonce })
            })
            .optional()
    }

    fn read_log(&self, name: &LeaseName, log: &str, after: Option<EntryId>, limit: usize) -> Result<Vec<LogEntry>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let Some(EntryId { millis, number }) = after else {
            let mut latest = self.tx.prepare_cached(
                "SELECT millis, entry, token, value FROM logs WHERE namespace = ?1 AND key = ?2 AND log = ?3
                 ORDER BY number DESC LIMIT ?4",
            )?;
            let found = latest.query_map(params![self.namespace, name.key(), log, limit], read_entry)?;
            let mut entries = found.collect::<Result<Vec<_>>>()?;
            entries.reverse();
            return Ok(entries);
        };
        let mut next = self.tx.prepare_cached(
            "SELECT millis, entry, token, value FROM logs WHERE namespace = ?1 AND key = ?2 AND log = ?3
             AND (millis, entry) > (?4, ?5) ORDER BY number LIMIT ?6",
        )?;
        let (millis, number) = (signed(millis), signed(number));
        let found = next.query_map(params![self.namespace, name.key(), log, millis, number, limit], read_entry)?;
        found.collect()
    }

    fn watched_until(&self, name: &LeaseName) -> Result<Option<ServerTime>> {
        self.tx
            .prepare_cached("SELECT until FROM watched WHERE namespace = ?1 AND key = ?2")?
            .query_row([self.namespace, name.key()], |row| time(row, 0))
            .optional()
    }

    fn watch(&mut self, name: &LeaseName, now: ServerTime, request: &LogRequest) -> Result<Reply> {
        let reply = self.ledger.apply_to_logs(now, request, &mut self.announcements);
        self.tx
            .prepare_cached("DELETE FROM watched WHERE namespace = ?1 AND until <= ?2")?
            .execute(params![self.namespace, from_time(now)])?;
        if let Some(until) = self.ledger.watched.remove(name.key()) {
            self.tx
                .prepare_cached("INSERT OR REPLACE INTO watched (namespace, key, until) VALUES (?1, ?2, ?3)")?
                .execute(params![self.namespace, name.key(), from_time(until)])?;
        }
        Ok(reply)
    }

    fn write_note(&self, note: &TermNote) -> Result<Reply> {
        self.tx
            .prepare_cached("INSERT INTO notes (namespace, text) VALUES (?1, ?2)")?
            .execute(params![self.namespace, note.encode()])?;
        // Occasionally is often enough.
        if fastrand::u8(..64) == 0 {
            let forget = "DELETE FROM notes WHERE namespace = ?1 AND number <=
                          (SELECT number FROM notes WHERE namespace = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)";
            self.tx.prepare_cached(forget)?.execute(params![self.namespace, MAX_TERM_NOTES as i64])?;
        }
        Ok(Reply::Done)
    }

    fn latest_notes(&self, limit: usize) -> Result<Reply> {
        let mut statement =
            self.tx.prepare_cached("SELECT text FROM notes WHERE namespace = ?1 ORDER BY number DESC LIMIT ?2")?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found = statement.query_map(params![self.namespace, limit], |row| row.get::<_, String>(0))?;
        let mut notes = Vec::new();
        for text in found {
            // Notes that cannot be read were written by another program, and nothing depends on them.
            notes.extend(TermNote::decode(&text?));
        }
        notes.reverse();
        Ok(Reply::Notes(notes))
    }
}

fn read_entry(row: &Row<'_>) -> Result<LogEntry> {
    let id = EntryId { millis: unsigned(row, 0)?, number: unsigned(row, 1)? };
    Ok(LogEntry { id, token: token(row, 2)?, value: row.get(3)? })
}
