//! The state of a partition's idempotent producers, which decides whether a batch may be appended or is a duplicate.
//!
//! An out-of-order batch can wait in [`parking`]. A batch that comes after a refused one gets the same error
//! ([`RefusedBatches`]). The transactions of the partition are in [`transactions`]. The log and the wire format are
//! elsewhere. The caller calls [`Producers::check`], writes the batch, and then calls [`Producers::append`].
//!
//! Invariant: the remembered batches of a producer are from one epoch and have consecutive sequences. So within an
//! epoch, no sequence is appended twice or skipped.
//!
//! The rules are from KIP-98, KIP-360, KAFKA-15591 (a first sequence above 0 on a never written partition) and KIP-1269
//! (more than five remembered batches). Two rules are ours. On a recreated topic, a producer may continue after its
//! last batch on the deleted topic. It may also begin with any batch that it wrote there, because the response may have
//! been lost. The other rule: an old batch that was certainly written, but is no longer remembered, gets
//! DUPLICATE_SEQUENCE_NUMBER, which clients treat as success. Kafka responds to each retry with
//! OUT_OF_ORDER_SEQUENCE_NUMBER.

mod ahead;
pub mod parking;
mod past;
mod producer_tails;
mod producers;
mod refused;
mod snapshot;
mod transactions;
mod window;

#[cfg(test)]
mod model;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod shrink;
#[cfg(test)]
mod transactions_tests;

pub use past::{LIVES_MAX, PastTopic, PastTopics};
pub use producer_tails::ProducerTails;
pub use producers::{LastBatch, NO_COORDINATOR, PRODUCERS_MAX, ProducerState, Producers};
pub use refused::RefusedBatches;
pub use snapshot::SnapshotEntry;
pub use transactions::{
    AbortedTransaction, CompletedTransaction, Marker, TransactionOfBatch, TransactionsSeen, VersionedMarker,
};
pub use window::{WINDOW_MAX, WINDOW_MIN};

use std::fmt;

use fullbore_wire::ErrorCode;

/// The producer id of a batch that is not idempotent.
pub const NO_PRODUCER_ID: i64 = -1;

/// Half of the 2^31 sequence numbers. The numbers wrap around, so the order of two sequences is certain only if their
/// distance is below this number.
pub const HALF_RANGE: i32 = 1 << 30;

/// Returns the sequence that is `count` after `sequence`, where 0 follows `i32::MAX`. `count` may be negative.
pub fn sequence_add(sequence: i32, count: i32) -> i32 {
    sequence.wrapping_add(count) & i32::MAX
}

/// Returns how many steps lead from `from` forward to `to`: 0..=2^31-1.
pub fn sequence_distance(from: i32, to: i32) -> i32 {
    to.wrapping_sub(from) & i32::MAX
}

/// The fields of a record batch that identify its producer and its sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The producer id. For a batch that is not idempotent this is [`NO_PRODUCER_ID`], and the other fields have no
    /// meaning.
    pub producer_id: i64,
    /// The producer's epoch: 0..=32767.
    pub producer_epoch: i16,
    /// The sequence of the first record: 0..=2^31-1.
    pub base_sequence: i32,
    /// The number of sequences and offsets of the batch: `lastOffsetDelta + 1`. Compaction removes records but does not
    /// change this delta, so a replay gets the original number.
    pub record_count: i32,
}

impl Stamp {
    /// Creates the stamp of a batch from a client. Unlike a batch in a log, such a batch has all its records.
    ///
    /// # Errors
    /// Returns [`SequenceRefusal::InvalidRecord`] if the record count and the last offset delta in the header disagree.
    pub fn from_client(
        producer_id: i64,
        producer_epoch: i16,
        base_sequence: i32,
        record_count: i32,
        last_offset_delta: i32,
    ) -> Result<Stamp, SequenceRefusal> {
        if record_count < 1 || record_count - 1 != last_offset_delta {
            return Err(SequenceRefusal::InvalidRecord);
        }
        Ok(Stamp { producer_id, producer_epoch, base_sequence, record_count })
    }

    /// Returns the sequence of the last record.
    pub fn last_sequence(&self) -> i32 {
        sequence_add(self.base_sequence, self.record_count.wrapping_sub(1))
    }

    /// Returns true if the batch is idempotent.
    pub fn is_idempotent(&self) -> bool {
        self.producer_id != NO_PRODUCER_ID
    }

    /// Returns true if this is the stamp of an idempotent batch with a sequence. Control batches have the sequence -1,
    /// so their stamps are not valid.
    pub fn is_valid(&self) -> bool {
        self.producer_id >= 0
            && self.producer_epoch >= 0
            && self.base_sequence >= 0
            && (1..=HALF_RANGE).contains(&self.record_count)
    }
}

