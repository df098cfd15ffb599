//! Terms on which a batch is offered to a partition.

use std::sync::Arc;

use fullbore_wire::ErrorCode;
use tokio::sync::watch;

use super::outcome::Acks;
use super::reorder_buffer::ReorderBuffer;
use crate::append::Verification;
use fullbore_rules::sequence::TransactionsSeen;

/// Treatment of an out-of-order batch.
#[derive(Clone, Copy, Debug)]
pub struct EarlyBatches<'a> {
    /// True if the producer declares that its batches may arrive out of order.
    pub are_sent: bool,
    /// Buffer in which such batches wait; `None` if no client waits for an answer.
    pub wait_in: Option<&'a Arc<ReorderBuffer>>,
}

/// State of a partition before a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerificationTime {
    /// Leader epoch of a classic partition.
    pub leader_epoch: i32,
    /// State of the producer's transactions in a classic partition.
    pub seen: TransactionsSeen,
    /// Known next offset of a diskless partition.
    pub next_offset: i64,
    /// Coordinator's epoch for a batch without a sequence, which shows whether the batch is late; `None` if it is
    /// unknown.
    pub coordinator_epoch: Option<i32>,
}

/// Confirmation of a transaction that its coordinator has not sent yet. A batch that opens the transaction in a
/// diskless partition may be uploaded before the confirmation comes.
#[derive(Clone, Debug)]
pub struct AwaitedWord(watch::Receiver<Option<Result<(), ErrorCode>>>);

/// Sender of the confirmation of an [`AwaitedWord`]. Dropping the sender refuses the batch.
#[derive(Debug)]
pub struct WordSender(watch::Sender<Option<Result<(), ErrorCode>>>);

impl AwaitedWord {
    /// Creates a confirmation that has not come yet, with its sender.
    pub fn new() -> (WordSender, AwaitedWord) {
        let (sender, receiver) = watch::channel(None);
        (WordSender(sender), AwaitedWord(receiver))
    }

    /// Waits for the confirmation.
    ///
    /// # Errors
    /// Error code of the coordinator for the batch; NETWORK_EXCEPTION if the confirmation never comes.
    pub async fn given(&mut self) -> Result<(), ErrorCode> {
        let given = self.0.wait_for(Option::is_some).await;
        given.ok().and_then(|word| *word).unwrap_or(Err(ErrorCode::NETWORK_EXCEPTION))
    }
}

impl WordSender {
    /// Sends the confirmation.
    pub fn give(self, word: Result<(), ErrorCode>) {
        self.0.send_replace(Some(word));
    }
}

/// Terms of an append.
#[derive(Debug, Clone, Copy)]
pub struct AppendTerms<'a> {
    /// Durability that the batch must reach before it is answered. A diskless batch must be in the object store before
    /// that, whatever `acks` is.
    pub acks: Acks,
    /// The wall clock in ms.
    pub now_ms: i64,
    /// Treatment of the batch if it is out of order.
    pub early: EarlyBatches<'a>,
    /// Only leader epoch in which the batch may be appended; `None` allows any.
    pub leader_epoch: Option<i32>,
    /// Verification of the transaction that the batch would open.
    pub verification: Verification,
    /// True if the epoch of the client's producer stays the same over transactions, as with transaction version 1.
    pub epoch_stays: bool,
    /// State of the partition before the verification: the verified transaction may have ended since.
    pub verified_at: VerificationTime,
    /// Confirmation that must come before the batch is committed; `verification` is valid only once it has come.
    pub awaited: Option<&'a AwaitedWord>,
    /// True if the producer declares that no further batch of its transaction follows in the partition.
    pub ends_transaction: bool,
}

impl AppendTerms<'static> {
    /// Returns the terms of a batch that is appended in order or refused.
    pub fn in_turn(acks: Acks, now_ms: i64) -> AppendTerms<'static> {
        AppendTerms {
            acks,
            now_ms,
            early: EarlyBatches { are_sent: false, wait_in: None },
            leader_epoch: None,
            verification: Verification::Unknown,
            epoch_stays: false,
            verified_at: VerificationTime::default(),
            awaited: None,
            ends_transaction: false,
        }
    }
}
