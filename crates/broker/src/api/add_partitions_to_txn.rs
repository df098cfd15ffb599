//! AddPartitionsToTxn 0-5: adds partitions to a transaction before the producer writes to them. From version 4 on, the
//! senders are brokers. Their requests contain several transactions. With `verify_only`, a request only checks that the
//! partitions of a transaction were added (KIP-890).
//!
//! If one partition of a transaction cannot be added, no partition is added. The other partitions of this transaction
//! get OPERATION_NOT_ATTEMPTED.

use super::call::{Call, Fault, Reply};
use super::end_txn::{FENCED_FROM, as_known, check_id};
use super::topics;
use crate::node::CoordinatorServices;
use crate::partitions::Partitions;
use crate::transactions::{BATCH_ANSWER_MS, BATCH_WAIT_MS, VERIFIED_AT_ONCE, WAIT_MS};
use fullbore_control::{Image, is_internal};
use fullbore_rules::transaction::{AddPartitions, ProducerIdAndEpoch, TopicPartition, TransactionVersion};
use fullbore_wire::apis::add_partitions_to_txn::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic, AddPartitionsToTxnTopicResult, AddPartitionsToTxnTransaction,
};
use fullbore_wire::{ErrorCode, Frame, Uuid};
use futures_util::stream::{FuturesOrdered, StreamExt};
use std::pin::Pin;
use std::time::Duration;
use tokio::time::timeout;

/// First version whose requests contain several transactions.
const SEVERAL_FROM: i16 = 4;

/// The result of one transaction, not computed yet.
type PendingResult<'a> = Pin<Box<dyn Future<Output = AddPartitionsToTxnResult> + Send + 'a>>;

pub async fn handle(
    call: &mut Call<'_>,
    services: &CoordinatorServices,
    hosted: &Partitions,
    reply: Reply,
) -> Result<Frame, Fault> {
    let request: AddPartitionsToTxnRequest = call.body(reply.version)?;
    let version = reply.version.number;
    let mut response = AddPartitionsToTxnResponse::default();
    if version >= SEVERAL_FROM {
        for transactions in request.transactions.chunks(VERIFIED_AT_ONCE) {
            // The transactions of a chunk are begun in the order of the request, and then handled at the same time.
            let mut results: FuturesOrdered<PendingResult<'_>> = FuturesOrdered::new();
            transactions.iter().for_each(|one| results.push_back(Box::pin(of_several(services, hosted, one, version))));
            response.results_by_transaction.extend(results.collect::<Vec<_>>().await);
        }
    } else {
        let one = AddPartitionsToTxnTransaction {
            transactional_id: request.v3_and_below_transactional_id,
            producer_id: request.v3_and_below_producer_id,
            producer_epoch: request.v3_and_below_producer_epoch,
            topics: request.v3_and_below_topics,
            ..Default::default()
        };
        response.results_by_topic_v3_and_below = added(services, hosted, &one, version).await;
    }
    reply.frame::<AddPartitionsToTxnRequest>(&response)
}

/// Adds or verifies the partitions of one transaction out of several. After [`BATCH_ANSWER_MS`] the transaction gets
/// CONCURRENT_TRANSACTIONS, because the other transactions wait for the same response.
async fn of_several(
    services: &CoordinatorServices,
    hosted: &Partitions,
    transaction: &AddPartitionsToTxnTransaction,
    version: i16,
) -> AddPartitionsToTxnResult {
    // The epoch in the response must not be newer than the shard that adds the partitions. A newer shard may replace
    // the present one during the call below, so the epoch is read before the call. While the shard is loading, the
    // response has epoch 0.
    let coordinator_epoch = services.transactions.coordinator_epoch(&transaction.transactional_id).unwrap_or(0);
    let topic_results =
        timeout(Duration::from_millis(BATCH_ANSWER_MS), added(services, hosted, transaction, version)).await;
    let late = |_| results(transaction, |_, _| ErrorCode::CONCURRENT_TRANSACTIONS);
    AddPartitionsToTxnResult {
        transactional_id: transaction.transactional_id.clone(),
        topic_results: topic_results.unwrap_or_else(late),
        coordinator_epoch,
        ..Default::default()
    }
}

