//! The brokers of the model: one partition's log, judged by the broker's own rules, and what brokers do beside that.
//!
//! Two nodes share the log, as replicas that are always in sync; each remembers producers by its own setting.
//! Everything appended is checked at once: a record is there once, in the order of sending, and not if it was reported
//! as surely not written.

use super::{Breach, Bug};
use fullbore_rules::sequence::{Producers, Refusal, Stamp, Verdict};
use fullbore_wire::ErrorCode;
use std::collections::HashSet;

/// A batch on its way. Records are numbered in the order of sending; a batch has `first` and those after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// Counts attempts. By it and the lane its answer finds the way back.
    pub number: u64,
    pub lane: usize,
    pub stamp: Stamp,
    pub first: u32,
    /// Whether its request asks for parking.
    pub reorder: bool,
}

impl Attempt {
    pub fn records(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.stamp.record_count as u32
    }
}

/// What a broker says of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub code: ErrorCode,
    pub offset: i64,
    /// Batches that it remembers.
    pub grant: usize,
    /// Batches that it parks.
    pub reorder: usize,
}

/// What happens to a batch, other than what the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Refused(ErrorCode),
    WrittenBut(ErrorCode),
}

#[derive(Debug)]
pub(super) struct Node {
    pub retain: usize,
    /// Batches it parks; 0 if it does not.
    pub parks: usize,
    /// Records of the largest batch it takes.
    pub records_max: u32,
    producers: Producers,
    parked: Vec<Attempt>,
}

impl Node {
    pub fn new(retain: usize, parks: usize) -> Node {
        Node { retain, parks, records_max: u32::MAX, producers: Producers::default(), parked: Vec::new() }
    }
}

#[derive(Debug)]
pub(super) struct Cluster {
    pub nodes: [Node; 2],
    pub leader: usize,
    /// The offset of the log's first record: above 0, the partition was written before by someone else.
    pub base: i64,
    pub log: Vec<u32>,
    /// Answers OUT_OF_ORDER_SEQUENCE_NUMBER to what it forgot, as Kafka does.
    pub kafka: bool,
    /// Records reported as surely not written.
    pub surely_not: HashSet<u32>,
    /// The newest batch of each producer.
    newest: Vec<(Stamp, i64)>,
    pub breach: Option<Breach>,
    pub bug: Option<Bug>,
}

impl Cluster {
    pub fn new(nodes: [Node; 2], base: i64, kafka: bool, bug: Option<Bug>) -> Cluster {
        let (log, newest) = (Vec::new(), Vec::new());
        Cluster { nodes, leader: 0, base, log, kafka, surely_not: HashSet::new(), newest, breach: None, bug }
    }

    /// A batch arrives at a node. Returns the answers that are due: its own, unless it is parked, and those of
    /// batches that waited for it.
    pub fn arrive(&mut self, node: usize, attempt: Attempt, fault: Fault) -> Vec<(Attempt, Answer)> {
        match fault {
            Fault::Refused(code) => vec![(attempt, self.answer(node, code, -1))],
            Fault::None => self.judge(node, attempt),
            Fault::WrittenBut(code) => {
                let mut answers = self.judge(node, attempt);
                let own = answers.iter_mut().find(|(of, answer)| of.number == attempt.number && !answer.code.is_err());
                if let Some((_, answer)) = own {
                    (answer.code, answer.offset) = (code, -1);
                }
                answers
            }
        }
    }

    fn answer(&self, node: usize, code: ErrorCode, offset: i64) -> Answer {
        Answer { code, offset, grant: self.nodes[node].retain, reorder: self.nodes[node].parks }
    }

    fn judge(&mut self, node: usize, attempt: Attempt) -> Vec<(Attempt, Answer)> {
        if node != self.leader {
            return vec![(attempt, self.answer(node, ErrorCode::NOT_LEADER_OR_FOLLOWER, -1))];
        }
        if attempt.stamp.record_count as u32 > self.nodes[node].records_max {
            return vec![(attempt, self.answer(node, ErrorCode::MESSAGE_TOO_LARGE, -1))];
        }
        if self.parks(node, &attempt) {
            self.nodes[node].parked.push(attempt);
            return Vec::new();
        }
        let mut answers = vec![(attempt, self.check(node, &attempt))];
        while let Some(next) = self.next_parked(node) {
            let answer = match self.bug {
                Some(Bug::ParkedUnchecked) => {
                    let offset = self.append(&next);
                    self.answer(node, ErrorCode::NONE, offset)
                }
                _ => self.check(node, &next),
            };
            answers.push((next, answer));
        }
        answers
    }

    fn end(&self) -> i64 {
        self.base + self.log.len() as i64
    }

