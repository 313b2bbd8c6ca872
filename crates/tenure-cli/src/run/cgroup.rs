//! A cgroup (version 2) of a command's own, where one can be made: the kernel then kills all of the command in one go,
//! however fast it forks and wherever it went.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::getpid;

/// The cgroup of one command.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one and moves this process into it, so that what it starts begins there. `None` where that cannot be done:
    /// there is no cgroup of version 2, or it is not this user's to change.
    pub fn join_new(name: &str) -> Option<Self> {
        let cgroup = Self::named(name)?;
        fs::create_dir(&cgroup.0).ok()?;
        if !cgroup.0.join("cgroup.kill").exists() || join(&cgroup.0).is_err() {
            cgroup.remove();
            return None;
        }
        Some(cgroup)
    }

    /// Moves this process back to where it came from. `None` when it cannot leave: it must not kill itself.
    pub fn leave(self) -> Option<Self> {
        join(self.0.parent()?).is_ok().then_some(self)
    }

    /// A name that no other has, in whatever container: numbers of processes are the same in each.
    pub fn new_name() -> String {
        format!("tenure-run-{:016x}", fastrand::u64(..))
    }

    /// The one of this name, whether there is one or not.
    pub fn named(name: &str) -> Option<Self> {
        let parent = own_folder(
            &fs::read_to_string("/proc/self/mountinfo").ok()?,
            &fs::read_to_string("/proc/self/cgroup").ok()?,
        )?;
        Some(Self(parent.join(name)))
    }

    /// Kills everything in it.
    pub fn kill(&self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }

    /// Removes it. It is empty, or somebody else is in it.
    pub fn remove(&self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn join(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("cgroup.procs"), getpid().as_raw_nonzero().to_string())
}

/// The folder of this process's own cgroup.
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
