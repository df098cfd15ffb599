//! The identity of a broker, as its data directory and its store record it.
//!
//! The data directory of a broker in a cluster contains the file `cluster`. The file contains the ids of the cluster,
//! the broker, the directory, and the process that uses the directory. It also contains the newest metadata version
//! that this broker has seen, and a number that increases with each heartbeat. The identity of a standalone broker is
//! in `control.db`.
//!
//! Invariants: a directory belongs to one broker and one store. The version in the file was committed. A process writes
//! its id to the file before it registers. It writes each heartbeat number to the file before it sends that heartbeat.
//! So the broker can recognise an older copy of a directory: the file lacks the registered process, or contains a
//! smaller number than that process has sent.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use fullbore_rules::cluster::DirectoryMarks;
use fullbore_wire::Uuid;
use tokio::sync::watch;

use super::change::Version;
use super::image::Image;
use super::notes::{Notes, NotesToWrite, notes};
use fullbore_host::files;
use fullbore_host::log_rate_limit::LogRateLimit;

/// The name of the file in a data directory.
pub const FILE: &str = "cluster";
/// The format of the file. A file of format 2 or later must contain the format in a line `format=N`.
const FORMAT: u32 = 1;
const HEAD: &str =
    "# Of which cluster this data folder is. Written by Fullbore; it goes with the folder, and is not to be edited.\n";

/// The identity that a store returns when it is opened.
pub struct Identity {
    pub cluster_id: Uuid,
    /// The id of this broker's data directory.
    pub directory: Uuid,
    /// The data directory with the content of its file. `None` if no broker of a cluster has used the directory before.
    pub used: Option<UsedDirectory>,
    /// The name of the store, for messages.
    pub store: StoreName,
}

/// The name of a store, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreName {
    File(PathBuf),
    /// The database's URL, without user and password.
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

/// The content of the file `cluster`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterDirectory {
    pub cluster_id: Uuid,
    pub node_id: i32,
    pub directory: Uuid,
    /// The newest metadata version that this broker has seen.
    pub seen: Option<Version>,
    /// The newest heartbeat number of all processes of the broker. 0 if an earlier version of Fullbore wrote the file.
    pub noted: u64,
    /// Two processes: first the registered one, then the last one that tried to register. The first one was registered
    /// at the time of that attempt. `None` if an earlier version of Fullbore wrote the file.
    pub users: Option<[Uuid; 2]>,
}

/// Returns the value of a key, or `None` if the text does not contain the key.
fn value_in<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}

impl ClusterDirectory {
    /// Reads the file `cluster` in this directory. Returns `None` if there is no such file.
    ///
    /// # Errors
    /// Fails with InvalidData if the file is damaged or was written by a newer version of Fullbore. Returns other
    /// errors of the operating system unchanged.
    pub fn read(directory: &Path) -> io::Result<Option<Self>> {
        let text = match std::fs::read_to_string(directory.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        if let Some(found) = value_in(&text, "format").and_then(|format| format.parse::<u32>().ok())
            && found > FORMAT
        {
            let newer = format!("it was written by a newer Fullbore (format {found}, this one knows {FORMAT})");
            return Err(invalid(newer));
        }
        Self::parse(&text).ok_or_else(|| invalid("it is damaged".to_owned())).map(Some)
    }

    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| value_in(text, key);
        let nonce = u64::from_str_radix(value("mark")?, 16).ok()?;
        let number: i64 = value("version")?.parse().ok()?;
        let users = match (value("process"), value("joining")) {
            (Some(former), Some(last)) => Some([Uuid::parse(former)?, Uuid::parse(last)?]),
            _ => None,
        };
        let noted: i64 = value("noted").map_or(Some(0), |noted| noted.parse().ok())?;
        Some(Self {
            cluster_id: Uuid::parse(value("cluster.id")?)?,
            node_id: value("node.id")?.parse().ok()?,
            directory: Uuid::parse(value("folder.id")?)?,
            seen: u64::try_from(number).ok().map(|number| Version { number, nonce }),
            noted: u64::try_from(noted).ok()?,
            users,
        })
    }

    /// Returns a copy in which `process` is the only user of the directory.
    pub fn used_by(self, process: Uuid) -> Self {
        Self { users: Some([process; 2]), ..self }
    }

    /// Returns the number of the newest metadata version that this broker has seen.
    pub fn seen_number(&self) -> Option<u64> {
        self.seen.map(|seen| seen.number)
    }

    /// Returns the data that shows whether the directory is an older copy. The heartbeat number is not flushed to disk.
    /// So it is used only if the machine has not booted since the directory was last used.
    pub fn marks(&self, is_same_boot: bool) -> DirectoryMarks {
        let users = self.users.map(|users| users.map(|id| u128::from_be_bytes(id.0)));
        DirectoryMarks { users, noted: is_same_boot.then_some(self.noted) }
    }

    fn head(&self) -> String {
        format!("{HEAD}cluster.id={}\nnode.id={}\nfolder.id={}\n", self.cluster_id, self.node_id, self.directory)
    }

