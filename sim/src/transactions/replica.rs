//! A broker's copy of a partition and its producer state. It calls the rules of `sequence` as the broker's log does.
//!
//! The copy is the whole log in memory. Invariant: `producers` and `aborted` follow from the log.

use fullbore_rules::commit::Confirmation;
use fullbore_rules::sequence::{
    AbortedTransaction, CompletedTransaction, Marker, ProducerState, Producers, SequenceRefusal, SnapshotEntry, Stamp,
    TransactionOfBatch, TransactionsSeen, Verdict, VersionedMarker,
};

use super::entry::{Entry, Payload};
use super::fault::Fault;

/// Maximum number of producers that a partition remembers, besides those with open transactions.
pub const PRODUCERS_MAX: usize = 12;
/// How many of each producer's last batches the log remembers.
const WINDOW: usize = 5;

/// The leadership of a broker. Another broker may have become leader without its knowledge.
#[derive(Clone, Copy, Debug)]
pub struct Leadership {
    pub epoch: i32,
    /// The end of the log when the leadership began. A coordinator loads its states once the log is replicated up to
    /// this end.
    pub begins: usize,
    pub high_watermark: usize,
}

/// Producer state at one offset of the log.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub offset: usize,
    entries: Vec<SnapshotEntry>,
}

/// The state of a partition when the broker requested a verification. It shows later whether the confirmation is
/// outdated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    leader_epoch: i32,
    seen: TransactionsSeen,
    /// The epoch of the group's coordinator if the batch has offsets. Such a batch has no sequence, so a late one is
    /// recognised by this epoch.
    coordinator_epoch: Option<i32>,
    /// The end of the diskless partition as far as the broker knew.
    next_offset: i64,
}

impl Moment {
    /// Returns the state of a broker that knows the diskless partition up to `next_offset`.
    pub fn of_index(next_offset: i64) -> Moment {
        Moment { leader_epoch: 0, seen: TransactionsSeen::default(), coordinator_epoch: None, next_offset }
    }

    /// Adds the epoch of the coordinator that has sent the response.
    pub fn of_coordinator(self, coordinator_epoch: Option<i32>) -> Moment {
        Moment { coordinator_epoch, ..self }
    }
}

/// How the coordinator has confirmed a batch that would open a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    None,
    /// The client had added the partition to the transaction.
    Found(Moment),
    /// The coordinator itself has added the partition to the transaction.
    Added(Moment),
}

impl Verification {
    /// Returns the confirmation that a diskless commit needs. `None` if the batch is not verified.
    pub fn confirmation(self) -> Option<Confirmation> {
        match self {
            Verification::None => None,
            Verification::Found(at) => Some(Confirmation { next_offset: at.next_offset, is_added: false }),
            Verification::Added(at) => Some(Confirmation { next_offset: at.next_offset, is_added: true }),
        }
    }
}

/// Outcome of offering a batch to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The batch is in the log and ends before this offset.
    Written(usize),
    /// The coordinator must verify the batch.
    Unverified,
    Refused(SequenceRefusal),
}

#[derive(Debug, Default)]
pub struct Replica {
    pub log: Vec<Entry>,
    pub leads: Option<Leadership>,
    pub producers: Option<Producers>,
    pub aborted: Vec<AbortedTransaction>,
}

impl Replica {
    fn producers(&mut self) -> &mut Producers {
        self.producers.get_or_insert_with(|| Producers::bounded(PRODUCERS_MAX))
    }

