//! Walks through the batches of a segment that must be recovered, up to the first bad one, and judges the bytes there.
//!
//! [`super`] decides what happens to the bytes. Invariant: the walk reads the disk, but changes only the segment's
//! indexes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;

use fullbore_config::TopicConfig;
use fullbore_wire::batch::HEADER_LEN;

use super::{RecoveryHint, unless_full};
use crate::epochs::Epochs;
use crate::scan::{Header, Scan, ScanError, go_on_unless};
use crate::segment::Segment;

/// The size of the smallest block in which a file system writes. All pages are multiples of it.
pub const BLOCK: u64 = 512;
/// The position of the magic byte in a batch, and its value.
const MAGIC: (usize, u8) = (16, 2);

/// How far the recovery of a segment has got.
pub struct Walk<'a> {
    pub next_offset: i64,
    /// The position after the last good batch.
    pub end: u64,
    /// The first offset of the next segment; `None` in the last segment.
    pub next_base: Option<i64>,
    /// The position before which no checksums are verified.
    pub unchecked: u64,
    /// True if there may be gaps between the offsets of batches even in the last segment.
    pub may_have_gaps: bool,
    /// True if the segment has gaps between its batches, because compaction has removed some.
    pub has_gaps: bool,
    /// True if the segment has control batches.
    pub has_markers: bool,
    /// The leader epochs in the epoch file; `None` if the file is missing or damaged.
    pub epochs: Option<&'a Epochs>,
    /// True if a batch has another leader epoch than the file gives its offset.
    pub contradicts_epochs: bool,
}

impl Walk<'_> {
    /// Returns true if the offsets of a batch can follow those before it, which no checksum verifies. In all segments
    /// but the last, compaction may have left gaps. In the last one, gaps are possible only on a follower whose leader
    /// had compacted the records before it sent them.
    fn is_due(&self, batch: &Header) -> bool {
        match self.next_base {
            None if self.may_have_gaps => batch.base_offset >= self.next_offset,
            None => batch.base_offset == self.next_offset,
            Some(next_base) => batch.base_offset >= self.next_offset && batch.last_offset() < next_base,
        }
    }

    /// Returns true if a power loss may have destroyed the next bytes. The machine must have booted since the unclean
    /// shutdown, and all batches before the recovery point must be good. Returns false for a segment that this broker's
    /// compaction wrote, because compaction flushes such a segment completely.
    pub fn may_be_lost(&self, known: RecoveryHint) -> bool {
        let was_cleaned = self.has_gaps && !known.may_have_gaps;
        known.rebooted && self.next_offset >= known.recovery_point && !was_cleaned
    }

    /// Returns a message if batches are missing at the end of the segment, and a power loss may be the reason. Returns
    /// `None` otherwise, and for a compacted topic, where compaction may have removed these batches.
    pub fn falls_short(&self, known: RecoveryHint, config: &TopicConfig) -> Option<String> {
        let next_base = self.next_base.filter(|&next_base| self.next_offset < next_base)?;
        let is_lost = self.may_be_lost(known) && !config.cleanup.compact;
        is_lost
            .then(|| format!("the segment ends before offset {}, the next one begins at {next_base}", self.next_offset))
    }

    /// Returns true if a killed process can have left the bytes after the last good batch, in a file of `len` bytes.
    /// The process appends batches with one system call, and a kill ends this call after one of the file's pages. So
    /// the file then ends at a page, within the next batch. Returns false if the disk must have lost writes, as with
    /// zeros, a batch with a wrong checksum, more than one batch, or bytes before another segment.
    pub fn is_torn_write(&self, file: &File, len: u64) -> io::Result<bool> {
        if self.next_base.is_some() || !len.is_multiple_of(BLOCK) {
            return Ok(false);
        }
        let mut bytes = [0; HEADER_LEN];
        let left = usize::try_from(len - self.end).unwrap_or(HEADER_LEN).min(HEADER_LEN);
        file.read_exact_at(&mut bytes[..left], self.end)?;
        if left == HEADER_LEN {
            let header = Header::parse(self.end, &bytes);
            return Ok(header.is_ok_and(|header| header.end() > len && self.is_due(&header)));
        }
        let base_offset = i64::from_be_bytes(bytes[..8].try_into().expect("8 bytes"));
        let is_due = base_offset == self.next_offset || (self.may_have_gaps && base_offset > self.next_offset);
        Ok((left < 8 || is_due) && (left <= MAGIC.0 || bytes[MAGIC.0] == MAGIC.1))
    }

    /// Adds the segment's good batches to its indexes, up to the first bad batch. Returns the reason why that batch is
    /// bad; `None` if all batches are good.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        segment: &mut Segment,
        file: &File,
        len: u64,
        config: &TopicConfig,
    ) -> io::Result<Option<String>> {
        let mut scan = Scan::new(file, 0, len);
        loop {
            go_on_unless(stop)?;
            let batch = match scan.next() {
                Ok(Some(batch)) => batch,
                Ok(None) => return Ok(None),
                Err(ScanError::Bad { why, .. }) => return Ok(Some(why)),
                Err(ScanError::Io(error)) => return Err(error),
            };
            if !self.is_due(&batch) || !segment.can_hold(batch.last_offset()) {
                return Ok(Some(format!(
                    "a batch begins at offset {} where {} is expected",
                    batch.base_offset, self.next_offset
                )));
            }
            if batch.end() > self.unchecked && !batch.has_valid_crc(file)? {
                return Ok(Some("the checksum does not match".to_owned()));
            }
            unless_full(segment.spill_indexes())?;
            segment.account(&batch, config.index_interval_bytes);
            self.has_gaps |= batch.base_offset > self.next_offset;
            self.has_markers |= batch.is_control;
            self.contradicts_epochs |= self.epochs.is_some_and(|epochs| epochs.contradict(&batch));
            self.next_offset = batch.last_offset() + 1;
            self.end = batch.end();
        }
    }
}