    /// Writes the file and flushes it to disk.
    ///
    /// # Errors
    /// Returns the system's error if the file cannot be written.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let users = self.users.map_or_else(String::new, user_lines);
        let text = format!("{}{}{users}", self.head(), seen_lines(self.seen, self.noted));
        files::replace(&directory.join(FILE), text.as_bytes())?;
        File::open(directory)?.sync_all()
    }

    /// Starts a thread that writes the newest published version and the newest heartbeat number to the file. The thread
    /// ends when the channel of images closes.
    ///
    /// # Errors
    /// Returns the system's error if the file cannot be opened or the thread cannot be started.
    pub fn follow(
        self,
        directory: &Path,
        mut images: watch::Receiver<Arc<Image>>,
    ) -> io::Result<(JoinHandle<()>, Notes)> {
        let file = OpenOptions::new().write(true).open(directory.join(FILE))?;
        let at = self.head().len() as u64;
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        images.mark_changed();
        let (notes, mut to_write) = notes(self.noted);
        let vain = LogRateLimit::default();
        let work = move || {
            while runtime.block_on(has_news(&mut images, &mut to_write)) {
                let (seen, noted) = (images.borrow_and_update().version(), to_write.wanted());
                // Overwrite the bytes in place. This is safe, because they always have the same length and are within
                // one sector.
                match file.write_all_at(seen_lines(seen, noted).as_bytes(), at) {
                    Ok(()) => to_write.wrote(noted),
                    Err(error) => {
                        if let Some(left_out) = vain.due() {
                            tracing::warn!(%error, left_out, "cannot record the newest metadata version: after a restart, this broker might not notice that its data directory or the database is an older copy; the broker retries");
                        }
                    }
                }
            }
        };
        Ok((std::thread::Builder::new().name("seen".to_owned()).spawn(work)?, notes))
    }
}

/// Waits for a new image or a new heartbeat number. Returns false once the channel of images has closed.
async fn has_news(images: &mut watch::Receiver<Arc<Image>>, to_write: &mut NotesToWrite) -> bool {
    tokio::select! {
        changed = images.changed() => changed.is_ok(),
        () = to_write.requested() => true,
    }
}

/// A data directory that a broker of a cluster has used before, with the content of its file.
pub struct UsedDirectory {
    directory: PathBuf,
    content: ClusterDirectory,
}

impl UsedDirectory {
    /// Creates the value from the directory's path and the `content` of its file.
    pub fn new(directory: &Path, content: ClusterDirectory) -> Self {
        Self { directory: directory.to_owned(), content }
    }

    /// Returns the data that shows whether the directory is an older copy ([`ClusterDirectory::marks`]).
    pub fn marks(&self, is_same_boot: bool) -> DirectoryMarks {
        self.content.marks(is_same_boot)
    }

    /// Writes two processes to the file: the registered process `former`, and the process `joining`, which is about to
    /// replace it. `former` is `None` if this directory is an older copy, or if another directory is registered. In
    /// that case the registered process in the file stays unchanged.
    ///
    /// # Errors
    /// Returns the system's error if the file cannot be written.
    pub fn join(&self, former: Option<Uuid>, joining: Uuid) -> io::Result<()> {
        let former = former.or(self.content.users.map(|users| users[0])).unwrap_or(joining);
        self.write([former, joining])
    }

    /// Returns the path of the file.
    pub fn file(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Overwrites all lines after the first ones, which contain the ids and never change. Does so in place, because a
    /// full disk has no space for a second file. Also rewrites the metadata version and the heartbeat number, since a
    /// file of an earlier Fullbore has no line for the heartbeat number.
    fn write(&self, users: [Uuid; 2]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.file())?;
        let lines = format!("{}{}", seen_lines(self.content.seen, self.content.noted), user_lines(users));
        file.write_all_at(lines.as_bytes(), self.content.head().len() as u64)?;
        file.sync_all()
    }
}

fn user_lines([registered, joining]: [Uuid; 2]) -> String {
    format!("process={registered}\njoining={joining}\n")
}

