//! Divides the open files of this process between the parts of the service, so that none takes the files of another.
//! Pure, except for reading the limit of the system.

use rustix::process::{Resource, getrlimit};

/// Largest number of each at a time. The rest is for connections to the store and everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBudget {
    /// Connections to the API.
    pub api: usize,
    /// Polls in flight.
    pub polls: usize,
    /// Targets whose connection is kept between two polls.
    pub keep_alive: usize,
    /// Names being looked up; each may take two files.
    pub lookups: usize,
}

impl FileBudget {
    /// Computes the budget for the file limit of this process.
    pub fn for_this_process() -> Self {
        let files = getrlimit(Resource::Nofile).current;
        Self::for_files(files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX)))
    }

    /// Computes the budget for this many files.
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
