//! `transactions list` and `transactions describe` print transactional ids.

use super::{now_ms, print};
use crate::client::Where;
use crate::client_id;
use crate::failure::{Failure, completeness};
use crate::output::{Format, line, name};
use crate::table::row;
use clap::Args;
use fullbore_bench::report::json::{array, list, object, plain, string};
use fullbore_client::admin::{TransactionDescription, TransactionListing, describe_transaction, list_transactions};

/// The value of the duration filter with which brokers list all transactions.
const ALL: i64 = -1;

#[derive(Args, Debug)]
pub struct List {
    /// Only transactions that have been open for more than this many milliseconds; all if negative.
    #[arg(long, value_name = "MS", default_value_t = ALL, hide_default_value = true)]
    duration_filter: i64,
    /// Only ids whose whole text matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    transactional_id_pattern: Option<String>,
    #[command(flatten)]
    pub(super) at: Where,
    #[command(flatten)]
    format: Format,
}

#[derive(Args, Debug)]
pub struct Describe {
    /// The transactional id.
    #[arg(long, value_name = "ID")]
    transactional_id: String,
    #[command(flatten)]
    pub(super) at: Where,
    #[command(flatten)]
    format: Format,
}

/// Prints all transactional ids.
pub fn run(of: &List) -> Result<(), Failure> {
    of.format.choose();
    let mut cluster = of.at.cluster(client_id::TRANSACTIONS)?;
    let listed = list_transactions(&mut cluster, of.duration_filter, of.transactional_id_pattern.as_deref())?;
    let (found, failed) = listed.parts()?;
    if of.format.json {
        line(&object([("transactions", array(found.iter().map(listing)))]));
        return completeness(failed);
    }
    let mut rows = vec![row(["TransactionalId", "Coordinator", "ProducerId", "TransactionState"])];
    rows.extend(found.iter().map(|found| {
        let (coordinator, producer_id) = (found.coordinator.to_string(), found.producer_id.to_string());
        row([&name(&found.transactional_id), &coordinator, &producer_id, &found.state])
    }));
    print(&rows);
    completeness(failed)
}

fn listing(found: &TransactionListing) -> String {
    object([
        ("transactional_id", string(&found.transactional_id)),
        ("coordinator", found.coordinator.to_string()),
        ("producer_id", found.producer_id.to_string()),
        ("state", string(&found.state)),
    ])
}

/// Prints the state of a transactional id.
pub fn describe(of: &Describe) -> Result<(), Failure> {
    of.format.choose();
    let mut cluster = of.at.cluster(client_id::TRANSACTIONS)?;
    let found = describe_transaction(&mut cluster, &of.transactional_id)?;
    if of.format.json {
        line(&document(&found));
        return Ok(());
    }
    let heading = [
        "CoordinatorId",
        "TransactionalId",
        "ProducerId",
        "ProducerEpoch",
        "TransactionState",
        "TransactionTimeoutMs",
        "CurrentTransactionStartTimeMs",
        "TransactionDurationMs",
        "TopicPartitions",
    ];
    let now = now_ms();
    let none = || "None".to_owned();
    let partitions: Vec<_> = found.partitions.iter().map(|(topic, partition)| format!("{topic}-{partition}")).collect();
    let cells = [
        found.coordinator.to_string(),
        name(&found.transactional_id).into_owned(),
        found.producer_id.to_string(),
        found.producer_epoch.to_string(),
        found.state.clone(),
        found.timeout_ms.to_string(),
        found.start_ms.map_or_else(none, |start| start.to_string()),
        found.start_ms.map_or_else(none, |start| (now - start).to_string()),
        partitions.join(","),
    ];
    print(&[row(heading), cells.to_vec()]);
    Ok(())
}

fn document(found: &TransactionDescription) -> String {
    let partition =
        |(topic, partition): &(String, i32)| object([("topic", string(topic)), ("partition", partition.to_string())]);
    object([
        ("transactional_id", string(&found.transactional_id)),
        ("coordinator", found.coordinator.to_string()),
        ("producer_id", found.producer_id.to_string()),
        ("producer_epoch", found.producer_epoch.to_string()),
        ("state", string(&found.state)),
        ("timeout_ms", found.timeout_ms.to_string()),
        ("start_ms", plain(found.start_ms)),
        ("partitions", list(found.partitions.iter().map(partition))),
    ])
}
