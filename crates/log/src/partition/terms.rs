//! Terms on which a batch is offered to a partition.

use std::sync::Arc;

use super::outcome::Acks;
use super::reorder_buffer::ReorderBuffer;
use crate::append::Verification;
use fullbore_rules::sequence::TransactionsSeen;

/// Treatment of a batch that comes before its turn.
#[derive(Clone, Copy, Debug)]
pub struct EarlyBatches<'a> {
    /// True if the producer says that its batches may come so.
    pub are_sent: bool,
    /// The buffer in which they wait; `None` where no client waits for an answer.
    pub wait_in: Option<&'a Arc<ReorderBuffer>>,
}

/// The moment before a coordinator was asked about a producer's transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerificationTime {
    /// The leader epoch of the partition.
    pub leader_epoch: i32,
    /// The partition's memory of the producer's transactions.
    pub seen: TransactionsSeen,
}

/// Terms of an append.
#[derive(Debug, Clone, Copy)]
pub struct AppendTerms<'a> {
    /// The place that the batch must have reached before it is answered; a diskless one is in the store then in any case.
    pub acks: Acks,
    /// The wall clock in ms.
    pub now_ms: i64,
    /// Treatment of a batch that comes before its turn.
    pub early: EarlyBatches<'a>,
    /// The only leader epoch in which it may be appended; `None`: any.
    pub leader_epoch: Option<i32>,
    /// The coordinator's word on the transaction that the batch would open.
    pub verification: Verification,
    /// The partition's memory of the producer's transactions when the coordinator was asked: its word may be on one that has ended since.
    pub seen: VerificationTime,
}

impl AppendTerms<'static> {
    /// The terms of a batch that is in its turn or refused.
    pub fn in_turn(acks: Acks, now_ms: i64) -> AppendTerms<'static> {
        AppendTerms {
            acks,
            now_ms,
            early: EarlyBatches { are_sent: false, wait_in: None },
            leader_epoch: None,
            verification: Verification::Unknown,
            seen: VerificationTime::default(),
        }
    }
}
