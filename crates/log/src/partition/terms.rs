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

/// The moment before a verification, as the partition knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerificationTime {
    /// The leader epoch of a classic partition.
    pub leader_epoch: i32,
    /// Memory of a classic partition of the producer's transactions.
    pub seen: TransactionsSeen,
    /// A next offset of a diskless partition that was known.
    pub next_offset: i64,
    /// The coordinator's epoch, for a batch without a sequence, by which a late one would show; `None` if it is
    /// unknown.
    pub coordinator_epoch: Option<i32>,
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
    /// Verification of the transaction that the batch would open.
    pub verification: Verification,
    /// True if the epoch of the client's producer stays from one transaction to the next, as with transaction version
    /// 1.
    pub epoch_stays: bool,
    /// The moment before the verification: the verified transaction may have ended since.
    pub verified_at: VerificationTime,
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
            epoch_stays: false,
            verified_at: VerificationTime::default(),
        }
    }
}
