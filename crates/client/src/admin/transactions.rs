//! Administration of transactions (KIP-664): lists, descriptions, the producers of a partition, and the end of a
//! hanging transaction.
//!
//! A request is retried for the cluster's patience while the coordinator or leader loads, moves or ends a transaction.
//! The retry is safe: after such an error the request had no effect, or it is idempotent.

use crate::blocking::Cluster;
use crate::error::ClientError;
use crate::protocol::CoordinatorKind;
use fullbore_wire::apis::describe_producers::{DescribeProducersRequest, TopicRequest};
use fullbore_wire::apis::describe_transactions::DescribeTransactionsRequest;
use fullbore_wire::apis::init_producer_id::InitProducerIdRequest;
use fullbore_wire::apis::list_transactions::ListTransactionsRequest;
use fullbore_wire::apis::write_txn_markers::{WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest};
use fullbore_wire::{ErrorCode, Text};
use std::time::{Duration, Instant};

/// Pause between two attempts.
const RETRY_BACKOFF: Duration = Duration::from_millis(100);
/// Timeout in ms that [`fence`] sends. It has no effect, since no transaction is begun.
const FENCE_TIMEOUT_MS: i32 = 60_000;

/// Transactional id in the list of its coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionListing {
    pub transactional_id: String,
    /// Id of the broker that coordinates the transactional id.
    pub coordinator: i32,
    pub producer_id: i64,
    /// State of the transaction, by its name in Kafka.
    pub state: String,
}

/// Description of a transactional id by its coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionDescription {
    pub transactional_id: String,
    /// Id of the broker that coordinates the transactional id.
    pub coordinator: i32,
    pub producer_id: i64,
    pub producer_epoch: i16,
    /// State of the transaction, by its name in Kafka.
    pub state: String,
    pub timeout_ms: i32,
    /// Start of the transaction, in ms since 1970; `None` if no transaction is open.
    pub start_ms: Option<i64>,
    /// Topics and partitions of the transaction.
    pub partitions: Vec<(String, i32)>,
}

/// State of a producer at the leader of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionProducer {
    pub producer_id: i64,
    pub producer_epoch: i32,
    /// Epoch of the coordinator that ended the producer's last transaction.
    pub coordinator_epoch: i32,
    /// Last sequence number; -1 if the producer has written nothing in its epoch.
    pub last_sequence: i32,
    /// Time of the last batch, in ms since 1970; -1 if it is unknown.
    pub last_timestamp: i64,
    /// First offset of the producer's open transaction; None if none is open.
    pub open_from: Option<i64>,
}

/// Abort marker that the leader of one partition writes without the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortMarker {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub coordinator_epoch: i32,
}

/// Lists the transactional ids that match the whole regular expression, from all brokers. With a `duration_ms` of 0 or
/// more, lists only ids whose transaction has been open for longer.
///
/// # Errors
/// Error of a broker, as for a malformed expression; error of the connection if no broker answers.
pub fn list_transactions(
    cluster: &mut Cluster,
    duration_ms: i64,
    pattern: Option<&str>,
) -> Result<Vec<TransactionListing>, ClientError> {
    let request = ListTransactionsRequest {
        duration_filter: duration_ms,
        transactional_id_pattern: pattern.map(Text::from),
        ..Default::default()
    };
    let mut found = Vec::new();
    for broker in cluster.brokers()? {
        let what = format!("cannot list the transactions of broker {}", broker.id);
        let response = patiently(cluster, &format!("the transactions of broker {}", broker.id), |cluster| {
            let response = cluster.ask_at(&broker.address(), &request, i16::MAX)?;
            check(&what, response.error_code).map(|()| response)
        })?;
        found.extend(response.transaction_states.into_iter().map(|listed| TransactionListing {
            transactional_id: listed.transactional_id.to_string(),
            coordinator: broker.id,
            producer_id: listed.producer_id,
            state: listed.transaction_state.to_string(),
        }));
    }
    found.sort_by(|one, other| one.transactional_id.cmp(&other.transactional_id));
    Ok(found)
}

/// Describes a transactional id.
///
/// # Errors
/// [`ClientError::NoTransactionalId`] if the id does not exist; the error of its coordinator, or of the search for it.
pub fn describe_transaction(cluster: &mut Cluster, id: &str) -> Result<TransactionDescription, ClientError> {
    patiently(cluster, &coordinator_of(id), |cluster| describe_transaction_once(cluster, id))
}

