//! Finds the Redis releases on this machine.

use std::env;
use std::fmt;
use std::io::{Write as _, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A release of Redis that Tenure is tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RedisRelease {
    /// The oldest release.
    V6_2,
    /// The release in Debian 12.
    V7_0,
    /// The newest release.
    V8_2,
}

impl RedisRelease {
    /// All releases, the oldest first.
    pub const ALL: [Self; 3] = [Self::V6_2, Self::V7_0, Self::V8_2];

    /// The version number: `6.2`.
    pub fn number(self) -> &'static str {
        match self {
            Self::V6_2 => "6.2",
            Self::V7_0 => "7.0",
            Self::V8_2 => "8.2",
        }
    }

    /// The environment variable with the path of its server.
    pub fn variable(self) -> &'static str {
        match self {
            Self::V6_2 => "TENURE_REDIS_6_2",
            Self::V7_0 => "TENURE_REDIS_7_0",
            Self::V8_2 => "TENURE_REDIS_8_2",
        }
    }
}

impl fmt::Display for RedisRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis {}", self.number())
    }
}

/// Finds the server of this release: the one that its [variable](RedisRelease::variable) names, else the one that
/// `cargo xtask test` put into `target/redis`, else the one on the path if it is of this release.
///
/// # Panics
/// If the variable names a file that does not exist.
pub fn find(release: RedisRelease) -> Option<PathBuf> {
    from_variable(release.variable()).or_else(|| downloaded(release)).or_else(|| {
        let path = from_path()?;
        version(&path)?.starts_with(&format!("{}.", release.number())).then_some(path)
    })
}

/// Like [`find`], but prints what was not tested if there is no server. The warning bypasses the capture of test
/// output: a test without a server must not look like one that ran.
///
/// # Panics
/// Like [`find`].
pub fn find_or_warn(release: RedisRelease) -> Option<PathBuf> {
    let found = find(release);
    if found.is_none() {
        let line = format!(
            "NOT TESTED: cannot find {release}; run `cargo xtask test`, or set {} to its redis-server\n",
            release.variable()
        );
        // Without a standard error the warning cannot be printed.
        let _ = stderr().write_all(line.as_bytes());
    }
    found
}

/// The server to use if the release does not matter: the one that `TENURE_REDIS_SERVER` names, else the one on the
/// path, else the newest release found.
///
/// # Panics
/// If there is no server.
pub fn default_server() -> PathBuf {
    from_variable("TENURE_REDIS_SERVER")
        .or_else(from_path)
        .or_else(|| RedisRelease::ALL.into_iter().rev().find_map(find))
        .unwrap_or_else(|| panic!("cannot find redis-server; run `cargo xtask test` or `apt install redis-server`"))
}

/// The version that a server reports, for example `7.0.15`.
pub fn version(server: &Path) -> Option<String> {
    let output = Command::new(server).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().find_map(|word| word.strip_prefix("v=")).map(str::to_owned)
}

fn from_variable(variable: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env::var_os(variable).filter(|value| !value.is_empty())?);
    assert!(path.is_file(), "cannot use {variable}=\"{}\": no such file", path.display());
    Some(path)
}

fn downloaded(release: RedisRelease) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let path = workspace.join("target/redis").join(release.number()).join("redis-server");
    path.is_file().then_some(path)
}

fn from_path() -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join("redis-server")).find(|path| path.is_file())
}