/// The decision about a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The caller writes the batch and then calls [`Producers::append`].
    Append,
    /// The log already has the batch. The caller repeats the first response.
    Duplicate {
        /// The offset of the batch's first record.
        base_offset: i64,
        /// The timestamp that was passed to [`Producers::append`], in ms.
        timestamp: i64,
    },
    /// The caller writes nothing and responds with the error.
    Refuse(SequenceRefusal),
}

/// The reason why a batch is not written. Each reason has its error in Kafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceRefusal {
    /// OUT_OF_ORDER_SEQUENCE_NUMBER (45): sequences before the batch are missing, or the batch overlaps batches that
    /// were written.
    OutOfOrderSequence,
    /// DUPLICATE_SEQUENCE_NUMBER (46): the batch was written, but its offset is no longer known.
    DuplicateSequence,
    /// INVALID_PRODUCER_EPOCH (47): the producer has already written in a newer epoch.
    InvalidProducerEpoch,
    /// INVALID_RECORD (87): no producer creates such a stamp.
    InvalidRecord,
    /// INVALID_TXN_STATE (48): the batch is not in a transaction, but its producer has one open.
    InvalidTxnState,
    /// TRANSACTION_COORDINATOR_FENCED (52): a later coordinator has ended a transaction of the producer.
    CoordinatorFenced,
    /// CONCURRENT_TRANSACTIONS (51): the partition already has as many open transactions as the maximum number of
    /// producers that it remembers.
    TooManyTransactions,
    /// The error of an earlier batch that was refused. The client resends that batch before this one. See
    /// [`RefusedBatches`].
    BehindRefused(ErrorCode),
}

impl SequenceRefusal {
    /// Returns the error for a batch that comes after a batch refused with `code`. If `code` is retriable, the error is
    /// the same, because the client resends both batches. Otherwise the refused batch is missing, so this one is out of
    /// order.
    fn behind(code: ErrorCode) -> SequenceRefusal {
        match code.is_retriable() {
            true => SequenceRefusal::BehindRefused(code),
            false => SequenceRefusal::OutOfOrderSequence,
        }
    }

    /// Returns the error code in the response.
    pub fn code(self) -> ErrorCode {
        match self {
            SequenceRefusal::OutOfOrderSequence => ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER,
            SequenceRefusal::DuplicateSequence => ErrorCode::DUPLICATE_SEQUENCE_NUMBER,
            SequenceRefusal::InvalidProducerEpoch => ErrorCode::INVALID_PRODUCER_EPOCH,
            SequenceRefusal::InvalidRecord => ErrorCode::INVALID_RECORD,
            SequenceRefusal::InvalidTxnState => ErrorCode::INVALID_TXN_STATE,
            SequenceRefusal::CoordinatorFenced => ErrorCode::TRANSACTION_COORDINATOR_FENCED,
            SequenceRefusal::TooManyTransactions => ErrorCode::CONCURRENT_TRANSACTIONS,
            SequenceRefusal::BehindRefused(code) => code,
        }
    }
}

impl fmt::Display for SequenceRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SequenceRefusal::BehindRefused(code) => {
                write!(
                    formatter,
                    "an earlier batch of the same producer was refused, and must be sent first: {}",
                    code.message()
                )
            }
            SequenceRefusal::OutOfOrderSequence => {
                formatter.write_str("the batch's first sequence number does not follow the last one of its producer")
            }
            SequenceRefusal::DuplicateSequence => {
                formatter.write_str("the batch was written so long ago that the broker no longer knows its offset")
            }
            SequenceRefusal::InvalidProducerEpoch => {
                formatter.write_str("the producer's epoch is over: the partition knows a newer epoch")
            }
            SequenceRefusal::InvalidRecord => {
                formatter.write_str("the batch header has values that no producer writes")
            }
            SequenceRefusal::InvalidTxnState => {
                formatter.write_str("the batch is not transactional, although its producer has an open transaction")
            }
            SequenceRefusal::CoordinatorFenced => {
                formatter.write_str("a later coordinator has ended a transaction of the producer")
            }
            SequenceRefusal::TooManyTransactions => formatter.write_str(
                "the partition has too many open transactions: as many as the number of producers that it may remember",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn last_sequence_is_followed_by_zero() {
        assert_eq!(sequence_add(i32::MAX, 1), 0);
        assert_eq!(sequence_add(i32::MAX - 1, 4), 2);
        assert_eq!(sequence_add(0, -1), i32::MAX);
        assert_eq!(sequence_distance(i32::MAX, 0), 1);
        assert_eq!(sequence_distance(0, i32::MAX), i32::MAX);
        let stamp = Stamp { producer_id: 1, producer_epoch: 0, base_sequence: i32::MAX, record_count: 2 };
        assert_eq!(stamp.last_sequence(), 0);
    }

    proptest! {
        #[test]
        fn sequence_plus_its_distance_is_the_other_sequence(from in 0..=i32::MAX, to in 0..=i32::MAX) {
            prop_assert_eq!(sequence_add(from, sequence_distance(from, to)), to);
            prop_assert!((0..=i32::MAX).contains(&sequence_distance(from, to)));
        }
    }
}
