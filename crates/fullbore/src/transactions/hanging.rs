//! `transactions find-hanging` finds open transactions that no coordinator will end.
//!
//! As in Kafka's tool, a transaction may hang if its producer has written no record for longer than a transaction may
//! last. It does hang if no coordinator has a transaction of this producer that includes the partition.

use super::{now_ms, print};
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{Format, line};
use crate::table::row;
use clap::{ArgGroup, Args};
use fullbore_bench::report::json::{array, object, string};
use fullbore_client::ClientError;
use fullbore_client::admin::{
    PARTITIONS_PER_ANSWER, PartitionProducer, TransactionDescription, TransactionListing, describe_producers,
    describe_topics, describe_transaction, list_topics, list_transactions,
};
use fullbore_client::blocking::Cluster;
use fullbore_wire::Text;

const MINUTE_MS: i64 = 60_000;

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("where").args(["topic", "broker_id"]).required(true).multiple(true)))]
pub struct FindHanging {
    /// Only partitions of this broker.
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(i32).range(0..))]
    broker_id: Option<i32>,
    /// The longest duration of a transaction, in minutes.
    #[arg(long, value_name = "MINUTES", default_value_t = 15)]
    max_transaction_timeout: u32,
    /// Only this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only this partition of the topic.
    #[arg(long, value_name = "NUMBER", requires = "topic", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    #[command(flatten)]
    pub(super) at: Where,
    #[command(flatten)]
    format: Format,
}

/// An open transaction that no coordinator will end.
struct Hanging {
    topic: String,
    partition: i32,
    producer: PartitionProducer,
    start_offset: i64,
}

/// Prints the open transactions that no coordinator will end.
pub fn run(of: &FindHanging) -> Result<(), Failure> {
    of.format.choose();
    let mut cluster = of.at.cluster(client_id::TRANSACTIONS)?;
    let now_ms = now_ms();
    let since_ms = now_ms - i64::from(of.max_transaction_timeout) * MINUTE_MS;
    let mut hanging = Vec::new();
    for (topic, partition) in partitions(&mut cluster, of)? {
        for producer in describe_producers(&mut cluster, &topic, partition, of.broker_id)? {
            if let Some(start_offset) = producer.open_from.filter(|_| producer.last_timestamp < since_ms) {
                hanging.push(Hanging { topic: topic.clone(), partition, producer, start_offset });
            }
        }
    }
    let hanging = without_coordinated(&mut cluster, hanging)?;
    let minutes = |found: &Hanging| (now_ms - found.producer.last_timestamp) / MINUTE_MS;
    if of.format.json {
        line(&object([("transactions", array(hanging.iter().map(|found| document(found, minutes(found)))))]));
        return Ok(());
    }
    let heading = [
        "Topic",
        "Partition",
        "ProducerId",
        "ProducerEpoch",
        "CoordinatorEpoch",
        "StartOffset",
        "LastTimestamp",
        "Duration(min)",
    ];
    let mut rows = vec![row(heading)];
    rows.extend(hanging.iter().map(|found| {
        vec![
            found.topic.clone(),
            found.partition.to_string(),
            found.producer.producer_id.to_string(),
            found.producer.producer_epoch.to_string(),
            found.producer.coordinator_epoch.to_string(),
            found.start_offset.to_string(),
            found.producer.last_timestamp.to_string(),
            minutes(found).to_string(),
        ]
    }));
    print(&rows);
    Ok(())
}

/// Returns the partitions to check: those of the topic, or all partitions of which the broker is the leader or a
/// replica.
fn partitions(cluster: &mut Cluster, of: &FindHanging) -> Result<Vec<(String, i32)>, ClientError> {
    if let (Some(topic), Some(partition)) = (&of.topic, of.partition) {
        return Ok(vec![(topic.clone(), partition)]);
    }
    if let Some(id) = of.broker_id {
        let running: Vec<i32> = cluster.brokers()?.iter().map(|broker| broker.id).collect();
        if !running.contains(&id) {
            return Err(ClientError::no_broker(id, running));
        }
    }
    let mut found = Vec::new();
    let names = match &of.topic {
        Some(topic) => vec![Text::from(topic.as_str())],
        None => list_topics(cluster)?.into_iter().map(|(name, _)| name).collect(),
    };
    let topics = describe_topics(cluster, &names, PARTITIONS_PER_ANSWER)?;
    if let Some(topic) = of.topic.as_ref().filter(|_| topics.is_empty()) {
        return Err(ClientError::NoTopic(topic.clone()));
    }
    for topic in topics {
        let is_there = |replicas: &[i32]| of.broker_id.is_none_or(|id| replicas.contains(&id));
        let partitions = topic.partitions.iter().filter(|partition| is_there(&partition.replicas));
        found.extend(partitions.map(|partition| (topic.name.to_string(), partition.partition)));
    }
    Ok(found)
}

/// Removes the transactions that a coordinator will end.
///
/// # Errors
/// Returns [`ClientError`] if a coordinator does not respond, because it is then unknown which of its transactions
/// hang.
fn without_coordinated(cluster: &mut Cluster, found: Vec<Hanging>) -> Result<Vec<Hanging>, ClientError> {
    if found.is_empty() {
        return Ok(found);
    }
    let listed = list_transactions(cluster, -1, None)?.whole()?;
    let mut hanging = Vec::new();
    for candidate in found {
        let place = (candidate.topic.clone(), candidate.partition);
        if coordinated(cluster, &listed, candidate.producer.producer_id, &place)?.is_none() {
            hanging.push(candidate);
        }
    }
    Ok(hanging)
}

/// Returns the open transaction of a producer, as its coordinator describes it, if this transaction includes the
/// partition. Returns `None` if there is none. `listed` has the transactional ids of all coordinators.
///
/// # Errors
/// Returns [`ClientError`] if a coordinator does not respond.
pub(super) fn coordinated(
    cluster: &mut Cluster,
    listed: &[TransactionListing],
    producer_id: i64,
    place: &(String, i32),
) -> Result<Option<TransactionDescription>, ClientError> {
    let Some(id) = listed.iter().find(|listed| listed.producer_id == producer_id) else { return Ok(None) };
    match describe_transaction(cluster, &id.transactional_id) {
        Ok(transaction) => Ok(Some(transaction).filter(|of| of.partitions.contains(place))),
        // The id has expired since it was listed.
        Err(ClientError::NoTransactionalId(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn document(found: &Hanging, minutes: i64) -> String {
    object([
        ("topic", string(&found.topic)),
        ("partition", found.partition.to_string()),
        ("producer_id", found.producer.producer_id.to_string()),
        ("producer_epoch", found.producer.producer_epoch.to_string()),
        ("coordinator_epoch", found.producer.coordinator_epoch.to_string()),
        ("start_offset", found.start_offset.to_string()),
        ("last_timestamp", found.producer.last_timestamp.to_string()),
        ("minutes", minutes.to_string()),
    ])
}
