//! The ledger's rows in the file: loaded for a request, changed by the ledger, written back where they changed.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{CachedStatement, Error, OptionalExtension, Result, Row, Transaction, params};

use crate::lease::{Ending, MAX_TTL};
use crate::name::{Group, InstanceId, LeaseName};
use crate::store::ledger::{HeartbeatRecord, LeaseKey, LiveTtls, Namespace, QuarantineRecord, TermRecord, TtlClass};
use crate::store::note::MAX_TERM_NOTES;
use crate::store::{
    Announcement, Ask, AttachRequest, Attached, DELETED_SESSIONS, EntryId, Generation, Holding, Ledger, LogEntry,
    PreviousTerm, PublishedRecord, QuarantineReason, RecordedEnd, Reply, Request, SESSIONS, ServerInfo, ServerRun,
    TermNote,
};
use crate::time::ServerTime;
use crate::token::{Nonce, Token};

/// How many announcements are kept for subscribers that are behind.
const MAX_ANNOUNCEMENTS: i64 = 4_096;

/// A file has no server that could restart. Opening the file detects a reboot.
const FILE_RUN: ServerRun = ServerRun(0);

/// One write to a namespace of the file.
pub(super) struct Rows<'a> {
    tx: &'a Transaction<'a>,
    namespace: &'a str,
    ledger: Ledger,
    found: Option<Namespace>,
    announcements: Vec<Announcement>,
    /// Cached: looking it up takes a good part of the time that a renewal takes.
    renewal: Option<CachedStatement<'a>>,
}

impl<'a> Rows<'a> {
    pub(super) fn load(tx: &'a Transaction<'a>, namespace: &'a str) -> Result<Self> {
        let mut found = tx
            .prepare_cached(
                "SELECT generation, stamp, closed_until, closed_for, closed_because, closed_informed, token_floor
                 FROM namespaces WHERE namespace = ?1",
            )?
            .query_row([namespace], read_namespace)
            .optional()?;
        if let Some(found) = &mut found {
            let mut ttls = tx.prepare_cached("SELECT ttl, until, leases FROM ttls WHERE namespace = ?1")?;
            found.ttls.classes = ttls.query_map([namespace], read_ttl)?.collect::<Result<_>>()?;
        }
        let ledger = Ledger::with_namespace(found.clone());
        Ok(Self { tx, namespace, ledger, found, announcements: Vec::new(), renewal: None })
    }

    /// Attaches. `others` says whether other instances may hold leases that are not on record.
    pub(super) fn attach(&mut self, now: ServerTime, request: &AttachRequest, others: bool) -> Result<Attached> {
        let mut granted =
            self.tx.prepare_cached("SELECT 1 FROM leases WHERE namespace = ?1 AND token IS NOT NULL LIMIT 1")?;
        let has_served = granted.exists([self.namespace])?;
        let server =
            ServerInfo { now, run: FILE_RUN, uptime: Duration::MAX, subscribers: usize::from(others), has_served };
        Ok(self.ledger.attach(&server, request, &mut self.announcements))
    }

