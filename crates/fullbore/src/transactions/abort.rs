//! `transactions abort` and `transactions forceTerminateTransaction`.

use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{name, words};
use clap::{ArgGroup, Args};
use fullbore_client::admin::{AbortMarker, abort_transaction, describe_producers, describe_transaction, fence};

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("which").required(true)))]
pub struct Abort {
    /// The topic.
    #[arg(long)]
    topic: String,
    /// The partition.
    #[arg(long, value_name = "NUMBER")]
    partition: i32,
    /// The first offset of the transaction; its producer is looked up.
    #[arg(long, value_name = "OFFSET", group = "which")]
    start_offset: Option<i64>,
    /// The producer, where it is known, with both epochs.
    #[arg(long, value_name = "ID", group = "which", requires_all = ["producer_epoch", "coordinator_epoch"])]
    producer_id: Option<i64>,
    /// The epoch of the producer.
    #[arg(long, value_name = "EPOCH", requires = "producer_id")]
    producer_epoch: Option<i16>,
    /// The epoch of the coordinator.
    #[arg(long, value_name = "EPOCH", requires = "producer_id")]
    coordinator_epoch: Option<i32>,
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
    abort_transaction(&mut cluster, &of.topic, of.partition, marker)?;
    words(&format!(
        "Aborted the transaction of producer {} in partition {} of topic {}.",
        marker.producer_id, of.partition, of.topic
    ));
    Ok(())
}

/// Ends the transaction of an id. An unknown id is refused: fencing would create it, and hide the mistake.
pub fn force(of: &ForceTerminate) -> Result<(), Failure> {
    let mut cluster = of.at.cluster(client_id::TRANSACTIONS)?;
    describe_transaction(&mut cluster, &of.transactional_id)?;
    fence(&mut cluster, &of.transactional_id)?;
    words(&format!("Fenced the producer of {}; a transaction that was open is aborted.", name(&of.transactional_id)));
    Ok(())
}
