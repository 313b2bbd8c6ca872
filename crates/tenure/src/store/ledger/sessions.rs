//! Sessions. A write succeeds only if its writer has seen the present value.

use super::Ledger;
use crate::store::{Announcement, DELETED_SESSIONS, Reply, SESSIONS};

impl Ledger {
    pub(super) fn write_session(
        &mut self,
        id: &str,
        seen: Option<&[u8]>,
        value: Option<&[u8]>,
        fresh: bool,
        announcements: &mut Vec<Announcement>,
    ) -> Reply {
        let now = self.sessions.get(id).map(Vec::as_slice);
        let was_there = now.is_some();
        if now != value {
            if now != seen {
                return Reply::Conflict(now.map(<[u8]>::to_vec));
            }
            if fresh && self.indexes.get(DELETED_SESSIONS).is_some_and(|gone| gone.contains(id)) {
                return Reply::InUse;
            }
            match value {
                Some(value) => drop(self.sessions.insert(id.to_owned(), value.to_vec())),
                None => drop(self.sessions.remove(id)),
            }
            announcements.push(Announcement::SessionChanged { id: id.to_owned() });
        }
        let listed = self.indexes.entry(SESSIONS.to_owned()).or_default();
        if value.is_some() {
            listed.insert(id.to_owned());
            self.indexes.entry(DELETED_SESSIONS.to_owned()).or_default().remove(id);
        } else if listed.remove(id) || was_there {
            self.indexes.entry(DELETED_SESSIONS.to_owned()).or_default().insert(id.to_owned());
        }
        Reply::Done
    }
}
