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
    pub kept: usize,
    /// Names that are being looked up; each may take two files.
    pub lookups: usize,
}

impl FileBudget {
    /// For the files that this process may open.
    pub fn of_this_process() -> Self {
        let files = getrlimit(Resource::Nofile).current;
        Self::of(files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX)))
    }

    /// For so many files.
    pub fn of(files: usize) -> Self {
        Self {
            api: (files / 4).clamp(4, 4_096),
            polls: (files / 4).clamp(4, 16_384),
            kept: (files / 4).min(16_384),
            lookups: (files / 16).clamp(4, 512),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_leave_an_eighth_over() {
        for files in [256, 1_024, 4_096, 65_536, usize::MAX] {
            let FileBudget { api, polls, kept, lookups } = FileBudget::of(files);
            assert!(api + polls + kept + lookups * 2 <= files - files / 8, "{files}");
        }
    }
}
