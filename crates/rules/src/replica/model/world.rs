//! Runs three [`Partition`]s with logs, messages and time, and checks the promises of the model.

use super::controller::Controller;
use super::{Action, At, Fault};
use crate::replica::epochs::{Divergence, EpochEnd, Position, divergence, truncation};
use crate::replica::{
    Acknowledgement, AlterPartition, Effects, FollowerFetch, LocalLog, Now, Partition, PartitionRegistration,
    ReplicaSettings, RoleChange,
};
use fullbore_wire::ErrorCode;
use std::collections::BTreeMap;

pub const LAG_MS: i64 = 1_000;
const IDS: [i32; 3] = [1, 2, 3];
/// Maximum number of records in a response to a fetch.
const FETCHED_MAX: usize = 3;

/// A record with a unique value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    epoch: i32,
    value: u64,
}

/// A producer's request that waits for its response.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    epoch: i32,
    end_offset: i64,
    record: Record,
}

/// A running process of a broker.
#[derive(Debug)]
struct Process {
    partition: Partition,
    metadata: Controller,
    broker_epoch: i64,
    tickets: Vec<Ticket>,
    /// The high watermark of the process at the last check.
    seen: i64,
}

/// A broker: its disk, and its process while it runs.
#[derive(Debug)]
struct Broker {
    id: i32,
    log: Vec<Record>,
    checkpoint: i64,
    process: Option<Process>,
}

#[derive(Clone, Debug)]
enum Message {
    Fetch { to: At, fetch: FollowerFetch, position: Position },
    Answer { to: At, broker_epoch: i64, leader_epoch: i32, requested: Position, high_watermark: i64, found: Found },
    Propose { from: At, broker_epoch: i64, proposal: AlterPartition },
    Altered { to: At, broker_epoch: i64, proposal: AlterPartition, answer: Result<PartitionRegistration, ErrorCode> },
}

#[derive(Clone, Debug)]
enum Found {
    Records(Vec<Record>),
    Diverging(EpochEnd),
}

#[derive(Debug)]
pub struct World {
    brokers: Vec<Broker>,
    controller: Controller,
    network: Vec<Message>,
    settings: ReplicaSettings,
    now_ms: i64,
    values: u64,
    /// All records that have been below the high watermark of a broker.
    committed: Vec<Record>,
    /// Acknowledged records that have not been checked yet.
    acknowledged: Vec<(i64, Record)>,
    acknowledged_count: usize,
    leaders: BTreeMap<i32, i32>,
    /// The largest end offset that a leader has returned.
    reported: i64,
    fault: Option<Fault>,
}

fn epochs(log: &[Record]) -> Vec<(i32, i64)> {
    let mut epochs: Vec<(i32, i64)> = Vec::new();
    for (record, offset) in log.iter().zip(0..) {
        if epochs.last().is_none_or(|&(epoch, _)| epoch < record.epoch) {
            epochs.push((record.epoch, offset));
        }
    }
    epochs
}

fn position(log: &[Record]) -> Position {
    Position { offset: log.len() as i64, last_epoch: log.last().map(|record| record.epoch) }
}

