//! The model of a producer's window, brokers, and the connections between them. A schedule drives it.
//!
//! The model uses the real window and the real table of errors. The short code that connects these in the sender and
//! the partition is repeated in [`World::act`]. Invariant: each batch that was taken from the window returns to it
//! once.

use super::broker::{Answer, Attempt, Cluster, Fault, Node};
use super::{Breach, Bug, Setup, Step};
use crate::partitioner::splitmix;
use crate::sender::verdict::{self, Verdict};
use crate::window::{Fate, ProducerIdAndEpoch, Setback, Ticket, WINDOW_DEFAULT, Window, sequence_add};
use fullbore_rules::sequence::Stamp as BrokerStamp;
use fullbore_wire::ErrorCode;
use std::collections::VecDeque;

/// The number of connections to a node.
pub(super) const LANES: usize = 3;

/// A batch of the producer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    first: u32,
    count: u32,
    /// True if an attempt may have been written.
    ambiguous: bool,
}

impl Job {
    fn halves(self) -> Vec<(u32, Job)> {
        let half = Job { count: self.count / 2, ..self };
        let rest = Job { first: self.first + half.count, count: self.count - half.count, ..self };
        vec![(half.count, half), (rest.count, rest)]
    }
}

/// The result that was reported for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    Written,
    PerhapsWritten,
    SurelyNot,
}

/// A request on a connection, until its response is received.
#[derive(Debug)]
struct Sent {
    ticket: Ticket,
    job: Job,
    attempt: Attempt,
    answer: Option<Answer>,
    /// True if the producer no longer waits for the response, which is a planted fault.
    deaf: bool,
}

/// A connection: the requests that the broker has not received yet (`travelling`), and those whose responses the
/// producer has not received yet (`seen`). Both lists begin with the oldest.
#[derive(Debug, Default)]
struct Lane {
    travelling: VecDeque<Sent>,
    seen: VecDeque<Sent>,
}

#[derive(Debug)]
pub(super) struct World {
    window: Window<Job>,
    pub cluster: Cluster,
    setup: Setup,
    /// The connections to node 0, followed by those to node 1.
    lanes: Vec<Lane>,
    /// The requests of ended connections, oldest first. Brokers may receive them later, or never.
    late: Vec<(usize, VecDeque<Attempt>)>,
    leader: usize,
    /// The leader's last grants: the numbers of batches to retain and to park.
    granted: (usize, usize),
    /// The number of records in the largest batch, as far as the producer knows the limit.
    records_max: u32,
    sent_to: usize,
    next_record: u32,
    /// The number of a record before which every record has a result, because delivery.timeout.ms has passed.
    timed_out_to: u32,
    reports: Vec<Option<Report>>,
    attempts: u64,
    next_producer_id: i64,
    /// True if the producer must know the offset of every written batch. False once a batch may have been proven
    /// written without a retry, so that its offset is unknown. This happens if a batch was refused as out of order
    /// before a late copy was appended, or if its producer was fenced.
    offsets_known: bool,
}

impl World {
    pub fn new(setup: Setup, bug: Option<Bug>) -> World {
        let mut window = Window::new(true);
        window.adopt(ProducerIdAndEpoch { producer_id: 9, epoch: 0 });
        if let Some(before) = setup.before_wrap {
            window.next_sequence = i32::MAX - before;
        }
        let base = if setup.before_wrap.is_some() { 1 } else { 0 };
        let nodes = setup.retain.map(|retain| Node::new(retain, setup.parks));
        World {
            window,
            cluster: Cluster::new(nodes, base, setup.kafka, bug),
            setup,
            lanes: (0..2 * LANES).map(|_| Lane::default()).collect(),
            late: Vec::new(),
            leader: 0,
            granted: (WINDOW_DEFAULT, 0),
            records_max: u32::MAX,
            sent_to: 0,
            next_record: 0,
            timed_out_to: 0,
            reports: Vec::new(),
            attempts: 0,
            next_producer_id: 10,
            offsets_known: setup.retain[0] == setup.retain[1],
        }
    }

    pub fn is_done(&self) -> bool {
        self.next_record >= self.setup.records && self.window.is_idle()
    }

