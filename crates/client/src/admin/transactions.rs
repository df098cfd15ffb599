//! Administers transactions (KIP-664): lists and describes them, returns the producers of a partition, and ends a
//! hanging transaction.
//!
//! A request is retried for the cluster's patience while the coordinator or leader loads, moves or ends a transaction.
//! The retry is safe, because a request with such an error had no effect or is idempotent.

use crate::blocking::{BrokerAddress, Cluster, Listed};
use crate::error::ClientError;
use crate::protocol::CoordinatorKind;
use fullbore_wire::apis::describe_producers::{DescribeProducersRequest, TopicRequest};
use fullbore_wire::apis::describe_transactions::DescribeTransactionsRequest;
use fullbore_wire::apis::init_producer_id::InitProducerIdRequest;
use fullbore_wire::apis::list_transactions::{ListTransactionsRequest, TransactionState};
use fullbore_wire::apis::write_txn_markers::{WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest};
use fullbore_wire::{ErrorCode, Text};
use std::time::{Duration, Instant};

/// The pause between two attempts.
const RETRY_BACKOFF: Duration = Duration::from_millis(100);
/// The transaction timeout that [`fence`] sends, in ms. The value has no effect, because no transaction begins.
const FENCE_TIMEOUT_MS: i32 = 60_000;

/// A transactional id, as its coordinator lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionListing {
    pub transactional_id: String,
    /// The id of the broker that coordinates the transactional id.
    pub coordinator: i32,
    pub producer_id: i64,
    /// The state of the transaction, with Kafka's name.
    pub state: String,
}

/// A transactional id, as its coordinator describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionDescription {
    pub transactional_id: String,
    /// The id of the broker that coordinates the transactional id.
    pub coordinator: i32,
    pub producer_id: i64,
    pub producer_epoch: i16,
    /// The state of the transaction, with Kafka's name.
    pub state: String,
    pub timeout_ms: i32,
    /// When the transaction began, in ms since 1970. `None` if no transaction is open.
    pub start_ms: Option<i64>,
    /// The topics and partitions of the transaction.
    pub partitions: Vec<(String, i32)>,
}

/// The state of a producer at the leader of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionProducer {
    pub producer_id: i64,
    pub producer_epoch: i32,
    /// The epoch of the coordinator that ended the producer's last transaction, or -1 if none has ended.
    pub coordinator_epoch: i32,
    /// The last sequence number, or -1 if the producer has written nothing in its epoch.
    pub last_sequence: i32,
    /// The time of the last batch in ms since 1970, or -1 if it is unknown.
    pub last_timestamp: i64,
    /// The first offset of the producer's open transaction, or `None` if none is open.
    pub open_from: Option<i64>,
}

/// The data of an abort marker. The leader of a partition writes such a marker without the transaction's coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortMarker {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub coordinator_epoch: i32,
}

/// Lists the transactional ids of all brokers that match the whole regular expression. If `duration_ms` is 0 or more,
/// lists only ids whose transaction has been open for longer than that.
///
/// # Errors
/// Returns the error of the connection if no broker answers. If a broker refuses, for example because the expression is
/// malformed, its error is in the list.
pub fn list_transactions(
    cluster: &mut Cluster,
    duration_ms: i64,
    pattern: Option<&str>,
) -> Result<Listed<TransactionListing>, ClientError> {
    let request = ListTransactionsRequest {
        duration_filter: duration_ms,
        transactional_id_pattern: pattern.map(Text::from),
        ..Default::default()
    };
    let brokers = cluster.brokers()?;
    let mut listed = cluster.at_each(&brokers, |cluster, broker| list_transactions_of(cluster, broker, &request));
    listed.found.sort_by(|one, other| one.transactional_id.cmp(&other.transactional_id));
    Ok(listed)
}

fn list_transactions_of(
    cluster: &mut Cluster,
    broker: &BrokerAddress,
    request: &ListTransactionsRequest,
) -> Result<Vec<TransactionListing>, ClientError> {
    let what = format!("cannot list the transactions of broker {}", broker.id);
    let response = patiently(cluster, &format!("the transactions of broker {}", broker.id), |cluster| {
        let response = cluster.call_at(&broker.address(), request, i16::MAX)?;
        check(&what, response.error_code).map(|()| response)
    })?;
    let listing = |listed: TransactionState| TransactionListing {
        transactional_id: listed.transactional_id.to_string(),
        coordinator: broker.id,
        producer_id: listed.producer_id,
        state: listed.transaction_state.to_string(),
    };
    Ok(response.transaction_states.into_iter().map(listing).collect())
}

/// Describes a transactional id.
///
/// # Errors
/// Returns [`ClientError::NoTransactionalId`] if the id does not exist. Otherwise returns the error of its coordinator,
/// or of the search for the coordinator.
pub fn describe_transaction(cluster: &mut Cluster, id: &str) -> Result<TransactionDescription, ClientError> {
    patiently(cluster, &coordinator_of(id), |cluster| describe_transaction_once(cluster, id))
}

