//! Counts the changes that each broker has committed to the index, in memory and in a file of the data directory. An
//! index with fewer changes of a broker than counted is an older copy. If the number of changes jumps, an operator
//! accepted an older copy while this process ran. The process may then have state in memory that the copy lacks.
//!
//! The file is overwritten in place and not flushed. After a crash, its counts may be too low, but never too high.
//!
//! Invariant: a count is used only if the file is complete and belongs to this cluster.

use std::fmt::Write;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fullbore_wire::Uuid;
use parking_lot::{Condvar, Mutex};

use fullbore_db::Version;
use fullbore_db::postgres::known_changes::{self, KnownChanges};
use fullbore_host::log_rate_limit::LogRateLimit;

pub use fullbore_db::postgres::known_changes::{ChangeCounts, Lacking, lacking};

/// The name of the file in the data directory.
pub const FILE: &str = "diskless-counter";
/// Minimum time between two writes of the file if only the counts of other brokers have risen.
const OTHERS_EVERY: Duration = Duration::from_secs(1);
/// How long a write of the file may delay commits, counted from the start of that write. If a write hangs, the first
/// commit waits for this time, and later commits do not wait.
const PATIENCE: Duration = Duration::from_secs(1);

/// The largest known count of each broker. A separate thread writes the file, so that a hanging disk delays commits
/// only briefly.
pub struct NotedChanges {
    /// The id of this broker, whose own changes are written to the file at once.
    broker_id: i32,
    /// The same counts, as far as this process knows them, for other connections to the database. These record the
    /// newest version of the metadata in it.
    known: Arc<KnownChanges>,
    shared: Arc<SharedNotes>,
    writer: Option<JoinHandle<()>>,
}

struct SharedNotes {
    noted: Mutex<Noted>,
    changed: Condvar,
    written: Condvar,
}

#[derive(Default)]
struct Noted {
    counts: ChangeCounts,
    /// True once this process has read the counts of all brokers from the index.
    has_read: bool,
    /// The next work of the writer thread.
    next: NextWrite,
    /// When the current write started. `None` if no write is under way.
    began: Option<Instant>,
    is_closed: bool,
}

/// The next work of the writer thread. A later variant is more urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum NextWrite {
    /// No work, because all counts are in the file.
    #[default]
    Nothing,
    /// Only counts of other brokers have risen. The thread writes the file a second after its last write.
    Others,
    /// The count of this broker has risen. The thread writes the file at once.
    Own,
}

impl NotedChanges {
    /// Opens the file of a data directory, or creates it.
    ///
    /// # Errors
    /// Returns an [`io::Error`] if the file cannot be opened or the thread cannot be started.
    pub fn open(directory: &Path, cluster_id: Uuid, broker_id: i32) -> io::Result<NotedChanges> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(directory.join(FILE))?;
        let counts = noted_changes(directory, cluster_id);
        if counts.is_empty() {
            // A shorter text would leave the end of a longer old text, for example of another cluster. The file is
            // therefore emptied first.
            file.set_len(0)?;
        }
        let noted = Noted { counts, ..Noted::default() };
        let shared =
            Arc::new(SharedNotes { noted: Mutex::new(noted), changed: Condvar::new(), written: Condvar::new() });
        let of_writer = Arc::clone(&shared);
        let writer = thread::Builder::new().name("diskless-counter".to_owned());
        let writer = writer.spawn(move || of_writer.write_all(&file, cluster_id))?;
        Ok(NotedChanges { broker_id, known: Arc::default(), shared, writer: Some(writer) })
    }

    /// Shares all counts with the other connections of this process, which use `known`.
    pub fn shared_with(mut self, known: Arc<KnownChanges>) -> NotedChanges {
        known.raise(&self.counts());
        self.known = known;
        self
    }

    /// Returns the current counts.
    pub fn counts(&self) -> ChangeCounts {
        self.shared.noted.lock().counts.clone()
    }

    /// Returns the newest version of the metadata that this process knows.
    pub fn version(&self) -> Option<Version> {
        self.known.version()
    }

    /// Records that this broker has committed `number` changes in total. Waits until the file is written, but at most
    /// [`PATIENCE`].
    pub fn raise_own(&self, number: i64) {
        self.raise(&ChangeCounts::from([(self.broker_id, number)]));
        let mut noted = self.shared.noted.lock();
        let until = noted.began.unwrap_or_else(Instant::now) + PATIENCE;
        let mut is_late = false;
        while (noted.next == NextWrite::Own || noted.began.is_some()) && !is_late {
            is_late = self.shared.written.wait_until(&mut noted, until).timed_out();
        }
    }

    /// Records the counts of all brokers, as found in the index.
    pub fn raise_all(&self, found: &ChangeCounts) {
        self.raise(found);
        self.shared.noted.lock().has_read = true;
    }

    /// Returns true if `found` shows that an older copy of the index was accepted after this process read the counts of
    /// all brokers. Returns false before that read, because the counts from the file may be older than the copy.
    pub fn was_copy_accepted(&self, found: &ChangeCounts) -> bool {
        let noted = self.shared.noted.lock();
        noted.has_read && known_changes::was_copy_accepted(&noted.counts, found)
    }

    /// Raises the counts to those in `found`. The file gets raised counts of other brokers within a second.
    pub fn raise(&self, found: &ChangeCounts) {
        self.known.raise(found);
        let mut noted = self.shared.noted.lock();
        let before = noted.next;
        for (&broker_id, &number) in found {
            let known = noted.counts.entry(broker_id).or_insert(0);
            if number > *known {
                *known = number;
                let write = if broker_id == self.broker_id { NextWrite::Own } else { NextWrite::Others };
                noted.next = noted.next.max(write);
            }
        }
        if noted.next != before {
            self.shared.changed.notify_one();
        }
    }
}

