//! Transactions in a log: markers, the last stable offset, and aborted transactions.
//!
//! The rules for markers and open transactions are in [`fullbore_rules::sequence`]. The transaction coordinator decides
//! to commit or abort.
//!
//! Invariant: the index of aborted transactions of a segment has exactly those that were aborted by markers in that
//! segment. After a crash, the index is rebuilt from the batches.

use std::io;
use std::sync::atomic::AtomicBool;

use fullbore_config::TopicConfig;
use fullbore_rules::sequence::{Marker, Producers, Stamp, VersionedMarker};
use fullbore_wire::batch::BatchView;

use super::Log;
use super::append::{LogAppendInfo, Writing};
use super::scan::Header;
use super::snapshot;
use super::txn_index::{AbortedLookup, AbortedTransaction};
use crate::partition::error::AppendError;
use crate::partition::read::Isolation;
use crate::partition::stamping::Stamping;

impl Log {
    /// Appends the marker that ends a transaction, as the leader of `leader_epoch`. The marker is appended even if the
    /// producer has no open transaction.
    ///
    /// # Errors
    /// Fails with [`AppendError::Sequence`] if [`Producers::check_marker`] refuses the marker. Other errors are those
    /// of [`Log::append`].
    pub fn append_marker(
        &mut self,
        marker: &Marker,
        transaction_version: i8,
        leader_epoch: i32,
        now_ms: i64,
        config: &TopicConfig,
    ) -> Result<LogAppendInfo, AppendError> {
        if self.is_broken() {
            return Err(AppendError::Storage);
        }
        let versioned = VersionedMarker { marker: *marker, transaction_version };
        self.producers.check_marker(&versioned).map_err(AppendError::Sequence)?;
        let bytes = marker.batch(now_ms);
        let batch = BatchView::first(&bytes).map_err(|_| AppendError::Storage)?;
        let stamping = Stamping::new(&batch, config.message_timestamp_type, now_ms);
        let &Marker { producer_id, producer_epoch, .. } = marker;
        let stamp = Stamp { producer_id, producer_epoch, base_sequence: -1, record_count: 1 };
        let base_offset = self.log_end;
        let marker = Some(versioned);
        let writing = Writing { batch: &batch, stamping, stamp, marker, base_offset, leader_epoch, now_ms, config };
        self.guarded(|log| log.write(writing))
    }

    /// Updates the producers and the index after a marker was appended to the active segment at `offset`.
    pub(super) fn end_transaction(&mut self, marker: &VersionedMarker, offset: i64, timestamp: i64, now_ms: i64) {
        let completed = self.producers.end_appended(marker, offset, timestamp, now_ms);
        let active = self.segments.back_mut().expect("a log has a segment");
        active.aborted.extend(completed.as_ref().and_then(AbortedTransaction::of));
    }

    /// Forgets ended transactions whose markers are below `high_watermark`, because these markers are replicated. Reads
    /// with read_committed do this too, but a partition without such reads would keep all its ended transactions.
    pub fn forget_replicated_ends(&mut self, high_watermark: i64) {
        self.producers.first_unstable(high_watermark);
    }

    /// Returns the last stable offset, which is at most `high_watermark` (KIP-98). Each transaction that begins before
    /// it has ended, and its marker is on all in-sync replicas.
    pub fn last_stable_offset(&mut self, high_watermark: i64) -> i64 {
        let unstable = self.producers.first_unstable(high_watermark);
        // After DeleteRecords, an open transaction may begin before the log start.
        unstable.map_or(high_watermark, |first| first.max(self.log_start).min(high_watermark))
    }

    /// Returns the offset up to which a consumer can read.
    pub fn readable_end(&mut self, isolation: Isolation, high_watermark: i64) -> i64 {
        match isolation {
            Isolation::ReadUncommitted => high_watermark,
            Isolation::ReadCommitted => self.last_stable_offset(high_watermark),
        }
    }

