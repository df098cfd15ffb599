//! The coordinator's word on the batches that begin a transaction in a partition (KIP-890).
//!
//! Clients that send Produce 12 or later have the broker add the partition to the transaction; the partition of others must be in it.

use super::{BATCH_WAIT_MS, Transactions};
use crate::partitions::append::{BeginningTransaction, TransactionVerifier, VerifiedPartitions};
use fullbore_control::TRANSACTION_STATE;
use fullbore_host::files::now_ms;
use fullbore_log::Verification;
use fullbore_rules::transaction::{
    AddPartitions, ProducerIdAndEpoch, TopicPartition, TransactionAnswer, TransactionVersion,
};
use fullbore_wire::apis::add_partitions_to_txn::{AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction};
use fullbore_wire::coordinator::partition_for;
use fullbore_wire::{ErrorCode, Text};
use std::pin::Pin;
use std::sync::Arc;

/// The first Produce version whose client has the broker add partitions (KIP-890 part 2).
const ADDS_FROM: i16 = 12;
/// The first Produce version whose client knows TRANSACTION_ABORTABLE (KIP-890).
const ABORTABLE_FROM: i16 = 11;

impl TransactionVerifier for Arc<Transactions> {
    fn verify<'a>(
        &'a self,
        beginning: BeginningTransaction<'a>,
    ) -> Pin<Box<dyn Future<Output = VerifiedPartitions> + Send + 'a>> {
        Box::pin(async move {
            let produce_version = beginning.produce_version;
            let verified = match produce_version {
                _ if beginning.transactional_id.is_empty() => Err(ErrorCode::INVALID_REQUEST),
                ADDS_FROM.. => self.add(&beginning).await,
                _ if !self.config.verifies_partitions => Ok(vec![ErrorCode::NONE; beginning.partitions.len()]),
                _ => self.find(&beginning).await,
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

impl Transactions {
    /// Adds the partitions to the transaction.
    pub(super) async fn add(
        self: &Arc<Self>,
        beginning: &BeginningTransaction<'_>,
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        self.prepare(false, [beginning.transactional_id]).await?;
        if let Some(coordinator) = self.coordinator_elsewhere(beginning.transactional_id) {
            return self.verify_at(coordinator, beginning, false).await;
        }
        let request = AddPartitions {
            producer: producer(beginning),
            partitions: partitions(beginning).collect(),
            version: TransactionVersion::V2,
            wait_until: Some(now_ms().saturating_add(BATCH_WAIT_MS)),
        };
        let pending = self.put_to(beginning.transactional_id, |transaction, ticket, turn| {
            transaction.add_partitions(request, ticket, turn);
        })?;
        match pending.answer().await? {
            TransactionAnswer::AddPartitions(added) => {
                added.map(|()| vec![ErrorCode::NONE; beginning.partitions.len()])
            }
            _ => Err(ErrorCode::UNKNOWN_SERVER_ERROR),
        }
    }

    /// Looks for the partitions in the transaction, to which the client has added them.
    pub(super) async fn find(
        self: &Arc<Self>,
        beginning: &BeginningTransaction<'_>,
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        self.prepare(false, [beginning.transactional_id]).await?;
        if let Some(coordinator) = self.coordinator_elsewhere(beginning.transactional_id) {
            return self.verify_at(coordinator, beginning, true).await;
        }
        let wanted: Vec<_> = partitions(beginning).collect();
        self.verify_partitions(beginning.transactional_id, producer(beginning), &wanted)
    }

    /// Returns the broker that coordinates an id, if it is another one.
    fn coordinator_elsewhere(&self, id: &str) -> Option<i32> {
        let image = self.control.image();
        let topic = image.topic(TRANSACTION_STATE)?;
        let leader = topic.partition(partition_for(id, topic.partition_count()))?.leader?;
        (leader != self.node_id).then_some(leader)
    }

    /// Has another broker look for the partitions in the transaction, or add them.
    async fn verify_at(
        &self,
        coordinator: i32,
        beginning: &BeginningTransaction<'_>,
        verify_only: bool,
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        let mut topics: Vec<AddPartitionsToTxnTopic> = Vec::new();
        for &(name, partition) in &beginning.partitions {
            match topics.last_mut().filter(|last| last.name == *name) {
                Some(last) => last.partitions.push(partition),
                None => topics.push(AddPartitionsToTxnTopic {
                    name: Text::from(name),
                    partitions: vec![partition],
                    ..Default::default()
                }),
            }
        }
        let transaction = AddPartitionsToTxnTransaction {
            transactional_id: Text::from(beginning.transactional_id),
            producer_id: beginning.producer_id,
            producer_epoch: beginning.producer_epoch,
            verify_only,
            topics,
            ..Default::default()
        };
        self.peers.verify(coordinator, transaction).await.map_err(|why| {
            tracing::debug!(coordinator, %why, "cannot ask the coordinator of a transaction: the client sends the batch again");
            ErrorCode::NETWORK_EXCEPTION
        })
    }
}

fn producer(beginning: &BeginningTransaction<'_>) -> ProducerIdAndEpoch {
    ProducerIdAndEpoch { id: beginning.producer_id, epoch: beginning.producer_epoch }
}

fn partitions<'b>(beginning: &'b BeginningTransaction<'_>) -> impl Iterator<Item = TopicPartition> + 'b {
    let partition = |&(topic, partition): &(&str, i32)| TopicPartition { topic: Text::from(topic), partition };
    beginning.partitions.iter().map(partition)
}

/// Returns the error that a producer of this version acts on as it should (`AddPartitionsToTxnManager`, `ReplicaManager` of Kafka).
fn as_produce_error(code: ErrorCode, produce_version: i16) -> ErrorCode {
    match code {
        ErrorCode::TRANSACTION_ABORTABLE if produce_version < ABORTABLE_FROM => ErrorCode::INVALID_TXN_STATE,
        ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
        // Clients send the batch again at this one, without a look at the metadata.
        ErrorCode::CONCURRENT_TRANSACTIONS
        | ErrorCode::NETWORK_EXCEPTION
        | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
        | ErrorCode::COORDINATOR_NOT_AVAILABLE
        | ErrorCode::NOT_COORDINATOR => ErrorCode::NOT_ENOUGH_REPLICAS,
        code => code,
    }
}
