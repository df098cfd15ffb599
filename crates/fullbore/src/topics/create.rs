//! `topics create` creates a topic.

use super::assignment::{Assignment, replica_assignment};
use crate::client::{Where, key_value};
use crate::client_id;
use crate::failure::Failure;
use crate::output::{self, Format, line};
use clap::{ArgGroup, Args};
use fullbore_bench::report::json::{list, object, string};
use fullbore_client::ClientError;
use fullbore_client::admin::{PartitionLayout, create_topic_as};
use fullbore_wire::ErrorCode;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).args(["topic", "name"]))]
pub struct Create {
    /// The name of the topic.
    #[arg(long)]
    topic: Option<String>,
    /// The name of the topic, without the flag.
    #[arg(value_name = "TOPIC")]
    name: Option<String>,
    /// The number of partitions [default: that of the cluster].
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// The number of replicas of each partition [default, and with -1: that of the cluster].
    #[arg(long, value_parser = replication_factor)]
    replication_factor: Option<i16>,
    /// The brokers of each partition instead of counts, the preferred leader first: 1:2,2:3 is two partitions.
    #[arg(long, value_name = "BROKER:...,...", value_parser = replica_assignment, conflicts_with_all = ["partitions", "replication_factor"])]
    replica_assignment: Option<Assignment>,
    /// A topic configuration; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    config: Vec<(String, String)>,
    /// Do nothing if the topic exists.
    #[arg(long)]
    if_not_exists: bool,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Creates the topic.
pub fn run(create: Create) -> Result<(), Failure> {
    create.format.choose();
    let mut cluster = create.at.cluster(client_id::TOPICS)?;
    let topic = create.topic.or(create.name).unwrap_or_default();
    if topic.contains(['.', '_']) {
        output::note(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could \
             collide. To avoid issues it is best to use either, but not both.",
        );
    }
    let (partitions, replication_factor) = (create.partitions, create.replication_factor);
    let layout = match create.replica_assignment {
        Some(Assignment(brokers)) => PartitionLayout::Assigned(brokers),
        None => PartitionLayout::Counts { partitions, replication_factor },
    };
    let created = match create_topic_as(&mut cluster, &topic, &layout, &create.config) {
        Ok(()) => vec![topic],
        Err(error) if is_topic_exists(&error) && create.if_not_exists => vec![],
        Err(error) if is_topic_exists(&error) => {
            let hint = "add --if-not-exists to accept that, or delete the topic first";
            return Err(Failure::new(format!("Topic '{topic}' already exists; {hint}")));
        }
        Err(error) => return Err(error.into()),
    };
    if create.format.json {
        line(&object([("created", list(created.iter().map(|name| string(name))))]));
    } else {
        created.iter().for_each(|name| line(&format!("Created topic {name}.")));
    }
    Ok(())
}

/// Parses a replication factor. -1 stands for the cluster's default, as in the protocol.
fn replication_factor(typed: &str) -> Result<i16, String> {
    let factor = typed.parse().ok().filter(|factor| *factor >= 1 || *factor == -1);
    factor.ok_or_else(|| format!("must be between 1 and {}, or -1", i16::MAX))
}

fn is_topic_exists(error: &ClientError) -> bool {
    matches!(error, ClientError::Kafka { code: ErrorCode::TOPIC_ALREADY_EXISTS, .. })
}
