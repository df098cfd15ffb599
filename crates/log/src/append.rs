//! Appends batches to the log, one at a time.
//!
//! Followers append fetched batches with [`super::truncate`] instead. Invariant: an append changes nothing unless all
//! its bytes are in the file.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use fullbore_rules::sequence::{SequenceRefusal, Stamp, TransactionOfBatch, Verdict, VersionedMarker};
use fullbore_wire::batch::BatchView;

use super::Log;
use super::scan::Header;
use super::segment::WriteError;
use super::steps::step;
use super::transactions::remember;
use crate::partition::error::AppendError;
use crate::partition::stamping::Stamping;
use crate::validation::ValidBatch;
use fullbore_config::TopicConfig;
use fullbore_host::files::is_full;
use fullbore_host::log_rate_limit::CauseRateLimit;

/// The limit for lines about failed appends that clients repeat. All logs share it, because appends to all of them may
/// fail for the same cause, such as a lack of file descriptors.
static REPEATED_FAILURES: LazyLock<CauseRateLimit> = LazyLock::new(CauseRateLimit::default);

/// The verification of the transaction that a batch would open in this partition (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The coordinator has not verified the transaction. A batch that would open one is refused with
    /// [`AppendError::Unverified`].
    Unknown,
    /// The client has added the partition to the transaction with AddPartitionsToTxn, and the coordinator has confirmed
    /// this.
    Verified,
    /// The coordinator has added the partition to the transaction because of this batch (transaction version 2). If
    /// this partition has no state of the producer, the batch's first sequence number must be 0.
    Added,
}

/// A batch that has passed all checks, with everything that is needed to write it.
pub(super) struct Writing<'a> {
    pub batch: &'a BatchView<'a>,
    /// The header that the batch will have in the log.
    pub stamping: Stamping,
    pub stamp: Stamp,
    /// The marker, if the batch is a control batch that ends a transaction.
    pub marker: Option<VersionedMarker>,
    pub base_offset: i64,
    pub leader_epoch: i32,
    pub now_ms: i64,
    pub config: &'a TopicConfig,
}

/// The result of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogAppendInfo {
    pub base_offset: i64,
    /// The offset after the last record.
    pub end_offset: i64,
    /// The largest timestamp in the batch, as stored.
    pub timestamp: i64,
    /// True if the batch was already in the log.
    pub is_duplicate: bool,
    /// True if a segment was sealed. The caller must then flush it.
    pub rolled: bool,
}

impl Log {
    /// Appends a batch as the leader of `leader_epoch`, unless the log already has it. A batch that would open a
    /// transaction is refused.
    pub fn append(
        &mut self,
        batch: &ValidBatch<'_>,
        leader_epoch: i32,
        now_ms: i64,
        config: &TopicConfig,
    ) -> Result<LogAppendInfo, AppendError> {
        self.append_verified(batch, Verification::Unknown, leader_epoch, now_ms, config)
    }

    /// Appends a batch as the leader of `leader_epoch`, unless the log already has it.
    ///
    /// # Errors
    /// Fails with [`AppendError::Unverified`] if the batch would open a transaction and `verification` is unknown.
    /// Other errors mean that the batch was refused or could not be written. After any error, the log has the same
    /// records as before, at least until the broker's next start.
    pub fn append_verified(
        &mut self,
        batch: &ValidBatch<'_>,
        verification: Verification,
        leader_epoch: i32,
        now_ms: i64,
        config: &TopicConfig,
    ) -> Result<LogAppendInfo, AppendError> {
        if self.is_broken() {
            return Err(AppendError::Storage);
        }
        let (stamp, is_unsequenced, batch) = (batch.stamp(), batch.is_unsequenced(), &batch.view());
        let verdict = match is_unsequenced {
            true => self.producers.check_unsequenced(&stamp).map_or_else(Verdict::Refuse, |()| Verdict::Append),
            false => self.producers.check(&stamp, self.log_end),
        };
        match verdict {
            Verdict::Append => {}
            Verdict::Duplicate { base_offset, timestamp } => return Ok(duplicate(&stamp, base_offset, timestamp)),
            Verdict::Refuse(refusal) => return Err(AppendError::Sequence(refusal)),
        }
        self.check_transaction(&stamp, batch.is_transactional(), verification)?;
        let stamping = Stamping::new(batch, config.message_timestamp_type, now_ms);
        let base_offset = self.log_end;
        let writing = Writing { batch, stamping, stamp, marker: None, base_offset, leader_epoch, now_ms, config };
        self.guarded(|log| log.write(writing))
    }

    fn check_transaction(
        &self,
        stamp: &Stamp,
        is_transactional: bool,
        verification: Verification,
    ) -> Result<(), AppendError> {
        match self.producers.transaction_of(stamp, is_transactional).map_err(AppendError::Sequence)? {
            TransactionOfBatch::None | TransactionOfBatch::Ongoing => Ok(()),
            TransactionOfBatch::Begins => match verification {
                Verification::Unknown => Err(AppendError::Unverified),
                Verification::Added if stamp.base_sequence > 0 && !self.producers.knows(stamp.producer_id) => {
                    Err(AppendError::Sequence(SequenceRefusal::OutOfOrderSequence))
                }
                Verification::Added | Verification::Verified => Ok(()),
            },
        }
    }