    /// Plans a search for transactions that were aborted at or after `from`.
    pub fn plan_aborted(&self, from: i64) -> AbortedLookup {
        let ends = self.segments.iter().skip(1).map(|next| next.base_offset).chain([self.log_end]);
        let later = self.segments.iter().zip(ends).skip(self.segment_of(from));
        let segments = later.filter_map(|(segment, end_offset)| segment.aborted_entries(end_offset)).collect();
        AbortedLookup { from, segments }
    }

    /// Finds the transactions that were aborted by markers at or after `first`, which is the base offset of a segment.
    /// Writes the indexes of aborted transactions of that segment and all later ones.
    pub(super) fn rebuild_aborted(&mut self, stop: &AtomicBool, first: i64) -> io::Result<()> {
        let mut producers = Producers::default();
        let (offset, entries) = snapshot::load_before(&self.dir, first)?.unwrap_or((-1, Vec::new()));
        producers.restore(entries, 0, 0);
        let mut found = Vec::new();
        self.for_each_batch(stop, offset.max(self.segments[0].base_offset), |batch, file| {
            if batch.is_control {
                // Compaction empties a marker only if none of its transaction's records are left. Such a marker ends
                // nothing here.
                if let Some(marker) = batch.marker(file)? {
                    let completed = producers.end_transaction(&marker, batch.base_offset, batch.max_timestamp, 0);
                    found.extend(completed.as_ref().and_then(AbortedTransaction::of));
                }
            } else if batch.is_transactional {
                producers.append(&batch.stamp, batch.base_offset, batch.max_timestamp, 0, 0);
                producers.append_transactional(&batch.stamp, batch.base_offset, batch.max_timestamp, 0);
            }
            Ok(())
        })?;
        for aborted in found.into_iter().filter(|aborted| aborted.last_offset >= first) {
            let index = self.segment_of(aborted.last_offset);
            self.segments[index].aborted.push(aborted);
        }
        let rebuilt = self.segments.iter_mut().filter(|segment| segment.base_offset >= first);
        rebuilt.into_iter().try_for_each(super::segment::Segment::finish_aborted)
    }
}

/// Returns the marker in a control batch. Returns `None` if compaction has emptied the batch, or if this version cannot
/// read it.
pub fn marker_of(batch: &BatchView<'_>) -> Option<Marker> {
    Marker::read(batch).unwrap_or_else(|error| {
        tracing::warn!(offset = batch.base_offset(), %error, "cannot read a control batch: the broker ignores it, so \
             the transaction may stay open");
        None
    })
}

/// Updates `producers` for a control batch in the log. Returns the transaction that it aborts, if there is one.
/// `marker` is the marker in the batch; `None` if compaction has emptied it.
pub(super) fn remember_control(
    producers: &mut Producers,
    batch: &Header,
    marker: Option<&Marker>,
    now_ms: i64,
) -> Option<AbortedTransaction> {
    let (offset, timestamp) = (batch.base_offset, batch.max_timestamp);
    match marker {
        Some(marker) => {
            let completed = producers.end_transaction(marker, offset, timestamp, now_ms);
            completed.as_ref().and_then(AbortedTransaction::of)
        }
        None if !batch.has_records => {
            let Stamp { producer_id, producer_epoch, .. } = batch.stamp;
            producers.note_emptied_marker(producer_id, producer_epoch, offset, timestamp, now_ms);
            None
        }
        None => None,
    }
}

/// Updates `producers` for a batch in the log.
pub(super) fn remember(producers: &mut Producers, batch: &Header, now_ms: i64, window: usize) {
    producers.append(&batch.stamp, batch.base_offset, batch.max_timestamp, now_ms, window);
    if batch.is_transactional {
        producers.append_transactional(&batch.stamp, batch.base_offset, batch.max_timestamp, now_ms);
    }
}

#[cfg(test)]
mod tests;