    fn check(&mut self, node: usize, attempt: &Attempt) -> Answer {
        let (code, offset) = match self.nodes[node].producers.check(&attempt.stamp, self.end()) {
            Verdict::Duplicate { .. } if self.bug == Some(Bug::NoMemory) => (ErrorCode::NONE, self.append(attempt)),
            Verdict::Append => (ErrorCode::NONE, self.append(attempt)),
            Verdict::Duplicate { base_offset, .. } => (ErrorCode::NONE, base_offset),
            Verdict::Refuse(Refusal::DuplicateSequence) if !self.kafka => (ErrorCode::DUPLICATE_SEQUENCE_NUMBER, -1),
            Verdict::Refuse(Refusal::DuplicateSequence | Refusal::OutOfOrderSequence) => {
                (ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
            }
            Verdict::Refuse(Refusal::InvalidProducerEpoch) => (ErrorCode::INVALID_PRODUCER_EPOCH, -1),
            Verdict::Refuse(Refusal::InvalidRecord) => (ErrorCode::INVALID_RECORD, -1),
        };
        self.answer(node, code, offset)
    }

    fn append(&mut self, attempt: &Attempt) -> i64 {
        let offset = self.end();
        for node in &mut self.nodes {
            node.producers.append(&attempt.stamp, offset, 0, 0, node.retain);
        }
        self.newest.retain(|(stamp, _)| stamp.producer_id != attempt.stamp.producer_id);
        self.newest.push((attempt.stamp, offset));
        if self.bug == Some(Bug::LosesAppend) && self.log.len() % 50 > 45 {
            return offset;
        }
        for record in attempt.records() {
            if self.log.last().is_some_and(|last| *last >= record) {
                let twice = self.log.contains(&record);
                self.breach.get_or_insert(if twice { Breach::Duplicate(record) } else { Breach::Reorder(record) });
            }
            if self.surely_not.contains(&record) {
                self.breach.get_or_insert(Breach::SurelyNotIsThere(record));
            }
            self.log.push(record);
        }
        offset
    }

    fn ahead(&self, node: usize, stamp: &Stamp) -> i32 {
        let known = self.nodes[node].producers.iter().find(|known| known.producer_id == stamp.producer_id);
        match known {
            Some(known) if stamp.producer_epoch < known.producer_epoch => 0,
            Some(known) if stamp.producer_epoch == known.producer_epoch => {
                let next = fullbore_rules::sequence::sequence_add(known.last_sequence, 1);
                let ahead = fullbore_rules::sequence::sequence_distance(next, stamp.base_sequence);
                if ahead < fullbore_rules::sequence::HALF_RANGE { ahead } else { 0 }
            }
            _ => stamp.base_sequence,
        }
    }

    /// A batch that is ahead is parked if its request asks for that and there is room.
    fn parks(&self, node: usize, attempt: &Attempt) -> bool {
        let at = &self.nodes[node];
        attempt.reorder && at.parked.len() < at.parks && self.ahead(node, &attempt.stamp) > 0
    }

    fn next_parked(&mut self, node: usize) -> Option<Attempt> {
        let unchecked = self.bug == Some(Bug::ParkedUnchecked);
        let parked = &self.nodes[node].parked;
        let at = parked.iter().position(|parked| unchecked || self.ahead(node, &parked.stamp) == 0)?;
        Some(self.nodes[node].parked.remove(at))
    }

    /// The oldest `count` of what is parked has waited for too long.
    pub fn expire_parked(&mut self, count: usize) -> Vec<(Attempt, Answer)> {
        let mut answers = Vec::new();
        for node in 0..self.nodes.len() {
            let count = count.min(self.nodes[node].parked.len());
            let expired: Vec<Attempt> = self.nodes[node].parked.drain(..count).collect();
            let answer = self.answer(node, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, -1);
            answers.extend(expired.into_iter().map(|attempt| (attempt, answer)));
        }
        answers
    }

    /// Whether a record is in the log; while nothing is amiss it is sorted.
    pub fn has(&self, record: u32) -> bool {
        self.log.binary_search(&record).is_ok()
    }

    pub fn has_parked(&self) -> bool {
        self.nodes.iter().any(|node| !node.parked.is_empty())
    }

    /// The leader restarts. It restores every batch it remembered, or as Kafka 4.3 only the newest of each producer.
    pub fn restart(&mut self, whole: bool) {
        let node = &mut self.nodes[self.leader];
        node.parked.clear();
        let mut producers = Producers::default();
        if whole {
            producers.restore(node.producers.snapshot(), 0);
        } else {
            for (stamp, offset) in &self.newest {
                producers.append(stamp, *offset, 0, 0, node.retain);
            }
        }
        node.producers = producers;
    }

    /// Every producer was idle for so long that all is forgotten.
    pub fn expire_producers(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.producers = Producers::default());
        self.newest.clear();
    }
}
