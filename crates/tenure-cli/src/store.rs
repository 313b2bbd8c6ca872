//! The store that the flags name, and names in it.

use std::path::PathBuf;
use std::time::Duration;

use tenure::{LeaseKind, LeaseName, Tenure, TenureBuilder};

use crate::arguments::StoreArguments;
use crate::exit::Failure;

impl StoreArguments {
    /// An instance on that store.
    pub fn builder(&self) -> Result<TenureBuilder, Failure> {
        let usage = |error: tenure::NameError| Failure::Usage(error.to_string());
        let url = match &self.store {
            Some(url) => url.clone(),
            None => default_store()?,
        };
        let mut builder = Tenure::builder(&url);
        if let Some(namespace) = &self.namespace {
            builder = builder.namespace(namespace).map_err(usage)?;
        }
        if let Some(name) = &self.name {
            builder = builder.name(name).map_err(usage)?;
        }
        if self.bootstrap {
            builder = builder.bootstrap();
        }
        if self.durable {
            builder = builder.durable();
        }
        Ok(builder)
    }

    /// Connects, or says within a moment why that cannot be.
    pub async fn connect(&self) -> Result<Tenure, Failure> {
        Ok(self.builder()?.connect().await?)
    }

    /// The lease that is the leadership of a role.
    pub fn role(&self, role: &str) -> Result<LeaseName, Failure> {
        LeaseName::with_prefix(LeaseKind::Role, &self.keys_leader, role)
            .map_err(|error| Failure::Usage(error.to_string()))
    }
}

/// A file that the processes of this host share: of all users, when it is root's.
fn default_store() -> Result<String, Failure> {
    let folder = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib/tenure")
    } else if let Some(state) = std::env::var_os("XDG_STATE_HOME").filter(|state| !state.is_empty()) {
        PathBuf::from(state).join("tenure")
    } else if let Some(home) = std::env::var_os("HOME").filter(|home| !home.is_empty()) {
        PathBuf::from(home).join(".local/state/tenure")
    } else {
        return Err(Failure::Usage("there is no HOME to keep leases in; name a store with --store".to_owned()));
    };
    std::fs::create_dir_all(&folder).map_err(Failure::system("cannot make the folder of the embedded store"))?;
    Ok(format!("sqlite:{}", folder.join("leases.db").display()))
}

/// A span as people write it.
pub fn shown(span: Duration) -> String {
    humantime::format_duration(Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))).to_string()
}
