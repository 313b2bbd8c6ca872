//! Which key holds what.
//!
//! The lease itself is where the seed layout puts it, so that other programs and `redis-cli` find it. Whatever Tenure
//! keeps beside it carries the lease's key as its hash tag, so that in a cluster both are in one slot.

use crate::name::{Group, InstanceId, LeaseName};
use crate::store::{Keyspace, Wild};

/// The keys of one namespace on one server.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
    node: String,
    session: String,
    /// Whether all keys are on one server, so that a script may use any of them.
    pub(super) together: bool,
    /// The namespace record, which is entered.
    pub(super) entrance: String,
    /// Where scripts about a lease find the namespace record.
    namespace: fn(&Self, &LeaseName) -> String,
    /// The stream of what was written down about terms.
    pub(super) notes: String,
    /// Where announcements are published. Channels know no databases, so the number is part of the name.
    pub(super) channel: String,
}

impl Keys {
    pub(super) fn new(keyspace: &Keyspace, database: i64) -> Self {
        let prefix = keyspace.prefix().to_owned();
        let database = if database == 0 { String::new() } else { format!("@{database}") };
        Self {
            together: true,
            entrance: format!("{prefix}tenure:ns"),
            // There is one server, and one record for everything on it.
            namespace: |keys, _| keys.entrance.clone(),
            notes: format!("{prefix}tenure:terms"),
            channel: format!("{prefix}tenure:announcements{database}"),
            node: keyspace.node(),
            session: keyspace.session(),
            prefix,
        }
    }

    /// A script that does nothing. A server that knows it has served this namespace in its present run: scripts survive
    /// whatever becomes of the data, `SCRIPT FLUSH` excepted.
    pub(super) fn marker(&self) -> String {
        format!("-- Tenure has served {}\nreturn 1", self.channel)
    }

    /// The namespace record, as far as this lease is concerned.
    pub(super) fn namespace(&self, name: &LeaseName) -> String {
        (self.namespace)(self, name)
    }

    /// The same keys, for servers that share them out among themselves: each lease has a record in its own slot. Cluster
    /// stores will need this; until then it shows that the scripts can do it.
    #[cfg(test)]
    pub(super) fn spread(self) -> Self {
        Self { together: false, namespace: |keys, name| keys.beside("ns", &keys.lease(name)), ..self }
    }

    pub(super) fn lease(&self, name: &LeaseName) -> String {
        format!("{}{}", self.prefix, name.key())
    }

    pub(super) fn term(&self, name: &LeaseName) -> String {
        self.beside("term", &self.lease(name))
    }

    pub(super) fn records(&self, name: &LeaseName) -> String {
        self.beside("records", &self.lease(name))
    }

    pub(super) fn log(&self, name: &LeaseName, log: &str) -> String {
        self.beside(&format!("log:{log}"), &self.lease(name))
    }

    pub(super) fn session(&self, id: &str) -> String {
        format!("{}{id}", self.session)
    }

    pub(super) fn heartbeat(&self, group: &Group, instance: &InstanceId) -> String {
        format!("{}{instance}", self.heartbeats(group))
    }

    /// What the heartbeats of a group begin with.
    pub(super) fn heartbeats(&self, group: &Group) -> String {
        match group.prefix() {
            Some(prefix) => format!("{}{prefix}", self.prefix),
            None => self.node.clone(),
        }
    }

    /// What the keys begin with that any program may have written.
    pub(super) fn wild(&self, what: Wild) -> &str {
        match what {
            Wild::Nodes => &self.node,
            Wild::Sessions => &self.session,
        }
    }

    /// What stands before and after a heartbeat in the key of what its instance says about itself.
    pub(super) fn around_heartbeat(&self, group: &Group) -> (String, &'static str) {
        let tagged = self.heartbeats(group).contains('{');
        (format!("{}tenure:node:{}", self.prefix, if tagged { "" } else { "{" }), if tagged { "" } else { "}" })
    }

    pub(super) fn member(&self, group: &Group, instance: &InstanceId) -> String {
        let (before, after) = self.around_heartbeat(group);
        format!("{before}{}{after}", self.heartbeat(group, instance))
    }

    /// The index of everybody who has ever sent a heartbeat and was not seen to be gone.
    pub(super) fn members(&self, group: &Group) -> String {
        match group.prefix() {
            Some(prefix) => format!("{}tenure:nodes:{prefix}", self.prefix),
            None => format!("{}tenure:nodes", self.prefix),
        }
    }

    pub(super) fn index(&self, index: &str) -> String {
        format!("{}tenure:index:{index}", self.prefix)
    }

    /// A key of ours in the slot of another one. A key that has a hash tag keeps it.
    fn beside(&self, what: &str, key: &str) -> String {
        let prefix = &self.prefix;
        if key.contains('{') {
            format!("{prefix}tenure:{what}:{key}")
        } else {
            format!("{prefix}tenure:{what}:{{{key}}}")
        }
    }
}
