//! A named network namespace and its owner. Each name has a lock file, which a link locks as long as it runs.
//!
//! Invariant: a namespace is removed only by the link that has locked its file, and only if a lock file shows that a
//! link created the namespace.

use super::LinkError;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory in which `ip netns` keeps a file for each named namespace.
const NAMESPACES: &str = "/run/netns";
/// The directory of the links' lock files.
const LOCKS: &str = "/run/fullbore-links";
const NAME_LEN_MAX: usize = 32;

/// A namespace of this tool. It is removed when this is dropped.
pub struct Namespace {
    name: String,
    lock: PathBuf,
    // The open lock file. It holds the lock and is never read.
    _held: File,
}

impl Namespace {
    /// Creates a namespace of this name. If a killed link has left one, it is removed first.
    pub fn claim(name: &str) -> Result<Namespace, LinkError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || name.len() > NAME_LEN_MAX || !name.chars().all(allowed) {
            return Err(LinkError::BadName(name.to_owned()));
        }
        let lock = Path::new(LOCKS).join(name);
        let system = |error| LinkError::System(lock.display().to_string(), error);
        std::fs::create_dir_all(LOCKS).map_err(system)?;
        // Only one process at a time creates or removes a namespace. Otherwise one could remove a lock file while
        // another uses it.
        let _turn = turn().map_err(system)?;
        let left_behind = lock.exists();
        let held = OpenOptions::new().create(true).write(true).truncate(false).open(&lock).map_err(system)?;
        if flock(&held, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(LinkError::InUse(name.to_owned()));
        }
        let exists = Path::new(NAMESPACES).join(name).exists();
        if exists && !left_behind {
            // Another program created the namespace. The lock file is removed, since it would mark the namespace as a
            // link's.
            let _ = std::fs::remove_file(&lock);
            return Err(LinkError::Exists(name.to_owned()));
        }
        let made = if exists { ip(&["netns", "del", name]) } else { Ok(()) };
        if let Err(error) = made.and_then(|()| ip(&["netns", "add", name])) {
            let _ = std::fs::remove_file(&lock);
            return Err(error);
        }
        Ok(Namespace { name: name.to_owned(), lock, _held: held })
    }

    /// Returns the name of the namespace for `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the namespace's file.
    pub fn path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// Runs `ip -n NAME ...`.
    pub fn ip(&self, arguments: &[&str]) -> Result<(), LinkError> {
        ip(&[&["-n", &self.name], arguments].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _turn = turn();
        // If the namespace cannot be removed now, its lock file remains, so that the next link with this name removes
        // the namespace.
        if ip(&["netns", "del", &self.name]).is_ok() || !self.path().exists() {
            let _ = std::fs::remove_file(&self.lock);
        }
    }
}

fn turn() -> std::io::Result<File> {
    let directory = File::open(LOCKS)?;
    flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

fn ip(arguments: &[&str]) -> Result<(), LinkError> {
    let shown = || format!("ip {}", arguments.join(" "));
    match Command::new("ip").args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(LinkError::Ip(shown(), String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        Err(error) => Err(LinkError::Ip(shown(), format!("{error}; the program `ip` comes with iproute2"))),
    }
}
