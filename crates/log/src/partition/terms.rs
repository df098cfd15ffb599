//! Terms on which a batch is offered to a partition.

use std::sync::Arc;

use fullbore_wire::ErrorCode;
use tokio::sync::watch;

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

/// A coordinator's word on a transaction, which is still to come. A batch that opens the transaction in a diskless
/// partition may be uploaded meanwhile.
#[derive(Clone, Debug)]
pub struct AwaitedWord(watch::Receiver<Option<Result<(), ErrorCode>>>);

/// The end of an [`AwaitedWord`] at which the word comes. Dropping it refuses.
#[derive(Debug)]
pub struct WordSender(watch::Sender<Option<Result<(), ErrorCode>>>);

impl AwaitedWord {
    /// Creates a word that has not come.
    pub fn new() -> (WordSender, AwaitedWord) {
        let (sender, receiver) = watch::channel(None);
        (WordSender(sender), AwaitedWord(receiver))
    }

    /// Waits for the word.
    ///
    /// # Errors
    /// The coordinator's error for the batch; NETWORK_EXCEPTION if the word never comes.
    pub async fn given(&mut self) -> Result<(), ErrorCode> {
        let given = self.0.wait_for(Option::is_some).await;
        given.ok().and_then(|word| *word).unwrap_or(Err(ErrorCode::NETWORK_EXCEPTION))
    }
}

impl WordSender {
    /// Gives the word.
    pub fn give(self, word: Result<(), ErrorCode>) {
        self.0.send_replace(Some(word));
    }
}

/// Terms of an append.
#[derive(Debug, Clone, Copy)]
pub struct AppendTerms<'a> {
    /// The place that the batch must have reached before it is answered; a diskless one is in the store then in any
    /// case.
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
    /// The word that is to come before the batch is committed; `verification` is what that says.
    pub awaited: Option<&'a AwaitedWord>,
    /// True if no further batch of its transaction follows in the partition, as far as its producer knows.
    pub ends_transaction: bool,
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
            awaited: None,
            ends_transaction: false,
        }
    }
}
