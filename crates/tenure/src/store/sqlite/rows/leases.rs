//! Leases and their last terms.

use std::time::Duration;

use rusqlite::{OptionalExtension, Result, Row, params};

use super::Rows;
use super::columns::{
    decoded, ended, from_span, from_time, from_token, instance, optional_time, time, token, unsigned,
};
use crate::lease::Ending;
use crate::name::{InstanceId, LeaseName};
use crate::store::{Ask, DocumentId, Generation, Holding, LeaseRequest, MAX_TTL, PreviousTerm, Reply, deleted_index};
use crate::time::ServerTime;
use crate::token::Nonce;
use tenure_core::ledger::{LeaseKey, TermRecord};

/// A lease and its last term.
type LeaseRow = (Option<LeaseKey>, Option<TermRecord>);

impl Rows<'_> {
    pub(super) fn apply_to_leases(
        &mut self,
        now: ServerTime,
        generation: Generation,
        request: &LeaseRequest,
    ) -> Result<Reply> {
        let decide = |rows: &mut Self| rows.ledger.apply_to_leases(now, generation, request, &mut rows.announcements);
        let name = match request {
            LeaseRequest::Renew { holding, ttl, progressed: false } => {
                if let Some(renewed) = self.renew_directly(now, holding, *ttl)? {
                    return Ok(renewed);
                }
                &holding.name
            }
            LeaseRequest::Acquire { claim, .. } | LeaseRequest::TakeOver { claim, .. } => &claim.name,
            LeaseRequest::Renew { holding, .. }
            | LeaseRequest::Release { holding, .. }
            | LeaseRequest::HandOver { holding, .. } => &holding.name,
            LeaseRequest::Abandon { name, .. }
            | LeaseRequest::Revoke { name, .. }
            | LeaseRequest::Ask { name, .. }
            | LeaseRequest::Inspect { name } => name,
            LeaseRequest::Holders { names } => {
                return names.iter().map(|name| self.holder(now, name)).collect::<Result<_>>().map(Reply::Holders);
            }
            LeaseRequest::Forget { name, document, .. } => return self.forget(name, document.as_ref(), decide),
            LeaseRequest::InspectNamespace | LeaseRequest::Reopen { .. } => return Ok(decide(self)),
        };
        self.with_lease(name, decide)
    }

    fn holder(&self, now: ServerTime, name: &LeaseName) -> Result<Option<InstanceId>> {
        let mut alive = self.tx.prepare_cached(
            "SELECT holder FROM leases WHERE namespace = ?1 AND key = ?2 AND (expires IS NULL OR expires > ?3)",
        )?;
        let holder: Option<Option<String>> =
            alive.query_row(params![self.namespace, name.key(), from_time(now)], |row| row.get(0)).optional()?;
        Ok(holder.flatten().map(|holder| InstanceId::foreign(&holder)))
    }

    /// Loads a lease and its last term into the ledger, lets it decide, and writes what has changed: the lease, and
    /// records beside it.
    pub(super) fn with_lease(&mut self, name: &LeaseName, decide: impl FnOnce(&mut Self) -> Reply) -> Result<Reply> {
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
        let reply = decide(self);
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

    /// The ledger decides; this deletes what the ledger deletes, and the rows that were not loaded into it.
    fn forget(
        &mut self,
        name: &LeaseName,
        document: Option<&DocumentId>,
        decide: impl FnOnce(&mut Self) -> Reply,
    ) -> Result<Reply> {
        let reply = match document {
            Some(document) => {
                let found = self.document(document)?;
                self.ledger.documents.extend(found.map(|value| (document.clone(), value)));
                let deleted = deleted_index(&document.collection);
                let was_deleted = self.load_entry(&deleted, &document.id)?;
                let reply = self.with_lease(name, decide)?;
                self.save_entry(&deleted, &document.id, was_deleted)?;
                self.ledger.documents.clear();
                reply
            }
            None => self.with_lease(name, decide)?,
        };
        if reply == Reply::Done {
            for all in ["leases", "records", "logs"] {
                let delete = format!("DELETE FROM {all} WHERE namespace = ?1 AND key = ?2");
                self.tx.prepare_cached(&delete)?.execute([self.namespace, name.key()])?;
            }
        }
        Ok(reply)
    }
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
