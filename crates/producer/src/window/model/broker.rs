//! The brokers of the model: one partition's log, judged by the broker's own rules, and what brokers do beside that.
//!
//! Two nodes share the log, as replicas that are always in sync; each remembers producers by its own setting.
//! Everything appended is checked at once: a record is there once, in the order of sending, and not if it was reported
//! as surely not written.

use super::{Breach, Bug};
use fullbore_rules::sequence::parking::Parking;
use fullbore_rules::sequence::{Producers, SequenceRefusal, Stamp, Verdict};
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
    /// True if its request asks for parking.
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
    /// Each batch with all its copies.
    parking: Parking<Vec<Attempt>>,
    /// Counts what was parked: the parking's clock.
    parked: u64,
}

impl Node {
    pub fn new(retain: usize, parks: usize) -> Node {
        Node {
            retain,
            parks,
            records_max: u32::MAX,
            producers: Producers::default(),
            parking: Parking::default(),
            parked: 0,
        }
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
        if attempt.reorder && self.nodes[node].producers.ahead(&attempt.stamp) > 0 {
            return self.park(node, attempt);
        }
        let mut answers = vec![(attempt, self.check(node, &attempt))];
        if !answers[0].1.code.is_err() {
            self.settle_parked(node, attempt.stamp, &mut answers);
        }
        answers
    }

    /// As `replica/reorder.rs` does.
    fn park(&mut self, node: usize, attempt: Attempt) -> Vec<(Attempt, Answer)> {
        if self.bug == Some(Bug::DoesNotWait) {
            let offset = self.append(&attempt);
            return vec![(attempt, self.answer(node, ErrorCode::NONE, offset))];
        }
        let at = &mut self.nodes[node];
        if let Some(copies) = at.parking.find(&attempt.stamp) {
            copies.push(attempt);
            return Vec::new();
        }
        let code = match at.parking.room_for(&attempt.stamp, at.parks) {
            Ok(_) => {
                at.parked += 1;
                let fenced = at.parking.park(&attempt.stamp, vec![attempt], 1, at.parked);
                return self.refuse(node, fenced, ErrorCode::INVALID_PRODUCER_EPOCH);
            }
            Err(SequenceRefusal::InvalidProducerEpoch) => ErrorCode::INVALID_PRODUCER_EPOCH,
            Err(_) => ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER,
        };
        vec![(attempt, self.answer(node, code, -1))]
    }

    fn refuse(&self, node: usize, batches: Vec<Vec<Attempt>>, code: ErrorCode) -> Vec<(Attempt, Answer)> {
        batches.into_iter().flatten().map(|attempt| (attempt, self.answer(node, code, -1))).collect()
    }

    /// What follows from an append.
    fn settle_parked(&mut self, node: usize, mut stamp: Stamp, answers: &mut Vec<(Attempt, Answer)>) {
        loop {
            let freed = self.nodes[node].parking.appended(&stamp);
            answers.extend(self.refuse(node, freed.fenced, ErrorCode::INVALID_PRODUCER_EPOCH));
            let Some(copies) = freed.next else { break };
            let answer = self.check(node, &copies[0]);
            stamp = copies[0].stamp;
            answers.extend(copies.into_iter().map(|copy| (copy, answer)));
        }
    }

    fn end(&self) -> i64 {
        self.base + self.log.len() as i64
    }

    fn check(&mut self, node: usize, attempt: &Attempt) -> Answer {
        let (code, offset) = match self.nodes[node].producers.check(&attempt.stamp, self.end()) {
            Verdict::Duplicate { .. } if self.bug == Some(Bug::NoMemory) => (ErrorCode::NONE, self.append(attempt)),
            Verdict::Append => (ErrorCode::NONE, self.append(attempt)),
            Verdict::Duplicate { base_offset, .. } => (ErrorCode::NONE, base_offset),
            Verdict::Refuse(SequenceRefusal::DuplicateSequence) if self.kafka => {
                (ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
            }
            Verdict::Refuse(why) => (why.code(), -1),
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

    /// The oldest `count` batches of what is parked have waited for too long.
    pub fn expire_parked(&mut self, count: usize) -> Vec<(Attempt, Answer)> {
        let mut answers = Vec::new();
        for node in 0..self.nodes.len() {
            let parking = &mut self.nodes[node].parking;
            let due = parking.next_due_ms().unwrap_or(0).saturating_add(count as u64 - 1);
            let expired = parking.expire(due);
            answers.extend(self.refuse(node, expired, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER));
        }
        answers
    }

    /// Returns true if a record is in the log; while nothing is amiss it is sorted.
    pub fn has(&self, record: u32) -> bool {
        self.log.binary_search(&record).is_ok()
    }

    pub fn has_parked(&self) -> bool {
        self.nodes.iter().any(|node| !node.parking.is_empty())
    }

    /// The leader restarts. It restores every batch it remembered, or as Kafka 4.3 only the newest of each producer.
    pub fn restart(&mut self, whole: bool) {
        let node = &mut self.nodes[self.leader];
        node.parking = Parking::default();
        let mut producers = Producers::default();
        if whole {
            producers.restore(node.producers.snapshot(), 0, node.retain);
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
