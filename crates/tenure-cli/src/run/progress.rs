//! The progress file: a command touches it to report progress.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::SystemTime;

use tenure::Token;

/// Variable with the path of the file.
pub const PROGRESS_VARIABLE: &str = "TENURE_PROGRESS";

/// The progress file of one term, removed when dropped.
pub struct ProgressFile {
    path: PathBuf,
    touched: Option<SystemTime>,
}

impl ProgressFile {
    /// Creates a new file that no other process uses.
    pub fn create(token: Token) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("tenure-progress-{}-{token}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, touched: file.metadata()?.modified().ok() })
    }

    pub fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// Returns whether the file was touched since the last call.
    pub fn was_touched(&mut self) -> bool {
        let modified = std::fs::metadata(&self.path).and_then(|file| file.modified()).ok();
        modified.is_some() && std::mem::replace(&mut self.touched, modified) != modified
    }
}

impl Drop for ProgressFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