async fn added(
    services: &CoordinatorServices,
    hosted: &Partitions,
    transaction: &AddPartitionsToTxnTransaction,
    version: i16,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let image = services.metadata.control.image();
    let check = |topic: &AddPartitionsToTxnTopic, partition| check_partition(hosted, &image, version, topic, partition);
    let checked = results(transaction, check);
    if checked.iter().flat_map(|topic| &topic.results_by_partition).any(|at| at.partition_error_code.is_err()) {
        let not_attempted = |code: ErrorCode| if code.is_err() { code } else { ErrorCode::OPERATION_NOT_ATTEMPTED };
        return results(transaction, |topic, partition| not_attempted(check(topic, partition)));
    }
    let topics = transaction.topics.iter();
    let partitions = topics.flat_map(|topic| TopicPartition::each_of(&topic.name, &topic.partitions));
    let outcome = match transaction.verify_only {
        true => verify(services, transaction, version, partitions.collect()).await,
        false => add(services, transaction, version, partitions.collect()).await.map(|()| Vec::new()),
    };
    match outcome {
        Ok(codes) => {
            let mut codes = codes.into_iter();
            results(transaction, |_, _| codes.next().unwrap_or(ErrorCode::NONE))
        }
        Err(code) => results(transaction, |_, _| as_known(code, version >= FENCED_FROM)),
    }
}

/// Returns the result entries of a transaction, with the error that `code` returns for each partition.
fn results(
    transaction: &AddPartitionsToTxnTransaction,
    mut code: impl FnMut(&AddPartitionsToTxnTopic, i32) -> ErrorCode,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let mut partition = |topic: &AddPartitionsToTxnTopic, partition_index| AddPartitionsToTxnPartitionResult {
        partition_index,
        partition_error_code: code(topic, partition_index),
        ..Default::default()
    };
    let topic = |topic: &AddPartitionsToTxnTopic| AddPartitionsToTxnTopicResult {
        name: topic.name.clone(),
        results_by_partition: topic.partitions.iter().map(|&index| partition(topic, index)).collect(),
        ..Default::default()
    };
    transaction.topics.iter().map(topic).collect()
}

/// Returns NONE if the partition can be added, and otherwise the error.
fn check_partition(
    hosted: &Partitions,
    image: &Image,
    version: i16,
    topic: &AddPartitionsToTxnTopic,
    partition: i32,
) -> ErrorCode {
    let found = topics::find(image, &topic.name, Uuid::ZERO);
    match found.and_then(|found| topics::existing(hosted, found, partition)) {
        // Clients must not add partitions of internal topics. Only brokers may, and they send version 4 or later.
        _ if is_internal(&topic.name) && version < SEVERAL_FROM => ErrorCode::TOPIC_AUTHORIZATION_FAILED,
        // A partition that another broker leads can be added as well.
        Ok(_) | Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) => ErrorCode::NONE,
        Err(code) => code,
    }
}

async fn add(
    services: &CoordinatorServices,
    transaction: &AddPartitionsToTxnTransaction,
    version: i16,
    partitions: Vec<TopicPartition>,
) -> Result<(), ErrorCode> {
    let transactions = &services.transactions;
    let id = transaction.transactional_id.as_str();
    check_id(id)?;
    prepare(services, id, version).await?;
    // A transaction may have to wait until the previous one of its id has ended. In a request with several
    // transactions, this wait is short, because it delays the others. The broker that sent the request will repeat it.
    let wait_until = match version {
        SEVERAL_FROM.. => Some(transactions.now_ms().saturating_add(BATCH_WAIT_MS)),
        _ => transactions.wait_until(id, WAIT_MS),
    };
    let added = AddPartitions {
        producer: producer(transaction),
        partitions,
        version: TransactionVersion::of_add_partitions(version),
        wait_until,
    };
    transactions.add_partitions(id, added).await
}

/// Waits until the shard of `id` is loaded. If the request has several transactions, the wait ends after
/// [`BATCH_WAIT_MS`] and returns Ok even if the shard is still loading. The caller gets COORDINATOR_LOAD_IN_PROGRESS
/// when it then uses the id.
async fn prepare(services: &CoordinatorServices, id: &str, version: i16) -> Result<(), ErrorCode> {
    let prepared = services.transactions.prepare(false, [id]);
    match version >= SEVERAL_FROM {
        true => timeout(Duration::from_millis(BATCH_WAIT_MS.unsigned_abs()), prepared).await.unwrap_or(Ok(())),
        false => prepared.await,
    }
}

async fn verify(
    services: &CoordinatorServices,
    transaction: &AddPartitionsToTxnTransaction,
    version: i16,
    partitions: Vec<TopicPartition>,
) -> Result<Vec<ErrorCode>, ErrorCode> {
    let transactions = &services.transactions;
    let id = transaction.transactional_id.as_str();
    check_id(id)?;
    prepare(services, id, version).await?;
    transactions.verify_partitions(id, producer(transaction), &partitions)
}

fn producer(transaction: &AddPartitionsToTxnTransaction) -> ProducerIdAndEpoch {
    ProducerIdAndEpoch { id: transaction.producer_id, epoch: transaction.producer_epoch }
}
