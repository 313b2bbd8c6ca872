//! The keys of a namespace.
//!
//! The lease itself is where the seed layout puts it, so that other programs and `redis-cli` find it. Every key that
//! Tenure keeps beside it has the lease's key as its hash tag, so that in a cluster both are in one hash slot.

use crate::name::{Group, InstanceId, LeaseName};
use crate::store::{DocumentId, Keyspace};

/// The keys of one namespace on one server.
#[derive(Clone, Debug)]
pub(super) struct RedisKeys {
    prefix: String,
    node: String,
    keyspace: Keyspace,
    /// Whether all keys are on one server, so that a script may use any of them.
    pub(super) single_server: bool,
    /// The namespace record, which an attach checks.
    pub(super) namespace_key: String,
    /// Where scripts about a lease find the namespace record.
    namespace: fn(&Self, &LeaseName) -> String,
    /// The stream of notes about terms.
    pub(super) notes: String,
    /// The channel of announcements. Channels are not part of a database, so the database number is part of the name.
    pub(super) channel: String,
}

impl RedisKeys {
    pub(super) fn new(keyspace: &Keyspace, database: i64) -> Self {
        let prefix = keyspace.prefix().to_owned();
        let database = if database == 0 { String::new() } else { format!("@{database}") };
        Self {
            single_server: true,
            namespace_key: format!("{prefix}tenure:ns"),
            // There is one server, with one record for everything on it.
            namespace: |keys, _| keys.namespace_key.clone(),
            notes: format!("{prefix}tenure:terms"),
            channel: format!("{prefix}tenure:announcements{database}"),
            node: keyspace.node(),
            keyspace: keyspace.clone(),
            prefix,
        }
    }

    /// A script that does nothing. A server that knows it has served this namespace in its present run: scripts survive
    /// any loss of the data, except `SCRIPT FLUSH`.
    pub(super) fn served_marker(&self) -> String {
        format!("-- Tenure has served {}\nreturn 1", self.channel)
    }

    /// The namespace record that scripts about this lease use.
    pub(super) fn namespace(&self, name: &LeaseName) -> String {
        (self.namespace)(self, name)
    }

    /// The same keys for a cluster: each lease has a namespace record in its own hash slot. Cluster stores will need
    /// this; until then it shows that the scripts support it.
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

    /// The mark that entries appended to the logs of a lease are announced.
    pub(super) fn watched(&self, name: &LeaseName) -> String {
        self.sibling_key("watched", &self.lease(name))
    }

    pub(super) fn document(&self, document: &DocumentId) -> String {
        format!("{}{}", self.document_prefix(&document.collection), document.id)
    }

    /// The prefix of the documents of a collection.
    pub(super) fn document_prefix(&self, collection: &str) -> String {
        self.keyspace.documents(collection)
    }

    pub(super) fn heartbeat(&self, group: &Group, instance: &InstanceId) -> String {
        format!("{}{instance}", self.heartbeat_prefix(group))
    }

    /// The prefix of the heartbeats of a group.
    pub(super) fn heartbeat_prefix(&self, group: &Group) -> String {
        match group.prefix() {
            Some(prefix) => format!("{}{prefix}", self.prefix),
            None => self.node.clone(),
        }
    }

    /// What precedes and follows a heartbeat's key in the key of its instance's record.
    pub(super) fn instance_record_affixes(&self, group: &Group) -> (String, &'static str) {
        let tagged = self.heartbeat_prefix(group).contains('{');
        (format!("{}tenure:node:{}", self.prefix, if tagged { "" } else { "{" }), if tagged { "" } else { "}" })
    }

    pub(super) fn instance_record(&self, group: &Group, instance: &InstanceId) -> String {
        let (before, after) = self.instance_record_affixes(group);
        format!("{before}{}{after}", self.heartbeat(group, instance))
    }

    /// The index of every instance that has sent a heartbeat and has not been found dead.
    pub(super) fn instance_index(&self, group: &Group) -> String {
        match group.prefix() {
            Some(prefix) => format!("{}tenure:nodes:{prefix}", self.prefix),
            None => format!("{}tenure:nodes", self.prefix),
        }
    }

    pub(super) fn index(&self, index: &str) -> String {
        format!("{}tenure:index:{index}", self.prefix)
    }

    /// A key of ours in the hash slot of another one. A key that has a hash tag keeps it.
    fn sibling_key(&self, what: &str, key: &str) -> String {
        let prefix = &self.prefix;
        if key.contains('{') {
            format!("{prefix}tenure:{what}:{key}")
        } else {
            format!("{prefix}tenure:{what}:{{{key}}}")
        }
    }
}