fn describe_transaction_once(cluster: &mut Cluster, id: &str) -> Result<TransactionDescription, ClientError> {
    let coordinator = cluster.coordinator(CoordinatorKind::Transaction, &Text::from(id))?;
    let request = DescribeTransactionsRequest { transactional_ids: vec![Text::from(id)], ..Default::default() };
    let response = cluster.call_at(&coordinator.address(), &request, i16::MAX)?;
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

/// Returns the producers of a partition, as known to the broker with the id `broker`, or to the leader if `broker` is
/// `None`.
///
/// # Errors
/// Returns [`ClientError`] if the partition does not exist or has no leader, or the broker refuses or cannot be
/// reached.
pub fn describe_producers(
    cluster: &mut Cluster,
    topic: &str,
    partition: i32,
    broker: Option<i32>,
) -> Result<Vec<PartitionProducer>, ClientError> {
    match broker {
        // The request is not retried. A broker without a replica of the partition refuses it, and a retry would not
        // change that.
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
    let response = cluster.call_at(address, &DescribeProducersRequest { topics, ..Default::default() }, i16::MAX)?;
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

/// Ends a producer's transaction in one partition with an abort marker, without its coordinator (Kafka's
/// `Admin.abortTransaction`).
///
/// # Errors
/// Returns [`ClientError`] if the partition does not exist or has no leader, or the leader refuses or cannot be
/// reached.
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
        // The epoch is -1 if no coordinator has ended a transaction of this producer in this partition. The request
        // then contains 0, like that of Kafka's tool.
        coordinator_epoch: marker.coordinator_epoch.max(0),
        ..Default::default()
    }];
    let request = WriteTxnMarkersRequest { markers, ..Default::default() };
    patiently(cluster, &leader_of(topic, partition), |cluster| {
        let address = leader(cluster, topic, partition)?;
        let response = cluster.call_at(&address, &request, i16::MAX)?;
        let answers = response.markers.into_iter().flat_map(|marker| marker.topics).flat_map(|topic| topic.partitions);
        let code = answers.map(|at| at.error_code).next().unwrap_or(ErrorCode::UNKNOWN_SERVER_ERROR);
        check(&format!("cannot abort the transaction in partition {partition} of topic '{topic}'"), code)
    })
}

/// Aborts the open transaction of a transactional id and fences its producer, just as a new producer with this id would
/// (Kafka's `Admin.fenceProducers`).
///
/// # Errors
/// Returns the error of the coordinator, or of the search for the coordinator. Returns CONCURRENT_TRANSACTIONS if the
/// transaction does not end within the cluster's patience.
pub fn fence(cluster: &mut Cluster, id: &str) -> Result<(), ClientError> {
    let request = InitProducerIdRequest {
        transactional_id: Some(Text::from(id)),
        transaction_timeout_ms: FENCE_TIMEOUT_MS,
        ..Default::default()
    };
    patiently(cluster, &coordinator_of(id), |cluster| {
        let coordinator = cluster.coordinator(CoordinatorKind::Transaction, &Text::from(id))?;
        let response = cluster.call_at(&coordinator.address(), &request, i16::MAX)?;
        check(&cannot_end(id), response.error_code)
    })
}

/// The progress of the abort when [`force_terminate`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// No transaction is open, and its producer is fenced.
    Ended,
    /// The producer is fenced and the abort is decided, but some partitions still lack their abort markers. The
    /// coordinator keeps sending these.
    Ending,
}

/// Aborts the open transaction of a transactional id and fences its producer, like [`fence`]. An unknown id is refused,
/// because fencing would create the id.
///
/// # Errors
/// Returns [`ClientError::NoTransactionalId`] if the id does not exist, or the errors of [`fence`].
pub fn force_terminate(cluster: &mut Cluster, id: &str) -> Result<Termination, ClientError> {
    let before = describe_transaction(cluster, id)?;
    let error = match fence(cluster, id) {
        Ok(()) => return Ok(Termination::Ended),
        Err(error) => error,
    };
    if !matches!(error, ClientError::Kafka { code: ErrorCode::CONCURRENT_TRANSACTIONS, .. }) {
        return Err(error);
    }
    let Ok(after) = describe_transaction_once(cluster, id) else { return Err(error) };
    match (&*before.state, &*after.state) {
        ("Ongoing", "PrepareAbort" | "PrepareEpochFence") => Ok(Termination::Ending),
        ("Ongoing", "CompleteAbort") => Ok(Termination::Ended),
        (_, state) if state.starts_with("Prepare") => {
            let message = format!(
                "the coordinator is already ending the transaction ({state}), and retries until every partition has \
                 the marker; run this command again after that to fence the producer"
            );
            Err(ClientError::kafka(cannot_end(id), ErrorCode::CONCURRENT_TRANSACTIONS, Some(&message)))
        }
        _ => Err(error),
    }
}

fn cannot_end(id: &str) -> String {
    format!("cannot end the transaction of '{id}'")
}

/// Repeats an attempt for up to the cluster's patience while [`is_passing`] returns true for its error.
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

/// Returns true if a retry may soon succeed, because the coordinator or leader loads, moves or ends a transaction.
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
    let brokers = cluster.brokers()?;
    let broker = brokers.iter().find(|broker| broker.id == id);
    broker.map(BrokerAddress::address).ok_or_else(|| ClientError::no_broker(id, brokers.iter().map(|broker| broker.id)))
}

fn leader(cluster: &mut Cluster, topic: &str, partition: i32) -> Result<String, ClientError> {
    let places = cluster.partitions(&Text::from(topic))?;
    let last = places.iter().map(|place| place.partition).max().unwrap_or(0);
    match places.into_iter().find(|place| place.partition == partition) {
        Some(place) => place.leader.ok_or_else(|| ClientError::NoLeader { topic: topic.to_owned(), partition }),
        None => Err(ClientError::NoPartition { topic: topic.to_owned(), partition, last }),
    }
}
