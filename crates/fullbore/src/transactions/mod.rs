//! `fullbore transactions` has the flags and the output of kafka-transactions.sh. The requests to the cluster are in
//! `fullbore_client::admin`.

mod abort;
mod hanging;
mod list;
mod producers;

use crate::client::Where;
use crate::failure::Failure;
use crate::output::line;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum width to which a column is padded, in characters.
const WIDTH_MAX: usize = 80;

/// List, describe and end transactions, with kafka-transactions.sh's flags.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore transactions list
  fullbore transactions find-hanging --topic orders")]
pub struct TransactionsArgs {
    /// Bootstrap brokers; also allowed after the action.
    #[arg(short, long, id = "servers", value_name = "HOST:PORT,...")]
    bootstrap_server: Option<String>,
    /// A file of client properties; also allowed after the action.
    #[arg(long, id = "config", value_name = "FILE")]
    command_config: Option<PathBuf>,
    #[command(subcommand)]
    action: TransactionsCommand,
}

#[derive(Subcommand, Debug)]
enum TransactionsCommand {
    /// Print all transactional ids with their coordinators and states.
    ///
    /// --json prints {"transactions": [{"transactional_id", "coordinator", "producer_id", "state"}]}.
    #[command(after_help = "Examples:
  fullbore transactions list
  fullbore transactions list --duration-filter 60000 --transactional-id-pattern 'billing-.*'")]
    List(list::List),
    /// Print the state of one transactional id.
    ///
    /// --json prints {"transactional_id", "coordinator", "producer_id", "producer_epoch", "state", "timeout_ms",
    /// "start_ms", "partitions": [{"topic", "partition"}]}; "start_ms" is null without a transaction.
    #[command(after_help = "Example: fullbore transactions describe --transactional-id billing-1")]
    Describe(list::Describe),
    /// Print the states of a partition's producers.
    ///
    /// --json prints {"producers": [{"producer_id", "producer_epoch", "coordinator_epoch", "last_sequence",
    /// "last_timestamp", "open_from"}]}; "open_from" is the first offset of an open transaction, or null.
    #[command(after_help = "Example: fullbore transactions describe-producers --topic orders --partition 0")]
    DescribeProducers(producers::DescribeProducers),
    /// End a transaction in one partition without its coordinator. For a transaction that find-hanging has found.
    #[command(after_help = "Example: fullbore transactions abort --topic orders --partition 0 --start-offset 4711")]
    Abort(abort::Abort),
    /// Print open transactions without a coordinator, whose producers have written nothing for longer than a
    /// transaction may last.
    ///
    /// --json prints {"transactions": [{"topic", "partition", "producer_id", "producer_epoch", "coordinator_epoch",
    /// "start_offset", "last_timestamp", "minutes"}]}.
    #[command(after_help = "Examples:
  fullbore transactions find-hanging --topic orders
  fullbore transactions find-hanging --broker-id 1 --max-transaction-timeout 30")]
    FindHanging(hanging::FindHanging),
    /// End the transaction of an id and fence its producer.
    #[command(name = "forceTerminateTransaction", alias = "force-terminate")]
    #[command(after_help = "Example: fullbore transactions forceTerminateTransaction --transactional-id billing-1")]
    ForceTerminate(abort::ForceTerminate),
}

impl TransactionsCommand {
    /// Returns the flags with which the action names the cluster.
    fn cluster(&mut self) -> &mut Where {
        match self {
            Self::List(list) => &mut list.at,
            Self::Describe(describe) => &mut describe.at,
            Self::DescribeProducers(describe) => &mut describe.at,
            Self::Abort(abort) => &mut abort.at,
            Self::FindHanging(find) => &mut find.at,
            Self::ForceTerminate(force) => &mut force.at,
        }
    }
}

/// Runs the command.
pub fn run(transactions: TransactionsArgs) -> Result<(), Failure> {
    let TransactionsArgs { bootstrap_server, command_config, mut action } = transactions;
    action.cluster().fall_back(bootstrap_server, command_config);
    match action {
        TransactionsCommand::List(list) => list::run(&list),
        TransactionsCommand::Describe(describe) => list::describe(&describe),
        TransactionsCommand::DescribeProducers(describe) => producers::run(&describe),
        TransactionsCommand::Abort(abort) => abort::run(&abort),
        TransactionsCommand::FindHanging(find) => hanging::run(&find),
        TransactionsCommand::ForceTerminate(force) => abort::force(&force),
    }
}

