//! Verifies batches that begin a transaction in their partition (KIP-890).
//!
//! If a client sends Produce 12 or later, the broker adds the partition to the transaction. Older clients add it
//! themselves before they produce.

use super::peers::MarkerRoute;
use super::{BATCH_WAIT_MS, DISKLESS_WAIT_MS, Transactions};
use crate::partitions::append::{ADDS_FROM, BeginningTransaction, TransactionVerifier, Verifying};
use fullbore_control::TRANSACTION_STATE;
use fullbore_log::Verification;
use fullbore_rules::transaction::{AddPartitions, ProducerIdAndEpoch, TopicPartition, TransactionVersion};
use fullbore_wire::apis::add_partitions_to_txn::{AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction};
use fullbore_wire::coordinator::partition_for;
use fullbore_wire::{ErrorCode, Text};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// How long to wait before the same request is sent to a coordinator again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// First version of Produce whose clients know TRANSACTION_ABORTABLE (KIP-890).
const ABORTABLE_FROM: i16 = 11;

/// A coordinator's answer about partitions of a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CoordinatorAnswer {
    /// The error of each partition, or NONE.
    pub codes: Vec<ErrorCode>,
    /// The coordinator's epoch, which was read before the answer. `None` if the answer does not contain it.
    pub coordinator_epoch: Option<i32>,
}

impl CoordinatorAnswer {
    /// Sets the epoch if the answer lacks it, which happens if the coordinator runs an older version.
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

/// The kind of request to a transaction's coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Check that the partitions are part of the transaction.
    Find,
    /// Add the partitions to the transaction.
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

    /// Checks that the client has added the partitions to its transaction.
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

    /// Returns the broker that coordinates an id. `None` if this broker does, or if the id's partition has no leader.
    fn coordinator_elsewhere(&self, id: &str) -> Option<i32> {
        let image = self.control.image();
        let topic = image.topic(TRANSACTION_STATE)?;
        let leader = topic.partition(partition_for(id, topic.partition_count()))?.leader?;
        (leader != self.node_id).then_some(leader)
    }

    /// Returns the partition of `__transaction_state` to which an id belongs.
    fn partition_of(&self, id: &str) -> i32 {
        let count = self.control.image().topic(TRANSACTION_STATE).map_or(1, |topic| topic.partition_count());
        partition_for(id, count)
    }

    /// Returns the leader epoch of an id's coordinator, according to this broker's metadata. `None` if the metadata
    /// lack the partition.
    fn known_coordinator_epoch(&self, id: &str) -> Option<i32> {
        let image = self.control.image();
        Some(image.topic(TRANSACTION_STATE)?.partition(self.partition_of(id))?.leader_epoch)
    }

    /// Requests that another broker adds the partitions to the transaction. If the previous transaction has not ended,
    /// repeats the request for up to [`DISKLESS_WAIT_MS`], because its markers may need a PUT. The coordinator
    /// itself waits only briefly, since other requests wait behind this one on the connection.
    async fn add_at(&self, coordinator: i32, beginning: &BeginningTransaction) -> Result<CoordinatorAnswer, ErrorCode> {
        let until = self.now_ms().saturating_add(DISKLESS_WAIT_MS);
        loop {
            let added = self.verify_at(coordinator, beginning, Wanted::Add).await?;
            if !added.codes.contains(&ErrorCode::CONCURRENT_TRANSACTIONS) || self.now_ms() >= until {
                return Ok(added);
            }
            // The coordinator may have answered without waiting, because many requests already wait there. So this
            // pauses before the next request.
            sleep(ASKED_AGAIN_AFTER).await;
        }
    }

    /// Sends the partitions to the coordinator of the id, which checks them or adds them.
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

/// Translates an error into one for the producer's version, as Kafka's `AddPartitionsToTxnManager` and `ReplicaManager`
/// do.
fn as_produce_error(code: ErrorCode, produce_version: i16) -> ErrorCode {
    match code {
        ErrorCode::TRANSACTION_ABORTABLE if produce_version < ABORTABLE_FROM => ErrorCode::INVALID_TXN_STATE,
        ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
        // After this code, clients retry at this broker and do not refresh their metadata.
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
