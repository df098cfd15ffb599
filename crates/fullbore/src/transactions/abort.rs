//! `transactions abort` and `transactions forceTerminateTransaction` end transactions.

use super::hanging::coordinated;
use super::now_ms;
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{name, words};
use clap::{ArgGroup, Args};
use fullbore_client::admin::{
    AbortMarker, Termination, TransactionDescription, abort_transaction, describe_producers, force_terminate,
    list_transactions,
};
use fullbore_client::blocking::{Cluster, Listed};

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("which").required(true)))]
pub struct Abort {
    /// The topic.
    #[arg(long)]
    topic: String,
    /// The partition.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    partition: i32,
    /// The first offset of the transaction; the command looks up the producer.
    #[arg(long, value_name = "OFFSET", group = "which", value_parser = clap::value_parser!(i64).range(0..))]
    start_offset: Option<i64>,
    /// The id of the producer, if it is known, together with both epochs.
    #[arg(long, value_name = "ID", group = "which", requires_all = ["producer_epoch", "coordinator_epoch"], value_parser = clap::value_parser!(i64).range(0..))]
    producer_id: Option<i64>,
    /// The epoch of the producer.
    #[arg(long, value_name = "EPOCH", requires = "producer_id", value_parser = clap::value_parser!(i16).range(0..))]
    producer_epoch: Option<i16>,
    /// The epoch of the coordinator; -1, as describe-producers shows it, if no coordinator has ended a transaction of
    /// the producer in this partition.
    #[arg(long, value_name = "EPOCH", requires = "producer_id", value_parser = clap::value_parser!(i32).range(-1..))]
    coordinator_epoch: Option<i32>,
    /// Abort even if the transaction is open at its coordinator, or the coordinator does not respond: the producer then
    /// continues, and may commit its other records.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub(super) at: Where,
}

#[derive(Args, Debug)]
pub struct ForceTerminate {
    /// The transactional id.
    #[arg(long, alias = "transactionalId", value_name = "ID")]
    transactional_id: String,
    #[command(flatten)]
    pub(super) at: Where,
}

/// Aborts the transaction.
pub fn run(of: &Abort) -> Result<(), Failure> {
    let mut cluster = of.at.cluster(client_id::TRANSACTIONS)?;
    let marker = match (of.start_offset, of.producer_id, of.producer_epoch, of.coordinator_epoch) {
        (_, Some(producer_id), Some(producer_epoch), Some(coordinator_epoch)) => {
            AbortMarker { producer_id, producer_epoch, coordinator_epoch }
        }
        (start_offset, ..) => {
            let producers = describe_producers(&mut cluster, &of.topic, of.partition, None)?;
            let found = producers.into_iter().find(|producer| producer.open_from == start_offset);
            let (topic, partition) = (&of.topic, of.partition);
            let missing = || {
                let offset = start_offset.unwrap_or_default();
                Failure::new(format!(
                    "no open transaction begins at offset {offset} of partition {partition} of topic '{topic}'; see `fullbore transactions describe-producers`"
                ))
            };
            let found = found.ok_or_else(missing)?;
            let producer_epoch = i16::try_from(found.producer_epoch).unwrap_or(i16::MAX);
            let (producer_id, coordinator_epoch) = (found.producer_id, found.coordinator_epoch);
            AbortMarker { producer_id, producer_epoch, coordinator_epoch }
        }
    };
    if !of.force {
        refuse_coordinated(&mut cluster, &(of.topic.clone(), of.partition), marker.producer_id)?;
    }
    abort_transaction(&mut cluster, &of.topic, of.partition, marker)?;
    words(&format!(
        "Aborted the transaction of producer {} in partition {} of topic {}.",
        marker.producer_id, of.partition, of.topic
    ));
    Ok(())
}

/// Refuses to abort a transaction that is open at its coordinator. Kafka's tool aborts it nevertheless. The producer is
/// then not fenced, and commits its records in other partitions.
///
/// # Errors
/// Fails if the transaction is open at its coordinator, or if a coordinator does not respond.
fn refuse_coordinated(cluster: &mut Cluster, place: &(String, i32), producer_id: i64) -> Result<(), Failure> {
    let found = list_transactions(cluster, -1, None)
        .and_then(Listed::whole)
        .and_then(|listed| coordinated(cluster, &listed, producer_id, place))
        .map_err(|error| {
            Failure::new(format!(
                "cannot find out whether the transaction of producer {producer_id} is open at a coordinator: {error}; \
                 --force aborts the transaction without this check"
            ))
        })?;
    found.map_or(Ok(()), |open| Err(coordinated_refusal(&open, now_ms())))
}

/// Returns the error, with the next step, if the user wants to abort a transaction that is open at its coordinator.
fn coordinated_refusal(open: &TransactionDescription, now_ms: i64) -> Failure {
    let id = name(&open.transactional_id);
    let age = open.start_ms.map_or_else(String::new, |start| {
        format!(" for {:.1} s of transaction.timeout.ms={}", (now_ms - start).max(0) as f64 / 1e3, open.timeout_ms)
    });
    Failure::new(format!(
        "the transaction does not hang: the coordinator of transactional id '{id}' knows it ({}{age}), and after an \
         abort in this partition the producer could still commit its other records; end the whole transaction with \
         `fullbore transactions forceTerminateTransaction --transactional-id {id}`, or abort it in this partition \
         alone with --force",
        open.state
    ))
}

/// Ends the transaction of a transactional id. Refuses an unknown id, because fencing would create this id and thus
/// hide a typing error.
pub fn force(of: &ForceTerminate) -> Result<(), Failure> {
    let mut cluster = of.at.cluster(client_id::TRANSACTIONS)?;
    let id = name(&of.transactional_id);
    words(&match force_terminate(&mut cluster, &of.transactional_id)? {
        Termination::Ended => format!("Fenced the producer of {id}; a transaction that was open is aborted."),
        Termination::Ending => format!(
            "Fenced the producer of {id}; the abort of its transaction is decided, and the coordinator repeats it until \
             every partition has the marker."
        ),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_transaction_is_refused_with_its_id_age_and_both_next_steps() {
        let open = TransactionDescription {
            transactional_id: "billing".to_owned(),
            coordinator: 1,
            producer_id: 7,
            producer_epoch: 0,
            state: "Ongoing".to_owned(),
            timeout_ms: 60_000,
            start_ms: Some(10_000),
            partitions: vec![("orders".to_owned(), 0)],
        };
        let refusal = coordinated_refusal(&open, 12_500).to_string();
        assert!(
            refusal.contains("transactional id 'billing' knows it (Ongoing for 2.5 s of transaction.timeout.ms=60000)")
        );
        assert!(refusal.contains("--transactional-id billing`") && refusal.ends_with("with --force"), "{refusal}");
        let refusal = coordinated_refusal(&TransactionDescription { start_ms: None, ..open }, 0).to_string();
        assert!(refusal.contains("knows it (Ongoing), and"), "{refusal}");
    }
}
