//! Checks that run after every step on the states of clients and disks.
//!
//! A record is *committed* once it is below the high watermark of any broker. The committed records form one log, which
//! only grows. A replica that may lead has this whole log. The log contains every acknowledged record, and each
//! idempotent producer's records once, in the order of their sequences.

use std::collections::BTreeMap;

use fullbore_rules::replica::PartitionRegistration;

use crate::cluster::Snapshot;
use crate::message::Record;
use crate::settings::Settings;

/// The parts of a broker's state that the checks read.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    pub id: i32,
    pub log: &'a [Record],
    /// The running process and its high watermark. `None` if no process runs.
    pub high_watermark: Option<(u64, i64)>,
    /// True if records were lost and the cluster does not know it yet.
    pub has_lost: bool,
}

#[derive(Debug)]
pub struct Check {
    settings: Settings,
    committed: Vec<Record>,
    /// Offsets and values of acknowledged records that the next check must find in the committed log.
    acknowledged: Vec<(i64, u64)>,
    pub acknowledgements: u64,
    last_value: u64,
    /// The sequence of each producer's next committed record.
    sequences: BTreeMap<i64, i32>,
    /// The broker that led in each epoch.
    leaders: BTreeMap<i32, i32>,
    /// The process and high watermark of each broker when it was last checked.
    seen: BTreeMap<i32, (u64, i64)>,
    /// How many records at the start of each broker's log are known to equal those of the committed log.
    agreed: BTreeMap<i32, usize>,
    /// The time since which no fault delays the heartbeats of a broker. Outages of the database do not count.
    well_since: BTreeMap<i32, i64>,
    wrong: Option<String>,
}

impl Check {
    pub fn new(settings: Settings) -> Check {
        Check {
            settings,
            committed: Vec::new(),
            acknowledged: Vec::new(),
            acknowledgements: 0,
            last_value: 0,
            sequences: BTreeMap::new(),
            leaders: BTreeMap::new(),
            seen: BTreeMap::new(),
            agreed: BTreeMap::new(),
            well_since: BTreeMap::new(),
            wrong: None,
        }
    }

    pub fn new_value(&mut self) -> u64 {
        self.last_value += 1;
        self.last_value
    }

    pub fn committed(&self) -> usize {
        self.committed.len()
    }

    /// Returns true if `log` contains every committed record.
    pub fn is_whole(&self, log: &[Record]) -> bool {
        log.starts_with(&self.committed)
    }

    /// Notes that a fault may delay the broker's heartbeats until `until`.
    pub fn unwell(&mut self, id: i32, until: i64) {
        let since = self.well_since.entry(id).or_default();
        *since = until.max(*since);
    }

    /// Notes that a fault of the broker has ended. Its heartbeats may still be late until `until`.
    pub fn heal(&mut self, id: i32, until: i64) {
        self.well_since.insert(id, until);
    }

    /// Records a producer's acknowledgement.
    pub fn acknowledged(&mut self, offset: i64, value: u64) {
        self.acknowledged.push((offset, value));
    }

    pub fn leads(&mut self, epoch: i32, id: i32) {
        let leader = *self.leaders.entry(epoch).or_insert(id);
        if leader != id {
            self.wrong = Some(format!("{leader} and {id} lead epoch {epoch}"));
        }
    }

    pub fn truncates(&mut self, id: i32, to: i64) {
        self.cut(id, to as usize);
    }

    fn cut(&mut self, id: i32, to: usize) {
        let agreed = self.agreed.entry(id).or_default();
        *agreed = to.min(*agreed);
    }

    /// Checks that a broker was fenced only after a fault had delayed its heartbeats. `before` is the metadata just
    /// before the fencing.
    pub fn fenced(&mut self, id: i32, before: &Snapshot, now: i64) {
        let well_since = self.well_since.get(&id).copied().unwrap_or_default();
        let was_there = before.cluster.brokers.get(&id).is_some_and(|broker| !broker.is_fenced);
        if was_there && now - well_since > 2 * self.settings.session_timeout_us {
            self.wrong = Some(format!("{id} was considered failed while it was live"));
        }
    }

    /// Checks the state of one broker.
    pub fn broker(&mut self, replica: &Replica<'_>) -> Result<(), String> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        let Replica { id, log, .. } = *replica;
        self.cut(id, log.len());
        let Some((process, high_watermark)) = replica.high_watermark else { return Ok(()) };
        let (life, before) = self.seen.insert(id, (process, high_watermark)).unwrap_or((0, 0));
        if life == process && high_watermark < before {
            return Err(format!("the high watermark of {id} fell from {before} to {high_watermark}"));
        }
        let Some(visible) = log.get(..high_watermark as usize) else {
            return Err(format!("the high watermark of {id}, {high_watermark}, is past its log, {}", log.len()));
        };
        self.agree(id, visible)?;
        for record in visible.get(self.committed.len()..).unwrap_or_default() {
            commit(&mut self.sequences, record)?;
            self.committed.push(*record);
        }
        Ok(())
    }

    /// Checks that a log and the committed log have the same records, up to the end of the shorter one.
    fn agree(&mut self, id: i32, log: &[Record]) -> Result<(), String> {
        let agreed = self.agreed.entry(id).or_default();
        let both = log.len().min(self.committed.len());
        if *agreed < both {
            let at = (*agreed..both).find(|at| log[*at] != self.committed[*at]);
            if let Some(at) = at {
                return Err(format!("{id} has {:?} at {at}, where {:?} was committed", log[at], self.committed[at]));
            }
            *agreed = both;
        }
        Ok(())
    }

    /// Checks that every replica that may lead has all committed records.
    pub fn whole<'a>(
        &mut self,
        partition: &PartitionRegistration,
        replica: impl Fn(i32) -> Replica<'a>,
    ) -> Result<(), String> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        for id in partition.isr.iter().chain(&partition.elr) {
            let Replica { log, has_lost, .. } = replica(*id);
            // The replica stays in the ISR or ELR until the broker registers and reports its loss.
            if has_lost {
                continue;
            }
            self.agree(*id, log)?;
            if log.len() < self.committed.len() {
                let (len, committed) = (log.len(), self.committed.len());
                return Err(format!("{id} may lead with {len} of {committed} committed records"));
            }
        }
        Ok(())
    }

    /// Checks that acknowledged records are committed at their acknowledged offsets.
    pub fn acknowledgements(&mut self) -> Result<(), String> {
        for (offset, value) in self.acknowledged.drain(..) {
            self.acknowledgements += 1;
            let there = self.committed.get(offset as usize);
            if there.is_none_or(|record| record.value != value) {
                return Err(format!("{value} was acknowledged at {offset}, where {there:?} is"));
            }
        }
        Ok(())
    }
}

/// Checks that a producer's records are committed exactly once and in order.
fn commit(sequences: &mut BTreeMap<i64, i32>, record: &Record) -> Result<(), String> {
    let Some((producer, sequence)) = record.stamp else { return Ok(()) };
    let next = sequences.entry(producer).or_default();
    if sequence != *next {
        return Err(format!("producer {producer} has sequence {sequence} committed where {next} comes next"));
    }
    *next += 1;
    Ok(())
}
