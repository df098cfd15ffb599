//! The ISR that a leader asks for (KIP-497, Kafka's `AlterPartition`).

use fullbore_wire::ErrorCode;

use super::election::set_isr;
use crate::replica::{AlterPartition, BrokerState, Brokers, NO_BROKER_EPOCH, PartitionRegistration};

/// The partition with the ISR that `from` asks for; the same, if it is so already.
///
/// # Errors
/// STALE_BROKER_EPOCH from a process that has been replaced; FENCED_LEADER_EPOCH from who does not lead in that epoch;
/// INVALID_UPDATE_VERSION where something else changed first; INVALID_REQUEST for an ISR without its leader, with somebody twice
/// or with who has no replica; INELIGIBLE_REPLICA for a member that is not there, is about to stop, or is another process
/// than the one that fetched.
pub fn alter_isr(
    partition: &PartitionRegistration,
    brokers: &Brokers,
    min_isr: usize,
    from: BrokerState,
    asked: &AlterPartition,
) -> Result<PartitionRegistration, ErrorCode> {
    if brokers.get(&from.broker_id).is_none_or(|broker| broker.epoch != from.broker_epoch) {
        return Err(ErrorCode::STALE_BROKER_EPOCH);
    }
    if partition.leader != Some(from.broker_id) || asked.leader_epoch != partition.leader_epoch {
        return Err(ErrorCode::FENCED_LEADER_EPOCH);
    }
    if asked.partition_epoch != partition.partition_epoch {
        return Err(ErrorCode::INVALID_UPDATE_VERSION);
    }
    let isr: Vec<i32> = asked.new_isr.iter().map(|member| member.broker_id).collect();
    let is_twice = |(at, id): (usize, &i32)| isr[..at].contains(id);
    let is_a_replica = |id: &i32| partition.replicas.contains(id);
    if !isr.contains(&from.broker_id) || !isr.iter().all(is_a_replica) || isr.iter().enumerate().any(is_twice) {
        return Err(ErrorCode::INVALID_REQUEST);
    }
    let is_eligible = |member: &BrokerState| {
        let is_leader = member.broker_id == from.broker_id;
        brokers.get(&member.broker_id).is_some_and(|broker| {
            let is_the_same = member.broker_epoch == NO_BROKER_EPOCH || member.broker_epoch == broker.epoch;
            is_leader || (is_the_same && !broker.is_fenced && !broker.is_shutting_down)
        })
    };
    if !asked.new_isr.iter().all(is_eligible) {
        return Err(ErrorCode::INELIGIBLE_REPLICA);
    }
    let mut next = partition.clone();
    if isr != next.isr {
        set_isr(&mut next, isr, min_isr);
        next.partition_epoch += 1;
    }
    Ok(next)
}
