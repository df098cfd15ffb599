//! The part of a segment that handles its index of aborted transactions.
//!
//! The format of the index is in [`crate::txn_index`].

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use super::{RETIRED, Segment};
use crate::files::{DELETED, TXN_INDEX, offset_path};
use crate::index::Index;
use crate::steps::step;
use crate::txn_index::{AbortedTransaction, CHUNK, SegmentEntries};

impl Segment {
    /// Writes the whole index of aborted transactions. If it is empty, removes the file.
    pub fn finish_aborted(&mut self) -> io::Result<()> {
        let path = self.path(TXN_INDEX);
        match self.aborted.len() {
            0 => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
            _ => self.aborted.write(&path),
        }
    }

    /// Forgets the aborted transactions, so that they can be found again from the batches.
    pub fn forget_aborted(&mut self) {
        (self.aborted, self.is_aborted_torn) = (Index::empty(), false);
        self.aborted_begins = OnceLock::new();
    }

    /// Forgets the transactions that were aborted by markers at or after `offset`, because these markers are cut off.
    pub fn cut_aborted(&mut self, offset: i64) -> io::Result<()> {
        let is_before = |entry: &AbortedTransaction| entry.last_offset < offset;
        let (on_disk, in_memory) = self.aborted.parts();
        if in_memory.first().is_some_and(is_before) {
            self.aborted.cut_tail(is_before);
        } else if on_disk.entries > 0 {
            let count = on_disk.count_before(&File::open(self.path(TXN_INDEX))?, is_before)?;
            self.aborted.cut_to(count);
            self.aborted_begins = OnceLock::new();
        } else {
            self.forget_aborted();
        }
        self.finish_aborted()
    }

    /// Returns the aborted transactions; `None` if there are none. `end_offset` is the offset at which the next segment
    /// begins.
    pub fn aborted_entries(&self, end_offset: i64) -> Option<SegmentEntries> {
        let (on_disk, in_memory) = self.aborted.parts();
        let begins = || match on_disk.entries {
            CHUNK.. => Arc::clone(self.aborted_begins.get_or_init(Arc::default)),
            _ => Arc::default(),
        };
        let path = || self.path(TXN_INDEX);
        let entries =
            || SegmentEntries { end_offset, path: path(), on_disk, begins: begins(), in_memory: in_memory.to_vec() };
        (self.aborted.len() > 0).then(entries)
    }

    /// Returns true if the index of aborted transactions seems to belong to this segment. The file must be complete,
    /// and its last entry must end within this segment.
    pub fn has_sound_aborted(&self, end_offset: i64) -> io::Result<bool> {
        let is_within = |entry: AbortedTransaction| (self.base_offset..end_offset).contains(&entry.last_offset);
        Ok(!self.is_aborted_torn && self.aborted.last(&self.path(TXN_INDEX))?.is_none_or(is_within))
    }

    /// Renames the index of aborted transactions of a segment that was replaced. Returns the new path; `None` if there
    /// is no index.
    ///
    /// Must be called before [`Segment::retire`]. As long as the old log file has its name, a restarted broker assumes
    /// that the index belongs to it.
    pub fn retire_aborted(&mut self) -> io::Result<Option<PathBuf>> {
        step();
        let number = RETIRED.fetch_add(1, Ordering::Relaxed);
        let to = offset_path(&self.dir, self.base_offset, &format!("{TXN_INDEX}.{number}.{DELETED}"));
        match fs::rename(self.path(TXN_INDEX), &to) {
            Ok(()) => Ok(Some(to)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