/// Returns the present time in ms since 1970.
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// Prints a table in the form of kafka-transactions.sh.
fn print(rows: &[Vec<String>]) {
    table(rows).iter().for_each(|text| line(text));
}

/// Returns the table in the form of kafka-transactions.sh. Columns are as wide as their longest cell, and each is
/// followed by a tab. A cell that is wider than [`WIDTH_MAX`] does not widen its column, while Kafka's tool pads every
/// row to the width of such a cell.
fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).filter(|width| *width <= WIDTH_MAX).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let cell = |(cell, width): (&String, &usize)| format!("{cell:width$}\t");
    rows.iter().map(|row| row.iter().zip(&widths).map(cell).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, table::row, tests::parse};

    #[test]
    fn kafkas_flags_of_transactions_are_accepted() {
        for line in [
            "fullbore transactions list --bootstrap-server h:1 --duration-filter 1000 --transactional-id-pattern a.*",
            "fullbore transactions describe --transactional-id a --json",
            "fullbore transactions describe-producers --topic a --partition 0 --broker-id 1",
            "fullbore transactions abort --topic a --partition 0 --start-offset 7",
            "fullbore transactions abort --topic a --partition 0 --start-offset 7 --force",
            "fullbore transactions abort --topic a --partition 0 --producer-id 1 --producer-epoch 2 --coordinator-epoch 3",
            "fullbore transactions find-hanging --broker-id 1 --max-transaction-timeout 15",
            "fullbore transactions find-hanging --topic a --partition 0",
            "fullbore transactions --bootstrap-server h:1 --command-config f list",
            "fullbore transactions -b h:1 find-hanging --topic a",
            "fullbore transactions forceTerminateTransaction --transactionalId a",
            "fullbore transactions force-terminate --transactional-id a",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "fullbore transactions abort --topic a --partition 0",
            "fullbore transactions abort --topic a --partition 0 --producer-id 1",
            "fullbore transactions find-hanging",
            "fullbore transactions find-hanging --partition 0",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_cluster_before_the_action_is_used_unless_one_follows_it() {
        for (line, expected) in [
            ("fullbore transactions --bootstrap-server a:1 list", "a:1"),
            ("fullbore transactions --bootstrap-server a:1 list --bootstrap-server b:1", "b:1"),
            ("fullbore transactions describe --transactional-id x -b b:1", "b:1"),
        ] {
            let Command::Transactions(mut args) = parse(line).expect("flags").command else { panic!("{line}") };
            args.action.cluster().fall_back(args.bootstrap_server, args.command_config);
            assert_eq!(args.action.cluster().named(), Some(expected), "{line}");
        }
    }

    #[test]
    fn an_action_without_either_of_two_flags_names_both() {
        for (line, expected) in [
            ("fullbore transactions find-hanging", "<--topic <TOPIC>|--broker-id <ID>>"),
            ("fullbore transactions abort --topic a --partition 0", "<--start-offset <OFFSET>|--producer-id <ID>>"),
        ] {
            let refused = parse(line).expect_err("a flag is missing").to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn a_very_long_cell_does_not_pad_other_rows() {
        let long = "x".repeat(WIDTH_MAX + 1);
        let rows = [["Id", "State"], ["a-very-short-one", "Empty"], [&long, "Ongoing"]].map(row).to_vec();
        let expected = [
            "Id              \tState  \t".to_owned(),
            "a-very-short-one\tEmpty  \t".to_owned(),
            format!("{long}\tOngoing\t"),
        ];
        assert_eq!(table(&rows), expected);
    }

    /// The expected table was captured from Kafka 4.3.1.
    #[test]
    fn the_table_of_transactions_is_kafkas() {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let rows = [
            row(["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]),
            row(["k1-id-0", "3", "11000", "CompleteAbort"]),
        ];
        assert_eq!(
            table(&rows),
            [
                "TransactionalId\tCoordinator\tProducerId\tTransactionState\t",
                "k1-id-0        \t3          \t11000     \tCompleteAbort   \t",
            ]
        );
    }
}
