//! The brokers of the model, with the log of one partition. They check batches with the real rules of the broker, and
//! have faults.
//!
//! Two nodes share the log, as replicas that are always in sync. Each node has its own limit for the retained batches
//! of a producer. Every append is checked at once: no record may be in the log twice, or before a record that was sent
//! earlier. A record that was reported as certainly not written must not be in the log.

use super::{Breach, Bug};
use fullbore_rules::sequence::parking::Parking;
use fullbore_rules::sequence::{Producers, SequenceRefusal, Stamp, Verdict};
use fullbore_wire::ErrorCode;
use std::collections::HashSet;

/// A batch in a request. `first` is the number of its first record, and records are numbered in the order of sending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// The number of the attempt. Number and connection assign a response to its request.
    pub number: u64,
    pub lane: usize,
    pub stamp: Stamp,
    pub first: u32,
    /// True if the request permits the broker to park the batch.
    pub reorder: bool,
}

impl Attempt {
    pub fn records(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.stamp.record_count as u32
    }
}

/// The response for a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub code: ErrorCode,
    pub offset: i64,
    /// How many batches the broker retains.
    pub grant: usize,
    /// How many batches the broker parks.
    pub reorder: usize,
}

/// A fault in the handling of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Refused(ErrorCode),
    WrittenBut(ErrorCode),
}

#[derive(Debug)]
pub(super) struct Node {
    pub retain: usize,
    /// How many batches the node parks. 0 if it does not park.
    pub parks: usize,
    /// The number of records in the largest batch that the node accepts.
    pub records_max: u32,
    producers: Producers,
    /// The parked batches, each with all of its copies that have arrived.
    parking: Parking<Vec<Attempt>>,
    /// The number of batches that were parked since the start. The parking uses this number as the time.
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
    /// The offset of the log's first record. A value above 0 means that another producer has written to the partition
    /// before.
    pub base: i64,
    pub log: Vec<u32>,
    /// True if the broker answers OUT_OF_ORDER_SEQUENCE_NUMBER to batches that it forgot, as Kafka does.
    pub kafka: bool,
    /// The records that were reported as certainly not written.
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

    /// Handles a batch that arrives at a node. Returns the responses that are due now: the batch's own, unless the
    /// batch is parked, and those of batches that waited for this one.
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

    /// Parks a batch, as the broker's reorder buffer does.
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

    /// Appends or refuses the parked batches that an append has released.
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

    /// Expires the `count` batches that have been parked longest.
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

    /// Returns true if a record is in the log. The log is sorted unless a violation was found.
    pub fn has(&self, record: u32) -> bool {
        self.log.binary_search(&record).is_ok()
    }

    pub fn has_parked(&self) -> bool {
        self.nodes.iter().any(|node| !node.parking.is_empty())
    }

    /// Restarts the leader. With `whole`, it restores all batches that it had retained. Otherwise it restores only the
    /// newest batch of each producer, like Kafka 4.3.
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

    /// Forgets every producer, as after a long idle time.
    pub fn expire_producers(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.producers = Producers::default());
        self.newest.clear();
    }
}