fn describe_transaction_once(cluster: &mut Cluster, id: &str) -> Result<TransactionDescription, ClientError> {
    let coordinator = cluster.coordinator(CoordinatorKind::Transaction, &Text::from(id))?;
    let request = DescribeTransactionsRequest { transactional_ids: vec![Text::from(id)], ..Default::default() };
    let response = cluster.ask_at(&coordinator.address(), &request, i16::MAX)?;
    let what = format!("cannot describe the transactional id '{id}'");
    let found = response.transaction_states.into_iter().next();
    let found = found.ok_or_else(|| ClientError::kafka(&*what, ErrorCode::UNKNOWN_SERVER_ERROR, None))?;
    if found.error_code == ErrorCode::TRANSACTIONAL_ID_NOT_FOUND {
        return Err(ClientError::NoTransactionalId(id.to_owned()));
    }
    check(&what, found.error_code)?;
    let partitions = found
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|&partition| (topic.topic.to_string(), partition)));
    Ok(TransactionDescription {
        coordinator: coordinator.id,
        producer_id: found.producer_id,
        producer_epoch: found.producer_epoch,
        state: found.transaction_state.to_string(),
        timeout_ms: found.transaction_timeout_ms,
        start_ms: Some(found.transaction_start_time_ms).filter(|start| *start >= 0),
        partitions: partitions.collect(),
        transactional_id: id.to_owned(),
    })
}

/// Returns the producers of a partition, requested from its leader or from the broker with the given id.
///
/// # Errors
/// [`ClientError`] if the partition does not exist or has no leader, or the broker refuses or cannot be reached.
pub fn describe_producers(
    cluster: &mut Cluster,
    topic: &str,
    partition: i32,
    broker: Option<i32>,
) -> Result<Vec<PartitionProducer>, ClientError> {
    match broker {
        // Not retried: a broker without a replica of the partition does not get one soon.
        Some(id) => broker_address(cluster, id).and_then(|at| describe_producers_at(cluster, topic, partition, &at)),
        None => patiently(cluster, &leader_of(topic, partition), |cluster| {
            let leader = leader(cluster, topic, partition)?;
            describe_producers_at(cluster, topic, partition, &leader)
        }),
    }
}

fn describe_producers_at(
    cluster: &mut Cluster,
    topic: &str,
    partition: i32,
    address: &str,
) -> Result<Vec<PartitionProducer>, ClientError> {
    let topics =
        vec![TopicRequest { name: Text::from(topic), partition_indexes: vec![partition], ..Default::default() }];
    let response = cluster.ask_at(address, &DescribeProducersRequest { topics, ..Default::default() }, i16::MAX)?;
    let found = response.topics.into_iter().flat_map(|topic| topic.partitions).next();
    let what = format!("cannot describe the producers of partition {partition} of topic '{topic}'");
    let found = found.ok_or_else(|| ClientError::kafka(&*what, ErrorCode::UNKNOWN_SERVER_ERROR, None))?;
    if found.error_code.is_err() {
        return Err(ClientError::kafka(what, found.error_code, found.error_message.as_deref()));
    }
    let producers = found.active_producers.into_iter().map(|producer| PartitionProducer {
        producer_id: producer.producer_id,
        producer_epoch: producer.producer_epoch,
        coordinator_epoch: producer.coordinator_epoch,
        last_sequence: producer.last_sequence,
        last_timestamp: producer.last_timestamp,
        open_from: Some(producer.current_txn_start_offset).filter(|offset| *offset >= 0),
    });
    Ok(producers.collect())
}

