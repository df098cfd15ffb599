//! The leader epochs of a log, and the offsets at which they begin (KIP-101). The file `leader-epoch-checkpoint` stores
//! them.
//!
//! A follower compares these epochs with its leader's to decide where to truncate its log. The format is that of
//! Kafka's `LeaderEpochCheckpointFile`.
//!
//! Invariant: the epochs and their offsets are both ascending, and the file never has an epoch that memory lacks. If
//! the file cannot be written, the next call that could change the epochs writes it again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{LEADER_EPOCHS, replace};
use crate::partition::read::EpochEnd;

/// The epochs of one partition's log.
#[derive(Debug)]
pub struct Epochs {
    dir: Arc<Path>,
    /// The epochs in order, each with the offset of its first record.
    starts: Vec<(i32, i64)>,
    /// True if `starts` has changes that are not in the file.
    unsaved: bool,
}

impl Epochs {
    /// Creates an empty list, without reading the file.
    pub fn empty(dir: &Arc<Path>) -> Epochs {
        Epochs { dir: dir.clone(), starts: Vec::new(), unsaved: false }
    }

    /// Reads the file. Returns `None` if it is missing or damaged; the caller should then derive the epochs from the
    /// batches.
    pub fn load(dir: &Arc<Path>) -> Option<Epochs> {
        let text = fs::read_to_string(dir.join(LEADER_EPOCHS)).ok()?;
        let starts = parse(&text)?;
        Some(Epochs { dir: dir.clone(), starts, unsaved: false })
    }

    /// Returns the newest epoch; `None` if there is none.
    pub fn latest(&self) -> Option<i32> {
        self.starts.last().map(|&(epoch, _)| epoch)
    }

    /// Returns the epochs, each with the offset of its first record.
    pub fn starts(&self) -> &[(i32, i64)] {
        &self.starts
    }

    /// Returns the offset at which the first epoch begins, which is the log start; `None` if there is no epoch.
    pub fn log_start(&self) -> Option<i64> {
        self.starts.first().map(|&(_, start)| start)
    }

    /// Returns the epoch in which `offset` was written; `None` if it is unknown.
    pub fn at(&self, offset: i64) -> Option<i32> {
        let after = self.starts.partition_point(|&(_, start)| start <= offset);
        after.checked_sub(1).map(|index| self.starts[index].0)
    }

    /// Records that the leader of `epoch` writes from `offset` on, but does not write the file. Returns true if the
    /// epoch is new.
    pub fn note(&mut self, epoch: i32, offset: i64) -> bool {
        if epoch < 0 || self.latest().is_some_and(|latest| latest >= epoch) {
            return false;
        }
        // Forget epochs that begin at or after `offset`, because they have no records.
        while self.starts.last().is_some_and(|&(_, start)| start >= offset) {
            self.starts.pop();
        }
        self.starts.push((epoch, offset));
        true
    }

    /// Lowers the start of the first epoch to the log start, but does not write the file.
    pub fn begin_at(&mut self, log_start: i64) {
        if let Some(first) = self.starts.first_mut() {
            first.1 = first.1.min(log_start);
        }
    }

    /// Records that the leader of `epoch` writes from `offset` on. Writes the file if the epoch is new or an earlier
    /// write failed.
    pub fn assign(&mut self, epoch: i32, offset: i64) -> io::Result<()> {
        let before = self.starts.clone();
        if self.latest() == Some(epoch) || !self.note(epoch, offset) {
            return if self.unsaved { self.save() } else { Ok(()) };
        }
        // The first epoch needs no flush. If a power loss removes the file, a restarted broker derives the epoch from
        // the batches. Later epochs must be flushed, because a restarted broker would trust an old version of the file.
        let saved = if before.is_empty() { fs::write(self.path(), self.text()) } else { self.save() };
        saved.inspect_err(|_| self.starts = before)
    }

    /// Forgets the epochs that begin at or after `log_end`.
    pub fn truncate_to(&mut self, log_end: i64) -> io::Result<()> {
        let kept = self.starts.partition_point(|&(_, start)| start < log_end);
        self.cut(|starts| starts.truncate(kept))
    }

