//! The metadata of the cluster, and the commands that change it. The rules decide their outcome.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_rules::cluster::{
    Joining, LogEndReport, Member, PreviousShutdown, alter_isr, elect_preferred, follow_up, register, replace, without,
};
use fullbore_rules::replica::{AlterPartition, BrokerState, Brokers, PartitionRegistration};
use fullbore_wire::ErrorCode;

use crate::fault::Fault;

/// A version of the metadata, with the brokers and the only partition.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub members: BTreeMap<i32, Member>,
    pub brokers: Brokers,
    pub partition: PartitionRegistration,
    /// The log ends that brokers have reported since the partition lost its leader.
    pub ends: Vec<LogEndReport>,
    pub min_insync_replicas: usize,
}

/// The number and nonce that identify a version.
pub type SeenVersion = Option<(usize, u64)>;

/// A version of the metadata as the database returns it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub number: usize,
    pub nonce: u64,
    pub cluster: Arc<Cluster>,
}

#[derive(Clone, Debug)]
pub enum Command {
    Register {
        id: i32,
        joining: Joining,
    },
    /// Unfences a broker that has read the metadata and may take part.
    Unfence(BrokerState),
    /// A broker is considered failed.
    Fence(BrokerState),
    /// A broker is about to stop.
    ShutDown(BrokerState),
    /// The broker has stopped.
    Stopped(BrokerState),
    /// The disk of the broker is full.
    Full(BrokerState),
    /// The disk of the broker has room again.
    Room(BrokerState),
    Alter {
        from: BrokerState,
        requested: AlterPartition,
    },
    ReportEnd(LogEndReport),
    ElectPreferred,
    /// A later piece of a change such as a registration. It adapts the partition to the newest state of the brokers.
    Settle,
}

impl Cluster {
    /// Creates the metadata of partition 0 on brokers 1 to `replicas`, none of which is registered.
    pub fn new(replicas: i32, min_insync_replicas: usize) -> Cluster {
        let partition = PartitionRegistration {
            replicas: (1..=replicas).collect(),
            isr: (1..=replicas).collect(),
            ..PartitionRegistration::default()
        };
        let (members, brokers) = (BTreeMap::new(), Brokers::new());
        Cluster { members, brokers, partition, ends: Vec::new(), min_insync_replicas }
    }

    /// Returns the cluster after the command. `None` if the command changes nothing. A change of brokers (registration,
    /// fencing, shutdown, full disk) is decided in pieces, each for some partitions. `is_in_first_piece` is true if the
    /// first piece contains this partition.
    pub fn decide(
        &self,
        command: &Command,
        is_in_first_piece: bool,
        fault: Option<Fault>,
    ) -> Result<Option<Cluster>, ErrorCode> {
        let mut next = self.clone();
        match command {
            Command::Register { id, joining } => {
                let before = self.members.get(id);
                if before.is_some_and(|before| before.process == joining.process) {
                    return Ok(None);
                }
                let epoch = 1 + self.members.values().map(|member| member.registration.epoch).max().unwrap_or(0);
                let (mut member, ended) = register(before, joining, epoch)?;
                member.registration.is_fenced = false;
                let ended = before.map_or(PreviousShutdown::Clean, |_| ended);
                let others = without(&self.brokers, *id);
                let replaced = replace(&next.partition, *id, ended, &others, self.min_insync_replicas);
                let is_later = !is_in_first_piece && replaced.is_some();
                if is_later && fault == Some(Fault::RegistersBeforeItHandsOver) {
                    next.members.insert(*id, member);
                    next.brokers.insert(*id, member.registration);
                    return Ok(Some(next));
                }
                if is_later && let Some(former) = next.members.get_mut(id) {
                    // This partition is not in the first piece, which only fences the former process. The new process
                    // requests the remaining pieces, and is registered after them.
                    if former.registration.is_fenced {
                        return Ok(None);
                    }
                    former.registration.is_fenced = true;
                    next.brokers = others;
                    return Ok(Some(next));
                }
                next.members.insert(*id, member);
                next.partition = replaced.unwrap_or(next.partition);
            }
            Command::Unfence(of) => next.of(of)?.registration.is_fenced = false,
            Command::Fence(whom) => next.of(whom)?.registration.is_fenced = true,
            Command::ShutDown(of) => next.of(of)?.registration.is_shutting_down = true,
            Command::Stopped(of) => next.of(of)?.registration.is_fenced = true,
            Command::Full(of) => next.of(of)?.registration.is_full = true,
            Command::Room(of) => next.of(of)?.registration.is_full = false,
            Command::Alter { from, requested } => {
                let mut requested = requested.clone();
                if fault == Some(Fault::AdmitsOldBrokerEpoch) {
                    requested.new_isr.iter_mut().for_each(|member| member.broker_epoch = -1);
                }
                if fault == Some(Fault::ComparesNoEpoch) {
                    requested.leader_epoch = self.partition.leader_epoch;
                    requested.partition_epoch = self.partition.partition_epoch;
                }
                next.partition =
                    alter_isr(&self.partition, &self.brokers, self.min_insync_replicas, *from, &requested)?;
                return Ok((next.partition != self.partition).then_some(next));
            }
            Command::ReportEnd(end) => {
                next.ends.retain(|other| other.broker_id != end.broker_id);
                next.ends.push(*end);
            }
            Command::Settle => {
                next.follow_up();
                return Ok((next.partition != self.partition).then_some(next));
            }
            Command::ElectPreferred => {
                next.partition = elect_preferred(&self.partition, &self.brokers, self.min_insync_replicas)?;
            }
        }
        let is_of_brokers =
            !matches!(command, Command::ReportEnd(_) | Command::ElectPreferred | Command::Register { .. });
        match is_of_brokers && !is_in_first_piece {
            true => next.follow_members(),
            false => next.follow_up(),
        }
        Ok(Some(next))
    }

    /// Returns true if [`Cluster::follow_up`] would change nothing.
    pub fn is_settled(&self) -> bool {
        let mut next = self.clone();
        next.follow_up();
        next.partition == self.partition
    }

    fn of(&mut self, broker: &BrokerState) -> Result<&mut Member, ErrorCode> {
        let member = self.members.get_mut(&broker.broker_id).ok_or(ErrorCode::BROKER_ID_NOT_REGISTERED)?;
        let is_same = member.registration.epoch == broker.broker_epoch;
        if is_same { Ok(member) } else { Err(ErrorCode::STALE_BROKER_EPOCH) }
    }

    fn follow_members(&mut self) {
        self.brokers = self.members.iter().map(|(id, member)| (*id, member.registration)).collect();
    }

    /// Adapts the partition to the new state of the brokers.
    fn follow_up(&mut self) {
        self.follow_members();
        let settled = follow_up(&self.partition, &self.brokers, self.min_insync_replicas, &self.ends, false);
        if let Some(settled) = settled {
            self.partition = settled;
            self.ends.retain(|_| self.partition.leader.is_none());
        }
    }
}