/// Ends a producer's transaction in one partition by an abort marker, without its coordinator (Kafka's
/// `Admin.abortTransaction`).
///
/// # Errors
/// [`ClientError`] if the partition does not exist or has no leader, or the leader refuses or cannot be reached.
pub fn abort_transaction(
    cluster: &mut Cluster,
    topic: &str,
    partition: i32,
    marker: AbortMarker,
) -> Result<(), ClientError> {
    let topics = vec![WritableTxnMarkerTopic {
        name: Text::from(topic),
        partition_indexes: vec![partition],
        ..Default::default()
    }];
    let markers = vec![WritableTxnMarker {
        producer_id: marker.producer_id,
        producer_epoch: marker.producer_epoch,
        transaction_result: false,
        topics,
        // Like Kafka's tool, sends 0 if no coordinator has ended a transaction of the producer here.
        coordinator_epoch: marker.coordinator_epoch.max(0),
        ..Default::default()
    }];
    let request = WriteTxnMarkersRequest { markers, ..Default::default() };
    patiently(cluster, &leader_of(topic, partition), |cluster| {
        let address = leader(cluster, topic, partition)?;
        let response = cluster.ask_at(&address, &request, i16::MAX)?;
        let answers = response.markers.into_iter().flat_map(|marker| marker.topics).flat_map(|topic| topic.partitions);
        let code = answers.map(|at| at.error_code).next().unwrap_or(ErrorCode::UNKNOWN_SERVER_ERROR);
        check(&format!("cannot abort the transaction in partition {partition} of topic '{topic}'"), code)
    })
}

/// Aborts the open transaction of a transactional id, and fences its producer, as a new producer of the id does
/// (Kafka's `Admin.fenceProducers`).
///
/// # Errors
/// Error of the coordinator, or of the search for it. CONCURRENT_TRANSACTIONS if the transaction does not end within
/// the cluster's patience.
pub fn fence(cluster: &mut Cluster, id: &str) -> Result<(), ClientError> {
    let request = InitProducerIdRequest {
        transactional_id: Some(Text::from(id)),
        transaction_timeout_ms: FENCE_TIMEOUT_MS,
        ..Default::default()
    };
    patiently(cluster, &coordinator_of(id), |cluster| {
        let coordinator = cluster.coordinator(CoordinatorKind::Transaction, &Text::from(id))?;
        let response = cluster.ask_at(&coordinator.address(), &request, i16::MAX)?;
        check(&format!("cannot end the transaction of '{id}'"), response.error_code)
    })
}

/// Repeats an attempt for the cluster's patience while its error is transient ([`is_passing`]).
fn patiently<T>(
    cluster: &mut Cluster,
    what: &str,
    mut attempt: impl FnMut(&mut Cluster) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let _wait = cluster.awaited().begin(what);
    let until = Instant::now() + cluster.patience();
    loop {
        match attempt(cluster) {
            Err(error) if is_passing(&error) && Instant::now() + RETRY_BACKOFF < until => {
                std::thread::sleep(RETRY_BACKOFF);
            }
            outcome => return outcome,
        }
    }
}

/// Returns true if a retry of the request may soon succeed: its coordinator or leader loads, moves or ends a
/// transaction.
fn is_passing(error: &ClientError) -> bool {
    match error {
        ClientError::NoLeader { .. } => true,
        ClientError::Kafka { code, .. } => [
            ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode::COORDINATOR_NOT_AVAILABLE,
            ErrorCode::NOT_COORDINATOR,
            ErrorCode::NOT_LEADER_OR_FOLLOWER,
            ErrorCode::CONCURRENT_TRANSACTIONS,
        ]
        .contains(code),
        _ => false,
    }
}

fn coordinator_of(id: &str) -> String {
    format!("the coordinator of the transactional id '{id}'")
}

fn leader_of(topic: &str, partition: i32) -> String {
    format!("the producers of partition {partition} of topic '{topic}'")
}

fn check(what: &str, code: ErrorCode) -> Result<(), ClientError> {
    if code.is_err() { Err(ClientError::kafka(what, code, None)) } else { Ok(()) }
}

fn broker_address(cluster: &mut Cluster, id: i32) -> Result<String, ClientError> {
    let broker = cluster.brokers()?.into_iter().find(|broker| broker.id == id);
    broker.map(|broker| broker.address()).ok_or_else(|| ClientError::NoBroker(id.to_string()))
}

fn leader(cluster: &mut Cluster, topic: &str, partition: i32) -> Result<String, ClientError> {
    let places = cluster.partitions(&Text::from(topic))?;
    let last = places.iter().map(|place| place.partition).max().unwrap_or(0);
    match places.into_iter().find(|place| place.partition == partition) {
        Some(place) => place.leader.ok_or_else(|| ClientError::NoLeader { topic: topic.to_owned(), partition }),
        None => Err(ClientError::NoPartition { topic: topic.to_owned(), partition, last }),
    }
}