    /// Runs `write`. If it panics, the log accepts no appends until the broker's next start.
    pub(super) fn guarded<T>(&mut self, write: impl FnOnce(&mut Log) -> io::Result<T>) -> Result<T, AppendError> {
        let before = self.segments.back().map(|active| (active.base_offset, active.size));
        let work = AssertUnwindSafe(|| write(self));
        let written = catch_unwind(work).unwrap_or_else(|_| {
            self.give_up_midway(before);
            Err(io::Error::other("the append has panicked; the partition accepts no appends until the next start"))
        });
        written.map_err(|error| {
            if is_full(&error) && !self.flushes.is_broken() {
                return AppendError::Full;
            }
            self.log_failure(&error);
            AppendError::Storage
        })
    }

    /// Logs that an append has failed. A broken log accepts no further appends, so it has one such line. Otherwise
    /// clients repeat the append, and the lines are limited.
    fn log_failure(&self, error: &io::Error) {
        let dir = self.dir.display();
        if self.is_broken() {
            tracing::error!(%dir, %error, "cannot append to the log: the partition takes no records until the next start; check the disk, then restart the broker");
        } else if let Some(left_out) = REPEATED_FAILURES.due(&error.to_string()) {
            tracing::error!(%dir, %error, left_out, "cannot append to the log: the batch is refused, and the next append tries again; correct the error, without a restart");
        }
    }

    /// Stops all appends after a panic, because memory may no longer match the files. The failed batch is not served to
    /// readers. The broker's next start finds the batch if it is complete.
    fn give_up_midway(&mut self, before: Option<(i64, u64)>) {
        self.flushes.give_up();
        if let Some(active) = self.segments.back_mut() {
            active.size =
                before.filter(|(base_offset, _)| *base_offset == active.base_offset).map_or(0, |(_, size)| size);
        }
    }

    pub(super) fn write(&mut self, writing: Writing<'_>) -> io::Result<LogAppendInfo> {
        let Writing { batch, mut stamping, stamp, marker, base_offset, leader_epoch, now_ms, config } = writing;
        let end_offset = base_offset + i64::from(stamp.record_count);
        let rolled = self.must_roll(batch.size() as u64, stamping.max_timestamp, end_offset - 1, now_ms, config)?;
        if rolled {
            self.roll(now_ms)?;
        }
        self.epochs.assign(leader_epoch, base_offset, self.log_start..self.log_end)?;
        let window = config.producer_state_batches_to_retain;
        if stamp.is_idempotent() {
            self.granted.raise(&self.dir, window)?;
        }
        let active = self.segments.back_mut().expect("a log has a segment");
        active.spill_indexes()?;
        let position = active.size;
        let clock = self.written.clock(batch.size());
        match active.write(stamping.at(base_offset, leader_epoch), batch.payload()) {
            Ok(file) => self.written.add(&file, active.size, batch.size(), clock),
            Err(WriteError::Undone(error)) => return Err(error),
            Err(WriteError::Broken(error)) => {
                self.flushes.give_up();
                return Err(error);
            }
        }
        step();
        assert_eq!(active.size, position + batch.size() as u64, "the segment grows by the batch");
        assert!(end_offset > base_offset, "a batch has records");
        // The batch is in the log now, so nothing may fail from here on.
        let header = Header::of(&stamping, position);
        active.account(&header, config.index_interval_bytes);
        self.recent.push(base_offset, position);
        match marker {
            None => remember(&mut self.producers, &header, now_ms, window),
            Some(marker) => self.end_transaction(&marker, base_offset, stamping.max_timestamp, now_ms),
        }
        self.log_end = end_offset;
        self.after_snapshot += batch.size() as u64;
        Ok(LogAppendInfo { base_offset, end_offset, timestamp: stamping.max_timestamp, is_duplicate: false, rolled })
    }

    pub(super) fn must_roll(
        &mut self,
        size: u64,
        timestamp: i64,
        last_offset: i64,
        now_ms: i64,
        config: &TopicConfig,
    ) -> io::Result<bool> {
        let active = self.segments.back_mut().expect("a log has a segment");
        if active.size == 0 {
            return Ok(false);
        }
        let index_entries = |len: u64| (config.segment_index_bytes / len).max(1) as usize;
        let age_ms = match active.first_timestamp()? {
            Some(first) if first >= 0 => timestamp.saturating_sub(first),
            _ => now_ms.saturating_sub(active.opened_ms),
        };
        Ok(active.size + size > config.segment_bytes
            || age_ms > i64::try_from(config.roll_after_ms()).unwrap_or(i64::MAX)
            || active.offsets.len() >= index_entries(8)
            || active.times.len() + 1 >= index_entries(12).max(2)
            || !active.can_hold(last_offset))
    }
}

fn duplicate(stamp: &Stamp, base_offset: i64, timestamp: i64) -> LogAppendInfo {
    LogAppendInfo {
        base_offset,
        end_offset: base_offset + i64::from(stamp.record_count),
        timestamp,
        is_duplicate: true,
        rolled: false,
    }
}
