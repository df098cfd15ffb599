//! `topics alter` adds partitions.

use super::assignment::{Assignment, replica_assignment};
use super::target::TopicTarget;
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{self, Format, line};
use clap::Args;
use fullbore_bench::report::json::{array, object, string};
use fullbore_client::ClientError;
use fullbore_client::admin::{PARTITIONS_PER_ANSWER, create_partitions, describe_topics};
use fullbore_client::blocking::Cluster;
use fullbore_wire::{ErrorCode, Text};

#[derive(Args, Debug)]
pub struct Alter {
    #[command(flatten)]
    target: TopicTarget,
    /// The new number of partitions of the topic.
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: i32,
    /// The brokers of every partition, including existing ones, the preferred leader first: 1:2,2:3 is two partitions.
    #[arg(long, value_name = "BROKER:...,...", value_parser = replica_assignment)]
    replica_assignment: Option<Assignment>,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Adds the partitions.
pub fn run(alter: Alter) -> Result<(), Failure> {
    alter.format.choose();
    let mut cluster = alter.at.cluster(client_id::TOPICS)?;
    if alter.replica_assignment.is_some() {
        check_assigned(&alter)?;
    }
    let names = alter.target.confirmed(&mut cluster, "alter")?;
    if !names.is_empty() {
        output::note(
            "WARNING: If partitions are increased for a topic that has a key, the partition logic or ordering of the \
             messages will be affected",
        );
    }
    let mut altered = Vec::new();
    let outcome = add_partitions(&mut cluster, &alter, &names, &mut altered);
    if alter.format.json && (outcome.is_ok() || !altered.is_empty()) {
        let document =
            |name: &Text| object([("name", string(name)), ("partition_count", alter.partitions.to_string())]);
        line(&object([("altered", array(altered.iter().map(document)))]));
    }
    outcome
}

/// Adds partitions to each topic and prints the topic. Appends each altered topic to `altered`.
fn add_partitions(
    cluster: &mut Cluster,
    alter: &Alter,
    names: &[Text],
    altered: &mut Vec<Text>,
) -> Result<(), Failure> {
    for topic in describe_topics(cluster, names, PARTITIONS_PER_ANSWER)? {
        let before = topic.partitions.len();
        // The flag lists all partitions, as in Kafka, but the request must list only the new ones.
        let new = alter.replica_assignment.as_ref().map(|all| &all.0[before.min(all.0.len())..]);
        create_partitions(cluster, &topic.name, alter.partitions, new).map_err(refusal)?;
        output::words(&format!("Topic {} has {} partitions now, {before} before.", topic.name, alter.partitions));
        altered.push(topic.name);
    }
    Ok(())
}

fn check_assigned(alter: &Alter) -> Result<(), Failure> {
    let assigned = alter.replica_assignment.as_ref().map_or(0, |assignment| assignment.0.len());
    if usize::try_from(alter.partitions) == Ok(assigned) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "--replica-assignment is for {assigned} partitions and --partitions is {}; list the brokers of every \
         partition, including the existing ones",
        alter.partitions
    )))
}

fn refusal(error: ClientError) -> Failure {
    match &error {
        ClientError::Kafka { code: ErrorCode::INVALID_PARTITIONS, .. } => {
            Failure::new(format!("{error} Partitions can be added, never taken away."))
        }
        _ => error.into(),
    }
}
