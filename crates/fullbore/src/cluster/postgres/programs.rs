//! Finds PostgreSQL's programs, on the PATH and in directories of packages that are not on the PATH.

use crate::failure::Failure;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories in which packages create a subdirectory for each version, and the path of the programs below it. The
/// first entry is Debian's. The second belongs to PostgreSQL's own packages for Red Hat.
const VERSIONED: [(&str, &str); 2] = [("/usr/lib/postgresql", "bin"), ("/usr", "bin")];
/// The directory into which PostgreSQL's Makefile installs.
const OTHERS: [&str; 1] = ["/usr/local/pgsql/bin"];

/// How often a server is started to print its version, if Ctrl-C ends it.
const TRIES: usize = 3;

/// The programs of one version of PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    directory: PathBuf,
    /// The major version, such as 15.
    pub version: u32,
}

impl Programs {
    /// Finds the programs on the PATH, or else the newest ones. If data exist, `of_data` is the version that created
    /// them, and only programs of this version are accepted.
    ///
    /// # Errors
    /// Returns a sentence with the next step if there are no such programs.
    pub fn find(of_data: Option<u32>) -> Result<Programs, Failure> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        choose(&candidates(&path, Path::new("/")), of_data)
    }

    /// Returns the path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// Returns the directories that have both `postgres` and `initdb`, each once and best first.
fn candidates(path: &OsStr, root: &Path) -> Vec<PathBuf> {
    let below = |place: &str| root.join(place.trim_start_matches('/'));
    let mut versioned = Vec::new();
    for (directory, bin) in VERSIONED {
        let entries = fs::read_dir(below(directory)).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let version = name.to_str().and_then(|name| name.trim_start_matches("pgsql-").parse::<u32>().ok());
            versioned.extend(version.map(|version| (version, entry.path().join(bin))));
        }
    }
    versioned.sort_by(|a, b| b.cmp(a));
    let directories = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    let directories = directories.chain(versioned.into_iter().map(|(_, bin)| bin)).chain(OTHERS.map(below));
    let mut found: Vec<PathBuf> = Vec::new();
    for directory in directories {
        // Symbolic links are followed, because the programs look for their other files relative to their real path.
        let Some(directory) =
            fs::canonicalize(directory.join("postgres")).ok().and_then(|file| Some(file.parent()?.to_owned()))
        else {
            continue;
        };
        if directory.join("initdb").is_file() && !found.contains(&directory) {
            found.push(directory);
        }
    }
    found
}

fn choose(candidates: &[PathBuf], of_data: Option<u32>) -> Result<Programs, Failure> {
    let programs = |directory: &PathBuf| Some(Programs { version: version(directory)?, directory: directory.clone() });
    let found: Vec<Programs> = candidates.iter().filter_map(programs).collect();
    let fitting = found.iter().find(|programs| of_data.is_none_or(|version| programs.version == version));
    match (fitting, of_data, found.first()) {
        (Some(programs), ..) => Ok(programs.clone()),
        (None, Some(version), Some(other)) => Err(Failure::new(format!(
            "PostgreSQL {version} created the metadata of this cluster, but only PostgreSQL {} is installed; install \
             version {version}, as with `apt-get install postgresql-{version}`",
            other.version
        ))),
        (None, ..) => Err(Failure::new(
            "PostgreSQL, in which the brokers of a cluster keep their metadata, is not installed; install it, as with \
             `apt-get install postgresql`, or give the URL of one with --control-plane",
        )),
    }
}

/// Returns the version that the server prints, or `None` if it does not start. The server runs in its own process
/// group, so that Ctrl-C at the terminal does not end it. Otherwise this would report a missing server. Ctrl-C can
/// still end a server that has not entered its group yet. The server is then started again.
fn version(directory: &Path) -> Option<u32> {
    let run = || Command::new(directory.join("postgres")).arg("--version").process_group(0).output().ok();
    let mut outputs = (0..TRIES).map_while(|_| run());
    let output = outputs.find(|output| output.status.signal() != Some(Signal::INT.as_raw()))?;
    let text = String::from_utf8(output.stdout).ok()?;
    // An example is "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)". The number may also have the form 18beta1.
    let number = text.split_whitespace().nth(2)?;
    number.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Installs a fake server that prints this version.
    fn install(directory: &Path, version: &str) {
        fs::create_dir_all(directory).expect("made");
        fs::write(directory.join("initdb"), "").expect("written");
        let script = format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n");
        fs::write(directory.join("postgres"), script).expect("written");
        fs::set_permissions(directory.join("postgres"), fs::Permissions::from_mode(0o755)).expect("set");
    }

    #[test]
    fn the_server_that_prints_its_version_does_not_get_ctrl_c() {
        let directory = tempfile::tempdir().expect("a directory");
        install(directory.path(), "15");
        // The process group is the fifth field of /proc/self/stat.
        let script = "#!/bin/sh\nread -r _ _ _ _ group _ </proc/self/stat\necho \"postgres (PostgreSQL) $group\"\n";
        fs::write(directory.path().join("postgres"), script).expect("written");
        let ours = rustix::process::getpgrp().as_raw_nonzero().get();
        assert!(version(directory.path()).is_some_and(|group| group as i32 != ours));
    }

    #[test]
    fn server_that_ctrl_c_ends_is_started_again() {
        let directory = tempfile::tempdir().expect("a directory");
        install(directory.path(), "15");
        let marker = directory.path().join("marker");
        let script = format!(
            "#!/bin/sh\n[ -e '{0}' ] || {{ : >'{0}'; kill -INT $$; }}\necho 'postgres (PostgreSQL) 15'\n",
            marker.display()
        );
        fs::write(directory.path().join("postgres"), script).expect("written");
        assert_eq!(version(directory.path()), Some(15));
        assert!(marker.exists());
    }

    #[test]
    fn the_path_precedes_the_newest_version_and_that_of_the_data_both() {
        let root = tempfile::tempdir().expect("a directory");
        let root = fs::canonicalize(root.path()).expect("there");
        let find = |path: &Path, of_data| {
            let found = choose(&candidates(path.as_os_str(), &root), of_data);
            found.map(|programs| programs.version).map_err(|failure| failure.to_string())
        };
        let none = find(Path::new(""), None).expect_err("none");
        assert!(
            none.contains("is not installed") && none.contains("--control-plane") && !none.contains('\n'),
            "{none}"
        );
        install(&root.join("usr/lib/postgresql/9/bin"), "9.6.24");
        install(&root.join("usr/lib/postgresql/15/bin"), "15.18 (Debian 15.18-0+deb12u1)");
        install(&root.join("usr/pgsql-16/bin"), "16rc1");
        fs::create_dir_all(root.join("usr/lib/postgresql/17/bin")).expect("only clients");
        assert_eq!(find(Path::new(""), None), Ok(16));
        let bin = root.join("usr/local/bin");
        fs::create_dir_all(&bin).expect("made");
        symlink(root.join("usr/lib/postgresql/15/bin/postgres"), bin.join("postgres")).expect("linked");
        assert_eq!(find(&bin, None), Ok(15), "the link leads to where initdb is");
        assert_eq!(find(&bin, Some(9)), Ok(9));
        let other = find(&bin, Some(14)).expect_err("not there");
        assert!(
            other.contains("PostgreSQL 14 created the metadata of this cluster, but only PostgreSQL 15 is installed"),
            "{other}"
        );
    }
}
