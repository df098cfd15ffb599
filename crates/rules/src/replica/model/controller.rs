//! A controller that elects leaders and manages the ISR. It is Kafka's `ReplicationControlManager` for a single
//! partition, without the ELR.

use super::Fault;
use crate::replica::{AlterPartition, BrokerRegistration, Brokers, NO_BROKER_EPOCH, PartitionRegistration};
use fullbore_wire::ErrorCode;

/// The cluster's metadata, which brokers copy.
#[derive(Clone, Debug)]
pub struct Controller {
    pub partition: PartitionRegistration,
    pub brokers: Brokers,
    fault: Option<Fault>,
}

impl Controller {
    pub fn new(ids: [i32; 3], fault: Option<Fault>) -> Controller {
        let brokers = ids.map(|id| (id, BrokerRegistration { epoch: 1, ..Default::default() })).into();
        let partition = PartitionRegistration {
            replicas: ids.to_vec(),
            isr: ids.to_vec(),
            elr: Vec::new(),
            lost: Vec::new(),
            leader: Some(ids[0]),
            leader_epoch: 0,
            partition_epoch: 0,
        };
        Controller { partition, brokers, fault }
    }

    fn broker(&mut self, id: i32) -> &mut BrokerRegistration {
        self.brokers.get_mut(&id).expect("three brokers are registered")
    }

    /// Fences a broker that the controller considers failed. The broker loses the leadership. It also leaves the ISR,
    /// unless it is the last member.
    pub fn fence(&mut self, id: i32) {
        self.broker(id).is_fenced = true;
        let partition = &mut self.partition;
        let leaves = partition.isr.contains(&id) && partition.isr.len() > 1;
        if leaves {
            partition.isr.retain(|member| *member != id);
        }
        if partition.leader == Some(id) {
            partition.leader = None;
            self.elect();
        } else if leaves {
            partition.partition_epoch += 1;
        }
    }

    pub fn unfence(&mut self, id: i32) {
        self.broker(id).is_fenced = false;
        if self.partition.leader.is_none() {
            self.elect();
        }
    }

    /// Makes the broker the leader if it is eligible.
    pub fn prefer(&mut self, id: i32) {
        let partition = &mut self.partition;
        if partition.isr.contains(&id) && partition.leader != Some(id) && !self.brokers[&id].is_fenced {
            partition.leader = Some(id);
            partition.leader_epoch += 1;
            partition.partition_epoch += 1;
        }
    }

    /// Registers a restarted broker, and returns its new epoch.
    pub fn register(&mut self, id: i32) -> i64 {
        self.fence(id);
        self.broker(id).epoch += 1;
        self.unfence(id);
        self.brokers[&id].epoch
    }

    fn elect(&mut self) {
        let is_unclean = self.fault == Some(Fault::UncleanElection);
        let from = if is_unclean { &self.partition.replicas } else { &self.partition.isr };
        let leader = from.iter().copied().find(|id| !self.brokers[id].is_fenced);
        let partition = &mut self.partition;
        partition.leader = leader;
        if let Some(leader) = leader.filter(|leader| !partition.isr.contains(leader)) {
            partition.isr = vec![leader];
        }
        partition.leader_epoch += 1;
        partition.partition_epoch += 1;
    }

    /// Handles a leader's request to change the ISR.
    pub fn alter(&mut self, from: i32, requested: &AlterPartition) -> Result<PartitionRegistration, ErrorCode> {
        if self.partition.leader != Some(from) || requested.leader_epoch != self.partition.leader_epoch {
            return Err(ErrorCode::FENCED_LEADER_EPOCH);
        }
        if requested.partition_epoch != self.partition.partition_epoch && self.fault != Some(Fault::AnyPartitionEpoch) {
            return Err(ErrorCode::INVALID_UPDATE_VERSION);
        }
        let is_checked = self.fault != Some(Fault::AnyBrokerEpoch);
        let is_eligible = |member: &crate::replica::BrokerState| {
            let broker = &self.brokers[&member.broker_id];
            let is_same = member.broker_epoch == NO_BROKER_EPOCH || member.broker_epoch == broker.epoch;
            !is_checked || (!broker.is_fenced && is_same)
        };
        if !requested.new_isr.iter().all(is_eligible) {
            return Err(ErrorCode::INELIGIBLE_REPLICA);
        }
        self.partition.isr = requested.new_isr.iter().map(|member| member.broker_id).collect();
        self.partition.partition_epoch += 1;
        Ok(self.partition.clone())
    }
}
