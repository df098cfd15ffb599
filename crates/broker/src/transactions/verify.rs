//! Verification of batches that begin a transaction in their partition (KIP-890).
//!
//! For clients that send Produce 12 or later, the broker adds the partition to the transaction. Other clients have
//! added it before.

use super::peers::MarkerRoute;
use super::{BATCH_WAIT_MS, DISKLESS_WAIT_MS, Transactions};
use crate::partitions::append::{ADDS_FROM, BeginningTransaction, TransactionVerifier, Verifying};
use fullbore_control::TRANSACTION_STATE;
use fullbore_host::files::now_ms;
use fullbore_log::Verification;
use fullbore_rules::transaction::{AddPartitions, ProducerIdAndEpoch, TopicPartition, TransactionVersion};
use fullbore_wire::apis::add_partitions_to_txn::{AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction};
use fullbore_wire::coordinator::partition_for;
use fullbore_wire::{ErrorCode, Text};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Pause before the same request is sent to a coordinator again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// First Produce version whose client knows TRANSACTION_ABORTABLE (KIP-890).
const ABORTABLE_FROM: i16 = 11;

/// Answer of a coordinator about partitions of a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CoordinatorAnswer {
    /// Error of each partition, or NONE.
    pub codes: Vec<ErrorCode>,
    /// Epoch that the coordinator had before its answer; `None` if the answer lacks it.
    pub coordinator_epoch: Option<i32>,
}

impl CoordinatorAnswer {
    /// Adds `epoch` to an answer without one: a coordinator of an older build sends none.
    fn in_epoch(self, epoch: Option<i32>) -> CoordinatorAnswer {
        CoordinatorAnswer { coordinator_epoch: self.coordinator_epoch.or(epoch), ..self }
    }
}

impl TransactionVerifier for Arc<Transactions> {
    fn verify(&self, beginning: BeginningTransaction) -> Verifying {
        let this = Arc::clone(self);
        Box::pin(async move {
            let produce_version = beginning.produce_version;
            let verified = match produce_version {
                _ if beginning.transactional_id.is_empty() => Err(ErrorCode::INVALID_REQUEST),
                ADDS_FROM.. => this.add(&beginning).await.map(|answer| answer.codes),
                _ if !this.verifies_partitions() => Ok(vec![ErrorCode::NONE; beginning.partitions.len()]),
                _ => this.find(&beginning).await.map(|answer| answer.codes),
            };
            let codes = verified.unwrap_or_else(|code| vec![code; beginning.partitions.len()]);
            let verification = if produce_version >= ADDS_FROM { Verification::Added } else { Verification::Verified };
            let outcome = |code: ErrorCode| match code.is_err() {
                true => Err(as_produce_error(code, produce_version)),
                false => Ok(verification),
            };
            codes.into_iter().map(outcome).collect()
        })
    }
}

/// Work that a broker requests from the coordinator of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Check that the transaction includes the partitions.
    Find,
    /// Addition of the partitions to the transaction.
    Add,
}

impl Transactions {
    /// Adds the partitions to the transaction.
    pub(super) async fn add(
        self: &Arc<Self>,
        beginning: &BeginningTransaction,
    ) -> Result<CoordinatorAnswer, ErrorCode> {
        self.prepare(false, [&*beginning.transactional_id]).await?;
        if let Some(coordinator) = self.coordinator_elsewhere(&beginning.transactional_id) {
            return self.add_at(coordinator, beginning).await;
        }
        let added = AddPartitions {
            producer: producer(beginning),
            partitions: partitions(beginning).collect(),
            version: TransactionVersion::V2,
            wait_until: self.wait_until(&beginning.transactional_id, BATCH_WAIT_MS),
        };
        let coordinator_epoch = Some(self.coordinator_epoch(&beginning.transactional_id)?);
        self.add_partitions(&beginning.transactional_id, added).await?;
        Ok(CoordinatorAnswer { codes: vec![ErrorCode::NONE; beginning.partitions.len()], coordinator_epoch })
    }

    /// Checks that the transaction includes the partitions, which the client has added.
    pub(super) async fn find(
        self: &Arc<Self>,
        beginning: &BeginningTransaction,
    ) -> Result<CoordinatorAnswer, ErrorCode> {
        self.prepare(false, [&*beginning.transactional_id]).await?;
        if let Some(coordinator) = self.coordinator_elsewhere(&beginning.transactional_id) {
            return self.verify_at(coordinator, beginning, Wanted::Find).await;
        }
        let wanted: Vec<_> = partitions(beginning).collect();
        let coordinator_epoch = Some(self.coordinator_epoch(&beginning.transactional_id)?);
        let codes = self.verify_partitions(&beginning.transactional_id, producer(beginning), &wanted)?;
        Ok(CoordinatorAnswer { codes, coordinator_epoch })
    }

