//! Decides on changes of the ISR that a leader requests (KIP-497, Kafka's `AlterPartition`).

use fullbore_wire::ErrorCode;

use super::election::{is_fit, set_isr, settle};
use crate::replica::{AlterPartition, BrokerState, Brokers, NO_BROKER_EPOCH, PartitionRegistration};

/// Returns the partition with the ISR that the leader `from` requests, or unchanged if it already has this ISR. If the
/// leader is about to stop or has a full disk, a member of the new ISR becomes the leader.
///
/// # Errors
///
/// - STALE_BROKER_EPOCH: another process has replaced the sender.
/// - FENCED_LEADER_EPOCH: the sender does not lead in this epoch.
/// - INVALID_UPDATE_VERSION: the partition has changed since the leader made this request.
/// - INVALID_REQUEST: the ISR lacks its leader, lists a member twice, or lists a broker that has no replica.
/// - INELIGIBLE_REPLICA: a member is fenced, is about to stop, joins with a full disk, or has registered again since
///   its last fetch.
pub fn alter_isr(
    partition: &PartitionRegistration,
    brokers: &Brokers,
    min_isr: usize,
    from: BrokerState,
    requested: &AlterPartition,
) -> Result<PartitionRegistration, ErrorCode> {
    if brokers.get(&from.broker_id).is_none_or(|broker| broker.epoch != from.broker_epoch) {
        return Err(ErrorCode::STALE_BROKER_EPOCH);
    }
    if partition.leader != Some(from.broker_id) || requested.leader_epoch != partition.leader_epoch {
        return Err(ErrorCode::FENCED_LEADER_EPOCH);
    }
    if requested.partition_epoch != partition.partition_epoch {
        return Err(ErrorCode::INVALID_UPDATE_VERSION);
    }
    let isr: Vec<i32> = requested.new_isr.iter().map(|member| member.broker_id).collect();
    let is_twice = |(at, id): (usize, &i32)| isr[..at].contains(id);
    let is_a_replica = |id: &i32| partition.replicas.contains(id);
    if !isr.contains(&from.broker_id) || !isr.iter().all(is_a_replica) || isr.iter().enumerate().any(is_twice) {
        return Err(ErrorCode::INVALID_REQUEST);
    }
    let is_eligible = |member: &BrokerState| {
        let is_leader = member.broker_id == from.broker_id;
        brokers.get(&member.broker_id).is_some_and(|broker| {
            let is_the_same = member.broker_epoch == NO_BROKER_EPOCH || member.broker_epoch == broker.epoch;
            // A member of the ISR with a full disk passes this check. [`settle`] removes it.
            let may = broker.is_fit() || (broker.stays() && partition.isr.contains(&member.broker_id));
            is_leader || (is_the_same && may)
        })
    };
    if !requested.new_isr.iter().all(is_eligible) {
        return Err(ErrorCode::INELIGIBLE_REPLICA);
    }
    let mut next = partition.clone();
    if isr != next.isr {
        set_isr(&mut next, isr, min_isr);
        next.partition_epoch += 1;
        if !is_fit(brokers, from.broker_id) {
            next = settle(&next, brokers, min_isr).unwrap_or(next);
        }
    }
    Ok(next)
}
