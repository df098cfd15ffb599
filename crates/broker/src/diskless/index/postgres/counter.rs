//! How many transactions of this broker are known to have changed the index: in memory, and in a file of the data folder.
//!
//! The file is written in place and reaches the disk when the system likes: it may say less than there were, and never more. Invariant: what is
//! believed was written whole, and for this cluster.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fullbore_wire::Uuid;

use fullbore_host::seldom::Seldom;

/// In the data folder.
pub const FILE: &str = "diskless-counter";

/// The largest number that is known.
pub struct CommitCounter {
    file: File,
    cluster_id: Uuid,
    known: i64,
    unwritten: Seldom,
}

impl CommitCounter {
    /// What the file of this folder says; 0 where it says nothing that can be believed.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(folder: &Path, cluster_id: Uuid) -> io::Result<CommitCounter> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(FILE))?;
        let known = known_commits(folder, cluster_id);
        Ok(CommitCounter { file, cluster_id, known, unwritten: Seldom::default() })
    }

    /// The number.
    pub fn known(&self) -> i64 {
        self.known
    }

    /// So many are known to be committed.
    pub fn raise(&mut self, number: i64) {
        if number <= self.known {
            return;
        }
        self.known = number;
        if let Err(error) = self.file.write_all_at(text(number, self.cluster_id).as_bytes(), 0)
            && let Some(left_out) = self.unwritten.due()
        {
            tracing::warn!(%error, left_out, "{FILE} is not written; until it is, a start would not see that the database went back");
        }
    }
}

/// What the file of this folder says; 0 where it says nothing that can be believed. Nothing is made.
pub fn known_commits(folder: &Path, cluster_id: Uuid) -> i64 {
    std::fs::read(folder.join(FILE)).ok().and_then(|bytes| parse(&bytes, cluster_id)).unwrap_or(0)
}

/// The number stands there twice, so that half of it is not taken for another one.
fn text(number: i64, cluster_id: Uuid) -> String {
    format!("cluster.id={cluster_id}\ncounter={number:020}\ncounter={number:020}\n")
}

fn parse(bytes: &[u8], cluster_id: Uuid) -> Option<i64> {
    let written = std::str::from_utf8(bytes).ok()?;
    let number = written.lines().nth(1)?.strip_prefix("counter=")?.parse().ok()?;
    (written == text(number, cluster_id)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_known_again_by_the_same_cluster_and_not_if_it_is_torn() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let open = |cluster: u8| CommitCounter::open(folder.path(), Uuid([cluster; 16])).expect("opened");
        let mut counter = open(1);
        assert_eq!(counter.known(), 0);
        counter.raise(17);
        counter.raise(5);
        assert_eq!((counter.known(), open(1).known(), open(2).known()), (17, 17, 0));
        open(1).raise(1_000);
        assert_eq!(open(1).known(), 1_000);
        let path = folder.path().join(FILE);
        let whole = std::fs::read(&path).expect("read");
        for end in 0..whole.len() {
            std::fs::write(&path, &whole[..end]).expect("written");
            assert_eq!(open(1).known(), 0, "{end} bytes");
        }
        let mut torn = whole;
        torn[44] = b'9';
        std::fs::write(&path, torn).expect("written");
        assert_eq!(open(1).known(), 0);
    }
}