    /// Carries out one request.
    pub(super) fn apply(&mut self, now: ServerTime, generation: Generation, request: &Request) -> Result<Reply> {
        match request {
            Request::Acquire { claim, .. } | Request::TakeOver { claim, .. } => {
                self.apply_to_lease(&claim.name, now, generation, request)
            }
            Request::Renew { holding, ttl, progressed: false } => match self.renew_directly(now, holding, *ttl)? {
                Some(renewed) => Ok(renewed),
                None => self.apply_to_lease(&holding.name, now, generation, request),
            },
            Request::Renew { holding, .. }
            | Request::Release { holding, .. }
            | Request::HandOver { holding, .. }
            | Request::Publish { holding, .. } => self.apply_to_lease(&holding.name, now, generation, request),
            Request::Abandon { name, .. }
            | Request::Revoke { name, .. }
            | Request::Ask { name, .. }
            | Request::Inspect { name } => self.apply_to_lease(name, now, generation, request),
            Request::Holders { names } => {
                names.iter().map(|name| self.holder(now, name)).collect::<Result<_>>().map(Reply::Holders)
            }
            Request::Read { name, record } => self.read(name, record),
            Request::Append { holding, log, kept, .. } => {
                self.apply_to_log(holding, log, *kept, now, generation, request)
            }
            Request::ReadLog { name, log, after, limit } => {
                self.read_log(name, log, *after, *limit).map(Reply::LogEntries)
            }
            Request::Forget { name, session, .. } => self.forget(name, session, now, generation, request),
            Request::WriteSession { id, .. } => self.apply_to_session(id, now, generation, request),
            Request::ReadSessions { ids } => {
                ids.iter().map(|id| self.session(id)).collect::<Result<_>>().map(Reply::Sessions)
            }
            Request::Announce(_)
            | Request::Adopt { .. }
            | Request::Scan { .. }
            | Request::InspectNamespace
            | Request::Reopen { .. } => Ok(self.decide(now, generation, request)),
            Request::Heartbeat { group, instance, .. } | Request::Leave { group, instance } => {
                self.apply_to_instance(group, instance, now, generation, request)
            }
            Request::Instances { group } => self.list_instances(now, group),
            Request::IndexAdd { index, entry, .. } | Request::IndexRemove { index, entry, .. } => {
                self.apply_to_entry(index, entry, now, generation, request)
            }
            Request::IndexList { index } => self.list_entries(index),
            Request::Note(note) => self.write_note(note),
            Request::Notes { limit } => self.latest_notes(*limit),
        }
    }

    /// Writes the rows of the whole namespace.
    pub(super) fn save(self) -> Result<()> {
        if let Some(record) = &self.ledger.namespace
            && Some(record) != self.found.as_ref()
        {
            self.save_namespace(record)?;
        }
        if self.announcements.is_empty() {
            return Ok(());
        }
        let mut insert = self.tx.prepare_cached("INSERT INTO announcements (namespace, text) VALUES (?1, ?2)")?;
        for announcement in &self.announcements {
            insert.execute(params![self.namespace, announcement.encode()])?;
        }
        let forgotten = self.tx.last_insert_rowid() - MAX_ANNOUNCEMENTS;
        self.tx.prepare_cached("DELETE FROM announcements WHERE number <= ?1")?.execute([forgotten])?;
        Ok(())
    }

