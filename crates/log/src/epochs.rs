//! The leader epochs of a log, and the offsets at which they begin (KIP-101). The file `leader-epoch-checkpoint` stores
//! them.
//!
//! A follower compares these epochs with its leader's to decide where to truncate its log. The format is that of
//! Kafka's `LeaderEpochCheckpointFile`. The first offset of the list is also the log start. If the log's first batch is
//! later, the first epoch is in the list twice: with the log start, and with the offset of that batch. Kafka's reader
//! ignores the second entry.
//!
//! Invariant: the epochs and their offsets are both ascending, and only the first epoch may be there twice. The file
//! never has an epoch that memory lacks. If the file cannot be written, the next call that could change the epochs
//! writes it again.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{LEADER_EPOCHS, replace};
use crate::partition::read::EpochEnd;
use crate::scan::Header;

/// The epochs of one partition's log.
#[derive(Debug)]
pub struct Epochs {
    dir: Arc<Path>,
    /// The epochs in order, each with the offset of its first record. The first offset is the log start.
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

    /// Returns the epochs, each with the offset of its first record. The first offset is the log start. If the first
    /// batch is later, a second entry of the first epoch has the offset of that batch.
    pub fn starts(&self) -> &[(i32, i64)] {
        &self.starts
    }

    /// Returns the epochs, each with the offset of its first batch. The offset of the first epoch is the log start if
    /// that epoch had an earlier batch, which may be deleted by now.
    pub fn first_batches(&self) -> &[(i32, i64)] {
        match &self.starts[..] {
            [(first, _), rest @ ..] if rest.first().is_some_and(|(second, _)| first == second) => rest,
            starts => starts,
        }
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

    /// Returns true if the batch has another leader epoch than this list gives its offset. A list may have epochs
    /// without a batch, since compaction removes batches.
    pub fn contradict(&self, batch: &Header) -> bool {
        let is_listed = self.log_start().is_none_or(|start| batch.base_offset >= start);
        batch.leader_epoch >= 0 && is_listed && self.at(batch.base_offset) != Some(batch.leader_epoch)
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

    /// Adds an entry for the log start if the first epoch begins later, but does not write the file.
    pub fn begin_at(&mut self, log_start: i64) {
        if let Some(&(first, _)) = self.starts.first().filter(|(_, start)| log_start < *start) {
            self.starts.insert(0, (first, log_start));
        }
    }

    /// Records that the next batch has the leader epoch `epoch` and begins at `offset`. `log` is the range of offsets
    /// from the log start to the log end, before the batch is appended. Writes the file if the epoch is new or an
    /// earlier write failed.
    pub fn assign(&mut self, epoch: i32, offset: i64, log: Range<i64>) -> io::Result<()> {
        let with_records = self.starts.partition_point(|&(_, start)| start < log.end);
        let has_records = with_records == self.starts.len();
        let is_known = self.latest().is_some_and(|latest| latest > epoch || (latest == epoch && has_records));
        if epoch < 0 || is_known {
            return if self.unsaved { self.save() } else { Ok(()) };
        }
        let before = self.starts.clone();
        // An entry without records may be left from an append that failed, or keep the log start of an empty log.
        self.starts.truncate(with_records);
        self.note(epoch, offset);
        self.begin_at(log.start);
        if self.starts == before && !self.unsaved {
            return Ok(());
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
    /// If the log has no records of `epoch`, returns the largest earlier epoch and its end. If no epoch is earlier,
    /// returns `epoch` and the offset of the first epoch's first batch. If `epoch` is negative or newer than `current`,
    /// returns -1 as epoch and offset.
    pub fn end_of(&self, epoch: i32, current: i32, log_end: i64) -> EpochEnd {
        let end = |leader_epoch, end_offset| EpochEnd { leader_epoch, end_offset };
        if epoch < 0 || epoch > current {
            return end(-1, -1);
        }
        if epoch == current {
            return end(epoch, log_end);
        }
        let starts = self.first_batches();
        let next = starts.partition_point(|&(known, _)| known <= epoch);
        let end_offset = starts.get(next).map_or(log_end, |&(_, start)| start);
        match next {
            0 => end(epoch, end_offset),
            _ => end(starts[next - 1].0, end_offset),
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
            epochs.assign(epoch, offset, 0..offset).expect("written");
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
    fn first_batch_is_after_the_log_start_earlier_epochs_end_at_the_batch() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let dir: Arc<Path> = dir.path().into();
        let mut epochs = Epochs::empty(&dir);
        epochs.assign(3, 500, 0..0).expect("written");
        epochs.assign(3, 600, 0..600).expect("nothing to write");
        epochs.assign(6, 700, 0..700).expect("written");
        assert_eq!(fs::read_to_string(epochs.path()).expect("read"), "0\n3\n3 0\n3 500\n6 700\n");
        for mut epochs in [epochs, Epochs::load(&dir).expect("a whole file")] {
            for (log_start, end_offset) in [(0, 500), (200, 500), (500, 500), (600, 600)] {
                epochs.advance_to(log_start).expect("written");
                assert_eq!((epochs.log_start(), epochs.at(log_start)), (Some(log_start), Some(3)));
                assert_eq!(epochs.end_of(2, 6, 900), EpochEnd { leader_epoch: 2, end_offset }, "from {log_start}");
                for (epoch, end_offset) in [(3, 700), (5, 700), (6, 900)] {
                    let leader_epoch = if epoch == 5 { 3 } else { epoch };
                    assert_eq!(epochs.end_of(epoch, 6, 900), EpochEnd { leader_epoch, end_offset });
                }
            }
        }
    }

    #[test]
    fn epochs_without_records_are_replaced_by_that_of_the_next_batch() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let dir: Arc<Path> = dir.path().into();
        let mut epochs = Epochs::empty(&dir);
        epochs.assign(3, 500, 100..100).expect("written");
        // The append of the batch has failed. Another leader sends the next one.
        epochs.assign(4, 600, 100..100).expect("written");
        assert_eq!(epochs.starts(), [(4, 100), (4, 600)]);
        // The log is empty, and begins at the offset 900.
        epochs.advance_to(900).expect("written");
        assert_eq!(epochs.starts(), [(4, 900)]);
        epochs.assign(4, 950, 900..900).expect("written");
        assert_eq!(epochs.starts(), [(4, 900), (4, 950)]);
        let loaded = Epochs::load(&dir).expect("a whole file");
        assert_eq!(loaded.starts, epochs.starts);
    }

    #[test]
    fn a_damaged_epoch_file_is_ignored() {
        for text in ["", "0\n2\n1 0\n", "0\n2\n2 0\n1 5\n", "1\n0\n", "0\n1\nx 0\n"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
