//! How the open files that this process may have are divided, so that no part of the service takes those of another. Pure,
//! but for asking the system how many there are.

use rustix::process::{Resource, getrlimit};

/// How many of each there may be at a time. What is left over is for the store's connections and everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBudget {
    /// Connections to the API.
    pub api: usize,
    /// Polls under way.
    pub polls: usize,
    /// Targets whose connection is kept between two polls.
    pub keep_alive: usize,
    /// Names that are being looked up; each may take two files.
    pub lookups: usize,
}

impl FileBudget {
    /// For the files that this process may open.
    pub fn for_this_process() -> Self {
        let files = getrlimit(Resource::Nofile).current;
        Self::for_files(files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX)))
    }

    /// For so many files.
    pub fn for_files(files: usize) -> Self {
        Self {
            api: (files / 4).clamp(4, 4_096),
            polls: (files / 4).clamp(4, 16_384),
            keep_alive: (files / 4).min(16_384),
            lookups: (files / 16).clamp(4, 512),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_leaves_an_eighth_of_the_files() {
        for files in [256, 1_024, 4_096, 65_536, usize::MAX] {
            let FileBudget { api, polls, keep_alive, lookups } = FileBudget::for_files(files);
            assert!(api + polls + keep_alive + lookups * 2 <= files - files / 8, "{files}");
        }
    }
}
