//! `fullbore groups` has the flags and the output of kafka-consumer-groups.sh, with one file for each action. The
//! requests to the cluster are in `fullbore_client::admin`.

mod delete;
mod delete_offsets;
mod describe;
mod list;
mod reset;
mod select;

use crate::failure::Failure;
use clap::{Args, Subcommand};

/// The flags of kafka-consumer-groups.sh that are actions.
pub const ACTION_FLAGS: [&str; 5] = ["--list", "--describe", "--delete", "--reset-offsets", "--delete-offsets"];

/// List, describe and delete consumer groups, and set their offsets, with kafka-consumer-groups.sh's flags.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore groups describe --group billing
  fullbore groups --describe --all-groups      (kafka-consumer-groups.sh's own form works too)")]
pub struct GroupsArgs {
    #[command(subcommand)]
    action: Option<GroupsCommand>,
}

#[derive(Subcommand, Debug)]
enum GroupsCommand {
    /// Print the names of all groups.
    ///
    /// --json prints {"groups": [{"group", "type", "state"}]}.
    #[command(after_help = "Examples:
  fullbore groups list
  fullbore groups list --state stable,empty --type
  fullbore groups list --json")]
    List(list::List),
    /// Print the offsets and the lag of groups, their members, or their states.
    ///
    /// LAG counts the records of a partition that come after the committed offset. --json prints {"groups": [{"group",
    /// "type", "state", "coordinator": {"id", "host", "port"}, "assignor", "epoch", "target_epoch", "member_count"}]}.
    /// Each group also has "offsets": [{"topic", "partition", "leader_epoch", "current_offset", "log_end_offset",
    /// "lag", "member_id", "host", "client_id"}]. With --members, each group has instead "members": [{"member_id",
    /// "instance_id", "host", "client_id", "epoch", "is_upgraded", "assignment": [{"topic", "partition"}],
    /// "target_assignment"}].
    #[command(after_help = "Examples:
  fullbore groups describe --group billing
  fullbore groups describe --all-groups --members --verbose
  fullbore groups describe --group billing --state --json")]
    Describe(describe::DescribeGroupsArgs),
    /// Delete groups without members, and their offsets.
    ///
    /// --json prints {"deleted": [NAME], "failed": [{"group", "error"}]}.
    #[command(after_help = "Examples:
  fullbore groups delete --group billing
  fullbore groups delete --all-groups --json")]
    Delete(delete::Delete),
    /// Set the offsets of groups without members.
    ///
    /// Without --execute, only shows the new offsets. An offset outside a partition's log becomes the start or end of
    /// the log. Times without a zone are UTC. --json prints {"groups": [{"group", "is_executed", "offsets": [{"topic",
    /// "partition", "new_offset"}]}]}.
    #[command(after_help = "Examples:
  fullbore groups reset-offsets --group billing --topic orders --to-earliest --execute
  fullbore groups reset-offsets --group billing --topic orders:0,1 --shift-by -100 --execute
  fullbore groups reset-offsets --group billing --all-topics --to-datetime 2026-11-21T08:00:00.000
  fullbore groups reset-offsets --group billing --all-topics --to-current --export | tee plan.csv
  fullbore groups reset-offsets --group billing --from-file plan.csv --execute")]
    ResetOffsets(Box<reset::Reset>),
    /// Delete the committed offsets of a group for topics that it does not read now.
    ///
    /// --json prints {"group", "partitions": [{"topic", "partition", "error"}]}; the error is null for a deleted
    /// offset.
    #[command(after_help = "Examples:
  fullbore groups delete-offsets --group billing --topic orders:0,1 --json
  fullbore groups delete-offsets --group billing --topic orders")]
    DeleteOffsets(delete_offsets::DeleteOffsets),
}

/// Runs the command.
pub fn run(groups: GroupsArgs) -> Result<(), Failure> {
    match groups.action {
        Some(GroupsCommand::List(list)) => list::run(&list),
        Some(GroupsCommand::Describe(describe)) => describe::run(&describe),
        Some(GroupsCommand::Delete(delete)) => delete::run(&delete),
        Some(GroupsCommand::ResetOffsets(reset)) => reset::run(&reset),
        Some(GroupsCommand::DeleteOffsets(delete)) => delete_offsets::run(&delete),
        None => Err(Failure::new(
            "groups: the action is missing: list, describe, delete, reset-offsets or delete-offsets, as in `fullbore groups list`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::parse;

    #[test]
    fn kafkas_flags_of_groups_are_accepted() {
        for line in [
            "fullbore groups --bootstrap-server h:1 --list --state --type",
            "fullbore groups --list --state stable,empty --type classic",
            "fullbore groups --describe --group a --group b --offsets --verbose --timeout 100",
            "fullbore groups --describe --all-groups --members",
            "fullbore groups --describe --group a --state --command-config f",
            "fullbore groups --delete --group a --group b",
            "fullbore groups --reset-offsets --group a --topic t:0,1 --topic u --to-offset 5 --execute",
            "fullbore groups --reset-offsets --all-groups --all-topics --by-duration PT1H --export",
            "fullbore groups --delete-offsets --group a --topic t:0",
        ] {
            parse(line).expect(line);
        }
    }

    #[test]
    fn wrong_flags_of_groups_are_refused() {
        for line in [
            "describe",
            "describe --group a --all-groups",
            "describe --group a --members --state",
            "delete",
            "reset-offsets --group a --topic t",
            "reset-offsets --group a --topic t --to-earliest --to-latest",
            "reset-offsets --group a --topic t --to-earliest --execute --dry-run",
            "reset-offsets --group a --to-earliest",
            "reset-offsets --group a --topic t --all-topics --to-earliest",
            "reset-offsets --group a --topic t --by-duration 1h",
            "list --state dancing",
            "list --type blue",
            "delete-offsets --group a",
        ] {
            assert!(parse(&format!("fullbore groups {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn a_missing_action_of_groups_is_reported() {
        let reported = run(GroupsArgs { action: None }).expect_err("none").to_string();
        assert!(reported.contains("the action is missing: list, describe, delete"), "{reported}");
    }
}