    fn roll(&self, sides: u32) -> u32 {
        (splitmix(u64::from(self.next_record) << 32 | self.attempts) >> 33) as u32 % sides
    }

    fn breach(&mut self, breach: Breach) {
        self.cluster.breach.get_or_insert(breach);
    }

    pub fn step(&mut self, step: &Step) {
        match *step {
            Step::Send { most, lane } => {
                for i in 0..most {
                    if !self.send(usize::from(lane) + i / 2) {
                        break;
                    }
                }
            }
            Step::Arrive { lane, most } => (0..most).for_each(|_| self.arrive(lane.into(), Fault::None)),
            Step::ArriveTo { lane, fault } => {
                self.offsets_known &= fault != Fault::Refused(ErrorCode::UNKNOWN_PRODUCER_ID);
                self.arrive(lane.into(), fault);
            }
            Step::Answer { lane, most } => (0..most).for_each(|_| self.answer(lane.into())),
            Step::Cut { lane, arrives, unsent, late } => self.cut(lane.into(), arrives, unsent, late),
            Step::Late { which, twice } => self.arrive_late(which, twice),
            Step::Move => self.move_leader(),
            Step::Retain { node, batches } => {
                self.offsets_known = false;
                self.cluster.nodes[usize::from(node)].retain = batches;
            }
            Step::RecordsMax { node, records } => self.cluster.nodes[usize::from(node)].records_max = records,
            Step::Restart => {
                self.offsets_known &= !self.setup.kafka;
                self.cluster.restart(!self.setup.kafka);
                self.granted = (WINDOW_DEFAULT, 0);
                (0..LANES).for_each(|lane| self.cut(self.cluster.leader * LANES + lane, 0, 0, false));
            }
            Step::ExpireParked { most } => {
                let answers = self.cluster.expire_parked(most);
                self.deliver(answers);
            }
            Step::TimeOut { batches } => self.time_out(batches),
            Step::ExpireProducers => self.expire_producers(),
        }
        self.report_settled();
    }

    /// Sends the next batch if the window permits one, and then returns true. Prefers retries to new batches.
    fn send(&mut self, lane: usize) -> bool {
        if self.window.in_flight() > 0 && self.sent_to != self.leader {
            return false;
        }
        while let Some(spent) = self.window.wants_identity() {
            assert_ne!(spent, Some(self.next_producer_id));
            self.window.adopt(ProducerIdAndEpoch { producer_id: self.next_producer_id, epoch: 0 });
            self.next_producer_id += 1;
            // Nothing fences the abandoned producer id, so its late copies are removed.
            self.late.clear();
        }
        let larger = usize::from(self.cluster.bug == Some(Bug::WindowOneLarger));
        // As in the partition, a striped producer has no more batches in flight behind a missing one than the broker
        // can park.
        let most = if self.granted.1 > 0 { self.granted.1 + 1 } else { usize::MAX };
        self.window.grant(self.granted.0.min(most) + larger);
        self.report_settled();
        let striped = self.granted.1 > 0;
        self.part_what_is_too_large(striped);
        let (ticket, stamp, job) = match self.window.next_retry(striped) {
            Some(retry) => retry,
            None if self.next_record < self.setup.records && self.window.may_open() => {
                let mut job = Job { first: self.next_record, count: 1 + self.roll(5), ambiguous: false };
                if job.count > self.records_max {
                    // Opens and takes back the batch, as the sender does with a batch that is too large after
                    // compression.
                    let (ticket, _) = self.window.open(job.count);
                    assert!(self.window.take_back(ticket), "it is the newest");
                    job.count = self.records_max;
                }
                self.next_record += job.count;
                self.reports.resize(self.next_record as usize, None);
                let (ticket, stamp) = self.window.open(job.count);
                (ticket, stamp, job)
            }
            None => return self.window.wants_identity().is_some(),
        };
        self.sent_to = self.leader;
        self.attempts += 1;
        let stamp = BrokerStamp {
            producer_id: stamp.producer_id,
            producer_epoch: stamp.producer_epoch,
            base_sequence: stamp.base_sequence,
            record_count: job.count as i32,
        };
        let lane = self.leader * LANES + if striped { lane % LANES } else { 0 };
        let reorder = striped && self.window.in_flight() > 1;
        let attempt = Attempt { number: self.attempts, lane, stamp, first: job.first, reorder };
        self.lanes[lane].travelling.push_back(Sent { ticket, job, attempt, answer: None, deaf: false });
        true
    }