/// Returns the lines with the metadata version, its nonce, and the heartbeat number. The lines always have the same
/// length.
fn seen_lines(seen: Option<Version>, noted: u64) -> String {
    let number = seen.map_or(-1, |seen| i64::try_from(seen.number).unwrap_or(i64::MAX));
    format!("version={number:020}\nmark={:016x}\nnoted={noted:020}\n", seen.map_or(0, |seen| seen.nonce))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_file_is_read_as_written() {
        let directory = tempfile::tempdir().expect("tempdir");
        assert_eq!(ClusterDirectory::read(directory.path()).expect("readable"), None);
        for seen in [None, Some(Version { number: 7, nonce: u64::MAX }), Some(Version { number: 0, nonce: 0 })] {
            let of = directory_of(seen);
            for of in [of, of.used_by(Uuid([5; 16])), ClusterDirectory { noted: i64::MAX.unsigned_abs(), ..of }] {
                of.write(directory.path()).expect("written");
                assert_eq!(ClusterDirectory::read(directory.path()).expect("readable"), Some(of));
            }
        }
        std::fs::write(directory.path().join(FILE), "").expect("written");
        assert!(ClusterDirectory::read(directory.path()).is_err());
    }

    #[test]
    fn file_of_a_newer_version_is_refused_by_its_format() {
        let directory = tempfile::tempdir().expect("tempdir");
        let of = directory_of(Some(Version { number: 7, nonce: 9 }));
        let with_format = |format: u32| {
            of.write(directory.path()).expect("written");
            let file = directory.path().join(FILE);
            let text = std::fs::read_to_string(&file).expect("readable");
            std::fs::write(file, format!("{text}format={format}\n")).expect("written");
            ClusterDirectory::read(directory.path())
        };
        assert_eq!(with_format(FORMAT).expect("this version's"), Some(of));
        let refused = with_format(FORMAT + 1).expect_err("a newer one").to_string();
        assert_eq!(refused, "it was written by a newer Fullbore (format 2, this one knows 1)");
    }

    /// Several processes join in turn. After each step, the test compares the processes in the file with the registered
    /// process.
    #[test]
    fn registered_process_stays_named_until_another_has_registered() {
        let directory = tempfile::tempdir().expect("tempdir");
        let [a, b, c, d] = [1, 2, 3, 4].map(|id| Uuid([id; 16]));
        let read = || ClusterDirectory::read(directory.path()).expect("readable").expect("there");
        let is_older = |of: ClusterDirectory, than: Uuid| of.marks(true).is_older_than(u128::from_be_bytes(than.0), 0);
        let join = |registered: Option<Uuid>, joining| {
            let former = registered.filter(|registered| !is_older(read(), *registered));
            UsedDirectory::new(directory.path(), read()).join(former, joining).expect("written");
            read().users.expect("it says so")
        };
        let seen = Some(Version { number: 7, nonce: 9 });
        directory_of(seen).write(directory.path()).expect("written");
        assert!(!is_older(read(), a), "an earlier version did not say");
        assert_eq!(join(Some(a), b), [a, b]);
        assert_eq!(join(Some(a), c), [a, c], "b has not registered");
        assert_eq!(join(Some(c), d), [c, d], "c has, whether or not it heard of that");
        assert!(!is_older(read(), c) && !is_older(read(), d) && is_older(read(), b));
        assert_eq!(join(Some(b), a), [c, a], "an older copy is one until its process has registered");
        assert_eq!(join(None, b), [c, b], "another directory is registered");
        assert_eq!(read().seen, seen);
    }

    #[test]
    fn file_of_an_earlier_version_has_a_number_after_a_join() {
        let directory = tempfile::tempdir().expect("tempdir");
        let (of, [a, b]) = (directory_of(Some(Version { number: 7, nonce: 9 })), [1, 2].map(|id| Uuid([id; 16])));
        let content = || ClusterDirectory::read(directory.path()).expect("readable").expect("there");
        for users in [String::new(), user_lines([a, a])] {
            let lines =
                format!("{}{}{users}", of.head(), seen_lines(of.seen, 0).replace("noted=00000000000000000000\n", ""));
            assert!(!lines.contains("noted"), "{lines}");
            std::fs::write(directory.path().join(FILE), lines).expect("written");
            assert_eq!(content().noted, 0);
            UsedDirectory::new(directory.path(), content()).join(Some(a), b).expect("written");
            assert_eq!(content(), ClusterDirectory { users: Some([a, b]), ..of });
        }
    }

    /// If the heartbeat number in the directory is smaller than the one in the database, the directory is an older
    /// copy. After the machine has booted, the directory's number is ignored.
    #[test]
    fn number_of_a_directory_does_not_count_after_a_boot() {
        let of = ClusterDirectory { noted: 5, ..directory_of(None) }.used_by(Uuid([1; 16]));
        let process = u128::from_be_bytes([1; 16]);
        assert!(of.marks(true).is_older_than(process, 6) && !of.marks(true).is_older_than(process, 5));
        assert!(!of.marks(false).is_older_than(process, 6) && of.marks(false).is_older_than(process + 1, 0));
    }

    #[tokio::test]
    async fn number_is_in_the_file_before_it_is_returned() {
        let directory = tempfile::tempdir().expect("tempdir");
        let of = ClusterDirectory { noted: 5, ..directory_of(None) }.used_by(Uuid([1; 16]));
        of.write(directory.path()).expect("written");
        let (images, watched) = watch::channel(Arc::new(Image::default()));
        let (thread, mut notes) = of.follow(directory.path(), watched).expect("starts");
        for _ in 0..100 {
            let reported = notes.next().await;
            let content = ClusterDirectory::read(directory.path()).expect("readable").expect("there");
            assert!(reported >= 5 && content.noted >= reported && content.users == of.users, "{reported}: {content:?}");
        }
        while notes.next().await < 7 {}
        drop((images, notes));
        thread.join().expect("it ends");
    }

    fn directory_of(seen: Option<Version>) -> ClusterDirectory {
        let (cluster_id, directory) = (Uuid([1; 16]), Uuid([255; 16]));
        ClusterDirectory { cluster_id, node_id: 3, directory, seen, noted: 0, users: None }
    }
}