fn must(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

impl World {
    pub fn new(min_insync_replicas: usize, fault: Option<Fault>) -> World {
        let controller = Controller::new(IDS, fault);
        let settings = ReplicaSettings { min_insync_replicas, replica_lag_time_max_ms: LAG_MS };
        let broker = |id| Broker { id, log: Vec::new(), checkpoint: 0, process: None };
        let mut world = World {
            brokers: IDS.map(broker).into(),
            controller,
            network: Vec::new(),
            settings,
            now_ms: 1_000_000,
            values: 0,
            committed: Vec::new(),
            acknowledged: Vec::new(),
            acknowledged_count: 0,
            leaders: BTreeMap::new(),
            reported: 0,
            fault,
        };
        (0..3).for_each(|at| world.launch(at, 1));
        world
    }

    pub fn acknowledged(&self) -> usize {
        self.acknowledged_count
    }

    pub fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Produce { at, is_acks_all } => self.produce(at, is_acks_all)?,
            Action::Fetch { at } => self.fetch(at),
            Action::Round { at } => self.round(at)?,
            Action::Deliver { pick } if !self.network.is_empty() => {
                let message = self.network.remove(pick % self.network.len());
                self.deliver(message)?;
            }
            Action::Drop { pick } if !self.network.is_empty() => {
                let message = self.network.remove(pick % self.network.len());
                self.lose(message)?;
            }
            Action::Deliver { .. } | Action::Drop { .. } => {}
            Action::Image { at } => self.image(at)?,
            Action::Tick { at } => self.event(at, |partition, now| Ok(partition.tick(now)))?,
            Action::Pass { ms } => self.now_ms += ms,
            Action::Kill { at } => self.kill(at),
            Action::Start { at } if self.brokers[at].process.is_none() => self.start(at),
            Action::Start { .. } => {}
            Action::PowerCut { at, lost } => self.power_cut(at, lost),
            Action::Fence { at } => self.controller.fence(IDS[at]),
            Action::Elect { at } => self.controller.prefer(IDS[at]),
            Action::Unfence { at } => {
                // A broker without a process sends no heartbeats.
                if self.brokers[at].process.is_some() {
                    self.controller.unfence(IDS[at]);
                }
            }
        }
        self.check()
    }

    fn launch(&mut self, at: At, broker_epoch: i64) {
        let broker = &mut self.brokers[at];
        let end_offset = broker.log.len() as i64;
        let log = LocalLog { start_offset: 0, end_offset, high_watermark: broker.checkpoint };
        let partition = Partition::new(broker.id, log, self.settings);
        let seen = partition.high_watermark();
        let metadata = self.controller.clone();
        broker.process = Some(Process { partition, metadata, broker_epoch, tickets: Vec::new(), seen });
    }

    fn kill(&mut self, at: At) {
        let broker = &mut self.brokers[at];
        if let Some(process) = broker.process.take() {
            // The last checkpoint before the kill is older than the high watermark.
            broker.checkpoint = process.partition.high_watermark() / 2;
        }
    }

    fn start(&mut self, at: At) {
        let broker_epoch = self.controller.register(IDS[at]);
        self.launch(at, broker_epoch);
    }

    /// Cuts the power of a broker, so that its log loses `lost` records at the end. The only member of the ISR loses
    /// nothing, because no other broker is certain to have its records.
    fn power_cut(&mut self, at: At, lost: usize) {
        self.kill(at);
        let is_alone = self.controller.partition.isr == [IDS[at]];
        let log = &mut self.brokers[at].log;
        let left = if is_alone { log.len() } else { log.len().saturating_sub(lost) };
        log.truncate(left);
        self.start(at);
    }

    /// Applies an event to a partition, and carries out its effects.
    fn event(
        &mut self,
        at: At,
        report: impl FnOnce(&mut Partition, &Now<'_>) -> Result<Effects, ErrorCode>,
    ) -> Result<(), String> {
        let Some(process) = &mut self.brokers[at].process else { return Ok(()) };
        let now = Now { ms: self.now_ms, broker_epoch: process.broker_epoch, brokers: &process.metadata.brokers };
        let Ok(effects) = report(&mut process.partition, &now) else { return Ok(()) };
        if let Some(RoleChange::Lead { epoch, .. }) = effects.role {
            let leader = *self.leaders.entry(epoch).or_insert(IDS[at]);
            must(leader == IDS[at], || format!("{leader} and {} lead epoch {epoch}", IDS[at]))?;
        }
        if let Some(proposal) = effects.propose {
            self.network.push(Message::Propose { from: at, broker_epoch: process.broker_epoch, proposal });
        }
        if effects.role.is_some()
            && self.fault == Some(Fault::TruncatesToHighWatermark)
            && !process.partition.is_leader()
        {
            let high_watermark = process.partition.high_watermark();
            self.brokers[at].log.truncate(high_watermark as usize);
            let partition = &mut self.brokers[at].process.as_mut().expect("it runs").partition;
            partition.truncated(high_watermark);
        }
        self.answer_tickets(at);
        Ok(())
    }

    fn answer_tickets(&mut self, at: At) {
        let Some(process) = &mut self.brokers[at].process else { return };
        let (partition, acknowledged) = (&process.partition, &mut self.acknowledged);
        process.tickets.retain(|ticket| match partition.acknowledgement(ticket.epoch, ticket.end_offset) {
            Acknowledgement::Wait => true,
            Acknowledgement::Refused(_) => false,
            Acknowledgement::Done => {
                acknowledged.push((ticket.end_offset - 1, ticket.record));
                false
            }
        });
    }

    fn produce(&mut self, at: At, is_acks_all: bool) -> Result<(), String> {
        let broker = &mut self.brokers[at];
        let Some(process) = &mut broker.process else { return Ok(()) };
        if process.partition.check_append(is_acks_all).is_err() {
            return Ok(());
        }
        self.values += 1;
        let record = Record { epoch: process.partition.leader_epoch(), value: self.values };
        broker.log.push(record);
        let end_offset = broker.log.len() as i64;
        if is_acks_all && self.fault == Some(Fault::AnswersEarly) {
            self.acknowledged.push((end_offset - 1, record));
        } else if is_acks_all {
            process.tickets.push(Ticket { epoch: record.epoch, end_offset, record });
        }
        self.event(at, |partition, now| Ok(partition.appended(end_offset, now)))
    }

    fn fetch(&mut self, at: At) {
        let Broker { id, log, process: Some(process), .. } = &self.brokers[at] else { return };
        let partition = &process.partition;
        let Some(leader) = partition.leader().filter(|leader| leader != id) else { return };
        let position = position(log);
        let ahead = i64::from(self.fault == Some(Fault::FetchesAhead));
        let fetch = FollowerFetch {
            broker_id: *id,
            broker_epoch: process.broker_epoch,
            leader_epoch: partition.leader_epoch(),
            offset: position.offset + ahead,
        };
        self.network.push(Message::Fetch { to: (leader - 1) as At, fetch, position });
    }

    /// Lets a broker fetch, and delivers the fetch and its response before all messages in flight.
    fn round(&mut self, at: At) -> Result<(), String> {
        let before = std::mem::take(&mut self.network);
        self.fetch(at);
        while !self.network.is_empty() {
            let message = self.network.remove(0);
            self.deliver(message)?;
        }
        self.network = before;
        Ok(())
    }

    fn image(&mut self, at: At) -> Result<(), String> {
        let metadata = self.controller.clone();
        let Some(process) = &mut self.brokers[at].process else { return Ok(()) };
        process.metadata = metadata.clone();
        self.event(at, |partition, now| Ok(partition.apply(&metadata.partition, now)))
    }

    fn deliver(&mut self, message: Message) -> Result<(), String> {
        match message {
            Message::Fetch { to, fetch, position } => self.fetched(to, fetch, position),
            Message::Answer { to, broker_epoch, leader_epoch, requested, high_watermark, found } => {
                if self.is_running(to, broker_epoch) {
                    self.answered(to, leader_epoch, requested, high_watermark, found)?;
                }
                Ok(())
            }
            Message::Propose { from, broker_epoch, proposal } => {
                let answer = self.controller.alter(IDS[from], &proposal);
                self.network.push(Message::Altered { to: from, broker_epoch, proposal, answer });
                Ok(())
            }
            Message::Altered { to, broker_epoch, proposal, answer } => {
                if !self.is_running(to, broker_epoch) {
                    return Ok(());
                }
                self.event(to, |partition, now| {
                    let answer = answer.as_ref().map_err(|error| *error);
                    Ok(partition.altered(&proposal, answer, now))
                })
            }
        }
    }

    /// Loses a message. If a leader waits for the response, it gets an error instead.
    fn lose(&mut self, message: Message) -> Result<(), String> {
        let (Message::Propose { from: at, broker_epoch, proposal }
        | Message::Altered { to: at, broker_epoch, proposal, .. }) = message
        else {
            return Ok(());
        };
        let forgets = self.fault == Some(Fault::ForgetsProposals);
        let error = if forgets { ErrorCode::INELIGIBLE_REPLICA } else { ErrorCode::REQUEST_TIMED_OUT };
        if self.is_running(at, broker_epoch) {
            self.event(at, |partition, now| Ok(partition.altered(&proposal, Err(error), now)))?;
        }
        Ok(())
    }

    fn is_running(&self, at: At, broker_epoch: i64) -> bool {
        self.brokers[at].process.as_ref().is_some_and(|process| process.broker_epoch == broker_epoch)
    }

    fn fetched(&mut self, at: At, mut fetch: FollowerFetch, requested: Position) -> Result<(), String> {
        let Broker { log, process: Some(process), .. } = &self.brokers[at] else { return Ok(()) };
        let leader_epoch = fetch.leader_epoch;
        if self.fault == Some(Fault::AcceptsOldFollowers) {
            fetch.leader_epoch = process.partition.leader_epoch();
        }
        if !process.partition.is_leader() || process.partition.check_leader_epoch(fetch.leader_epoch).is_err() {
            return Ok(());
        }
        let found = match divergence(&epochs(log), log.len() as i64, requested) {
            Divergence::OutOfRange => return Ok(()),
            Divergence::At(end) => Found::Diverging(end),
            Divergence::None => {
                let from = requested.offset as usize;
                Found::Records(log[from..log.len().min(from + FETCHED_MAX)].to_vec())
            }
        };
        let counts = matches!(found, Found::Records(_)) || self.fault == Some(Fault::CountsDiverging);
        if counts {
            self.event(at, |partition, now| partition.fetched(&fetch, now))?;
        }
        let process = self.brokers[at].process.as_ref().expect("it runs");
        self.network.push(Message::Answer {
            to: (fetch.broker_id - 1) as At,
            broker_epoch: fetch.broker_epoch,
            leader_epoch,
            requested,
            high_watermark: process.partition.high_watermark(),
            found,
        });
        Ok(())
    }

    fn answered(
        &mut self,
        at: At,
        epoch: i32,
        requested: Position,
        high_watermark: i64,
        found: Found,
    ) -> Result<(), String> {
        let fault = self.fault;
        let Broker { log, process: Some(process), .. } = &mut self.brokers[at] else { return Ok(()) };
        let follows_anybody = fault == Some(Fault::FollowsOldLeaders) && !process.partition.is_leader();
        let epoch = if follows_anybody { process.partition.leader_epoch() } else { epoch };
        if process.partition.check_following(epoch).is_err() {
            return Ok(());
        }
        match found {
            Found::Diverging(end) => {
                if fault == Some(Fault::BelievesBeforeTruncation) {
                    let log_end = log.len() as i64;
                    self.event(at, |partition, _| partition.replicated(epoch, log_end, high_watermark))?;
                    self.check()?;
                }
                let broker = &mut self.brokers[at];
                let log_end = broker.log.len() as i64;
                let here = if fault == Some(Fault::TruncatesTwice) { position(&broker.log) } else { requested };
                if let Some(to) = truncation(&epochs(&broker.log), log_end, here, end) {
                    broker.log.truncate(to as usize);
                    broker.process.as_mut().expect("it runs").partition.truncated(to);
                }
                Ok(())
            }
            Found::Records(records) => {
                let from = requested.offset as usize;
                if follows_anybody && from > log.len() {
                    return Ok(());
                }
                must(from <= log.len(), || "a follower lost what its leader counts".to_owned())?;
                let known = log.len() - from;
                log.extend(records.into_iter().skip(known));
                let log_end = log.len() as i64;
                self.event(at, |partition, _| partition.replicated(epoch, log_end, high_watermark))
            }
        }
    }

    /// Checks all promises. This is called after every step.
    fn check(&mut self) -> Result<(), String> {
        for broker in &mut self.brokers {
            let Some(process) = &mut broker.process else { continue };
            let high_watermark = process.partition.high_watermark();
            must(high_watermark >= process.seen, || format!("the high watermark of {} went back", broker.id))?;
            process.seen = high_watermark;
            let visible = broker.log.get(..high_watermark as usize);
            let visible = visible.ok_or_else(|| format!("the high watermark of {} is past its log", broker.id))?;
            let both = visible.len().min(self.committed.len());
            must(visible[..both] == self.committed[..both], || format!("{} shows other records", broker.id))?;
            self.committed.extend(&visible[both..]);
        }
        for id in &self.controller.partition.isr {
            let log = &self.brokers[*id as usize - 1].log;
            must(log.starts_with(&self.committed), || format!("{id} is in sync without what was committed"))?;
        }
        for (offset, record) in self.acknowledged.drain(..) {
            self.acknowledged_count += 1;
            let kept = self.committed.get(offset as usize);
            must(kept == Some(&record), || format!("{record:?} was acknowledged at {offset}, where {kept:?} is"))?;
        }
        self.check_reported()
    }

    /// Checks that the current leader's end offset is not below one that a leader has returned before.
    fn check_reported(&mut self) -> Result<(), String> {
        let epoch = self.controller.partition.leader_epoch;
        for process in self.brokers.iter().filter_map(|broker| broker.process.as_ref()) {
            let Ok(end) = process.partition.latest_offset() else { continue };
            let is_present = process.partition.leader_epoch() == epoch;
            must(!is_present || end >= self.reported, || format!("{end} is told after {}", self.reported))?;
            self.reported = self.reported.max(end);
        }
        Ok(())
    }

    /// Lets the brokers run without disturbances. Checks that all of them join the ISR, that their logs are equal, and
    /// that a new record is acknowledged.
    pub fn end(&mut self) -> Result<(), String> {
        while let Some(message) = self.network.pop() {
            self.lose(message)?;
        }
        for at in 0..3 {
            self.act(Action::Start { at })?;
            self.act(Action::Unfence { at })?;
        }
        self.settle()?;
        let leader = self.controller.partition.leader.expect("everybody is there");
        let committed = self.committed.len();
        self.act(Action::Produce { at: (leader - 1) as At, is_acks_all: true })?;
        self.settle()?;
        let ends: Vec<_> = self.brokers.iter().map(|broker| broker.log.len()).collect();
        let isr = &self.controller.partition.isr;
        must(isr.len() == 3, || format!("only {isr:?} are in sync in the end"))?;
        must(self.committed.len() > committed, || "the last record is not committed".to_owned())?;
        must(ends == [self.committed.len(); 3], || format!("{} are committed of {ends:?}", self.committed.len()))
    }

    fn settle(&mut self) -> Result<(), String> {
        let longest = self.brokers.iter().map(|broker| broker.log.len()).max().expect("three brokers");
        for _ in 0..longest / FETCHED_MAX + 12 {
            self.now_ms += LAG_MS / 4;
            for at in 0..3 {
                self.act(Action::Image { at })?;
                self.act(Action::Tick { at })?;
                self.act(Action::Round { at })?;
            }
            while !self.network.is_empty() {
                self.act(Action::Deliver { pick: 0 })?;
            }
        }
        Ok(())
    }
}
