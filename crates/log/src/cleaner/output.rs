//! Writes the new segments of a compaction, with their indexes.
//!
//! The old segments are chosen so that their records fit into one new segment. A second one is needed only if rewritten
//! batches become a little longer. Invariant: the batches are complete and in the order of their offsets.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fullbore_wire::batch::HEADER_LEN;

use super::error::CleanError;
use crate::scan::Header;
use crate::segment::{Segment, WriteError};
use crate::steps::step;
use crate::txn_index::AbortedTransaction;

/// Maximum size of a segment, since positions in indexes have 31 bits.
const SEGMENT_MAX: u64 = i32::MAX as u64;

/// The segments that a compaction writes.
pub struct Output {
    dir: Arc<Path>,
    segments: Vec<Segment>,
    buffer: Vec<u8>,
    chunk: usize,
    segment_bytes: u64,
    index_interval_bytes: u64,
    now_ms: i64,
}

impl Output {
    /// Creates the first segment, which begins at `base_offset`. Bytes are written in chunks of `chunk` bytes.
    pub fn create(
        dir: &Arc<Path>,
        base_offset: i64,
        chunk: usize,
        segment_bytes: u64,
        index_interval_bytes: u64,
        now_ms: i64,
    ) -> io::Result<Output> {
        let first = Segment::create_cleaned(dir, base_offset, now_ms)?;
        let segment_bytes = segment_bytes.min(SEGMENT_MAX);
        let (segments, buffer) = (vec![first], Vec::with_capacity(chunk));
        Ok(Output { dir: dir.clone(), segments, buffer, chunk, segment_bytes, index_interval_bytes, now_ms })
    }

    /// Adds a batch. `aborted` is the transaction that the batch aborts, if the batch is a marker and records of the
    /// transaction remain. Before each write, `before_write` gets the number of bytes, and may end the compaction with
    /// an error.
    pub fn push(
        &mut self,
        batch: &[u8],
        aborted: Option<AbortedTransaction>,
        before_write: &mut impl FnMut(u64) -> Result<(), CleanError>,
    ) -> Result<(), CleanError> {
        let header: &[u8; HEADER_LEN] = batch.first_chunk().expect("a batch has a header");
        let size = self.last().size + self.buffer.len() as u64;
        let parse = |position| Header::parse(position, header).map_err(io::Error::other);
        let mut header = parse(size)?;
        if size > 0 && (size + batch.len() as u64 > self.segment_bytes || !self.last().can_hold(header.last_offset())) {
            self.flush(before_write)?;
            self.segments.push(Segment::create_cleaned(&self.dir, header.base_offset, self.now_ms)?);
            header = parse(0)?;
        }
        let index_interval_bytes = self.index_interval_bytes;
        self.last().account(&header, index_interval_bytes);
        self.last().aborted.extend(aborted);
        self.buffer.extend_from_slice(batch);
        if self.buffer.len() >= self.chunk { self.flush(before_write) } else { Ok(()) }
    }

    /// Writes the rest of the buffer, and flushes the files. Sets their modification time to `modified`, the time of
    /// the segments that they replace.
    pub fn finish(
        mut self,
        modified: SystemTime,
        before_write: &mut impl FnMut(u64) -> Result<(), CleanError>,
    ) -> Result<Vec<Segment>, (CleanError, Vec<Segment>)> {
        let mut finished = self.flush(before_write);
        for segment in &mut self.segments {
            finished = finished.and_then(|()| {
                step();
                segment.finish_indexes()?;
                segment.file()?.set_modified(modified)?;
                Ok(segment.sync()?)
            });
        }
        match finished {
            Ok(()) => Ok(self.segments),
            Err(error) => Err((error, self.segments)),
        }
    }

    /// Removes the files that were written.
    pub fn discard(self) {
        self.segments.into_iter().for_each(Segment::discard);
    }

    fn last(&mut self) -> &mut Segment {
        self.segments.last_mut().expect("there is always one")
    }

    fn flush(&mut self, before_write: &mut impl FnMut(u64) -> Result<(), CleanError>) -> Result<(), CleanError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        before_write(self.buffer.len() as u64)?;
        step();
        let buffer = std::mem::take(&mut self.buffer);
        let segment = self.last();
        segment.spill_indexes()?;
        segment.write(&buffer, &[]).map_err(|(WriteError::Undone(error) | WriteError::Broken(error))| error)?;
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }
}
