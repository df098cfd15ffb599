//! A replicated partition: its leader, a copy on each broker, and its committed entries.
//!
//! Replication has the properties that the cluster simulation of this crate checks. A new leader has all committed
//! entries and any number of the former leader's later entries. A replaced leader commits nothing more, even if it does
//! not know that it was replaced.
//!
//! Invariant: `committed` only grows, and is a prefix of each leader's log.

use std::collections::BTreeMap;

use super::entry::{BROKERS, BrokerId, Entry, Payload};
use super::replica::{Leadership, Replica, Snapshot};
use fullbore_schedules::Random;

/// Maximum number of snapshots that are stored.
const SNAPSHOTS_MAX: usize = 4;

#[derive(Debug)]
pub struct Partition {
    pub epoch: i32,
    pub leader: BrokerId,
    /// The number of this topic among all topics that have had its name, counted from 1.
    pub life: u32,
    pub replicas: Vec<Replica>,
    pub committed: Vec<Entry>,
    /// The log of the elected leader at its election. `None` once the leader has learned of its election.
    elected: Option<Vec<Entry>>,
    pub snapshots: Vec<Snapshot>,
    /// The outcome of each committed entry: true if consumers at read_committed get the entry, false if they skip it,
    /// and `None` while its transaction is open.
    pub outcomes: Vec<Option<bool>>,
    /// For each producer, the offsets of committed entries that have no outcome yet.
    pub open: BTreeMap<i64, Vec<usize>>,
    /// Committed markers by producer and epoch. The value is true for a commit.
    pub markers: BTreeMap<(i64, i16), bool>,
    /// How many entries survive a power loss.
    pub flushed: usize,
    /// The last stable offset that each broker had in each epoch when it was last checked.
    stable: BTreeMap<(BrokerId, i32), usize>,
}

impl Partition {
    pub fn new(leader: BrokerId, epoch: i32, life: u32) -> Partition {
        Partition {
            epoch,
            leader,
            life,
            replicas: (0..BROKERS).map(|_| Replica::default()).collect(),
            committed: Vec::new(),
            elected: Some(Vec::new()),
            snapshots: Vec::new(),
            outcomes: Vec::new(),
            open: BTreeMap::new(),
            markers: BTreeMap::new(),
            flushed: 0,
            stable: BTreeMap::new(),
        }
    }

    /// Elects a leader, which may be the present one again.
    pub fn elect(&mut self, leader: BrokerId, random: &mut Random) {
        let log = self.elected.take().unwrap_or_else(|| self.replicas[self.leader].log.clone());
        let is_same = leader == self.leader;
        let len = if is_same { log.len() } else { random.between(self.committed.len(), log.len() + 1) };
        self.elected = Some(log[..len].to_vec());
        (self.leader, self.epoch) = (leader, self.epoch + 1);
    }

    /// Informs the broker `broker` that `leader` leads in `epoch`. Returns true if the broker thereby becomes the
    /// leader.
    pub fn learn(&mut self, broker: BrokerId, epoch: i32, leader: BrokerId, now: i64, random: &mut Random) -> bool {
        let replica = &mut self.replicas[broker];
        if replica.leads.is_some_and(|leads| leads.epoch >= epoch) {
            return false;
        }
        replica.leads = None;
        if leader != broker || epoch != self.epoch {
            return false;
        }
        if let Some(log) = self.elected.take() {
            let fitting: Vec<_> = self.snapshots.iter().filter(|snapshot| snapshot.offset <= log.len()).collect();
            let snapshot = if fitting.is_empty() { None } else { Some(fitting[random.below(fitting.len())]) };
            replica.become_copy_of(&log, snapshot, now);
        }
        let high_watermark = random.below(self.committed.len() + 1);
        replica.leads = Some(Leadership { epoch, begins: replica.log.len(), high_watermark });
        true
    }

    /// Returns true if the broker is the leader and knows that it is.
    pub fn is_led_by(&self, broker: BrokerId) -> bool {
        self.leader == broker && self.replicas[broker].leads.is_some_and(|leads| leads.epoch == self.epoch)
    }

