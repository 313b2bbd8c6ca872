//! The ledger's rows in the file: loaded for a request, changed by the ledger, written back where they changed. Each group
//! of requests has a file.

mod columns;
mod documents;
mod leases;
mod logs;
mod membership;

use std::time::Duration;

use rusqlite::{CachedStatement, OptionalExtension, Result, Row, Transaction, params};

use crate::store::{
    Announcement, AttachRequest, Attached, Generation, Lineage, MAX_TTL, QuarantineReason, Reply, Request, ServerInfo,
    ServerRun,
};
use crate::time::ServerTime;
use columns::{decoded, from_span, from_time, from_token, optional_time, signed, time, token, unreadable, unsigned};
use tenure_core::ledger::{Ledger, LiveTtls, Namespace, QuarantineRecord, TtlClass};

/// How many announcements are kept for subscribers that are behind.
const MAX_ANNOUNCEMENTS: i64 = 4_096;

/// A file has no server that could restart. Opening the file detects a reboot.
const FILE_RUN: ServerRun = ServerRun(0);

/// The history of a file. It is not on record: only a file without its latest writes has another one.
const CONTINUED: Lineage = Lineage { id: 0, before: Some(0) };
const ROLLED_BACK: u128 = 1;

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

    /// Attaches. `others` says whether other instances may hold leases that are not on record, `lost_writes` whether the
    /// latest writes may be missing.
    pub(super) fn attach(
        &mut self,
        now: ServerTime,
        request: &AttachRequest,
        others: bool,
        lost_writes: bool,
    ) -> Result<Attached> {
        // A quarantine that has begun covers it. Instances that remember longer leases lengthen it.
        if lost_writes
            && let Some(record) = &mut self.ledger.namespace
            && record.quarantine.is_none_or(|quarantine| quarantine.until <= now)
        {
            record.lineage = ROLLED_BACK;
            self.ledger.set_lineage(CONTINUED);
        }
        let mut granted =
            self.tx.prepare_cached("SELECT 1 FROM leases WHERE namespace = ?1 AND token IS NOT NULL LIMIT 1")?;
        let has_served = granted.exists([self.namespace])?;
        let server = ServerInfo {
            now,
            run: FILE_RUN,
            uptime: Duration::MAX,
            subscribers: usize::from(others || lost_writes),
            has_served,
        };
        Ok(self.ledger.attach(&server, request, &mut self.announcements))
    }

    /// Carries out one request.
    pub(super) fn apply(&mut self, now: ServerTime, generation: Generation, request: &Request) -> Result<Reply> {
        match request {
            Request::Lease(request) => self.apply_to_leases(now, generation, request),
            Request::Membership(request) => self.apply_to_membership(now, request),
            Request::Document(request) => self.apply_to_documents(now, request),
            Request::Log(request) => self.apply_to_logs(now, request),
            Request::Announce(_) => Ok(self.ledger.apply(now, generation, request, &mut self.announcements)),
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
}

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
