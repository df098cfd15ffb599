//! Consumers at read_committed, and the compaction of a log. Both results are compared with the committed outcomes.

use std::collections::{BTreeMap, BTreeSet};

use super::diskless::Index;
use super::entry::{BrokerId, COMPACTED, DISKLESS, Entry, PartitionId, Payload};
use super::fault::Fault;
use super::partition::Partition;
use super::replica::{Replica, aborted_within};
use fullbore_rules::compaction::{Horizon, TransactionScan, survives};
use fullbore_rules::sequence::AbortedTransaction;
use fullbore_schedules::Random;

/// Maximum number of entries that one fetch returns.
const FETCHED_MAX: usize = 10;

/// A consumer of one partition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reader {
    /// The `life` of the topic from which the consumer has read. It reads a recreated topic from the beginning.
    life: u32,
    pub position: usize,
}

impl Reader {
    /// Fetches from a broker that believes itself the leader, and checks the records that a client would return.
    pub fn fetch(
        &mut self,
        at: PartitionId,
        partition: &mut Partition,
        broker: BrokerId,
        fault: Option<Fault>,
        random: &mut Random,
    ) -> Result<(), String> {
        if self.life != partition.life {
            *self = Reader { life: partition.life, position: 0 };
        }
        if partition.replicas[broker].leads.is_none() {
            return Ok(());
        }
        let stable = partition.replicas[broker].last_stable(fault);
        let replica = &partition.replicas[broker];
        self.read(at, &partition.outcomes, (&replica.log, &replica.aborted, stable), fault, random)
    }

    /// Fetches from the index of the diskless partition, and checks the records as [`Reader::fetch`] does.
    pub fn fetch_diskless(
        &mut self,
        partition: &Partition,
        index: &Index,
        fault: Option<Fault>,
        random: &mut Random,
    ) -> Result<(), String> {
        let stable = index.last_stable(fault);
        self.read(DISKLESS, &partition.outcomes, (&index.log, &index.aborted, stable), fault, random)
    }

    fn read(
        &mut self,
        at: PartitionId,
        outcomes: &[Option<bool>],
        (log, aborted, stable): (&[Entry], &[AbortedTransaction], usize),
        fault: Option<Fault>,
        random: &mut Random,
    ) -> Result<(), String> {
        let from = if random.one_in(5) { random.below(self.position + 1) } else { self.position };
        let upto = stable.min(from + 1 + random.below(FETCHED_MAX));
        if upto <= from {
            return Ok(());
        }
        let aborted = match fault {
            Some(Fault::NoAbortedList) => Vec::new(),
            _ => aborted_within(aborted, from, upto),
        };
        let seen = visible(log, from, upto, &aborted);
        for (offset, entry) in log.iter().enumerate().take(upto).skip(from) {
            let outcome = outcomes.get(offset).copied().flatten();
            let is_data = !matches!(entry.payload, Payload::Marker(_));
            if outcome.is_none() || is_data && outcome != Some(seen.contains(&offset)) {
                return Err(format!("{at}: {entry:?} at {offset} is read: {}, {outcome:?}", seen.contains(&offset)));
            }
        }
        self.position = self.position.max(upto);
        Ok(())
    }
}

/// Returns the offsets of the records that a client would return. Uses the algorithm of Kafka's `CompletedFetch`.
fn visible(log: &[Entry], from: usize, upto: usize, aborted: &[AbortedTransaction]) -> BTreeSet<usize> {
    let mut waiting: Vec<(i64, i64)> = aborted.iter().map(|entry| (entry.first_offset, entry.producer_id)).collect();
    waiting.sort_unstable();
    let mut waiting = waiting.into_iter().peekable();
    let (mut aborting, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for (offset, entry) in log.iter().enumerate().take(upto).skip(from) {
        while let Some((_, producer_id)) = waiting.next_if(|&(first, _)| first <= offset as i64) {
            aborting.insert(producer_id);
        }
        match &entry.payload {
            Payload::Marker(marker) if !marker.is_commit => _ = aborting.remove(&marker.producer_id),
            Payload::Marker(_) => {}
            _ if entry.is_transactional && aborting.contains(&entry.stamp.producer_id) => {}
            _ => _ = seen.insert(offset),
        }
    }
    seen
}

/// Returns the key of a record. `None` if it has no key. The keys are few, so that many records share one.
fn key_of(payload: &Payload) -> Option<(usize, u64)> {
    match payload {
        Payload::Number { id, number, .. } => Some((*id, number % 3)),
        Payload::Plain => Some((usize::MAX, 0)),
        _ => None,
    }
}

/// Compacts the leader's log by the rules. Checks that the newest committed record of each key remains, and that no
/// aborted record does.
pub fn compact(partition: &mut Partition, broker: BrokerId, fault: Option<Fault>) -> Result<(), String> {
    let stable = partition.replicas[broker].last_stable(None);
    let replica: &Replica = &partition.replicas[broker];
    let aborted = replica.aborted_within(0, stable);
    let log = &replica.log[..stable];
    let mut scan = TransactionScan::default();
    scan.add(aborted);
    let mut data = Vec::new();
    for (offset, entry) in log.iter().enumerate() {
        let at = offset as i64;
        match &entry.payload {
            Payload::Marker(marker) => _ = scan.ended_by(marker.producer_id, at, marker.is_commit),
            payload => {
                let is_aborted = scan.is_aborted(entry.stamp.producer_id, at, entry.is_transactional);
                data.extend(key_of(payload).map(|key| (key, at, is_aborted)));
            }
        }
    }
    let counts = |is_aborted: &bool| !is_aborted || fault == Some(Fault::AbortedSupersede);
    let newest: BTreeMap<_, _> =
        data.iter().filter(|(_, _, is_aborted)| counts(is_aborted)).map(|(key, at, _)| (*key, *at)).collect();
    let stays = |(key, at, is_aborted): &&(_, i64, bool)| {
        !is_aborted && survives(*at, newest.get(key).copied(), stable as i64, true, Horizon::Unset, 0)
    };
    let left: BTreeSet<i64> = data.iter().filter(stays).map(|(_, at, _)| *at).collect();
    let mut wanted = BTreeMap::new();
    for (offset, entry) in log.iter().enumerate() {
        if let (Some(key), Some(Some(true))) = (key_of(&entry.payload), partition.outcomes.get(offset)) {
            wanted.insert(key, offset as i64);
        }
    }
    match left == wanted.values().copied().collect() {
        true => Ok(()),
        false => Err(format!("compaction of {COMPACTED} leaves {left:?}, and newest are {wanted:?}")),
    }
}
