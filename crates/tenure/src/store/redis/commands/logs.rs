//! Requests about logs.

use redis::Cmd;

use super::{CommandEncoder, add_term_args, cmd, millis};
use crate::store::redis::scripts::Script;
use crate::store::{Announcement, LogRequest, MAX_TERM_NOTES};

impl CommandEncoder {
    pub(super) fn encode_log_request(&self, request: &LogRequest) -> Cmd {
        let keys = &self.keys;
        match request {
            LogRequest::Append { holding, log, value, kept, nonce, records: written } => {
                let (lease, term) = (keys.lease(&holding.name), keys.term(&holding.name));
                let (entries, records) = (keys.log(&holding.name, log), keys.records(&holding.name));
                let watched = keys.watched(&holding.name);
                let mut command = self.evalsha(Script::Append, &[&lease, &term, &entries, &records, &watched]);
                add_term_args(&mut command, holding).arg(value.as_slice()).arg((*kept).max(1)).arg(nonce.to_string());
                let (name, log, token) = (holding.name.clone(), log.clone(), holding.token);
                command.arg(Announcement::Appended { name, log, token }.encode()).arg(&keys.channel);
                for (record, value) in written {
                    command.arg(record).arg(value.as_slice());
                }
                command
            }
            LogRequest::Read { name, log, after, limit } => {
                let (key, limit) = (keys.log(name, log), i64::try_from(*limit).unwrap_or(i64::MAX));
                match after {
                    // No entry can follow the largest id.
                    Some(after) => {
                        let from = after.next().map_or_else(|| "+".to_owned(), |next| next.to_string());
                        let to = if after.next().is_some() { "+" } else { "-" };
                        cmd("XRANGE").arg(key).arg(from).arg(to).arg("COUNT").arg(limit).take()
                    }
                    None => cmd("XREVRANGE").arg(key).arg("+").arg("-").arg("COUNT").arg(limit).take(),
                }
            }
            LogRequest::Note(note) => {
                let mut command = cmd("XADD");
                command
                    .arg(&keys.notes)
                    .arg("MAXLEN")
                    .arg("~")
                    .arg(MAX_TERM_NOTES)
                    .arg("*")
                    .arg("note")
                    .arg(note.encode());
                command
            }
            LogRequest::Notes { limit } => {
                let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
                cmd("XREVRANGE").arg(&keys.notes).arg("+").arg("-").arg("COUNT").arg(limit).take()
            }
            LogRequest::Watch { name, ttl } => {
                cmd("SET").arg(keys.watched(name)).arg("1").arg("PX").arg(millis(*ttl)).take()
            }
        }
    }
}