    /// Returns the other broker that coordinates an id; `None` if this broker coordinates it, or no broker does.
    fn coordinator_elsewhere(&self, id: &str) -> Option<i32> {
        let image = self.control.image();
        let topic = image.topic(TRANSACTION_STATE)?;
        let leader = topic.partition(partition_for(id, topic.partition_count()))?.leader?;
        (leader != self.node_id).then_some(leader)
    }

    /// Returns the partition of `__transaction_state` that an id is in.
    fn partition_of(&self, id: &str) -> i32 {
        let count = self.control.image().topic(TRANSACTION_STATE).map_or(1, |topic| topic.partition_count());
        partition_for(id, count)
    }

    /// Returns the leader epoch of an id's coordinator in this broker's metadata; `None` if they lack the partition.
    fn known_coordinator_epoch(&self, id: &str) -> Option<i32> {
        let image = self.control.image();
        Some(image.topic(TRANSACTION_STATE)?.partition(self.partition_of(id))?.leader_epoch)
    }

    /// Adds the partitions to the transaction by requests to another broker. Repeats them, for [`DISKLESS_WAIT_MS`] at
    /// most, until the previous transaction has ended, which may take as long as a PUT. The coordinator lets each
    /// request wait only for a moment, since others are behind it on the connection.
    async fn add_at(&self, coordinator: i32, beginning: &BeginningTransaction) -> Result<CoordinatorAnswer, ErrorCode> {
        let until = now_ms().saturating_add(DISKLESS_WAIT_MS);
        loop {
            let added = self.verify_at(coordinator, beginning, Wanted::Add).await?;
            if !added.codes.contains(&ErrorCode::CONCURRENT_TRANSACTIONS) || now_ms() >= until {
                return Ok(added);
            }
            // Pauses, because a coordinator with many waiting requests answers further ones at once.
            sleep(ASKED_AGAIN_AFTER).await;
        }
    }

    /// Sends the partitions to the coordinator of the id, which checks or adds them.
    async fn verify_at(
        &self,
        coordinator: i32,
        beginning: &BeginningTransaction,
        wanted: Wanted,
    ) -> Result<CoordinatorAnswer, ErrorCode> {
        let topics = TopicPartition::by_topic(partitions(beginning)).into_iter();
        let topics =
            topics.map(|(name, partitions)| AddPartitionsToTxnTopic { name, partitions, ..Default::default() });
        let transaction = AddPartitionsToTxnTransaction {
            transactional_id: beginning.transactional_id.clone(),
            producer_id: beginning.producer_id,
            producer_epoch: beginning.producer_epoch,
            verify_only: wanted == Wanted::Find,
            topics: topics.collect(),
            ..Default::default()
        };
        let known_epoch = self.known_coordinator_epoch(&beginning.transactional_id);
        let answered = tokio::select! {
            answered = self.peers.verify(coordinator, transaction) => answered,
            () = self.peers.replaced(MarkerRoute::classic(coordinator), TRANSACTION_STATE, self.partition_of(&beginning.transactional_id)) => {
                Err("another broker coordinates the transaction".to_owned())
            }
        };
        answered.map(|found| found.in_epoch(known_epoch)).map_err(|why| {
            tracing::debug!(coordinator, %why, "cannot reach the coordinator of a transaction: the client sends the batch again");
            ErrorCode::NETWORK_EXCEPTION
        })
    }
}

fn producer(beginning: &BeginningTransaction) -> ProducerIdAndEpoch {
    ProducerIdAndEpoch { id: beginning.producer_id, epoch: beginning.producer_epoch }
}

fn partitions<'b>(beginning: &'b BeginningTransaction) -> impl Iterator<Item = TopicPartition> + 'b {
    let partition = |(topic, partition): &(Text, i32)| TopicPartition { topic: topic.clone(), partition: *partition };
    beginning.partitions.iter().map(partition)
}

/// Returns the error for a producer of this version (`AddPartitionsToTxnManager`, `ReplicaManager` of Kafka).
fn as_produce_error(code: ErrorCode, produce_version: i16) -> ErrorCode {
    match code {
        ErrorCode::TRANSACTION_ABORTABLE if produce_version < ABORTABLE_FROM => ErrorCode::INVALID_TXN_STATE,
        ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
        // Clients retry at this broker, without a refresh of the metadata.
        ErrorCode::CONCURRENT_TRANSACTIONS
        | ErrorCode::NETWORK_EXCEPTION
        | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
        | ErrorCode::COORDINATOR_NOT_AVAILABLE
        | ErrorCode::NOT_COORDINATOR => ErrorCode::NOT_ENOUGH_REPLICAS,
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_without_an_epoch_takes_that_of_the_request() {
        let answer = |coordinator_epoch| CoordinatorAnswer { codes: Vec::new(), coordinator_epoch };
        assert_eq!(answer(None).in_epoch(Some(4)), answer(Some(4)));
        assert_eq!(answer(Some(3)).in_epoch(Some(4)), answer(Some(3)));
    }
}
