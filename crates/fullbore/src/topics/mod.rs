//! `fullbore topics` has the flags and the output of kafka-topics.sh, with one file for each action. The requests to
//! the cluster are in `fullbore_client::admin`.

mod alter;
mod assignment;
mod create;
mod delete;
mod delete_records;
mod describe;
mod elect_leaders;
mod list;
mod offsets;
mod partitions;
mod select;
mod target;

pub use select::topic_filter;

use crate::failure::Failure;
use clap::{Args, Subcommand};

/// The flags of kafka-topics.sh that are actions.
pub const ACTION_FLAGS: [&str; 5] = ["--create", "--list", "--describe", "--delete", "--alter"];

/// Create, list, describe, alter and delete topics of any Kafka cluster, with kafka-topics.sh's flags.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore topics create --topic audit --partitions 6 --config retention.ms=3600000
  fullbore topics --create --topic payments      (kafka-topics.sh's own form works too)")]
pub struct TopicsArgs {
    #[command(subcommand)]
    action: Option<TopicsCommand>,
}

#[derive(Subcommand, Debug)]
enum TopicsCommand {
    /// Create a topic.
    ///
    /// --json prints {"created": [NAME]}.
    #[command(after_help = "Examples:
  fullbore topics create --topic orders --partitions 6 --replication-factor 1
  fullbore topics create --topic orders --if-not-exists --json")]
    Create(create::Create),
    /// Print the names of all topics.
    ///
    /// --json prints {"topics": [{"name", "is_internal"}]}.
    #[command(after_help = "Examples:
  fullbore topics list --exclude-internal
  fullbore topics list --topic 'orders.*' --json")]
    List(select::Select),
    /// Print partitions, leaders, replicas and configurations.
    ///
    /// --json prints {"topics": [{"name", "topic_id", "partition_count", "replication_factor", "configs", "partitions":
    /// [{"partition", "leader", "replicas", "isr", "elr", "last_known_elr", "offline_replicas"}]}]}.
    #[command(after_help = "Examples:
  fullbore topics describe --topic orders
  fullbore topics describe --under-replicated-partitions
  fullbore topics describe --topics-with-overrides --json")]
    Describe(describe::DescribeTopicsArgs),
    /// Add partitions.
    ///
    /// Records with a key may go to another partition afterwards. Configurations are changed by `fullbore configs`. For
    /// a pattern, the matching topics are listed and must be confirmed. --json prints {"altered": [{"name",
    /// "partition_count"}]}.
    #[command(after_help = "Examples:
  fullbore topics alter --topic orders --partitions 12
  fullbore topics alter --topic orders --partitions 24 --if-exists --json")]
    Alter(alter::Alter),
    /// Delete topics.
    ///
    /// For a pattern, the matching topics are listed and must be confirmed. --json prints {"deleted": [NAME], "failed":
    /// [{"topic", "error"}]}.
    #[command(after_help = "Examples:
  fullbore topics delete --topic orders --if-exists
  fullbore topics delete --topic 'test-.*' --yes --if-exists --json")]
    Delete(delete::Delete),
    /// Print an offset of each partition, TOPIC:PARTITION:OFFSET, like kafka-get-offsets.sh.
    ///
    /// --json prints {"offsets": [{"topic", "partition", "offset"}], "failed": [{"topic", "partition", "error"}]}.
    #[command(after_help = "Examples:
  fullbore topics offsets orders
  fullbore topics offsets orders --time earliest --partitions 0,1
  fullbore topics offsets --time 1767225600000 --json")]
    Offsets(offsets::Offsets),
    /// Delete the records before an offset, like kafka-delete-records.sh.
    ///
    /// --json prints {"deleted": [{"topic", "partition", "low_watermark"}], "failed": [{"topic", "partition",
    /// "error"}]}.
    #[command(after_help = "Examples:
  fullbore topics delete-records orders --partition 0 --offset 100
  fullbore topics delete-records orders --offset end --json
  fullbore topics delete-records --offset-json-file offsets.json")]
    DeleteRecords(delete_records::DeleteRecords),
    /// Elect the first replicas as leaders again, like kafka-leader-election.sh.
    ///
    /// --json prints {"partitions": [{"topic", "partition", "outcome"}]}; the outcome is elected, not_needed, or
    /// refused with an error beside it.
    #[command(after_help = "Examples:
  fullbore topics elect-leaders --all-topic-partitions
  fullbore topics elect-leaders orders --partition 0 --election-type unclean --json")]
    ElectLeaders(elect_leaders::ElectLeaders),
}

/// Runs the command.
pub fn run(topics: TopicsArgs) -> Result<(), Failure> {
    match topics.action {
        Some(TopicsCommand::Create(create)) => create::run(create),
        Some(TopicsCommand::List(select)) => list::run(select),
        Some(TopicsCommand::Describe(describe)) => describe::run(describe),
        Some(TopicsCommand::Alter(alter)) => alter::run(alter),
        Some(TopicsCommand::Delete(delete)) => delete::run(delete),
        Some(TopicsCommand::Offsets(offsets)) => offsets::run(&offsets),
        Some(TopicsCommand::DeleteRecords(delete)) => delete_records::run(&delete),
        Some(TopicsCommand::ElectLeaders(elect)) => elect_leaders::run(&elect),
        None => Err(Failure::new(
            "topics: the action is missing: create, list, describe, alter, delete, offsets, delete-records or elect-leaders, as in `fullbore topics list`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::parse;

    #[test]
    fn kafkas_flags_of_topics_are_accepted() {
        for line in [
            "fullbore topics create --topic a --partitions 3 --replication-factor 2 --config a=b --config c=d=e \
             --if-not-exists --bootstrap-server h:1 --command-config f",
            "fullbore topics --bootstrap-server h:1 --create --topic a",
            "fullbore topics list --exclude-internal",
            "fullbore topics --list --bootstrap-server h:1",
            "fullbore topics describe --topic a.* --exclude-internal --if-exists",
            "fullbore topics --delete --topic a --if-exists --bootstrap-server h:1",
            "fullbore topics --describe --under-replicated-partitions --unavailable-partitions --bootstrap-server h:1",
            "fullbore topics --describe --at-min-isr-partitions --under-min-isr-partitions --topics-with-overrides",
            "fullbore topics --describe --topic-id 4L6g3nShT-eMCtK--X86sw",
            "fullbore topics --describe --partition-size-limit-per-response 100 --bootstrap-server h:1",
            "fullbore topics --create --topic a --replica-assignment 1:2,2:3",
            "fullbore topics --create --topic a --replication-factor -1",
            "fullbore topics --alter --topic a --partitions 6 --bootstrap-server h:1",
            "fullbore topics alter --topic a.* --partitions 2 --replica-assignment 1,2 --if-exists --json",
            "fullbore --debug protocol topics --list --json",
        ] {
            parse(&line.replace("  ", " ")).expect(line);
        }
    }

    #[test]
    fn wrong_flags_of_topics_are_refused() {
        for line in [
            "create",
            "create --topic a --partitions 0",
            "create --topic a --replication-factor 0",
            "create --topic a --replication-factor -2",
            "create --topic a --config x",
            "delete",
            "shrink",
            "create --topic a --replica-assignment 1 --partitions 1",
            "describe --topic-id x",
            "describe --partition-size-limit-per-response 0",
            "alter --topic a",
        ] {
            assert!(parse(&format!("fullbore topics {line}")).is_err(), "{line}");
        }
        let refusal = parse("fullbore topics create --topic a --partitions -1").expect_err("out of range").to_string();
        assert!(refusal.contains("'-1' for '--partitions"), "{refusal}");
    }

    #[test]
    fn a_missing_action_of_topics_is_reported() {
        for line in ["fullbore topics", "fullbore topics --bootstrap-server h:1"] {
            let crate::Command::Topics(topics) = parse(line).expect(line).command else { panic!("{line}") };
            let reported = run(topics).expect_err(line).to_string();
            assert!(
                reported.contains("the action is missing: create, list, describe, alter, delete, offsets"),
                "{reported}"
            );
        }
    }
}