    /// Forgets the epochs whose records are all before `log_start`.
    pub fn advance_to(&mut self, log_start: i64) -> io::Result<()> {
        let passed = self.starts.partition_point(|&(_, start)| start <= log_start);
        self.cut(|starts| {
            starts.drain(..passed.saturating_sub(1));
            if let Some(first) = starts.first_mut().filter(|_| passed > 0) {
                first.1 = log_start;
            }
        })
    }

    fn cut(&mut self, change: impl FnOnce(&mut Vec<(i32, i64)>)) -> io::Result<()> {
        let before = self.starts.clone();
        change(&mut self.starts);
        if self.starts == before && !self.unsaved { Ok(()) } else { self.save() }
    }

    /// Returns the offset at which `epoch` ends. The log ends at `log_end`, and its leader is in the epoch `current`.
    /// If the log has no records of `epoch`, returns the largest earlier epoch and its end. If `epoch` is negative or
    /// newer than `current`, returns -1 as epoch and offset.
    pub fn end_of(&self, epoch: i32, current: i32, log_end: i64) -> EpochEnd {
        let end = |leader_epoch, end_offset| EpochEnd { leader_epoch, end_offset };
        if epoch < 0 || epoch > current {
            return end(-1, -1);
        }
        if epoch == current {
            return end(epoch, log_end);
        }
        let next = self.starts.partition_point(|&(known, _)| known <= epoch);
        let end_offset = self.starts.get(next).map_or(log_end, |&(_, start)| start);
        match next {
            0 => end(epoch, end_offset),
            _ => end(self.starts[next - 1].0, end_offset),
        }
    }

    /// Writes the file.
    pub fn save(&mut self) -> io::Result<()> {
        self.unsaved = true;
        replace(&self.path(), self.text().as_bytes())?;
        self.unsaved = false;
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = format!("0\n{}\n", self.starts.len());
        for (epoch, start) in &self.starts {
            text.push_str(&format!("{epoch} {start}\n"));
        }
        text
    }

    fn path(&self) -> PathBuf {
        self.dir.join(LEADER_EPOCHS)
    }
}

fn parse(text: &str) -> Option<Vec<(i32, i64)>> {
    let mut lines = text.lines();
    if lines.next()? != "0" {
        return None;
    }
    let count: usize = lines.next()?.parse().ok()?;
    let rows: Option<Vec<(i32, i64)>> = lines
        .map(|line| {
            let (epoch, start) = line.split_once(' ')?;
            Some((epoch.parse().ok()?, start.parse().ok()?))
        })
        .collect();
    rows.filter(|rows| rows.len() == count && rows.windows(2).all(|pair| pair[0] < pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_ends_where_the_next_begins() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let dir: Arc<Path> = dir.path().into();
        fs::create_dir_all(&dir).expect("created");
        let mut epochs = Epochs::empty(&dir);
        for (epoch, offset) in [(1, 0), (1, 5), (3, 10), (4, 20), (6, 20)] {
            epochs.assign(epoch, offset).expect("written");
        }
        let request = |epochs: &Epochs, epoch| {
            let EpochEnd { leader_epoch, end_offset } = epochs.end_of(epoch, 6, 30);
            (leader_epoch, end_offset)
        };
        let answers =
            [(0, (0, 0)), (1, (1, 10)), (2, (1, 10)), (3, (3, 20)), (5, (3, 20)), (6, (6, 30)), (7, (-1, -1))];
        for (epoch, expected) in answers {
            assert_eq!(request(&epochs, epoch), expected, "epoch {epoch}");
        }
        let text = fs::read_to_string(epochs.path()).expect("read");
        assert_eq!(text, "0\n3\n1 0\n3 10\n6 20\n");
        epochs.advance_to(12).expect("written");
        epochs.truncate_to(20).expect("written");
        let loaded = Epochs::load(&dir).expect("a whole file");
        assert_eq!((loaded.starts, epochs.starts), (vec![(3, 12)], vec![(3, 12)]));
        fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn a_damaged_epoch_file_is_ignored() {
        for text in ["", "0\n2\n1 0\n", "0\n2\n2 0\n1 5\n", "1\n0\n", "0\n1\nx 0\n"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
