//! Splits batches that are larger than their topic accepts. The parts replace the batch at its position in the order.
//!
//! After a broker refuses such a batch, it also refuses the batches in flight behind it, as out of order. These batches
//! and the queued ones are split before they are sent. Learning a topic's limit thus costs one round trip, and not one
//! for each batch that is too large. A batch is never split if an attempt may be in the log, because the broker would
//! not recognise the parts as a retry.

use super::{Partition, PartitionQueue};
use crate::batch::{OpenBatch, Parts, ProducerBatch};
use crate::window::Ticket;
use std::sync::Arc;
use std::time::Instant;

impl Partition {
    /// Returns how large the open batch may become, in bytes.
    pub(super) fn grows_to(&self, state: &PartitionQueue) -> usize {
        match self.limit.bytes() {
            bytes if self.limit.is_opened() => bytes,
            bytes => state.ratio.uncompressed(bytes),
        }
    }

    /// Returns true if the batch does not exceed the limit that is known so far.
    pub(crate) fn allows(&self, batch: &ProducerBatch) -> bool {
        self.limit.allows(batch.uncompressed(), batch.size())
    }

    /// Applies the limit from the topic's configuration.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.set(bytes);
    }

    /// Returns true only at the first call for the topic, so that its limit is requested and reported once.
    pub(crate) fn is_first_refusal(&self) -> bool {
        self.limit.is_first_refusal()
    }

    /// Splits a batch that a broker refused as too large, with the reason `why`. The parts replace the batch, and later
    /// batches stay smaller. Returns the estimated size of a batch with only the largest record, at the same
    /// compression ratio.
    ///
    /// # Errors
    /// Returns the batch if it is a single record.
    pub(crate) fn refused(
        self: &Arc<Self>,
        ticket: Ticket,
        mut batch: ProducerBatch,
        why: &str,
        now: Instant,
    ) -> Result<usize, Box<ProducerBatch>> {
        self.limit.refused(batch.uncompressed(), batch.size());
        let Some(parts) = self.parts(&batch) else { return Err(Box::new(batch)) };
        batch.note_attempt(false);
        let largest = (parts.largest_record as f64 * batch.size() as f64 / batch.uncompressed() as f64) as usize;
        let mut state = self.state.lock();
        (state.last_error, state.retry_at, state.is_parted) = (Some(why.to_owned()), None, true);
        state.window.split(ticket, counted(parts.batches));
        self.resolved(&mut state, now);
        Ok(largest)
    }

    /// Splits a new batch that turned out to be too large when it was sealed. Its parts are queued in its place.
    ///
    /// # Errors
    /// Returns `batch` itself if it cannot be split.
    pub(crate) fn part_unsent(&self, ticket: Ticket, batch: ProducerBatch) -> Result<(), Box<ProducerBatch>> {
        let Some(parts) = self.parts(&batch) else { return Err(Box::new(batch)) };
        let mut state = self.state.lock();
        if !state.window.take_back(ticket) {
            return Err(Box::new(batch));
        }
        self.put_first(&mut state, parts.batches);
        Ok(())
    }

    /// Splits the next retry if it is too large. Repeats this until the next retry is small enough.
    pub(super) fn part_retries(&self, state: &mut PartitionQueue, missing: bool) {
        while let Some(parts) = state.window.peek_retry(missing).and_then(|batch| self.parts_if_large(batch)) {
            state.window.part_retry(missing, counted(parts));
        }
    }

    /// Splits the oldest queued batch if it is sealed and too large. Repeats this until the oldest batch is small
    /// enough. A batch that is not sealed yet is checked when it is sealed.
    pub(super) fn part_queue(&self, state: &mut PartitionQueue) {
        while let Some(parts) = state.queue.front().and_then(|batch| self.parts_if_large(batch)) {
            state.queued_bytes -= state.queue.pop_front().map_or(0, |batch| batch.size());
            self.put_first(state, parts);
        }
    }

    fn parts_if_large(&self, batch: &ProducerBatch) -> Option<Vec<ProducerBatch>> {
        if batch.ambiguous || self.allows(batch) { None } else { Some(self.parts(batch)?.batches) }
    }

    fn parts(&self, batch: &ProducerBatch) -> Option<Parts> {
        batch.split(self.limits.compression, self.limits.level, self.limit.part(batch.uncompressed(), batch.size()))
    }

    fn put_first(&self, state: &mut PartitionQueue, parts: Vec<ProducerBatch>) {
        for part in parts.into_iter().rev() {
            state.queued_bytes += part.size();
            state.queue.push_front(part);
        }
        self.prospect.set_unsent(state.queued_bytes + state.open.as_ref().map_or(0, OpenBatch::size));
    }
}

fn counted(parts: Vec<ProducerBatch>) -> Vec<(u32, ProducerBatch)> {
    parts.into_iter().map(|part| (part.records, part)).collect()
}
