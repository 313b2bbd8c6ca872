//! Opens the store of the flags, and resolves names in it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, access};
use tenure::fleet::InstanceRecord;
use tenure::store::{Keyspace, Store, StoreError};
use tenure::{LeaseKind, LeaseName, Tenure, TenureBuilder};
use tenure_serve::keys::KeyPrefixes;
use tenure_serve::session_repo;

use crate::arguments::StoreArguments;
use crate::exit::CliError;
use crate::notice::{note, warning};

impl StoreArguments {
    /// Returns a builder for an instance on the store, with this name or the host name.
    pub fn builder(&self, name: Option<&str>) -> Result<TenureBuilder, CliError> {
        let url = match &self.store {
            Some(url) => url.clone(),
            None => {
                let folder = default_dir()?;
                let failed = |error: std::io::Error| {
                    let folder = folder.display();
                    CliError::CannotWrite(format!(
                        "cannot write {folder}, the folder of the embedded store: {error}; name another store with --store"
                    ))
                };
                DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
                // Whether an existing folder is writable shows only in the attempt.
                access(&folder, Access::WRITE_OK).map_err(|error| failed(error.into()))?;
                sqlite_url(&folder)
            }
        };
        if url.starts_with("memory:") {
            warning!("memory: is limited to this process; no other instance sees its leases");
        }
        Ok(self.builder_on(&url, name))
    }