    /// Makes the broker's log equal to `log`: truncates it where they differ, and appends the rest of `log`. After a
    /// truncation or a restart, the producer state is read again, from `snapshot` if that is within the common part.
    pub fn become_copy_of(&mut self, log: &[Entry], snapshot: Option<&Snapshot>, now: i64) {
        let common = self.log.iter().zip(log).take_while(|(own, other)| own == other).count();
        if common < self.log.len() || self.producers.is_none() {
            let snapshot = snapshot.filter(|snapshot| snapshot.offset <= common);
            self.log.clear();
            self.aborted.clear();
            let mut read = Producers::bounded(PRODUCERS_MAX);
            if let Some(snapshot) = snapshot {
                // A snapshot lacks the list of aborted transactions. The part of the list before the snapshot is
                // therefore read from the log.
                let mut before = Replica::default();
                log[..snapshot.offset].iter().for_each(|entry| before.push(entry.clone(), now));
                self.aborted = before.aborted;
                self.log = before.log;
                read.restore(snapshot.entries.iter().copied(), now, WINDOW);
            }
            self.producers = Some(read);
        }
        for entry in &log[self.log.len()..] {
            self.push(entry.clone(), now);
        }
    }

    /// Drops everything except the log, as kill -9 does.
    pub fn crash(&mut self) {
        (self.leads, self.producers) = (None, None);
    }

    pub fn snapshot(&self, fault: Option<Fault>) -> Option<Snapshot> {
        let producers = self.producers.as_ref()?;
        let mut entries: Vec<_> = producers.snapshot().collect();
        if fault == Some(Fault::SnapshotsForgetOpen) {
            entries.iter_mut().for_each(|entry| entry.current_txn_first_offset = -1);
        }
        Some(Snapshot { offset: self.log.len(), entries })
    }

    /// Evicts a producer that has an open transaction, which no rule would do.
    pub fn evict_open(&mut self, now: i64) {
        let Some(producers) = &mut self.producers else { return };
        let open = producers.iter().find(|state| state.open_from.is_some()).map(|state| state.producer_id);
        if let Some(open) = open {
            let left: Vec<_> = producers.snapshot().filter(|entry| entry.producer_id != open).collect();
            *producers = Producers::bounded(PRODUCERS_MAX);
            producers.restore(left, now, WINDOW);
        }
    }

    /// Returns each producer with an open transaction, its epoch, and the epoch of its last coordinator.
    pub fn open(&self) -> Vec<ProducerState> {
        let producers = self.producers.iter().flat_map(|producers| producers.iter());
        producers.filter(|state| state.open_from.is_some()).collect()
    }

    /// Returns the state to remember when a producer's batch is sent to the coordinator for verification.
    pub fn moment(&self, producer_id: i64) -> Moment {
        let seen = self.producers.as_ref().map(|producers| producers.transactions_seen(producer_id));
        let leader_epoch = self.leads.map_or(-1, |leads| leads.epoch);
        Moment { leader_epoch, seen: seen.unwrap_or_default(), coordinator_epoch: None, next_offset: 0 }
    }

    /// Appends a batch as the leader does, unless the log already contains it.
    pub fn offer(&mut self, entry: Entry, verification: Verification, fault: Option<Fault>, now: i64) -> Offer {
        let (stamp, end) = (entry.stamp, self.log.len());
        let producers = self.producers();
        let verdict = match stamp.base_sequence < 0 {
            true => producers.check_unsequenced(&stamp).map_or_else(Verdict::Refuse, |()| Verdict::Append),
            false => producers.check(&stamp, end as i64),
        };
        match verdict {
            Verdict::Append => {}
            Verdict::Duplicate { base_offset, .. } => return Offer::Written(base_offset as usize + 1),
            Verdict::Refuse(refusal) => return Offer::Refused(refusal),
        }
        match producers.transaction_of(&stamp, entry.is_transactional) {
            Err(refusal) => return Offer::Refused(refusal),
            Ok(TransactionOfBatch::Begins) if fault != Some(Fault::AsksNoCoordinator) => {
                let is_replaced = |epoch| producers.has_later_coordinator(stamp.producer_id, epoch);
                let is_old = |at: Moment| {
                    at.leader_epoch != entry.leader_epoch
                        || producers.may_have_ended_since(stamp.producer_id, at.seen)
                        || at.coordinator_epoch.is_some_and(is_replaced)
                };
                match verification {
                    Verification::None => return Offer::Unverified,
                    Verification::Found(at) | Verification::Added(at)
                        if fault != Some(Fault::BelievesOldConfirmation) && is_old(at) =>
                    {
                        return Offer::Unverified;
                    }
                    Verification::Added(_) if stamp.base_sequence > 0 && !producers.knows(stamp.producer_id) => {
                        return Offer::Refused(SequenceRefusal::OutOfOrderSequence);
                    }
                    Verification::Found(_) | Verification::Added(_) => {}
                }
            }
            Ok(_) => {}
        }
        self.push(entry, now);
        Offer::Written(self.log.len())
    }

