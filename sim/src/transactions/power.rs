//! Power losses of a standalone broker with `fullbore.transaction.flush`, and the end of transactions whose state was
//! lost. Models `transactions/flush.rs` and `transactions/unsettled.rs` of the broker.
//!
//! Invariant: everything that a commit depends on is flushed before the client gets the response.

use super::coordinate::Place;
use super::entry::{BrokerId, DISKLESS, PARTITIONS, PartitionId, STATE, name_of, place_of};
use super::fault::Fault;
use super::world::World;
use fullbore_rules::sequence::{Marker, ProducerState};
use fullbore_rules::transaction::{Transaction, TransactionMetadata, TransactionState};

impl World {
    /// Cuts the power of the standalone broker. The broker stops and loses a random part of its unflushed writes. The
    /// index and the store lose nothing.
    pub fn cut_power(&mut self) {
        if !self.brokers[0].is_up {
            return;
        }
        self.kill(0);
        for at in (0..PARTITIONS).filter(|at| *at != DISKLESS) {
            let partition = &mut self.partitions[at];
            partition.lose_end(&mut self.random);
            if let Some(reader) = self.readers.get_mut(at) {
                reader.position = reader.position.min(partition.committed.len());
            }
        }
        self.check.power_cut(&self.partitions);
        self.is_unsettled = true;
    }

    /// Flushes a log up to the offset `end`.
    pub fn flush(&mut self, at: PartitionId, end: usize) {
        let partition = &mut self.partitions[at];
        if self.fault != Some(Fault::FlushesNothing) {
            partition.flushed = partition.flushed.max(end);
        }
    }

    /// Flushes all writes on which the state `next` depends. Returns true if the state itself must be flushed, too.
    /// This applies to commits. It also applies to the start of a transaction of the old protocol, whose epoch is that
    /// of the transaction before it.
    pub fn flush_before(&mut self, next: &TransactionMetadata) -> bool {
        if next.state == TransactionState::PrepareCommit {
            for at in next.partitions.iter().map(place_of) {
                let end = self.partitions[at].replicas[self.partitions[at].leader].log.len();
                self.flush(at, end);
            }
            return true;
        }
        let begins = next.state == TransactionState::Ongoing && next.start_ms == next.last_update_ms;
        begins && !next.client_version.supports_epoch_bump()
    }

    /// Returns true if the records of transactional ids may be incomplete because of a power loss.
    pub fn may_lack_ends(&self) -> bool {
        self.is_unsettled && self.fault != Some(Fault::LoadsSure)
    }

    /// Settles transactions once after a power loss. Fences the clients of ids that may have lost records, and aborts
    /// the open transactions that no id knows of.
    pub fn settle_once(&mut self, broker: BrokerId) -> Result<(), String> {
        let is_loaded = |at: PartitionId| {
            self.brokers[broker].coordinators.get(&at).is_some_and(|coordinator| coordinator.is_loaded)
        };
        if !self.is_unsettled || !(STATE..PARTITIONS).all(is_loaded) {
            return Ok(());
        }
        let mut are_fenced = true;
        for place in self.places(broker) {
            if self.machine(place).is_some_and(|machine| machine.transaction.is_unsure()) {
                are_fenced = false;
                self.event(place, Transaction::fence_clients)?;
            }
        }
        if !are_fenced || !(0..STATE).all(|at| at == DISKLESS || self.partitions[at].is_led_by(broker)) {
            return Ok(());
        }
        let mut is_done = true;
        for at in 0..STATE {
            for open in self.open_unknown(broker, at) {
                is_done = false;
                self.abort_unknown(broker, at, &open)?;
            }
        }
        self.is_unsettled = !is_done;
        Ok(())
    }

    /// Returns the producers with an open transaction in the partition `at` that no transactional id knows of.
    fn open_unknown(&mut self, broker: BrokerId, at: PartitionId) -> Vec<ProducerState> {
        let looks = self.fault != Some(if at == DISKLESS { Fault::LooksInNoIndex } else { Fault::LooksInNoLog });
        let open = match at {
            DISKLESS => self.index.state.producers.iter().filter(|state| state.open_from.is_some()).collect(),
            _ => self.partitions[at].replicas[broker].open(),
        };
        let places: Vec<Place> = self.places(broker);
        open.into_iter().filter(|open| looks && !self.is_known(&places, open.producer_id, at)).collect()
    }

    fn is_known(&mut self, places: &[Place], producer_id: i64, at: PartitionId) -> bool {
        let has = |state: &TransactionMetadata| {
            let is_open = state.state == TransactionState::Ongoing || state.state.is_prepared();
            is_open && state.producer_id == producer_id && state.partitions.contains(&name_of(at))
        };
        places
            .iter()
            .any(|place| self.machine(*place).is_some_and(|machine| machine.transaction.describe().is_ok_and(has)))
    }

    fn abort_unknown(&mut self, broker: BrokerId, at: PartitionId, open: &ProducerState) -> Result<(), String> {
        let &ProducerState { producer_id, producer_epoch, coordinator_epoch, .. } = open;
        let (producer_epoch, version) = producer_epoch.checked_add(1).map_or((producer_epoch, 1), |next| (next, 2));
        let coordinator_epoch = coordinator_epoch.max(0);
        let marker = Marker { producer_id, producer_epoch, coordinator_epoch, is_commit: false };
        self.check.aborts_unknown(&marker);
        if at == DISKLESS {
            self.mark_diskless(broker, marker, version, None);
            return Ok(());
        }
        let replica = &mut self.partitions[at].replicas[broker];
        let Some(leads) = replica.leads else { return Ok(()) };
        replica.offer_marker(marker, version, leads.epoch, self.fault, self.now);
        self.check.marked(&marker, at)
    }
}
