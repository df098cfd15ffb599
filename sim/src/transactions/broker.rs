//! Process of a broker: its state in memory and its copies of partitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::diskless::Pipeline;
use super::entry::{BrokerId, Entry, PARTITIONS, PartitionId, Payload, TransactionalId};
use super::fault::Fault;
use super::message::{BrokerProcess, ClientRequest, Marking};
use super::replica::Moment;
use fullbore_rules::group::PendingOffsets;
use fullbore_rules::transaction::{RequestTicket, Transaction, TransactionMetadata};

/// Sender of a request for a transactional id.
#[derive(Clone, Debug)]
pub enum Asker {
    Client(ClientRequest),
    /// Broker in which a batch waits: its process, the number of the waiting batch, and the epoch of the coordinator.
    Broker(BrokerProcess, u64, i32),
}

/// Record in flight.
#[derive(Debug)]
pub struct InFlight {
    /// End of the log after the record; None if the append failed.
    pub end: Option<usize>,
    /// True if the append counts as failed although the record may be written.
    pub is_in_doubt: bool,
    /// True if the record must be flushed before it has any effect.
    pub is_flushed: bool,
}

/// Machine of a transactional id at its coordinator.
#[derive(Debug)]
pub struct Machine {
    pub transaction: Transaction,
    pub waiting: BTreeMap<RequestTicket, Asker>,
    pub in_flight: Option<InFlight>,
    pub needs_id: bool,
    /// Markers without a response, which are resent.
    pub markings: Vec<Marking>,
}

impl Machine {
    pub fn new(transaction: Transaction) -> Machine {
        Machine { transaction, waiting: BTreeMap::new(), in_flight: None, needs_id: false, markings: Vec::new() }
    }
}

/// Coordinator of one partition of `__transaction_state`, in one leader epoch.
#[derive(Debug)]
pub struct Coordinator {
    pub epoch: i32,
    pub is_loaded: bool,
    pub machines: BTreeMap<TransactionalId, Machine>,
}

/// Batch that waits for the coordinator's confirmation.
#[derive(Debug)]
pub struct Parked {
    pub asked: ClientRequest,
    /// State of the producer's transactions before the request to the coordinator.
    pub since: Moment,
}

/// Request that waits until a log is replicated up to an offset.
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

/// Offsets of groups, in the memory of their coordinator.
#[derive(Debug, Default)]
pub struct GroupOffsets {
    /// Offset in the log before which all entries are applied.
    upto: usize,
    held: BTreeMap<TransactionalId, u64>,
    pending: PendingOffsets<TransactionalId, u64>,
}

impl GroupOffsets {
    /// Applies the entries replicated since the last call.
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

    /// Returns true if all entries before this offset are applied.
    pub fn has(&self, high_watermark: usize) -> bool {
        self.upto == high_watermark
    }

    /// Returns the offset of a group; None while a transaction may change it.
    pub fn stable(&self, id: TransactionalId) -> Option<u64> {
        let is_stable = !self.pending.contains(&id);
        is_stable.then(|| self.held.get(&id).copied().unwrap_or_default())
    }
}

#[derive(Debug)]
pub struct Broker {
    pub at: BrokerId,
    pub is_up: bool,
    /// True while the broker does nothing, so that its knowledge becomes outdated.
    pub is_paused: bool,
    /// Number of starts.
    pub life: u32,
    /// Epoch and leader of each partition, by this broker's knowledge.
    pub known: Vec<(i32, BrokerId)>,
    pub coordinators: BTreeMap<PartitionId, Coordinator>,
    pub parked: BTreeMap<u64, Parked>,
    pub waiting: Vec<Waiting>,
    pub groups: Option<GroupOffsets>,
    /// Batches and markers for the diskless partition that this broker has admitted.
    pub pipeline: Pipeline,
    /// False while PUTs of the broker fail.
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

    /// Kills the process as kill -9 does.
    pub fn kill(&mut self) {
        *self = Broker { is_up: false, life: self.life, ..Broker::new(self.at) };
    }

    pub fn start(&mut self) {
        (self.is_up, self.life) = (true, self.life + 1);
    }
}

/// Returns the last state of each id in the entries.
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
