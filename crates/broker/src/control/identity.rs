//! Who a broker's data folder and its store say that it is.
//!
//! The folder of a cluster's broker has the file `cluster`: of which cluster and broker it is, an id of its own, and the newest version
//! of the metadata that this broker has seen. A broker by itself has `control.db` instead, which says all that. Invariants: a folder is
//! of one broker and of one store; the version in it was committed.

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
        Some(Self {
            cluster_id: Uuid::parse(value("cluster.id")?)?,
            node_id: value("node.id")?.parse().ok()?,
            folder: Uuid::parse(value("folder.id")?)?,
            seen: u64::try_from(number).ok().map(|number| Version { number, mark }),
        })
    }

    fn head(&self) -> String {
        format!("{HEAD}cluster.id={}\nnode.id={}\nfolder.id={}\n", self.cluster_id, self.node_id, self.folder)
    }

    /// Writes the file, and has it on the disk.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let text = format!("{}{}", self.head(), seen_lines(self.seen));
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
            let of = ClusterFolder { cluster_id: Uuid([1; 16]), node_id: 3, folder: Uuid([255; 16]), seen };
            of.write(folder.path()).expect("written");
            assert_eq!(ClusterFolder::read(folder.path()).expect("readable"), Some(of));
        }
        std::fs::write(folder.path().join(FILE), "").expect("written");
        assert!(ClusterFolder::read(folder.path()).is_err());
    }
}