    /// Appends a marker as the leader does.
    pub fn offer_marker(
        &mut self,
        marker: Marker,
        version: i8,
        leader_epoch: i32,
        fault: Option<Fault>,
        now: i64,
    ) -> Offer {
        let versioned = VersionedMarker { marker, transaction_version: version };
        match self.producers().check_marker(&versioned) {
            Err(SequenceRefusal::CoordinatorFenced) if fault == Some(Fault::TakesOldCoordinators) => {}
            Err(refusal) => return Offer::Refused(refusal),
            Ok(()) => {}
        }
        let Marker { producer_id, producer_epoch, .. } = marker;
        let stamp = Stamp { producer_id, producer_epoch, base_sequence: -1, record_count: 1 };
        let entry = Entry { leader_epoch, stamp, is_transactional: true, payload: Payload::Marker(marker) };
        let offset = self.log.len() as i64;
        let completed = self.producers().end_appended(&versioned, offset, now, now);
        self.push_remembered(entry, completed.as_ref());
        Offer::Written(self.log.len())
    }

    /// Appends the state of a transactional id.
    pub fn append_state(&mut self, entry: Entry, now: i64) -> usize {
        self.push(entry, now);
        self.log.len()
    }

    fn push(&mut self, entry: Entry, now: i64) {
        let offset = self.log.len() as i64;
        let producers = self.producers();
        let completed = match &entry.payload {
            Payload::Marker(marker) => producers.end_transaction(marker, offset, now, now),
            _ => {
                producers.append(&entry.stamp, offset, now, now, WINDOW);
                if entry.is_transactional {
                    producers.append_transactional(&entry.stamp, offset, now, now);
                }
                None
            }
        };
        self.push_remembered(entry, completed.as_ref());
    }

    /// Appends an entry that the producer state already contains. `completed` is the transaction that the entry ends.
    /// An aborted one is added to the list of aborted transactions.
    fn push_remembered(&mut self, entry: Entry, completed: Option<&CompletedTransaction>) {
        self.aborted.extend(completed.and_then(AbortedTransaction::of));
        self.log.push(entry);
    }

    /// Returns the last stable offset, up to which consumers at read_committed read.
    pub fn last_stable(&mut self, fault: Option<Fault>) -> usize {
        let Some(Leadership { high_watermark, .. }) = self.leads else { return 0 };
        let producers = self.producers();
        let unstable = match fault {
            Some(Fault::StableIsHighWatermark) => None,
            Some(Fault::CountsUnreplicatedMarkers) => producers.first_open(),
            _ => producers.first_unstable(high_watermark as i64),
        };
        unstable.map_or(high_watermark, |first| high_watermark.min(first as usize))
    }

    /// Returns the aborted transactions that a fetch must list.
    pub fn aborted_within(&self, from: usize, upto: usize) -> Vec<AbortedTransaction> {
        aborted_within(&self.aborted, from, upto)
    }
}

/// Returns the transactions of `aborted` with records from `from` to before `upto`, in the order of their markers.
pub fn aborted_within(aborted: &[AbortedTransaction], from: usize, upto: usize) -> Vec<AbortedTransaction> {
    let (from, upto) = (from as i64, upto as i64);
    let mut found = Vec::new();
    for entry in aborted.iter().filter(|entry| entry.last_offset >= from) {
        if entry.first_offset < upto {
            found.push(*entry);
        }
        if entry.last_stable_offset >= upto {
            break;
        }
    }
    found
}
