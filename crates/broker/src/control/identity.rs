//! Who a broker's data folder and its store say that it is.
//!
//! The folder of a cluster's broker has the file `cluster`: of which cluster and broker it is, an id of its own, the newest version
//! of the metadata that this broker has seen, and which process uses the folder. A broker by itself has `control.db` instead, which says all
//! that. Invariants: a folder is of one broker and of one store; the version in it was committed; a process is named in it before it
//! registers, so that a folder which does not name the registered process is an older copy.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use fullbore_wire::Uuid;
use tokio::sync::watch;

use super::change::Version;
use super::image::Image;
use super::sqlite::KeptInDatabase;
use crate::seldom::Seldom;
use crate::system;

/// The file.
pub const FILE: &str = "cluster";
const HEAD: &str =
    "# Of which cluster this data folder is. Written by Fullbore; it goes with the folder, and is not to be edited.\n";

/// What a store is asked when it is opened, besides its metadata.
pub struct Identity {
    pub cluster_id: Uuid,
    /// That of this broker's data folder.
    pub folder: Uuid,
    /// The same folder, if a broker of a cluster has used it before.
    pub used: Option<UsedFolder>,
    /// What older versions kept of groups.
    pub kept: Option<KeptInDatabase>,
    /// How it is called where it cannot be used.
    pub store: StoreName,
}

/// What a store is called in messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreName {
    File(PathBuf),
    /// A URL without user and password.
    Database(String),
}

impl From<PathBuf> for StoreName {
    fn from(file: PathBuf) -> Self {
        Self::File(file)
    }
}

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Database(name) => f.write_str(name),
        }
    }
}

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterFolder {
    pub cluster_id: Uuid,
    pub node_id: i32,
    pub folder: Uuid,
    /// The newest version that this broker has seen.
    pub seen: Option<Version>,
    /// The process that was registered when the last one asked for the broker's place, and that last one. `None` in the file of an
    /// earlier version.
    pub users: Option<[Uuid; 2]>,
}

impl ClusterFolder {
    /// What the file in this folder says; `None` where there is none.
    ///
    /// # Errors
    /// What the system says, or InvalidData.
    pub fn read(folder: &Path) -> io::Result<Option<Self>> {
        let text = match std::fs::read_to_string(folder.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "it is damaged");
        Self::parse(&text).ok_or_else(invalid).map(Some)
    }

    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let mark = u64::from_str_radix(value("mark")?, 16).ok()?;
        let number: i64 = value("version")?.parse().ok()?;
        let users = match (value("process"), value("joining")) {
            (Some(former), Some(last)) => Some([Uuid::parse(former)?, Uuid::parse(last)?]),
            _ => None,
        };
        Some(Self {
            cluster_id: Uuid::parse(value("cluster.id")?)?,
            node_id: value("node.id")?.parse().ok()?,
            folder: Uuid::parse(value("folder.id")?)?,
            seen: u64::try_from(number).ok().map(|number| Version { number, mark }),
            users,
        })
    }

    /// Returns the folder as used by this process alone.
    pub fn used_by(self, process: Uuid) -> Self {
        Self { users: Some([process; 2]), ..self }
    }

    /// Returns true if this process, which is registered with the folder's id, used a newer state of the folder.
    pub fn is_older_than(&self, registered: Uuid) -> bool {
        self.users.is_some_and(|users| !users.contains(&registered))
    }

    fn head(&self) -> String {
        format!("{HEAD}cluster.id={}\nnode.id={}\nfolder.id={}\n", self.cluster_id, self.node_id, self.folder)
    }

    /// Writes the file, and has it on the disk.
    ///
    /// # Errors
    /// The error of the system.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let users = self.users.map_or_else(String::new, user_lines);
        let text = format!("{}{}{users}", self.head(), seen_lines(self.seen));
        system::replace(&folder.join(FILE), text.as_bytes())?;
        File::open(folder)?.sync_all()
    }

    /// Writes down the newest version that images show, on a thread of its own, until there are no more.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread not started.
    pub fn follow(self, folder: &Path, mut images: watch::Receiver<Arc<Image>>) -> io::Result<JoinHandle<()>> {
        let file = OpenOptions::new().write(true).open(folder.join(FILE))?;
        let at = self.head().len() as u64;
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        images.mark_changed();
        let vain = Seldom::default();
        let work = move || {
            while runtime.block_on(images.changed()).is_ok() {
                let seen = images.borrow_and_update().version();
                // In place: these bytes always have the same length, and are in one sector.
                if let Err(error) = file.write_all_at(seen_lines(seen).as_bytes(), at)
                    && let Some(left_out) = vain.due()
                {
                    tracing::warn!(%error, left_out, "the newest version of the metadata is not written down");
                }
            }
        };
        std::thread::Builder::new().name("seen".to_owned()).spawn(work)
    }
}