    /// Replicates a random part of the leader's log, or with `all` the whole log. Returns the newly committed entries
    /// with their offsets.
    pub fn replicate(&mut self, all: bool, random: &mut Random) -> Vec<(usize, Entry)> {
        if !self.is_led_by(self.leader) {
            return Vec::new();
        }
        let replica = &mut self.replicas[self.leader];
        let Some(leads) = &mut replica.leads else { return Vec::new() };
        let end = replica.log.len();
        leads.high_watermark = if all { end } else { random.between(leads.high_watermark, end + 1) };
        let from = self.committed.len();
        let upto = leads.high_watermark.max(from);
        let new: Vec<_> = (from..upto).map(|at| (at, replica.log[at].clone())).collect();
        self.committed.extend(new.iter().map(|(_, entry)| entry.clone()));
        new
    }

    /// Notes the outcomes that a committed entry decides. Returns the transaction that each of these outcomes ends,
    /// with true for a commit.
    pub fn settle(&mut self, at: usize, entry: &Entry) -> Vec<(usize, bool)> {
        let producer_id = entry.stamp.producer_id;
        match &entry.payload {
            Payload::Marker(marker) => {
                self.markers.insert((producer_id, marker.producer_epoch), marker.is_commit);
                self.outcomes.push(Some(false));
                let ended = self.open.remove(&producer_id).unwrap_or_default();
                ended.iter().for_each(|at| self.outcomes[*at] = Some(marker.is_commit));
                let of = |at: &usize| Some((self.committed[*at].payload.transaction()?, marker.is_commit));
                ended.iter().filter_map(of).collect()
            }
            _ if entry.is_transactional => {
                self.outcomes.push(None);
                self.open.entry(producer_id).or_default().push(at);
                Vec::new()
            }
            _ => {
                self.outcomes.push(Some(true));
                Vec::new()
            }
        }
    }

    /// Returns the offset of the first committed entry without an outcome. `None` if all have one.
    pub fn first_open(&self) -> Option<usize> {
        self.open.values().filter_map(|offsets| offsets.first().copied()).min()
    }

    /// Cuts the power. The log loses a random number of its last unflushed entries.
    pub fn lose_end(&mut self, random: &mut Random) {
        let log = self.elected.take().unwrap_or_else(|| self.replicas[self.leader].log.clone());
        let len = random.between(self.flushed.min(log.len()), log.len() + 1);
        self.elected = Some(log[..len].to_vec());
        self.flushed = len;
        self.snapshots.retain(|snapshot| snapshot.offset <= len);
        if self.committed.len() > len {
            let committed = self.committed[..len].to_vec();
            (self.committed, self.outcomes) = (Vec::new(), Vec::new());
            (self.open, self.markers) = (BTreeMap::new(), BTreeMap::new());
            for (at, entry) in committed.into_iter().enumerate() {
                self.committed.push(entry.clone());
                self.settle(at, &entry);
            }
        }
    }

    /// Checks that the last stable offset `stable` has not decreased and is not past an open transaction. `by` is the
    /// broker that believes it leads, with its epoch.
    pub fn check_stable(&mut self, by: (BrokerId, i32), stable: usize) -> Result<(), String> {
        let before = self.stable.insert(by, stable).unwrap_or(0);
        if stable < before {
            return Err(format!("the last stable offset fell from {before} to {stable}"));
        }
        let open = self.first_open().unwrap_or(self.committed.len());
        if stable > open {
            return Err(format!("the last stable offset is {stable}, past {open}, where a transaction is open"));
        }
        Ok(())
    }

    /// Stores a snapshot of producers, as the broker does at the end of a segment.
    pub fn keep_snapshot(&mut self, snapshot: Snapshot) {
        if self.snapshots.len() == SNAPSHOTS_MAX {
            self.snapshots.remove(0);
        }
        self.snapshots.push(snapshot);
    }
}