    fn save_namespace(&self, record: &Namespace) -> Result<()> {
        let quarantine = record.quarantine;
        self.tx
            .prepare_cached(
                "INSERT OR REPLACE INTO namespaces
                 (namespace, generation, stamp, closed_until, closed_for, closed_because, closed_informed, token_floor)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                self.namespace,
                record.generation.number.cast_signed(),
                record.generation.stamp.cast_signed(),
                quarantine.map(|quarantine| from_time(quarantine.until)),
                quarantine.map_or(0, |quarantine| from_span(quarantine.length)),
                quarantine.map_or("", |quarantine| quarantine.reason.as_str()),
                quarantine.is_some_and(|quarantine| quarantine.informed),
                from_token(record.token_floor),
            ])?;
        let none = LiveTtls::default();
        let before = self.found.as_ref().map_or(&none, |found| &found.ttls);
        for (ttl, class) in &record.ttls.classes {
            if before.classes.get(ttl) != Some(class) {
                self.tx
                    .prepare_cached(
                        "INSERT OR REPLACE INTO ttls (namespace, ttl, until, leases) VALUES (?1, ?2, ?3, ?4)",
                    )?
                    .execute(params![
                        self.namespace,
                        from_span(*ttl),
                        from_time(class.until),
                        class.leases.map(signed)
                    ])?;
            }
        }
        for ttl in before.classes.keys().filter(|ttl| !record.ttls.classes.contains_key(ttl)) {
            self.tx
                .prepare_cached("DELETE FROM ttls WHERE namespace = ?1 AND ttl = ?2")?
                .execute(params![self.namespace, from_span(*ttl)])?;
        }
        Ok(())
    }

    fn decide(&mut self, now: ServerTime, generation: Generation, request: &Request) -> Reply {
        self.ledger.apply(now, generation, request, &mut self.announcements)
    }

    fn holder(&self, now: ServerTime, name: &LeaseName) -> Result<Option<InstanceId>> {
        let mut alive = self.tx.prepare_cached(
            "SELECT holder FROM leases WHERE namespace = ?1 AND key = ?2 AND (expires IS NULL OR expires > ?3)",
        )?;
        let holder: Option<Option<String>> =
            alive.query_row(params![self.namespace, name.key(), from_time(now)], |row| row.get(0)).optional()?;
        Ok(holder.flatten().map(|holder| InstanceId::foreign(&holder)))
    }

    fn apply_to_lease(
        &mut self,
        name: &LeaseName,
        now: ServerTime,
        generation: Generation,
        request: &Request,
    ) -> Result<Reply> {
        let key = name.key();
        let (lease, term) = self
            .tx
            .prepare_cached(
                "SELECT holder, expires, token, term_holder, nonce, since, ended, wait_out_until, progress, asked,
                        ending, deposed, previous_token, previous_holder, previous_ended, idled, ttl
                 FROM leases WHERE namespace = ?1 AND key = ?2",
            )?
            .query_row([self.namespace, key], read_lease)
            .optional()?
            .unwrap_or_default();
        self.ledger.leases.extend(lease.clone().map(|lease| (key.to_owned(), lease)));
        self.ledger.terms.extend(term.clone().map(|term| (key.to_owned(), term)));
        let reply = self.decide(now, generation, request);
        let decided = (self.ledger.leases.remove(key), self.ledger.terms.remove(key));
        self.write_lease(key, (lease, term), decided)?;
        for ((_, record), published) in std::mem::take(&mut self.ledger.records) {
            self.tx
                .prepare_cached(
                    "INSERT OR REPLACE INTO records (namespace, key, record, token, at, value)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute(params![
                    self.namespace,
                    key,
                    record,
                    from_token(published.token),
                    from_time(published.at),
                    published.value
                ])?;
        }
        Ok(reply)
    }

    /// Carries out by far the most frequent request in one statement: moves the expiry of a term that is in order and
    /// whose holder is asked nothing. `None` for any other request, which the ledger decides.
    fn renew_directly(&mut self, now: ServerTime, holding: &Holding, ttl: Duration) -> Result<Option<Reply>> {
        if self.ledger.namespace.is_none() {
            return Ok(None);
        }
        let statement = match &mut self.renewal {
            Some(statement) => statement,
            none => none.insert(self.tx.prepare_cached(
                "UPDATE leases SET expires = ?5, idled = 1
                 WHERE namespace = ?1 AND key = ?2 AND holder = ?3 AND term_holder = ?3 AND token = ?4
                   AND nonce IS NOT NULL AND ended = 'silently' AND asked IS NULL AND ttl = ?7
                   AND (expires IS NULL OR expires > ?6)",
            )?),
        };
        let moved = statement.execute(params![
            self.namespace,
            holding.name.key(),
            holding.holder.as_str(),
            from_token(holding.token),
            from_time(now + ttl),
            from_time(now),
            from_span(ttl),
        ])?;
        Ok((moved == 1).then(|| {
            self.ledger.extend_ttl(now, ttl, Some(ttl), &mut self.announcements);
            Reply::Renewed { server: now, max_ttl: self.ledger.longest_ttl(now), asked: None }
        }))
    }

    fn write_lease(&self, key: &str, before: LeaseRow, after: LeaseRow) -> Result<()> {
        if before == after {
            return Ok(());
        }
        let (lease, term) = &after;
        let (holder, expires) = (lease.as_ref().map(|l| l.holder.as_str()), lease.as_ref().and_then(|l| l.expires));
        if before.1 == *term {
            // A renewal: only the expiry has changed.
            self.tx
                .prepare_cached("UPDATE leases SET holder = ?3, expires = ?4 WHERE namespace = ?1 AND key = ?2")?
                .execute(params![self.namespace, key, holder, expires.map(from_time)])?;
            return Ok(());
        }
        let term = term.as_ref();
        let previous = term.and_then(|term| term.previous.as_ref());
        self.tx
            .prepare_cached(
                "INSERT OR REPLACE INTO leases
                 (namespace, key, holder, expires, token, term_holder, nonce, since, ended, wait_out_until, progress,
                  asked, ending, deposed, previous_token, previous_holder, previous_ended, idled, ttl)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
            )?
            .execute(params![
                self.namespace,
                key,
                holder,
                expires.map(from_time),
                term.map(|term| from_token(term.token)),
                term.map(|term| term.holder.as_str()),
                term.and_then(|term| term.nonce).map(|nonce| nonce.to_string()),
                term.map(|term| from_time(term.since)),
                term.map(|term| term.ended.as_str()),
                term.and_then(|term| term.wait_out_until).map(from_time),
                term.map(|term| from_time(term.progress)),
                term.and_then(|term| term.asked.as_ref()).map(Ask::encode),
                term.and_then(|term| term.ending.as_ref()).map(Ending::encode),
                term.and_then(|term| term.superseded).map(from_token),
                previous.map(|previous| from_token(previous.token)),
                previous.map(|previous| previous.holder.as_str()),
                previous.map(|previous| previous.ended.as_str()),
                term.is_some_and(|term| term.idled),
                term.map(|term| from_span(term.ttl)),
            ])?;
        Ok(())
    }

    fn read(&self, name: &LeaseName, record: &str) -> Result<Reply> {
        let published = self
            .tx
            .prepare_cached("SELECT token, at, value FROM records WHERE namespace = ?1 AND key = ?2 AND record = ?3")?
            .query_row([self.namespace, name.key(), record], |row| {
                Ok(PublishedRecord { token: token(row, 0)?, at: time(row, 1)?, value: row.get(2)? })
            })
            .optional()?;
        Ok(Reply::Record(published))
    }

    /// Loads only the last entry, which is all that the ledger needs.
    fn apply_to_log(
        &mut self,
        holding: &Holding,
        log: &str,
        kept: usize,
        now: ServerTime,
        generation: Generation,
        request: &Request,
    ) -> Result<Reply> {
        let key = holding.name.key();
        let last = self.read_log(&holding.name, log, None, 1)?;
        let before = last.last().map(|entry| entry.id);
        self.ledger.logs.insert((key.to_owned(), log.to_owned()), last);
        let reply = self.apply_to_lease(&holding.name, now, generation, request)?;
        let decided = std::mem::take(&mut self.ledger.logs).into_values().flatten();
        for entry in decided.filter(|entry| Some(entry.id) > before) {
            self.tx
                .prepare_cached(
                    "INSERT INTO logs (namespace, key, log, millis, entry, token, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                )?
                .execute(params![
                    self.namespace,
                    key,
                    log,
                    signed(entry.id.millis),
                    signed(entry.id.number),
                    from_token(entry.token),
                    entry.value
                ])?;
            let forget = "DELETE FROM logs WHERE namespace = ?1 AND key = ?2 AND log = ?3 AND number <=
                          (SELECT number FROM logs WHERE namespace = ?1 AND key = ?2 AND log = ?3
                           ORDER BY number DESC LIMIT 1 OFFSET ?4)";
            let kept = i64::try_from(kept.max(1)).unwrap_or(i64::MAX);
            self.tx.prepare_cached(forget)?.execute(params![self.namespace, key, log, kept])?;
        }
        Ok(reply)
    }

    fn read_log(&self, name: &LeaseName, log: &str, after: Option<EntryId>, limit: usize) -> Result<Vec<LogEntry>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let read = |row: &Row<'_>| {
            let id = EntryId { millis: unsigned(row, 0)?, number: unsigned(row, 1)? };
            Ok(LogEntry { id, token: token(row, 2)?, value: row.get(3)? })
        };
        let Some(EntryId { millis, number }) = after else {
            let mut latest = self.tx.prepare_cached(
                "SELECT millis, entry, token, value FROM logs WHERE namespace = ?1 AND key = ?2 AND log = ?3
                 ORDER BY number DESC LIMIT ?4",
            )?;
            let found = latest.query_map(params![self.namespace, name.key(), log, limit], read)?;
            let mut entries = found.collect::<Result<Vec<_>>>()?;
            entries.reverse();
            return Ok(entries);
        };
        let mut next = self.tx.prepare_cached(
            "SELECT millis, entry, token, value FROM logs WHERE namespace = ?1 AND key = ?2 AND log = ?3
             AND (millis, entry) > (?4, ?5) ORDER BY number LIMIT ?6",
        )?;
        let (millis, number) = (signed(millis), signed(number));
        let found = next.query_map(params![self.namespace, name.key(), log, millis, number, limit], read)?;
        found.collect()
    }

    /// The ledger decides; this deletes what the ledger deletes, and the rows that were not loaded into it.
    fn forget(
        &mut self,
        name: &LeaseName,
        session: &str,
        now: ServerTime,
        generation: Generation,
        request: &Request,
    ) -> Result<Reply> {
        let found = self.session(session)?;
        self.ledger.sessions.extend(found.map(|value| (session.to_owned(), value)));
        let was_gone = self.load_entry(DELETED_SESSIONS, session)?;
        let reply = self.apply_to_lease(name, now, generation, request)?;
        self.save_entry(DELETED_SESSIONS, session, was_gone)?;
        self.ledger.sessions.clear();
        if reply == Reply::Done {
            for all in ["leases", "records", "logs"] {
                let delete = format!("DELETE FROM {all} WHERE namespace = ?1 AND key = ?2");
                self.tx.prepare_cached(&delete)?.execute([self.namespace, name.key()])?;
            }
        }
        Ok(reply)
    }

    fn session(&self, id: &str) -> Result<Option<Vec<u8>>> {
        self.tx
            .prepare_cached("SELECT value FROM sessions WHERE namespace = ?1 AND id = ?2")?
            .query_row([self.namespace, id], |row| row.get(0))
            .optional()
    }

    fn apply_to_session(
        &mut self,
        id: &str,
        now: ServerTime,
        generation: Generation,
        request: &Request,
    ) -> Result<Reply> {
        let before = self.session(id)?;
        self.ledger.sessions.extend(before.clone().map(|value| (id.to_owned(), value)));
        let was_gone = self.load_entry(DELETED_SESSIONS, id)?;
        let reply = self.apply_to_entry(SESSIONS, id, now, generation, request)?;
        self.save_entry(DELETED_SESSIONS, id, was_gone)?;
        let value = self.ledger.sessions.remove(id);
        if value != before {
            match value {
                Some(value) => self
                    .tx
                    .prepare_cached("INSERT OR REPLACE INTO sessions (namespace, id, value) VALUES (?1, ?2, ?3)")?
                    .execute(params![self.namespace, id, value])?,
                None => self
                    .tx
                    .prepare_cached("DELETE FROM sessions WHERE namespace = ?1 AND id = ?2")?
                    .execute([self.namespace, id])?,
            };
        }
        Ok(reply)
    }

    fn apply_to_instance(
        &mut self,
        group: &Group,
        instance: &InstanceId,
        now: ServerTime,
        generation: Generation,
        request: &Request,
    ) -> Result<Reply> {
        let member = (group.clone(), instance.clone());
        let row = [self.namespace, group_column(group), instance.as_str()];
        let found = self
            .tx
            .prepare_cached(
                "SELECT record, expires FROM members WHERE namespace = ?1 AND circle = ?2 AND instance = ?3",
            )?
            .query_row(row, |row| Ok(HeartbeatRecord { record: row.get(0)?, expires: time(row, 1)? }))
            .optional()?;
        self.ledger.instances.extend(found.map(|beat| (member.clone(), beat)));
        let reply = self.decide(now, generation, request);
        match self.ledger.instances.remove(&member) {
            Some(beat) => self
                .tx
                .prepare_cached(
                    "INSERT OR REPLACE INTO members (namespace, circle, instance, record, expires)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![row[0], row[1], row[2], beat.record, from_time(beat.expires)])?,
            None => self
                .tx
                .prepare_cached("DELETE FROM members WHERE namespace = ?1 AND circle = ?2 AND instance = ?3")?
                .execute(row)?,
        };
        Ok(reply)
    }

    fn list_instances(&mut self, now: ServerTime, group: &Group) -> Result<Reply> {
        self.tx
            .prepare_cached("DELETE FROM members WHERE namespace = ?1 AND expires <= ?2")?
            .execute(params![self.namespace, from_time(now)])?;
        let mut statement = self
            .tx
            .prepare_cached("SELECT instance, record, expires FROM members WHERE namespace = ?1 AND circle = ?2")?;
        let found = statement.query_map([self.namespace, group_column(group)], |row| {
            Ok(((group.clone(), instance(row, 0)?), HeartbeatRecord { record: row.get(1)?, expires: time(row, 2)? }))
        })?;
        self.ledger.instances = found.collect::<Result<_>>()?;
        let request = Request::Instances { group: group.clone() };
        let reply = self.ledger.apply(now, Generation::default(), &request, &mut self.announcements);
        self.ledger.instances.clear();
        Ok(reply)
    }

    fn apply_to_entry(
        &mut self,
        index: &str,
        entry: &str,
        now: ServerTime,
        generation: Generation,
        request: &Request,
    ) -> Result<Reply> {
        let there = self.load_entry(index, entry)?;
        let reply = self.decide(now, generation, request);
        self.save_entry(index, entry, there)?;
        Ok(reply)
    }

    /// Loads whether an entry is in an index into the ledger, and returns it.
    fn load_entry(&mut self, index: &str, entry: &str) -> Result<bool> {
        let there = self
            .tx
            .prepare_cached("SELECT 1 FROM entries WHERE namespace = ?1 AND list = ?2 AND entry = ?3")?
            .exists([self.namespace, index, entry])?;
        let loaded: BTreeSet<String> = there.then(|| entry.to_owned()).into_iter().collect();
        self.ledger.indexes.insert(index.to_owned(), loaded);
        Ok(there)
    }

    /// Writes whether an entry is in an index, if that has changed.
    fn save_entry(&mut self, index: &str, entry: &str, there: bool) -> Result<()> {
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

type LeaseRow = (Option<LeaseKey>, Option<TermRecord>);

fn read_namespace(row: &Row<'_>) -> Result<Namespace> {
    Ok(Namespace {
        generation: Generation {
            number: row.get::<_, i64>(0)?.cast_unsigned(),
            stamp: row.get::<_, i64>(1)?.cast_unsigned(),
        },
        run: FILE_RUN,
        lineage: 0,
        quarantine: match optional_time(row, 2)? {
            Some(until) => Some(QuarantineRecord {
                until,
                length: Duration::from_micros(unsigned(row, 3)?).min(MAX_TTL),
                reason: decoded(row, 4, QuarantineReason::from_word)?.ok_or_else(|| unreadable(4))?,
                informed: row.get(5)?,
            }),
            None => None,
        },
        ttls: LiveTtls::default(),
        token_floor: token(row, 6)?,
    })
}

fn read_ttl(row: &Row<'_>) -> Result<(Duration, TtlClass)> {
    let leases = match row.get::<_, Option<i64>>(2)? {
        Some(_) => Some(unsigned(row, 2)?),
        None => None,
    };
    Ok((Duration::from_micros(unsigned(row, 0)?).min(MAX_TTL), TtlClass { until: time(row, 1)?, leases }))
}

fn read_lease(row: &Row<'_>) -> Result<LeaseRow> {
    let lease = match row.get::<_, Option<String>>(0)? {
        Some(holder) => Some(LeaseKey { holder: InstanceId::foreign(&holder), expires: optional_time(row, 1)? }),
        None => None,
    };
    if row.get::<_, Option<i64>>(2)?.is_none() {
        return Ok((lease, None));
    }
    let previous = match row.get::<_, Option<i64>>(12)? {
        Some(_) => Some(PreviousTerm { token: token(row, 12)?, holder: instance(row, 13)?, ended: ended(row, 14)? }),
        None => None,
    };
    let term = TermRecord {
        token: token(row, 2)?,
        holder: instance(row, 3)?,
        nonce: decoded(row, 4, Nonce::parse)?,
        // Earlier layouts had none.
        ttl: match row.get::<_, Option<i64>>(16)? {
            Some(_) => Duration::from_micros(unsigned(row, 16)?).min(MAX_TTL),
            None => MAX_TTL,
        },
        since: time(row, 5)?,
        ended: ended(row, 6)?,
        wait_out_until: optional_time(row, 7)?,
        progress: time(row, 8)?,
        idled: row.get(15)?,
        asked: decoded(row, 9, Ask::decode)?,
        ending: decoded(row, 10, Ending::decode)?,
        superseded: match row.get::<_, Option<i64>>(11)? {
            Some(_) => Some(token(row, 11)?),
            None => None,
        },
        previous,
    };
    Ok((lease, Some(term)))
}

/// Decoded text, or `None` for NULL.
fn decoded<T>(row: &Row<'_>, at: usize, decode: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
    match row.get::<_, Option<String>>(at)? {
        Some(text) => decode(&text).map(Some).ok_or_else(|| unreadable(at)),
        None => Ok(None),
    }
}

fn ended(row: &Row<'_>, at: usize) -> Result<RecordedEnd> {
    decoded(row, at, RecordedEnd::from_word)?.ok_or_else(|| unreadable(at))
}

fn instance(row: &Row<'_>, at: usize) -> Result<InstanceId> {
    Ok(InstanceId::foreign(&row.get::<_, String>(at)?))
}

fn token(row: &Row<'_>, at: usize) -> Result<Token> {
    Token::new(unsigned(row, at)?).ok_or_else(|| unreadable(at))
}

fn time(row: &Row<'_>, at: usize) -> Result<ServerTime> {
    unsigned(row, at).map(ServerTime::from_micros)
}

fn optional_time(row: &Row<'_>, at: usize) -> Result<Option<ServerTime>> {
    match row.get::<_, Option<i64>>(at)? {
        Some(_) => time(row, at).map(Some),
        None => Ok(None),
    }
}

fn unsigned(row: &Row<'_>, at: usize) -> Result<u64> {
    u64::try_from(row.get::<_, i64>(at)?).map_err(|_| unreadable(at))
}

/// A value that Tenure did not write.
fn unreadable(at: usize) -> Error {
    Error::InvalidColumnType(at, "a value that tenure did not write".to_owned(), rusqlite::types::Type::Null)
}

/// The name of a group in the rows.
fn group_column(group: &Group) -> &str {
    group.prefix().unwrap_or_default()
}

fn from_token(token: Token) -> i64 {
    signed(token.get())
}

fn from_time(time: ServerTime) -> i64 {
    signed(time.as_micros())
}

fn from_span(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