    /// Splits retries that exceed the known limit, as the partition does.
    fn part_what_is_too_large(&mut self, missing: bool) {
        let most = self.records_max;
        while let Some(halves) =
            self.window.peek_retry(missing).filter(|job| job.count > most && !job.ambiguous).map(|job| job.halves())
        {
            self.window.part_retry(missing, halves);
        }
    }

    /// Lets the broker handle the next request of a connection.
    fn arrive(&mut self, lane: usize, fault: Fault) {
        let Some(sent) = self.lanes[lane].travelling.pop_front() else { return };
        let attempt = sent.attempt;
        self.lanes[lane].seen.push_back(sent);
        let answers = self.cluster.arrive(lane / LANES, attempt, fault);
        self.deliver(answers);
    }

    /// Assigns responses to their requests. The connection delivers them in the order of the requests.
    fn deliver(&mut self, answers: Vec<(Attempt, Answer)>) {
        for (attempt, answer) in answers {
            let seen = &mut self.lanes[attempt.lane].seen;
            if let Ok(at) = seen.binary_search_by_key(&attempt.number, |sent| sent.attempt.number) {
                seen[at].answer = Some(answer);
            }
        }
    }

    /// Delivers the oldest response of a connection to the producer.
    fn answer(&mut self, lane: usize) {
        if self.lanes[lane].seen.front().is_none_or(|sent| sent.answer.is_none()) {
            return;
        }
        let sent = self.lanes[lane].seen.pop_front().expect("just seen");
        if sent.deaf {
            return;
        }
        let answer = sent.answer.expect("just seen");
        if lane / LANES == self.leader {
            self.granted = (answer.grant, answer.reorder);
        }
        self.act(sent.ticket, sent.job, answer);
    }

    /// Handles a response, as the sender does.
    fn act(&mut self, ticket: Ticket, mut job: Job, answer: Answer) {
        match verdict::of(answer.code, job.ambiguous) {
            Verdict::Written => {
                self.window.acked(ticket);
                self.written(job, answer.offset);
            }
            Verdict::SetBack(setback) => {
                self.set_back(ticket, job, setback);
                if setback == Setback::OutOfOrder && self.cluster.bug == Some(Bug::EpochWithoutWaiting) {
                    self.stop_waiting();
                }
            }
            Verdict::TooLarge if job.count > 1 => {
                self.records_max = self.records_max.min(job.count / 2);
                self.window.split(ticket, job.halves());
            }
            Verdict::TooLarge => self.give_up(ticket, job, false),
            Verdict::Unresolved => self.give_up(ticket, job, true),
            Verdict::Failed { maybe } => {
                job.ambiguous |= maybe;
                self.give_up(ticket, job, maybe);
            }
        }
    }

    fn set_back(&mut self, ticket: Ticket, mut job: Job, setback: Setback) {
        let lies = self.cluster.bug == Some(Bug::LostMeansRefused);
        let maybe = setback == Setback::Retry { maybe: true } && !lies;
        job.ambiguous |= maybe;
        if job.first < self.timed_out_to {
            return self.give_up(ticket, job, job.ambiguous);
        }
        let setback = if lies && setback != Setback::OutOfOrder { Setback::Retry { maybe: false } } else { setback };
        self.window.set_back(ticket, setback, job);
    }

    fn give_up(&mut self, ticket: Ticket, job: Job, maybe: bool) {
        let maybe = maybe || job.ambiguous;
        self.window.given_up(ticket, maybe);
        if self.cluster.bug == Some(Bug::SequencesReused) && self.window.is_idle() && self.window.hole.is_some() {
            self.window.hole = None;
            self.window.next_sequence = sequence_add(self.window.next_sequence, job.count.wrapping_neg());
        }
        self.report(job, if maybe { Report::PerhapsWritten } else { Report::SurelyNot });
    }

