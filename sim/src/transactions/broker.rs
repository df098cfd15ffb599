//! A broker's process in the world of transactions: its memory and its copies of partitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::diskless::Pipeline;
use super::entry::{BrokerId, Entry, PARTITIONS, PartitionId, Payload, TransactionalId};
use super::fault::Fault;
use super::message::{BrokerProcess, ClientRequest, Marking};
use super::replica::Moment;
use fullbore_rules::group::PendingOffsets;
use fullbore_rules::transaction::{RequestTicket, Transaction, TransactionMetadata};

/// The sender of a request about a transactional id, which gets the response.
#[derive(Clone, Debug)]
pub enum Asker {
    Client(ClientRequest),
    /// A broker that requests the verification of a batch: its process, the batch's number, and the coordinator's
    /// epoch.
    Broker(BrokerProcess, u64, i32),
}

/// A state record that the coordinator is writing.
#[derive(Debug)]
pub struct InFlight {
    /// The end of the log after the record. `None` if the append failed.
    pub end: Option<usize>,
    /// True if the coordinator is notified of a failed append, although the record may be in the log.
    pub is_in_doubt: bool,
    /// True if the record must be flushed before it has any effect.
    pub is_flushed: bool,
}

/// State machine of one transactional id at its coordinator.
#[derive(Debug)]
pub struct Machine {
    pub transaction: Transaction,
    pub waiting: BTreeMap<RequestTicket, Asker>,
    pub in_flight: Option<InFlight>,
    pub needs_id: bool,
    /// Markers that were sent and have no response yet. They are resent.
    pub markings: Vec<Marking>,
}

impl Machine {
    pub fn new(transaction: Transaction) -> Machine {
        Machine { transaction, waiting: BTreeMap::new(), in_flight: None, needs_id: false, markings: Vec::new() }
    }
}

/// The coordinator of one partition of `__transaction_state` during one leader epoch.
#[derive(Debug)]
pub struct Coordinator {
    pub epoch: i32,
    pub is_loaded: bool,
    pub machines: BTreeMap<TransactionalId, Machine>,
}

/// A batch that waits until the coordinator confirms that its partition is in the transaction.
#[derive(Debug)]
pub struct Parked {
    pub requested: ClientRequest,
    /// The state of the partition and of the batch's producer when the broker requested the confirmation.
    pub since: Moment,
}

/// A request that waits until the log of a partition is replicated up to `end`.
#[derive(Debug)]
pub struct Waiting {
    pub partition: PartitionId,
    pub epoch: i32,
    pub end: usize,
    pub whom: Waiter,
}

#[derive(Debug)]
pub enum Waiter {
    Client(ClientRequest),
    Coordinator(BrokerProcess, Marking),
}

/// Committed offsets of the groups, as their coordinator has them in memory.
#[derive(Debug, Default)]
pub struct GroupOffsets {
    /// The offset of the first entry that is not applied yet.
    upto: usize,
    held: BTreeMap<TransactionalId, u64>,
    pending: PendingOffsets<TransactionalId, u64>,
}

impl GroupOffsets {
    /// Applies the entries that were replicated since the last call.
    pub fn apply(&mut self, log: &[Entry], high_watermark: usize, fault: Option<Fault>) {
        for entry in log.get(self.upto..high_watermark).unwrap_or_default() {
            match &entry.payload {
                Payload::Offset { id, upto, .. } => {
                    let _ = self.pending.put(entry.stamp.producer_id, *id, *upto);
                    if fault == Some(Fault::OffsetsHoldEarly) {
                        self.held.insert(*id, *upto);
                    }
                }
                Payload::Marker(marker) => {
                    self.held.extend(self.pending.end(marker.producer_id, marker.is_commit).applied);
                }
                _ => {}
            }
        }
        self.upto = self.upto.max(high_watermark);
    }

    /// Returns true if all entries before `high_watermark` are applied.
    pub fn has(&self, high_watermark: usize) -> bool {
        self.upto == high_watermark
    }

    /// Returns the offset of a group. `None` while an open transaction may change it.
    pub fn stable(&self, id: TransactionalId) -> Option<u64> {
        let is_stable = !self.pending.contains(&id);
        is_stable.then(|| self.held.get(&id).copied().unwrap_or_default())
    }
}

#[derive(Debug)]
pub struct Broker {
    pub at: BrokerId,
    pub is_up: bool,
    /// True while the broker does nothing. Its knowledge of the cluster becomes outdated.
    pub is_paused: bool,
    /// How many times the broker was started.
    pub life: u32,
    /// For each partition, the leader epoch and leader that this broker knows of.
    pub known: Vec<(i32, BrokerId)>,
    pub coordinators: BTreeMap<PartitionId, Coordinator>,
    pub parked: BTreeMap<u64, Parked>,
    pub waiting: Vec<Waiting>,
    pub groups: Option<GroupOffsets>,
    /// Batches and markers for the diskless partition that this broker is writing.
    pub pipeline: Pipeline,
    /// False while the broker cannot write to the object store.
    pub has_store: bool,
}

impl Broker {
    pub fn new(at: BrokerId) -> Broker {
        Broker {
            at,
            is_up: true,
            is_paused: false,
            life: 1,
            known: vec![(0, 0); PARTITIONS],
            coordinators: BTreeMap::new(),
            parked: BTreeMap::new(),
            waiting: Vec::new(),
            groups: None,
            pipeline: Pipeline::default(),
            has_store: true,
        }
    }

    pub fn process(&self) -> BrokerProcess {
        BrokerProcess { broker: self.at, life: self.life }
    }

    /// Kills the process, so that only its logs remain.
    pub fn kill(&mut self) {
        *self = Broker { is_up: false, life: self.life, ..Broker::new(self.at) };
    }

    pub fn start(&mut self) {
        (self.is_up, self.life) = (true, self.life + 1);
    }
}

/// Returns the last state of each transactional id in the log.
pub fn last_states(log: &[Entry]) -> BTreeMap<TransactionalId, Arc<TransactionMetadata>> {
    let mut found = BTreeMap::new();
    for entry in log {
        match &entry.payload {
            Payload::State(id, Some(state)) => drop(found.insert(*id, Arc::clone(state))),
            Payload::State(id, None) => drop(found.remove(id)),
            _ => {}
        }
    }
    found
}
