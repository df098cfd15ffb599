//! A replicated partition: who leads it, a copy on each broker, and what is replicated for good.
//!
//! Replication is as the other simulation of this crate shows it to be: an elected leader has all that was committed,
//! and any more of the leader's log; a leader that was replaced commits nothing more, whatever it believes. Invariant:
//! `committed` only grows, and is how the log of each leader begins.

use std::collections::BTreeMap;

use super::entry::{BROKERS, BrokerId, Entry, Payload};
use super::replica::{Leadership, Replica, Snapshot};
use fullbore_schedules::Random;

/// Snapshots that are kept.
const SNAPSHOTS_MAX: usize = 4;

#[derive(Debug)]
pub struct Partition {
    pub epoch: i32,
    pub leader: BrokerId,
    /// Topics of this name that there have been.
    pub life: u32,
    pub replicas: Vec<Replica>,
    pub committed: Vec<Entry>,
    /// The log that the leader begins with once it knows that it leads.
    elected: Option<Vec<Entry>>,
    pub snapshots: Vec<Snapshot>,
    /// Of each committed entry: true if consumers at read_committed get it, `None` while that is open.
    pub outcomes: Vec<Option<bool>>,
    /// Offsets of committed entries without an outcome, by producer.
    pub open: BTreeMap<i64, Vec<usize>>,
    /// Committed markers by producer and epoch.
    pub markers: BTreeMap<(i64, i16), bool>,
    /// Entries that a power cut leaves.
    pub flushed: usize,
    /// The last stable offset last seen, by broker and epoch.
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

    /// Another broker, or the same one again, leads from now on.
    pub fn elect(&mut self, leader: BrokerId, random: &mut Random) {
        let log = self.elected.take().unwrap_or_else(|| self.replicas[self.leader].log.clone());
        let is_same = leader == self.leader;
        let len = if is_same { log.len() } else { random.between(self.committed.len(), log.len() + 1) };
        self.elected = Some(log[..len].to_vec());
        (self.leader, self.epoch) = (leader, self.epoch + 1);
    }

    /// A broker hears who leads in an epoch. Returns true if it is the one, since now.
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

    /// Returns true if this broker leads, and knows it.
    pub fn is_led_by(&self, broker: BrokerId) -> bool {
        self.leader == broker && self.replicas[broker].leads.is_some_and(|leads| leads.epoch == self.epoch)
    }

    /// The followers have more of the leader's log. Returns what is committed since, with its offsets.
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

    /// Takes note of the outcomes that a committed entry decides. Returns the transactions that it ends, with how.
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

    /// The first committed entry without an outcome.
    pub fn first_open(&self) -> Option<usize> {
        self.open.values().filter_map(|offsets| offsets.first().copied()).min()
    }

    /// The power is cut: of what is not on the disk any part of the end is lost.
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

    /// Looks at the last stable offset of a broker that believes to lead, by the broker and its epoch.
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

    /// Keeps the state of producers, as a segment's end does.
    pub fn keep_snapshot(&mut self, snapshot: Snapshot) {
        if self.snapshots.len() == SNAPSHOTS_MAX {
            self.snapshots.remove(0);
        }
        self.snapshots.push(snapshot);
    }
}