    /// Starts a new epoch while batches are in flight, which is a planted fault.
    fn stop_waiting(&mut self) {
        let sent = self.lanes.iter_mut().flat_map(|lane| lane.travelling.iter_mut().chain(&mut lane.seen));
        for sent in sent {
            if std::mem::replace(&mut sent.deaf, true) {
                continue;
            }
            self.window.set_back(sent.ticket, Setback::Retry { maybe: false }, sent.job);
        }
        if let Some(identity) = self.window.identity {
            self.window.start_epoch(ProducerIdAndEpoch { epoch: identity.epoch + 1, ..identity });
        }
    }

    fn report_settled(&mut self) {
        for (job, fate) in self.window.settled() {
            match fate {
                Fate::Written => self.written(job, -1),
                Fate::Unresolved => self.report(job, Report::PerhapsWritten),
                Fate::Refused => unreachable!("only in transactions"),
            }
        }
    }

    fn written(&mut self, job: Job, offset: i64) {
        let log = &self.cluster.log;
        let at =
            if offset < 0 { log.partition_point(|r| *r < job.first) } else { (offset - self.cluster.base) as usize };
        let there = log
            .get(at..at + job.count as usize)
            .is_some_and(|found| found.iter().copied().eq(job.first..job.first + job.count));
        if !there {
            self.breach(Breach::Loss(job.first));
        }
        if offset < 0 && self.offsets_known {
            self.breach(Breach::OffsetForgotten(job.first));
        }
        if self.cluster.bug != Some(Bug::NoResult) || job.first % 40 != 7 {
            self.report(job, Report::Written);
        }
    }

    fn report(&mut self, job: Job, report: Report) {
        for record in job.first..job.first + job.count {
            // Results after the timeout no longer change anything.
            if record < self.timed_out_to {
                continue;
            }
            if self.reports[record as usize].replace(report).is_some() {
                self.breach(Breach::TwoResults(record));
            }
            if report == Report::SurelyNot {
                self.surely_not(record);
            }
        }
    }

    fn surely_not(&mut self, record: u32) {
        self.cluster.surely_not.insert(record);
        if self.cluster.has(record) {
            self.breach(Breach::SurelyNotIsThere(record));
        }
    }

    /// Ends a connection. Of its requests in flight, the broker still receives the first `arrives`, but the responses
    /// are lost. The last `unsent` were never sent. If `late` is true, the ones between may arrive later.
    fn cut(&mut self, lane: usize, arrives: usize, unsent: usize, late: bool) {
        let Lane { mut travelling, seen } = std::mem::take(&mut self.lanes[lane]);
        let unsent = travelling.split_off(travelling.len().saturating_sub(unsent));
        for sent in travelling.iter().take(arrives) {
            let answers = self.cluster.arrive(lane / LANES, sent.attempt, Fault::None);
            self.deliver(answers);
        }
        let rest: VecDeque<Attempt> = travelling.iter().skip(arrives).map(|sent| sent.attempt).collect();
        if late && !rest.is_empty() {
            self.late.push((lane / LANES, rest));
        }
        let never = unsent.into_iter().map(|sent| (sent, false));
        for (sent, maybe) in seen.into_iter().chain(travelling).map(|sent| (sent, true)).chain(never) {
            if !sent.deaf {
                self.set_back(sent.ticket, sent.job, Setback::Retry { maybe });
            }
        }
        if lane / LANES == self.leader && (0..LANES).all(|i| self.is_quiet(self.leader * LANES + i)) {
            self.granted.0 = WINDOW_DEFAULT;
        }
    }

    fn is_quiet(&self, lane: usize) -> bool {
        self.lanes[lane].travelling.is_empty() && self.lanes[lane].seen.is_empty()
    }

    fn arrive_late(&mut self, which: usize, twice: bool) {
        if self.late.is_empty() {
            return;
        }
        self.offsets_known = false;
        let which = which % self.late.len();
        let (node, queue) = &mut self.late[which];
        let (node, attempt) = (*node, queue.pop_front().expect("empty queues are removed"));
        if queue.is_empty() {
            self.late.remove(which);
        }
        for _ in 0..=usize::from(twice) {
            let answers = self.cluster.arrive(node, attempt, Fault::None);
            self.deliver(answers);
        }
    }

