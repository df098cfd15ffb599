//! The terms on which a batch is offered to a partition: everything about an append that is not in the batch.

use std::sync::Arc;

use fullbore_wire::ErrorCode;
use tokio::sync::watch;

use super::outcome::Acks;
use super::reorder_buffer::ReorderBuffer;
use crate::append::Verification;
use fullbore_rules::sequence::TransactionsSeen;

/// How an out-of-order batch is handled.
#[derive(Clone, Copy, Debug)]
pub struct EarlyBatches<'a> {
    /// True if the producer has declared that its batches may arrive out of order.
    pub are_sent: bool,
    /// The buffer in which out-of-order batches wait. `None` if such a batch must be refused, because no client waits
    /// for the answer.
    pub wait_in: Option<&'a Arc<ReorderBuffer>>,
}

/// The state of a partition just before the coordinator verified a transaction. The append compares it with the current
/// state, because the transaction may have ended in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerificationTime {
    /// The leader epoch, for a classic partition.
    pub leader_epoch: i32,
    /// The state of the producer's transactions, for a classic partition.
    pub seen: TransactionsSeen,
    /// For a diskless partition, the next offset that this broker knew.
    pub next_offset: i64,
    /// For a batch without a sequence number, the epoch of the coordinator that verified the transaction. If the
    /// partition has a marker of a later coordinator epoch, the batch must not open a transaction. `None` if the epoch
    /// is unknown.
    pub coordinator_epoch: Option<i32>,
}

/// Waits for the coordinator to confirm a transaction. In a diskless partition, the upload of a batch that opens the
/// transaction can begin before the confirmation arrives.
#[derive(Clone, Debug)]
pub struct AwaitedConfirmation(watch::Receiver<Option<Result<(), ErrorCode>>>);

/// Sends the confirmation to an [`AwaitedConfirmation`]. If the sender is dropped without a confirmation, the batch is
/// refused.
#[derive(Debug)]
pub struct ConfirmationSender(watch::Sender<Option<Result<(), ErrorCode>>>);

impl AwaitedConfirmation {
    /// Creates a confirmation that has not arrived yet, and its sender.
    pub fn new() -> (ConfirmationSender, AwaitedConfirmation) {
        let (sender, receiver) = watch::channel(None);
        (ConfirmationSender(sender), AwaitedConfirmation(receiver))
    }

    /// Waits for the confirmation.
    ///
    /// # Errors
    /// Returns the coordinator's error code for the batch, or NETWORK_EXCEPTION if the confirmation can no longer
    /// arrive.
    pub async fn given(&mut self) -> Result<(), ErrorCode> {
        let given = self.0.wait_for(Option::is_some).await;
        given.ok().and_then(|confirmation| *confirmation).unwrap_or(Err(ErrorCode::NETWORK_EXCEPTION))
    }
}

impl ConfirmationSender {
    /// Sends the confirmation.
    pub fn give(self, confirmation: Result<(), ErrorCode>) {
        self.0.send_replace(Some(confirmation));
    }
}

/// The terms of an append: everything about it that is not in the batch.
#[derive(Debug, Clone, Copy)]
pub struct AppendTerms<'a> {
    /// How durable the batch must be before it is answered. A diskless batch must always be in the object store,
    /// whatever `acks` is.
    pub acks: Acks,
    /// The current time in ms.
    pub now_ms: i64,
    /// How the batch is handled if it is out of order.
    pub early: EarlyBatches<'a>,
    /// The leader epoch in which the batch must be appended; `None` if any epoch is allowed.
    pub leader_epoch: Option<i32>,
    /// The verification of the transaction that the batch would open.
    pub verification: Verification,
    /// True if the client's producer keeps its epoch after a transaction, as with transaction version 1.
    pub epoch_stays: bool,
    /// The partition's state just before the verification, because the verified transaction may have ended since then.
    pub verified_at: VerificationTime,
    /// A confirmation that must arrive before the batch is committed. `verification` is valid only after that.
    pub awaited: Option<&'a AwaitedConfirmation>,
    /// True if the producer has declared that this is its transaction's last batch for the partition.
    pub ends_transaction: bool,
}

impl AppendTerms<'static> {
    /// Returns the terms of a batch that must be appended in order or refused.
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
