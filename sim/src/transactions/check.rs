//! Checks of a run. Each transaction has one outcome, the one that its client got as response. A decision has no
//! effects before it is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::entry::{DATA, Entry, PARTITIONS, PartitionId, Payload, TransactionalId, name_of, place_of, state_of};
use super::partition::Partition;
use fullbore_rules::sequence::{Marker, Stamp};
use fullbore_rules::transaction::{ProducerIdAndEpoch, TransactionMetadata, TransactionState};

/// Facts about one transaction, collected from its client and the partitions.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub id: TransactionalId,
    /// The numbers that the transaction wrote, each with its partition and the partition's `life` at that time.
    pub written: BTreeMap<u64, (PartitionId, u32)>,
    /// The outcome that the client has requested. `None` before the request.
    pub requested: Option<bool>,
    /// The outcome that the client got as response. `None` before the response.
    pub answered: Option<bool>,
    /// The outcome in the first marker after a record of the transaction. `None` before any marker.
    pub outcome: Option<bool>,
}

#[derive(Debug, Default)]
pub struct Check {
    pub transactions: Vec<Truth>,
    /// Decisions that are written, by the producer and epoch of their markers. In the old protocol, several decisions
    /// may have the same epoch.
    decisions: BTreeMap<(i64, i16), Vec<bool>>,
    /// The partitions that written records of `__transaction_state` list, each with the producer and epoch of its
    /// transaction.
    added: BTreeSet<(i64, i16, PartitionId)>,
    /// The last decision of each transactional id, with the `life` of every partition when the decision was written.
    decided: BTreeMap<TransactionalId, (Arc<TransactionMetadata>, Vec<u32>)>,
}

impl Check {
    pub fn begin(&mut self, id: TransactionalId) -> usize {
        self.transactions.push(Truth { id, ..Truth::default() });
        self.transactions.len() - 1
    }