impl SharedNotes {
    /// Writes the file each time that counts have risen. Returns when the [`NotedChanges`] is dropped.
    fn write_all(&self, file: &File, cluster_id: Uuid) {
        let unwritten = LogRateLimit::default();
        let mut due = Instant::now();
        while let Some(counts) = self.next_counts(due) {
            let written = file.write_all_at(text(&counts, cluster_id).as_bytes(), 0);
            self.noted.lock().began = None;
            self.written.notify_all();
            due = Instant::now() + OTHERS_EVERY;
            if let Err(error) = written
                && let Some(left_out) = unwritten.due()
            {
                tracing::warn!(%error, left_out, "cannot write {FILE}: the next start might not detect an older copy of the index; check the space and permissions of the data directory");
            }
        }
    }

    /// Waits until the file must be written, then returns all counts. If only counts of other brokers have risen, the
    /// wait lasts until `due`, or until the [`NotedChanges`] is dropped. Returns `None` if the [`NotedChanges`] is
    /// dropped and the file has all counts.
    fn next_counts(&self, due: Instant) -> Option<ChangeCounts> {
        let mut noted = self.noted.lock();
        loop {
            match noted.next {
                NextWrite::Nothing if noted.is_closed => return None,
                NextWrite::Nothing => self.changed.wait(&mut noted),
                NextWrite::Others if !noted.is_closed && Instant::now() < due => {
                    self.changed.wait_until(&mut noted, due);
                }
                NextWrite::Others | NextWrite::Own => {
                    noted.next = NextWrite::Nothing;
                    noted.began = Some(Instant::now());
                    return Some(noted.counts.clone());
                }
            }
        }
    }
}

impl Drop for NotedChanges {
    fn drop(&mut self) {
        self.shared.noted.lock().is_closed = true;
        self.shared.changed.notify_one();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Returns the counts in the file of a directory. Returns no counts if the file is missing, damaged or of another
/// cluster. Never creates the file.
pub fn noted_changes(directory: &Path, cluster_id: Uuid) -> ChangeCounts {
    std::fs::read(directory.join(FILE)).ok().and_then(|bytes| parse(&bytes, cluster_id)).unwrap_or_default()
}

/// Returns the text of the file: two identical halves. After a partial write the halves differ, and readers ignore the
/// file. Counts have a fixed width, so a new text is never shorter than the text that it overwrites.
fn text(counts: &ChangeCounts, cluster_id: Uuid) -> String {
    let mut text = format!("cluster.id={cluster_id}\n");
    for (broker_id, number) in counts {
        writeln!(text, "broker.{broker_id}={number:020}").expect("a text takes everything");
    }
    text.repeat(2)
}

fn parse(bytes: &[u8], cluster_id: Uuid) -> Option<ChangeCounts> {
    let written = std::str::from_utf8(bytes).ok()?;
    let half = written.get(..written.len() / 2)?;
    let count = |line: &str| {
        let (broker_id, number) = line.strip_prefix("broker.")?.split_once('=')?;
        Some((broker_id.parse().ok()?, number.parse().ok()?))
    };
    let counts: ChangeCounts = half.lines().skip(1).map(count).collect::<Option<_>>()?;
    (written == text(&counts, cluster_id)).then_some(counts)
}

#[cfg(test)]
mod tests {
    use fullbore_tests::wait_until;

    use super::*;

    #[test]
    fn counts_are_written_the_same_cluster_reads_them_again_unless_they_are_torn() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let open = |cluster: u8| NotedChanges::open(directory.path(), Uuid([cluster; 16]), 1).expect("opened");
        let noted = open(1);
        assert_eq!(noted.counts(), ChangeCounts::new());
        noted.raise_own(17);
        noted.raise_own(5);
        noted.raise(&ChangeCounts::from([(1, 20), (-2, 3), (30, 4)]));
        let counts = ChangeCounts::from([(1, 20), (-2, 3), (30, 4)]);
        assert_eq!(noted.counts(), counts);
        drop(noted);
        assert_eq!(open(1).counts(), counts);
        let path = directory.path().join(FILE);
        let whole = std::fs::read(&path).expect("read");
        for end in 0..whole.len() {
            std::fs::write(&path, &whole[..end]).expect("written");
            assert_eq!(noted_changes(directory.path(), Uuid([1; 16])), ChangeCounts::new(), "{end} bytes");
        }
        let mut torn = whole.clone();
        torn[44] = b'9';
        std::fs::write(&path, torn).expect("written");
        assert_eq!(noted_changes(directory.path(), Uuid([1; 16])), ChangeCounts::new());
        std::fs::write(&path, whole).expect("written");
        open(2).raise_own(1);
        assert_eq!(open(2).counts(), ChangeCounts::from([(1, 1)]), "nothing of the longer text is left");
    }

    #[test]
    fn other_brokers_commit_their_counts_are_written_once_a_second_and_at_the_end() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let read = || noted_changes(directory.path(), Uuid([1; 16])).get(&2).copied();
        let noted = NotedChanges::open(directory.path(), Uuid([1; 16]), 1).expect("opened");
        let other = |number| noted.raise(&ChangeCounts::from([(2, number)]));
        let started = Instant::now();
        other(1);
        wait_until("the first count", Duration::from_secs(30), || read() == Some(1));
        other(2);
        let before = read();
        assert!(before == Some(1) || started.elapsed() >= OTHERS_EVERY, "{before:?}: that was a moment ago");
        wait_until("the second count", Duration::from_secs(30), || read() == Some(2));
        other(3);
        noted.raise_own(1);
        wait_until("its own with the third", Duration::from_secs(30), || read() == Some(3));
        other(4);
        drop(noted);
        assert_eq!(read(), Some(4));
    }
}