/// A data folder that was used before, and its file.
pub struct UsedFolder {
    folder: PathBuf,
    said: ClusterFolder,
}

impl UsedFolder {
    /// The folder at this path, with this file.
    pub fn new(folder: &Path, said: ClusterFolder) -> Self {
        Self { folder: folder.to_owned(), said }
    }

    /// The processes of which one used this state of the folder last, as numbers.
    pub fn users(&self) -> Option<[u128; 2]> {
        self.said.users.map(|users| users.map(|id| u128::from_be_bytes(id.0)))
    }

    /// Writes to the file, on the disk, that the process `joining` asks for the place of the process that is `registered` with this folder.
    ///
    /// # Errors
    /// The error of the system.
    pub fn join(&self, registered: Option<Uuid>, joining: Uuid) -> io::Result<()> {
        if registered.is_some_and(|registered| self.said.is_older_than(registered)) {
            tracing::warn!(
                file = %self.file().display(),
                "this data folder is an older copy: its broker has used a newer state of it since; other replicas lead, and fill it"
            );
        }
        let known = registered.filter(|registered| !self.said.is_older_than(*registered));
        let former = known.or(self.said.users.map(|users| users[0])).unwrap_or(joining);
        self.write([former, joining])
    }

    /// The file.
    pub fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Writes in place, as what is seen is: a full disk has no room for another file.
    fn write(&self, users: [Uuid; 2]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.file())?;
        let at = self.said.head().len() + seen_lines(self.said.seen).len();
        file.write_all_at(user_lines(users).as_bytes(), at as u64)?;
        file.sync_all()
    }
}

fn user_lines([registered, joining]: [Uuid; 2]) -> String {
    format!("process={registered}\njoining={joining}\n")
}

fn seen_lines(seen: Option<Version>) -> String {
    let number = seen.map_or(-1, |seen| i64::try_from(seen.number).unwrap_or(i64::MAX));
    format!("version={number:020}\nmark={:016x}\n", seen.map_or(0, |seen| seen.mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_says_again_what_was_written() {
        let folder = tempfile::tempdir().expect("tempdir");
        assert_eq!(ClusterFolder::read(folder.path()).expect("readable"), None);
        for seen in [None, Some(Version { number: 7, mark: u64::MAX }), Some(Version { number: 0, mark: 0 })] {
            let of =
                ClusterFolder { cluster_id: Uuid([1; 16]), node_id: 3, folder: Uuid([255; 16]), seen, users: None };
            for of in [of, of.used_by(Uuid([5; 16]))] {
                of.write(folder.path()).expect("written");
                assert_eq!(ClusterFolder::read(folder.path()).expect("readable"), Some(of));
            }
        }
        std::fs::write(folder.path().join(FILE), "").expect("written");
        assert!(ClusterFolder::read(folder.path()).is_err());
    }

    /// Processes in the file once each of these has asked for the place of the registered one.
    #[test]
    fn process_joins_the_registered_one_stays_named_until_it_is_another() {
        let folder = tempfile::tempdir().expect("tempdir");
        let [a, b, c, d] = [1, 2, 3, 4].map(|id| Uuid([id; 16]));
        let read = || ClusterFolder::read(folder.path()).expect("readable").expect("there");
        let join = |registered, joining| {
            UsedFolder::new(folder.path(), read()).join(registered, joining).expect("written");
            read().users.expect("it says so")
        };
        let seen = Some(Version { number: 7, mark: 9 });
        let of = ClusterFolder { cluster_id: Uuid([1; 16]), node_id: 3, folder: Uuid([255; 16]), seen, users: None };
        of.write(folder.path()).expect("written");
        assert!(!read().is_older_than(a), "an earlier version did not say");
        assert_eq!(join(Some(a), b), [a, b]);
        assert_eq!(join(Some(a), c), [a, c], "b has not registered");
        assert_eq!(join(Some(c), d), [c, d], "c has, whether or not it heard of that");
        assert!(!read().is_older_than(c) && !read().is_older_than(d) && read().is_older_than(b));
        assert_eq!(join(Some(b), a), [c, a], "an older copy is one until its process has registered");
        assert_eq!(join(None, b), [c, b], "another folder is registered");
        assert_eq!(read().seen, seen);
    }
}
