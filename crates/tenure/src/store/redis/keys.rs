//! Which key holds what.
//!
//! The lease itself is where the seed layout puts it, so that other programs and `redis-cli` find it. Whatever Tenure
//! keeps beside it carries the lease's key as its hash tag, so that in a cluster both are in one slot.

use crate::name::{Group, InstanceId, LeaseName};
use crate::store::{ForeignKind, Keyspace};

/// The keys of one namespace on one server.
#[derive(Clone, Debug)]
pub(super) struct RedisKeys {
    prefix: String,
    node: String,
    session: String,
    /// Whether all keys are on one server, so that a script may use any of them.
    pub(super) single_server: bool,
    /// The namespace record, which is attached.
    pub(super) namespace_key: String,
    /// Where scripts about a lease find the namespace record.
    namespace: fn(&Self, &LeaseName) -> String,
    /// The stream of what was written down about terms.
    pub(super) notes: String,
    /// Where announcements are published. Channels know no databases, so the number is part of the name.
    pub(super) channel: String,
}

impl RedisKeys {
    pub(super) fn new(keyspace: &Keyspace, database: i64) -> Self {
        let prefix = keyspace.prefix().to_owned();
        let database = if database == 0 { String::new() } else { format!("@{database}") };
        Self {
            single_server: true,
            namespace_key: format!("{prefix}tenure:ns"),
            // There is one server, and one record for everything on it.
            namespace: |keys, _| keys.namespace_key.clone(),
            notes: format!("{prefix}tenure:terms"),
            channel: format!("{prefix}tenure:announcements{database}"),
            node: keyspace.node(),
            session: keyspace.session(),
            prefix,
        }
    }

    /// A script that does nothing. A server that knows it has served this namespace in its present run: scripts survive
    /// whatever becomes of the data, `SCRIPT FLUSH` excepted.
    pub(super) fn served_marker(&self) -> String {
        format!("-- Tenure has served {}\nreturn 1", self.channel)
    }

    /// The namespace record, as far as this lease is concerned.
    pub(super) fn namespace(&self, name: &LeaseName) -> String {
        (self.namespace)(self, name)
    }

    /// The same keys, for servers that share them out among themselves: each lease has a record in its own slot. Cluster
    /// stores will need this; until then it shows that the scripts can do it.
    #[cfg(test)]
    pub(super) fn for_cluster(self) -> Self {
        Self { single_server: false, namespace: |keys, name| keys.sibling_key("ns", &keys.lease(name)), ..self }
    }

    pub(super) fn lease(&self, name: &LeaseName) -> String {
        format!("{}{}", self.prefix, name.key())
    }

    pub(super) fn term(&self, name: &LeaseName) -> String {
        self.sibling_key("term", &self.lease(name))
    }

    pub(super) fn records(&self, name: &LeaseName) -> String {
        self.sibling_key("records", &self.lease(name))
    }

    pub(super) fn log(&self, name: &LeaseName, log: &str) -> String {
        self.sibling_key(&format!("log:{log}"), &self.lease(name))
    }

    pub(super) fn session(&self, id: &str) -> String {
        format!("{}{id}", self.session)
    }

    pub(super) fn heartbeat(&self, group: &Group, instance: &InstanceId) -> String {
        format!("{}{instance}", self.heartbeat_prefix(group))
    }

    /// What the heartbeats of a group begin with.
    pub(super) fn heartbeat_prefix(&self, group: &Group) -> String {
        match group.prefix() {
            Some(prefix) => format!("{}{prefix}", self.prefix),
            None => self.node.clone(),
        }
    }

    /// What the keys begin with that any program may have written.
    pub(super) fn foreign_prefix(&self, what: ForeignKind) -> &str {
        match what {
            ForeignKind::Nodes => &self.node,
            ForeignKind::Sessions => &self.session,
        }
    }

    /// What stands before and after a heartbeat in the key of what its instance says about itself.
    pub(super) fn instance_record_affixes(&self, group: &Group) -> (String, &'static str) {
        let tagged = self.heartbeat_prefix(group).contains('{');
        (format!("{}tenure:node:{}", self.prefix, if tagged { "" } else { "{" }), if tagged { "" } else { "}" })
    }

    pub(super) fn instance_record(&self, group: &Group, instance: &InstanceId) -> String {
        let (before, after) = self.instance_record_affixes(group);
        format!("{before}{}{after}", self.heartbeat(group, instance))
    }

    /// The index of everybody who has ever sent a heartbeat and was not seen to be gone.
    pub(super) fn instance_index(&self, group: &Group) -> String {
        match group.prefix() {
            Some(prefix) => format!("{}tenure:nodes:{prefix}", self.prefix),
            None => format!("{}tenure:nodes", self.prefix),
        }
    }

    pub(super) fn index(&self, index: &str) -> String {
        format!("{}tenure:index:{index}", self.prefix)
    }

    /// A key of ours in the slot of another one. A key that has a hash tag keeps it.
    fn sibling_key(&self, what: &str, key: &str) -> String {
        let prefix = &self.prefix;
        if key.contains('{') {
            format!("{prefix}tenure:{what}:{key}")
        } else {
            format!("{prefix}tenure:{what}:{{{key}}}")
        }
    }
}
