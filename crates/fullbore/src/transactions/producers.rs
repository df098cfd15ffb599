//! `transactions describe-producers` prints the producers of a partition.

use super::print;
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{Format, line};
use crate::table::row;
use clap::Args;
use fullbore_bench::report::json::{array, object, plain};
use fullbore_client::admin::{PartitionProducer, describe_producers};

#[derive(Args, Debug)]
pub struct DescribeProducers {
    /// A broker with a replica of the partition [default: its leader].
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(i32).range(0..))]
    broker_id: Option<i32>,
    /// The topic.
    #[arg(long)]
    topic: String,
    /// The partition.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    partition: i32,
    #[command(flatten)]
    pub(super) at: Where,
    #[command(flatten)]
    format: Format,
}

/// Prints the producers of a partition.
pub fn run(of: &DescribeProducers) -> Result<(), Failure> {
    of.format.choose();
    let mut cluster = of.at.cluster(client_id::TRANSACTIONS)?;
    let found = describe_producers(&mut cluster, &of.topic, of.partition, of.broker_id)?;
    if of.format.json {
        line(&object([("producers", array(found.iter().map(document)))]));
        return Ok(());
    }
    let heading = [
        "ProducerId",
        "ProducerEpoch",
        "LatestCoordinatorEpoch",
        "LastSequence",
        "LastTimestamp",
        "CurrentTransactionStartOffset",
    ];
    let mut rows = vec![row(heading)];
    rows.extend(found.iter().map(|producer| {
        vec![
            producer.producer_id.to_string(),
            producer.producer_epoch.to_string(),
            producer.coordinator_epoch.to_string(),
            producer.last_sequence.to_string(),
            producer.last_timestamp.to_string(),
            producer.open_from.map_or_else(|| "None".to_owned(), |offset| offset.to_string()),
        ]
    }));
    print(&rows);
    Ok(())
}

fn document(producer: &PartitionProducer) -> String {
    object([
        ("producer_id", producer.producer_id.to_string()),
        ("producer_epoch", producer.producer_epoch.to_string()),
        ("coordinator_epoch", producer.coordinator_epoch.to_string()),
        ("last_sequence", producer.last_sequence.to_string()),
        ("last_timestamp", producer.last_timestamp.to_string()),
        ("open_from", plain(producer.open_from)),
    ])
}
