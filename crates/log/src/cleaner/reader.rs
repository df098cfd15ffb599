//! Reads the batches of a segment one after another, for compaction.
//!
//! If bytes are not in the page cache, they are read directly from the disk and do not enter the cache. Compaction
//! needs them only once or twice. Invariant: each batch that is returned is complete, and its checksum is correct.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use fullbore_wire::batch::{BatchError, BatchView, HEADER_LEN};

use super::error::CleanError;
use crate::direct_io::DirectReads;
use crate::validation::BATCH_BYTES_MAX;

/// Reads the batches of one file.
pub struct BatchReader<'a> {
    file: File,
    cold: &'a DirectReads,
    path: PathBuf,
    /// The position of the next read from the file.
    position: u64,
    limit: u64,
    buffer: Vec<u8>,
    start: usize,
    chunk: usize,
}

impl<'a> BatchReader<'a> {
    /// Creates a reader for the batches between `position` and `limit`. The reader reads `chunk` bytes at a time.
    pub fn open(path: &Path, position: u64, limit: u64, chunk: usize, cold: &'a DirectReads) -> io::Result<Self> {
        let file = File::open(path)?;
        let path = path.to_owned();
        Ok(BatchReader { file, cold, path, position, limit, buffer: Vec::new(), start: 0, chunk })
    }

    /// Returns the next batch; `None` at the limit. `before_read` is called with the number of bytes before each read,
    /// and may end the compaction.
    pub fn next(
        &mut self,
        before_read: &mut impl FnMut(u64) -> Result<(), CleanError>,
    ) -> Result<Option<BatchView<'_>>, CleanError> {
        if self.buffered() == 0 && self.position >= self.limit {
            return Ok(None);
        }
        self.fill(HEADER_LEN, before_read)?;
        let len = BatchView::peek_len(&self.buffer[self.start..]).map_err(|why| self.damaged(why))?;
        if len > BATCH_BYTES_MAX {
            return Err(self.damaged(BatchError::TooLarge(BATCH_BYTES_MAX)));
        }
        self.fill(len, before_read)?;
        let start = self.start;
        self.start += len;
        let checked = BatchView::first(&self.buffer[start..start + len]).and_then(|batch| batch.check_crc());
        if let Err(why) = checked {
            self.start = start;
            return Err(self.damaged(why));
        }
        let batch = BatchView::first(&self.buffer[start..start + len]);
        Ok(Some(batch.expect("it has just been seen")))
    }

    /// Returns the position of the next batch.
    pub fn position(&self) -> u64 {
        self.position - self.buffered() as u64
    }

    /// Returns the error for the next batch, which is damaged.
    fn damaged(&self, why: BatchError) -> CleanError {
        CleanError::Damaged { path: self.path.clone(), position: self.position(), why }
    }

    fn buffered(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Reads until the buffer has `wanted` bytes.
    fn fill(
        &mut self,
        wanted: usize,
        before_read: &mut impl FnMut(u64) -> Result<(), CleanError>,
    ) -> Result<(), CleanError> {
        if self.buffered() >= wanted {
            return Ok(());
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        let have = self.buffer.len();
        let left = usize::try_from(self.limit - self.position).unwrap_or(usize::MAX);
        if have.saturating_add(left) < wanted {
            return Err(self.damaged(BatchError::Truncated));
        }
        let more = self.chunk.max(wanted - have).min(left);
        before_read(more as u64)?;
        self.buffer.resize(have + more, 0);
        self.cold.read_exact(&self.file, self.position, &mut self.buffer[have..])?;
        self.position += more as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_of_the_largest_size_is_read_and_a_larger_one_is_damaged() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("0.log");
        for (size, is_read) in [(BATCH_BYTES_MAX, true), (BATCH_BYTES_MAX + 1, false)] {
            let mut header = [0; HEADER_LEN];
            // The length field counts neither itself nor the offset field before it.
            header[8..12].copy_from_slice(&i32::try_from(size - 12).expect("it fits").to_be_bytes());
            header[16] = 2;
            std::fs::write(&path, header).expect("written");
            let cold = DirectReads::default();
            let mut reader = BatchReader::open(&path, 0, size as u64, HEADER_LEN, &cold).expect("opened");
            let mut reads = Vec::new();
            // The first read returns only the header. The callback stops the compaction at the second read, which would
            // return the rest of the batch.
            let outcome = reader.next(&mut |bytes| {
                reads.push(bytes);
                if reads.len() == 1 { Ok(()) } else { Err(CleanError::Stopping) }
            });
            match outcome {
                Err(CleanError::Stopping) => assert!(is_read, "{size}"),
                Err(CleanError::Damaged { why, .. }) => assert!(!is_read, "{size}: {why}"),
                _ => panic!("{size}: a batch of zeros"),
            }
        }
    }
}
