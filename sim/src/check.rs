//! What must hold after every step, from what clients and disks show (`TESTING.md`, "Invariants").
//!
//! What was below anybody's high watermark is *committed*: it is one log, which only grows. Whoever may lead has all of
//! it; whatever was acknowledged is in it; and each idempotent producer's records are in it once each, in sequence
//! order.

use std::collections::BTreeMap;

use fullbore_rules::replica::PartitionRegistration;

use crate::cluster::Snapshot;
use crate::message::Record;
use crate::settings::Settings;

/// What a broker shows of itself.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    pub id: i32,
    pub log: &'a [Record],
    /// The process, and up to where it lets readers see.
    pub high_watermark: Option<(u64, i64)>,
    /// Records were lost, and the cluster does not know it yet.
    pub has_lost: bool,
}

#[derive(Debug)]
pub struct Check {
    settings: Settings,
    committed: Vec<Record>,
    /// Acknowledged and not yet looked at: offset and value.
    acknowledged: Vec<(i64, u64)>,
    pub acknowledgements: u64,
    last_value: u64,
    /// The next sequence of each producer.
    sequences: BTreeMap<i64, i32>,
    /// Who leads each epoch.
    leaders: BTreeMap<i32, i32>,
    /// The process and the high watermark last seen of each broker.
    seen: BTreeMap<i32, (u64, i64)>,
    /// Up to where the log of each broker is known to be what was committed.
    agreed: BTreeMap<i32, usize>,
    /// Since when nothing but the database has kept the broker from beating.
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

    /// Returns true if this log has every committed record.
    pub fn is_whole(&self, log: &[Record]) -> bool {
        log.starts_with(&self.committed)
    }

    /// The broker was paused, killed, started or cut off.
    pub fn unwell(&mut self, id: i32, until: i64) {
        let since = self.well_since.entry(id).or_default();
        *since = until.max(*since);
    }

    /// It is not cut off any more, and may take until then to be heard.
    pub fn heal(&mut self, id: i32, until: i64) {
        self.well_since.insert(id, until);
    }

    /// A producer was told that its record is there.
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

    /// A broker of which a process runs is fenced, whose state before is this.
    pub fn fenced(&mut self, id: i32, before: &Snapshot, now: i64) {
        let well_since = self.well_since.get(&id).copied().unwrap_or_default();
        let was_there = before.cluster.brokers.get(&id).is_some_and(|broker| !broker.is_fenced);
        if was_there && now - well_since > 2 * self.settings.session_timeout_us {
            self.wrong = Some(format!("{id} was held for dead and lived"));
        }
    }

    /// What one broker shows.
    pub fn broker(&mut self, replica: &Replica<'_>) -> Result<(), String> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        let Replica { id, log, .. } = *replica;
        self.cut(id, log.len());
        let Some((process, high_watermark)) = replica.high_watermark else { return Ok(()) };
        let (life, before) = self.seen.insert(id, (process, high_watermark)).unwrap_or((0, 0));
        if life == process && high_watermark < before {
            return Err(format!("the high watermark of {id} went back from {before} to {high_watermark}"));
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

    /// Checks that the log begins as what was committed does, as far as both go.
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

    /// Whoever may lead has everything that was committed.
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
            // Until it has registered nobody knows.
            if has_lost {
                continue;
            }
            self.agree(*id, log)?;
            if log.len() < self.committed.len() {
                let (len, committed) = (log.len(), self.committed.len());
                return Err(format!("{id} may lead with {len} records of {committed} that were committed"));
            }
        }
        Ok(())
    }

    /// What was acknowledged is committed where it was said to be.
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

/// Once each, and in order.
fn commit(sequences: &mut BTreeMap<i64, i32>, record: &Record) -> Result<(), String> {
    let Some((producer, sequence)) = record.stamp else { return Ok(()) };
    let next = sequences.entry(producer).or_default();
    if sequence != *next {
        return Err(format!("producer {producer} has sequence {sequence} committed where {next} comes next"));
    }
    *next += 1;
    Ok(())
}