    fn move_leader(&mut self) {
        self.cluster.leader = 1 - self.cluster.leader;
        self.leader = self.cluster.leader;
        self.records_max = u32::MAX;
        self.granted = (WINDOW_DEFAULT, 0);
        // A batch that is parked at the former leader gets its response when its wait ends.
    }

    /// Fails the oldest batches, as after delivery.timeout.ms.
    fn time_out(&mut self, batches: usize) {
        let mut waiting: Vec<Job> = Vec::new();
        let in_flight = self.lanes.iter().flat_map(|lane| lane.travelling.iter().chain(&lane.seen));
        let mut in_flight: Vec<(Job, bool)> = in_flight.filter(|s| !s.deaf).map(|sent| (sent.job, true)).collect();
        self.window.drop_retries(|job| {
            waiting.push(*job);
            false
        });
        in_flight.extend(waiting.into_iter().map(|job| (job, job.ambiguous)));
        in_flight.sort_by_key(|(job, _)| job.first);
        in_flight.truncate(batches);
        for (job, maybe) in &in_flight {
            self.report(*job, if *maybe { Report::PerhapsWritten } else { Report::SurelyNot });
        }
        if let Some((last, _)) = in_flight.last() {
            let to = last.first + last.count;
            self.timed_out_to = self.timed_out_to.max(to);
            self.window.drop_retries(|job| job.first < to);
        }
    }

    /// Leaves the producer idle for longer than brokers remember producers.
    fn expire_producers(&mut self) {
        if self.window.is_idle() && self.late.is_empty() && !self.cluster.has_parked() {
            self.offsets_known = false;
            self.cluster.expire_producers();
            self.window.rested();
        }
    }

    /// Ends the faults. Delivers all requests and responses, and refuses parked batches whose predecessor is missing.
    pub fn calm(&mut self) {
        self.cluster.nodes.iter_mut().for_each(|node| node.records_max = u32::MAX);
        for most in 0..usize::MAX {
            if !self.send(most) {
                break;
            }
        }
        let mut moved = false;
        for lane in 0..self.lanes.len() {
            while !self.lanes[lane].travelling.is_empty() {
                self.arrive(lane, Fault::None);
            }
        }
        for lane in 0..self.lanes.len() {
            while self.lanes[lane].seen.front().is_some_and(|sent| sent.answer.is_some()) {
                self.answer(lane);
                moved = true;
            }
        }
        if !moved {
            let answers = self.cluster.expire_parked(usize::MAX);
            self.deliver(answers);
            // If a request has no response by now, it will never get one.
            let stuck = |lane: &Lane| lane.seen.front().is_some_and(|sent| sent.answer.is_none());
            for lane in 0..self.lanes.len() {
                if stuck(&self.lanes[lane]) {
                    self.cut(lane, 0, 0, false);
                }
            }
        }
        self.report_settled();
    }

    /// Checks the invariants that hold at the end.
    pub fn check_end(&mut self) -> Result<(), Breach> {
        while !self.late.is_empty() {
            self.arrive_late(0, false);
        }
        self.cluster.breach.clone().map_or(Ok(()), Err)?;
        for (record, report) in (0..).zip(&self.reports) {
            match report {
                None => return Err(Breach::NoResult(record)),
                Some(Report::Written) if !self.cluster.has(record) => return Err(Breach::Loss(record)),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The faults to draw from. The model's brokers never return their error codes by themselves, except
    /// NOT_LEADER_OR_FOLLOWER.
    pub const FAULTS: [Fault; 9] = [
        Fault::Refused(ErrorCode::NOT_ENOUGH_REPLICAS),
        Fault::Refused(ErrorCode::NOT_ENOUGH_REPLICAS),
        Fault::Refused(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        Fault::WrittenBut(ErrorCode::REQUEST_TIMED_OUT),
        Fault::WrittenBut(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        Fault::Refused(ErrorCode::INVALID_RECORD),
        Fault::Refused(ErrorCode::UNKNOWN_SERVER_ERROR),
        Fault::WrittenBut(ErrorCode::UNKNOWN_SERVER_ERROR),
        Fault::Refused(ErrorCode::UNKNOWN_PRODUCER_ID),
    ];
}