    /// Notes that a state of a transactional id has reached all replicas.
    pub fn kept(
        &mut self,
        id: TransactionalId,
        state: Option<&Arc<TransactionMetadata>>,
        partitions: &[Partition],
    ) -> Result<(), String> {
        let Some(state) = state else { return Ok(()) };
        let producer = (state.producer_id, state.producer_epoch);
        match state.state {
            TransactionState::Ongoing => {
                let of = |name| (producer.0, producer.1, place_of(name));
                self.added.extend(state.partitions.iter().map(of));
            }
            TransactionState::PrepareCommit | TransactionState::PrepareAbort => {
                self.decisions.entry(producer).or_default().push(state.state == TransactionState::PrepareCommit);
                let lives = partitions.iter().map(|partition| partition.life).collect();
                self.decided.insert(id, (Arc::clone(state), lives));
            }
            TransactionState::CompleteCommit | TransactionState::CompleteAbort => {
                return self.complete(id, partitions);
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that each partition of the id's last decision has a marker of the decision's epoch or a later one, or was
    /// deleted.
    fn complete(&self, id: TransactionalId, partitions: &[Partition]) -> Result<(), String> {
        let Some((decided, lives)) = self.decided.get(&id) else { return Err(format!("{id} is complete undecided")) };
        for at in decided.partitions.iter().map(place_of) {
            let partition = &partitions[at];
            let from = (decided.producer_id, decided.producer_epoch);
            let has_marker = partition.markers.range(from..=(decided.producer_id, i16::MAX)).next().is_some();
            if partition.life == lives[at] && !has_marker {
                return Err(format!("{decided:?} is complete, and {:?} has no marker", name_of(at)));
            }
        }
        Ok(())
    }

    /// Checks a batch that a leader appends. A written record of `__transaction_state` must list the batch's partition.
    pub fn appended(&self, stamp: &Stamp, partition: PartitionId) -> Result<(), String> {
        match self.added.contains(&(stamp.producer_id, stamp.producer_epoch, partition)) {
            true => Ok(()),
            false => Err(format!("{stamp:?} is in {:?}, which no record has in its transaction", name_of(partition))),
        }
    }

    /// Notes a power loss, which may have undone decisions and markers of aborted transactions.
    pub fn power_cut(&mut self, partitions: &[Partition]) {
        for (id, (decided, lives)) in &mut self.decided {
            let is_it = |entry: &Entry| entry.payload == Payload::State(*id, Some(Arc::clone(decided)));
            let is_there = partitions[state_of(*id)].committed.iter().any(is_it);
            if decided.state == TransactionState::PrepareAbort || !is_there {
                lives.iter_mut().for_each(|life| *life = 0);
            }
        }
    }

    /// Notes that a marker aborts a transaction whose transactional id a power loss has erased. This marker needs no
    /// written decision.
    pub fn aborts_unknown(&mut self, marker: &Marker) {
        self.decisions.entry((marker.producer_id, marker.producer_epoch)).or_default().push(false);
    }

    /// Checks a marker that a leader appends. The written decision must have the same outcome.
    pub fn marked(&self, marker: &Marker, partition: PartitionId) -> Result<(), String> {
        match self.decisions.get(&(marker.producer_id, marker.producer_epoch)) {
            Some(decided) if decided.contains(&marker.is_commit) => Ok(()),
            decision => Err(format!("{marker:?} is in {:?}, and on record is {decision:?}", name_of(partition))),
        }
    }

    /// Checks a successful response to an EndTxn.
    pub fn answered(
        &mut self,
        transaction: Option<usize>,
        producer: ProducerIdAndEpoch,
        bumps: bool,
        is_commit: bool,
    ) -> Result<(), String> {
        let epoch = producer.epoch + i16::from(bumps);
        let decision = self.decisions.get(&(producer.id, epoch)).and_then(|decided| decided.last());
        if decision != Some(&is_commit) {
            return Err(format!("{producer:?} is answered commit {is_commit}, and on record is {decision:?}"));
        }
        let Some(number) = transaction else { return Ok(()) };
        let truth = &mut self.transactions[number];
        let answered = *truth.answered.get_or_insert(is_commit);
        match answered != is_commit || truth.outcome.is_some_and(|outcome| outcome != is_commit) {
            true => Err(format!("transaction {number} is answered commit {is_commit}: {truth:?}")),
            false => Ok(()),
        }
    }

    /// Notes the outcome of one record. All records of a transaction must have the same outcome.
    pub fn ended(&mut self, number: usize, is_commit: bool) -> Result<(), String> {
        let truth = &mut self.transactions[number];
        let outcome = *truth.outcome.get_or_insert(is_commit);
        let is_wanted = !is_commit || truth.requested == Some(true);
        if outcome != is_commit || !is_wanted || truth.answered.is_some_and(|answered| answered != is_commit) {
            return Err(format!("transaction {number} ends with commit {is_commit}: {truth:?}"));
        }
        Ok(())
    }

    /// Checks at the end that each transaction is complete or absent. For each id, the output must have each number up
    /// to the id's offset in `copied` once, and no later number.
    pub fn end(&self, partitions: &[Partition], copied: &BTreeMap<TransactionalId, u64>) -> Result<(), String> {
        let mut found: BTreeMap<(TransactionalId, u64), usize> = BTreeMap::new();
        let mut of: BTreeMap<(usize, u64), usize> = BTreeMap::new();
        for partition in &partitions[..DATA] {
            let visible = partition.committed.iter().zip(&partition.outcomes).filter(|(_, seen)| **seen == Some(true));
            for (Entry { payload, .. }, _) in visible {
                if let Payload::Number { id, number, transaction } = payload {
                    *found.entry((*id, *number)).or_default() += 1;
                    *of.entry((*transaction, *number)).or_default() += 1;
                }
            }
        }
        let mut lost = BTreeSet::new();
        for (at, truth) in self.transactions.iter().enumerate() {
            let is_committed = truth.outcome == Some(true) || truth.answered == Some(true);
            for (number, (partition, life)) in truth.written.iter().filter(|_| is_committed) {
                if partitions[*partition].life != *life {
                    lost.insert((truth.id, *number));
                } else if of.get(&(at, *number)) != Some(&1) {
                    return Err(format!("{number} is not once in transaction {at}, which is committed: {truth:?}"));
                }
            }
        }
        for ((id, number), count) in &found {
            if *count > 1 || *number > copied.get(id).copied().unwrap_or_default() {
                return Err(format!("{number} of {id} is there {count} times, with offsets {copied:?}"));
            }
        }
        for (id, upto) in copied {
            let missing =
                (1..=*upto).find(|number| !found.contains_key(&(*id, *number)) && !lost.contains(&(*id, *number)));
            if let Some(number) = missing {
                return Err(format!("{number} of {id} is missing, with offset {upto}"));
            }
        }
        debug_assert_eq!(partitions.len(), PARTITIONS);
        Ok(())
    }
}