    /// Checks the names of keys. Of two prefixes none may begin like the other: a key would be two things. No namespace
    /// may end in a prefix: its keys would be those of another namespace.
    pub fn check_keys(&self) -> Result<(), CliError> {
        let all = [
            ("lease", &self.keys_lease),
            ("node", &self.keys_node),
            ("session", &self.keys_session),
            ("leader", &self.keys_leader),
            ("heartbeat", &self.keys_heartbeat),
        ];
        if let Some(namespace) = &self.namespace {
            Keyspace::default().namespace(namespace).map_err(|error| CliError::Usage(error.to_string()))?;
            let whole = format!(":{namespace}:");
            if let Some((setting, prefix)) =
                all.into_iter().find(|(_, prefix)| whole.contains(&format!(":{}", plain(prefix))))
            {
                return Err(CliError::Usage(format!(
                    "the namespace {namespace:?} contains keys.{setting} ({prefix:?}), so its keys could be another namespace's; choose another name"
                )));
            }
        }
        for (setting, prefix) in all {
            for (other, longer) in all.into_iter().filter(|(other, _)| *other != setting) {
                if plain(longer).starts_with(&plain(prefix)) {
                    return Err(CliError::Usage(format!(
                        "keys.{other} ({longer:?}) begins with keys.{setting} ({prefix:?}), so a key could be either; choose prefixes of which none begins with another"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Opens the store itself, unless it is the embedded one.
    pub fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        tenure::store::open(self.store.as_deref().unwrap_or("memory:"), &Keyspace::default())
    }

    fn builder_on(&self, url: &str, name: Option<&str>) -> TenureBuilder {
        let mut builder = Tenure::builder(url)
            .node_prefix(&self.keys_node)
            .document_prefix(session_repo::COLLECTION, &self.keys_session);
        if let Some(namespace) = &self.namespace {
            builder = builder.namespace(namespace);
        }
        if let Some(name) = name {
            builder = builder.name(name);
        }
        if self.bootstrap {
            builder = builder.bootstrap();
        }
        if self.durable {
            builder = builder.durable();
        }
        builder
    }

    /// Connects as an observer, which acquires nothing. Fails soon if the store is not reachable.
    pub async fn connect(&self) -> Result<Tenure, CliError> {
        Ok(self.builder(None)?.observer().unlogged().connect().await?)
    }

    /// Connects as `connect` does, for commands that only read: a missing file is not created and reads as empty.
    pub async fn connect_existing(&self) -> Result<Tenure, CliError> {
        let url = match &self.store {
            Some(url) => url.clone(),
            None => sqlite_url(&default_dir()?),
        };
        let is_url = tenure::store::open(&url, &Keyspace::default()).is_ok();
        match url.strip_prefix("sqlite:") {
            // A lack of permission is reported when the file is opened.
            Some(path) if is_url && Path::new(path).try_exists().is_ok_and(|exists| !exists) => {
                note!("{path} does not exist: nothing has run on it yet");
                Ok(self.builder_on("memory:", None).unlogged().connect().await?)
            }
            _ => self.connect().await,
        }
    }

    /// Returns the lease of a role's leadership.
    pub fn role(&self, role: &str) -> Result<LeaseName, CliError> {
        self.keys().role(role).map_err(|error| CliError::Usage(error.to_string()))
    }

    /// Returns the roles that an argument may mean: by name, or by whole key.
    pub fn resolve_roles(&self, word: &str) -> Result<Vec<LeaseName>, CliError> {
        let mut names = vec![self.role(word)?];
        names.extend(lease_from_key(LeaseKind::Role, word));
        Ok(names)
    }

    /// Returns the leases that an argument may mean: a role, a plain lease, a session, another pool target or a whole
    /// key.
    pub async fn resolve_leases(&self, tenure: &Tenure, word: &str) -> Result<Vec<LeaseName>, CliError> {
        let mut names = vec![self.role(word)?];
        names.extend(LeaseName::lease(word));
        names.extend(self.keys().session(word));
        let mut pools = BTreeSet::new();
        for member in tenure.fleet().instances().await? {
            pools.extend(InstanceRecord::decode(&member.record).into_iter().flat_map(|record| record.held.into_keys()));
        }
        names.extend(pools.iter().filter_map(|pool| LeaseName::target(pool, word).ok()));
        let kind = match word {
            word if word.starts_with(&self.keys_leader) => LeaseKind::Role,
            word if word.contains(":lease:") || word.starts_with(&self.keys_lease) => LeaseKind::Target,
            _ => LeaseKind::Lease,
        };
        // Other tools show keys with the namespace.
        let prefix = self.namespace.as_ref().map(|namespace| format!("{namespace}:")).unwrap_or_default();
        names.extend(lease_from_key(kind, word.strip_prefix(&prefix).unwrap_or(word)));
        Ok(names)
    }

    /// Returns the key prefixes of leases.
    pub fn keys(&self) -> KeyPrefixes {
        KeyPrefixes {
            lease: self.keys_lease.clone(),
            leader: self.keys_leader.clone(),
            heartbeat: self.keys_heartbeat.clone(),
        }
    }
}

/// Returns the lease with this key in the store, if the argument can be a key.
pub fn lease_from_key(kind: LeaseKind, word: &str) -> Option<LeaseName> {
    let (prefix, label) = word.split_at(word.rfind(':')? + 1);
    LeaseName::with_prefix(kind, prefix, label).ok()
}

/// Returns the folder of the file that the processes of a user on this host share.
fn default_dir() -> Result<PathBuf, CliError> {
    let is_root = rustix::process::geteuid().is_root();
    state_dir(is_root, std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
        .ok_or_else(|| CliError::Usage("cannot find a folder for leases: HOME is not set; use --store".to_owned()))
}

fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("leases.db").display())
}

fn state_dir(is_root: bool, state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let named = |variable: Option<OsString>| variable.filter(|value| !value.is_empty()).map(PathBuf::from);
    if is_root {
        return Some(PathBuf::from("/var/lib/tenure"));
    }
    named(state).map(|state| state.join("tenure")).or_else(|| Some(named(home)?.join(".local/state/tenure")))
}

/// Returns a prefix without the braces of its hash tag.
fn plain(prefix: &str) -> String {
    prefix.replace(['{', '}'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_store_is_a_file_of_the_host_or_the_user() {
        let some = |text: &str| Some(OsString::from(text));
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(state_dir(true, some("/state"), some("/home/me")), path("/var/lib/tenure"));
        assert_eq!(state_dir(false, some("/state"), some("/home/me")), path("/state/tenure"));
        assert_eq!(state_dir(false, some(""), some("/home/me")), path("/home/me/.local/state/tenure"));
        assert_eq!(state_dir(false, None, some("")), None);
    }
}
