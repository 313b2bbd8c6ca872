//! A cgroup (version 2) for one command, where the user may create it. The kernel then kills all processes of the
//! command at once, however fast it forks and wherever they went.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::getpid;

/// The cgroup of one command.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup and moves this process into it, so that its children start there. Returns `None` where that is
    /// not possible: there is no cgroup of version 2, or this user may not change it.
    pub fn join_new(name: &str) -> Option<Self> {
        let cgroup = Self::named(name)?;
        fs::create_dir(&cgroup.0).ok()?;
        if !cgroup.0.join("cgroup.kill").exists() || join(&cgroup.0).is_err() {
            cgroup.remove();
            return None;
        }
        Some(cgroup)
    }

    /// Moves this process back to its former cgroup. Returns `None` when that fails: the process must not kill itself.
    pub fn leave(self) -> Option<Self> {
        join(self.0.parent()?).is_ok().then_some(self)
    }

    /// Returns a name that is unique across containers. Process ids are not: each container has the same ones.
    pub fn new_name() -> String {
        format!("tenure-run-{:016x}", fastrand::u64(..))
    }

    /// Returns the cgroup of this name, whether it exists or not.
    pub fn named(name: &str) -> Option<Self> {
        let parent = own_folder(
            &fs::read_to_string("/proc/self/mountinfo").ok()?,
            &fs::read_to_string("/proc/self/cgroup").ok()?,
        )?;
        Some(Self(parent.join(name)))
    }

    /// Kills all processes in the cgroup.
    pub fn kill(&self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }

    /// Removes the cgroup. That fails only if a foreign process is in it.
    pub fn remove(&self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn join(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("cgroup.procs"), getpid().as_raw_nonzero().to_string())
}

/// Returns the folder of this process's own cgroup.
fn own_folder(mounts: &str, cgroups: &str) -> Option<PathBuf> {
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        // `id parent device root place options … - kind source options`
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        let below = Path::new(own).strip_prefix(root).ok()?;
        kind.starts_with("cgroup2 ").then(|| Path::new(place).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_cgroup_is_where_its_tree_is_mounted() {
        let mounts = "22 1 0:20 / /sys rw - sysfs sysfs rw\n\
                      31 22 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let folder = |cgroups| own_folder(mounts, cgroups);
        assert_eq!(folder("0::/system.slice/x.service\n"), Some("/sys/fs/cgroup/system.slice/x.service".into()));
        assert_eq!(folder("4:memory:/x\n0::/\n"), Some("/sys/fs/cgroup/".into()));
        assert_eq!(folder("4:memory:/x\n"), None, "version 1 alone");
        let of_a_container = "31 22 0:27 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(own_folder(of_a_container, "0::/docker/ab/inner\n"), Some("/sys/fs/cgroup/inner".into()));
        assert_eq!(own_folder(of_a_container, "0::/elsewhere\n"), None);
    }
}
