//! AddPartitionsToTxn 0-5: partitions that a transaction is going to write to. From version 4 on a request has several
//! transactions, and comes from brokers, which may have partitions verified only (KIP-890).
//!
//! A partition that cannot be added keeps the others of its transaction from being added: OPERATION_NOT_ATTEMPTED.

use super::call::{Call, Fault, Reply};
use super::end_txn::{FENCED_FROM, as_known, check_id};
use super::topics;
use crate::transactions::WAIT_MS;
use fullbore_control::{Image, is_internal};
use fullbore_rules::transaction::{AddPartitions, ProducerIdAndEpoch, TopicPartition, TransactionVersion};
use fullbore_wire::apis::add_partitions_to_txn::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic, AddPartitionsToTxnTopicResult, AddPartitionsToTxnTransaction,
};
use fullbore_wire::{ErrorCode, Frame, Uuid};

/// The first version with several transactions.
const SEVERAL_FROM: i16 = 4;

pub async fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: AddPartitionsToTxnRequest = call.body(reply.version)?;
    let version = reply.version.number;
    let mut response = AddPartitionsToTxnResponse::default();
    if version >= SEVERAL_FROM {
        for transaction in &request.transactions {
            response.results_by_transaction.push(AddPartitionsToTxnResult {
                transactional_id: transaction.transactional_id.clone(),
                topic_results: added(call, transaction, version).await,
                ..Default::default()
            });
        }
    } else {
        let one = AddPartitionsToTxnTransaction {
            transactional_id: request.v3_and_below_transactional_id,
            producer_id: request.v3_and_below_producer_id,
            producer_epoch: request.v3_and_below_producer_epoch,
            topics: request.v3_and_below_topics,
            ..Default::default()
        };
        response.results_by_topic_v3_and_below = added(call, &one, version).await;
    }
    reply.frame::<AddPartitionsToTxnRequest>(&response)
}

async fn added(
    call: &Call<'_>,
    transaction: &AddPartitionsToTxnTransaction,
    version: i16,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let image = call.broker.control.image();
    let check = |topic: &AddPartitionsToTxnTopic, partition| check_partition(call, &image, version, topic, partition);
    let checked = results(transaction, check);
    if checked.iter().flat_map(|topic| &topic.results_by_partition).any(|at| at.partition_error_code.is_err()) {
        let not_attempted = |code: ErrorCode| if code.is_err() { code } else { ErrorCode::OPERATION_NOT_ATTEMPTED };
        return results(transaction, |topic, partition| not_attempted(check(topic, partition)));
    }
    let topics = transaction.topics.iter();
    let partitions = topics.flat_map(|topic| TopicPartition::each_of(&topic.name, &topic.partitions));
    let outcome = match transaction.verify_only {
        true => verify(call, transaction, partitions.collect()).await,
        false => add(call, transaction, version, partitions.collect()).await.map(|()| Vec::new()),
    };
    match outcome {
        Ok(codes) => {
            let mut codes = codes.into_iter();
            results(transaction, |_, _| codes.next().unwrap_or(ErrorCode::NONE))
        }
        Err(code) => results(transaction, |_, _| as_known(code, version >= FENCED_FROM)),
    }
}

/// Returns the results of a transaction, with an error for each partition.
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

/// Returns the error of a partition that cannot be added, or NONE.
fn check_partition(
    call: &Call<'_>,
    image: &Image,
    version: i16,
    topic: &AddPartitionsToTxnTopic,
    partition: i32,
) -> ErrorCode {
    let found = topics::find(image, &topic.name, Uuid::ZERO);
    match found.and_then(|found| topics::existing(call.broker, found, partition)) {
        // Brokers add the partition of a group's offsets.
        _ if is_internal(&topic.name) && version < SEVERAL_FROM => ErrorCode::TOPIC_AUTHORIZATION_FAILED,
        // Another broker may lead the partition.
        Ok(_) | Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) => ErrorCode::NONE,
        Err(code) => code,
    }
}

async fn add(
    call: &Call<'_>,
    transaction: &AddPartitionsToTxnTransaction,
    version: i16,
    partitions: Vec<TopicPartition>,
) -> Result<(), ErrorCode> {
    let transactions = &call.broker.transactions;
    let id = transaction.transactional_id.as_str();
    check_id(id)?;
    transactions.prepare(false, [id]).await?;
    // A broker asks again: what waits here holds up others on its connection.
    let wait_until = match version {
        SEVERAL_FROM.. => Some(call.broker.now_ms().saturating_add(WAIT_MS)),
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

async fn verify(
    call: &Call<'_>,
    transaction: &AddPartitionsToTxnTransaction,
    partitions: Vec<TopicPartition>,
) -> Result<Vec<ErrorCode>, ErrorCode> {
    let transactions = &call.broker.transactions;
    let id = transaction.transactional_id.as_str();
    check_id(id)?;
    transactions.prepare(false, [id]).await?;
    transactions.verify_partitions(id, producer(transaction), &partitions)
}

fn producer(transaction: &AddPartitionsToTxnTransaction) -> ProducerIdAndEpoch {
    ProducerIdAndEpoch { id: transaction.producer_id, epoch: transaction.producer_epoch }
}
