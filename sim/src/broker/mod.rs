//! A simulated broker. Its disk outlives its processes, and at most one process runs.
//!
//! - `serve` has the leader's side: it handles produce requests and followers' fetches.
//! - `follow` has the follower's side: it fetches from the leader.
//! - `control` has the registration, heartbeats, commands, images and the failure detector.

mod control;
mod follow;
mod serve;

use std::collections::{BTreeMap, VecDeque};

use fullbore_rules::cluster::PreviousShutdown;
use fullbore_rules::cluster::lease::FailureDetector;
use fullbore_rules::cluster::room::RoomWatch;
use fullbore_rules::replica::epochs::Position;
use fullbore_rules::replica::{BrokerState, Brokers, Effects, LocalLog, Now, Partition, ReplicaSettings, RoleChange};
use fullbore_rules::sequence::{Producers, Stamp};

use crate::cluster::{Command, SeenVersion, Snapshot};
use crate::context::{Context, Held, Timer};
use crate::fault::Fault;
use crate::message::{Message, Record};
use crate::network::{ConnectionId, Node};

/// The contents of the disk and of the page cache.
#[derive(Clone, Debug)]
pub struct Disk {
    pub log: Vec<Record>,
    /// How many records of the log survive a power loss.
    pub flushed: usize,
    pub checkpoint: i64,
    /// True if the disk is full.
    pub is_full: bool,
    /// The last version of the database that this broker has seen.
    known: SeenVersion,
    ended: PreviousShutdown,
    directory: u128,
    /// The last join: first the process that was registered before it, then the process that joined.
    users: Option<[u128; 2]>,
    /// The number of the last heartbeat. It is increased on the disk before each heartbeat is sent. A power loss may
    /// undo the last increases.
    noted: u64,
    /// True if records were lost and the cluster does not know it yet.
    pub has_lost: bool,
    /// True if the disk is an older copy and no process has registered with it yet.
    is_copy: bool,
    /// True if the disk is a copy that was taken while a process ran.
    pub is_live_copy: bool,
}

impl Disk {
    /// Returns true if the cluster can rely on the disk to have all records that were written to it. It cannot rely on
    /// a disk after a power loss, even if nothing was lost.
    pub fn is_whole(&self) -> bool {
        self.ended != PreviousShutdown::Lost && !self.is_copy
    }
}

/// A copy of the disk, as an operator's backup would make it.
#[derive(Debug)]
struct Copied {
    disk: Disk,
    /// How many heartbeats the broker had sent when the copy was taken.
    heartbeats: u64,
    /// The process that ran when the copy was taken. `None` if the broker was stopped.
    of: Option<u128>,
}

#[derive(Debug)]
pub struct Broker {
    pub id: i32,
    pub disk: Disk,
    copy: Option<Copied>,
    /// How many heartbeats all processes of this broker have sent.
    heartbeats: u64,
    pub process: Option<Process>,
    pub is_paused: bool,
    pub held: Vec<Held>,
}

/// A running process. It learns about the cluster only from messages.
#[derive(Debug)]
pub struct Process {
    pub life: u64,
    broker_epoch: Option<i64>,
    pub partition: Option<Partition>,
    image: Option<Snapshot>,
    producers: Producers,
    tickets: Vec<serve::Ticket>,
    sessions: BTreeMap<ConnectionId, serve::Session>,
    following: Option<follow::Following>,
    heartbeats: Option<ConnectionId>,
    transactions: Option<ConnectionId>,
    commands: VecDeque<Command>,
    outstanding: Option<control::Outstanding>,
    last_number: u64,
    last_heartbeat_us: i64,
    detector: FailureDetector,
    room: RoomWatch,
    is_stopping: bool,
}

pub fn epochs(log: &[Record]) -> Vec<(i32, i64)> {
    // Collects the epochs from the last to the first. A binary search finds the start of each.
    let mut epochs: Vec<(i32, i64)> = Vec::new();
    let mut end = log.len();
    while let Some(last) = log[..end].last() {
        let start = log[..end].partition_point(|record| record.epoch < last.epoch);
        epochs.push((last.epoch, start as i64));
        end = start;
    }
    epochs.reverse();
    epochs
}

pub fn position(log: &[Record]) -> Position {
    Position { offset: log.len() as i64, last_epoch: log.last().map(|record| record.epoch) }
}

/// How many of each producer's last batches the broker remembers.
const WINDOW: usize = 5;

fn remember(producers: &mut Producers, record: &Record, offset: i64) {
    if let Some((producer_id, base_sequence)) = record.stamp {
        let stamp = Stamp { producer_id, producer_epoch: 0, base_sequence, record_count: 1 };
        producers.append(&stamp, offset, 0, 0, WINDOW);
    }
}

fn replay(log: &[Record]) -> Producers {
    let mut producers = Producers::default();
    log.iter().zip(0..).for_each(|(record, offset)| remember(&mut producers, record, offset));
    producers
}

impl Broker {
    pub fn new(id: i32) -> Broker {
        let disk = Disk {
            log: Vec::new(),
            flushed: 0,
            checkpoint: 0,
            is_full: false,
            known: None,
            ended: PreviousShutdown::Clean,
            directory: id as u128,
            users: None,
            noted: 0,
            has_lost: false,
            is_copy: false,
            is_live_copy: false,
        };
        Broker { id, disk, copy: None, heartbeats: 0, process: None, is_paused: false, held: Vec::new() }
    }

    fn node(&self) -> Node {
        Node::Broker(self.id)
    }

    pub fn known(&self) -> SeenVersion {
        self.disk.known
    }

    /// Starts a process unless one is running.
    pub fn start(&mut self, context: &mut Context) {
        if self.process.is_some() {
            return;
        }
        let life = context.random.next();
        context.running.insert(self.id, life);
        self.process = Some(Process {
            life,
            broker_epoch: None,
            partition: None,
            image: None,
            producers: replay(&self.disk.log),
            tickets: Vec::new(),
            sessions: BTreeMap::new(),
            following: None,
            heartbeats: None,
            transactions: None,
            commands: VecDeque::new(),
            outstanding: None,
            last_number: 0,
            last_heartbeat_us: context.now(),
            detector: FailureDetector::new(context.settings.session_timeout_us / control::LEASE_MS_US),
            room: RoomWatch::default(),
            is_stopping: false,
        });
        let (node, settings) = (self.node(), context.settings);
        context.after(0, node, life, Timer::Heartbeat);
        context.after(settings.lag_us / 2, node, life, Timer::Tick);
        context.after(0, node, life, Timer::Follow);
    }

    /// Kills the process. Its writes stay in the page cache.
    pub fn kill(&mut self, context: &mut Context) {
        let Some(process) = self.process.take() else { return };
        if process.broker_epoch.is_some() {
            self.disk.ended = PreviousShutdown::Killed;
        }
        if let Some(partition) = process.partition {
            // A broker rarely writes its checkpoint, so the checkpoint lags behind the high watermark.
            self.disk.checkpoint = partition.high_watermark() / 2;
        }
        self.is_paused = false;
        self.held.clear();
        context.running.remove(&self.id);
        context.close_all(self.node());
    }

    /// Cuts the power. Writes that were not flushed may be lost.
    pub fn power_cut(&mut self, context: &mut Context) {
        self.kill(context);
        if context.settings.flushes {
            self.disk.flushed = self.disk.log.len();
        }
        let kept = context.random.between(self.disk.flushed, self.disk.log.len() + 1);
        self.disk.has_lost |= kept < self.disk.log.len();
        self.disk.log.truncate(kept);
        self.disk.flushed = kept;
        self.disk.ended = PreviousShutdown::Lost;
        self.disk.noted -= context.random.between(0, self.disk.noted.min(9) + 1);
    }

    /// Copies the disk, whether or not a process runs.
    pub fn copy_disk(&mut self) {
        if self.disk.is_whole() {
            let of = self.process.as_ref().map(|process| u128::from(process.life));
            self.copy = Some(Copied { disk: self.disk.clone(), heartbeats: self.heartbeats, of });
        }
    }

    /// Returns true if the database can recognise the copy as old. For that, another process must be registered, or the
    /// copied process must have sent two heartbeats after the copy. One is too few, because a heartbeat may repeat the
    /// number of the previous one.
    pub fn is_copy_known(&self, context: &Context) -> bool {
        let Some(Copied { heartbeats, of: Some(process), .. }) = self.copy else { return true };
        let newest = context.database.newest();
        let registered = newest.cluster.members.get(&self.id).map(|member| member.process);
        let note = context.database.note_of(self.id, process);
        registered != Some(process) || note.is_some_and(|note| note.heartbeats >= heartbeats + 2)
    }

    /// Replaces the disk by its last copy unless a process is running.
    pub fn put_back(&mut self, context: &mut Context) {
        if self.process.is_none()
            && let Some(Copied { disk, of, .. }) = self.copy.take()
        {
            let (is_full, is_live_copy) = (self.disk.is_full, of.is_some());
            self.disk = Disk { is_copy: true, is_live_copy, has_lost: true, is_full, ..disk };
            context.check.truncates(self.id, 0);
        }
    }

    pub fn deliver(&mut self, context: &mut Context, connection: ConnectionId, message: Message) {
        if self.process.is_none() {
            return;
        }
        match message {
            Message::Fetch(fetch) => self.fetch(context, connection, fetch),
            Message::Fetched(answer) => self.fetched(context, connection, answer),
            Message::Produce { value, stamp, is_acks_all } => {
                self.produce(context, connection, value, stamp, is_acks_all);
            }
            Message::WhoLeads => {
                let leader = self.process.as_ref().and_then(|process| process.partition.as_ref()?.leader());
                context.send(connection, self.node(), Message::Leads(leader));
            }
            Message::HeartbeatAnswer(heartbeat_answer) => self.heartbeat_answer(context, *heartbeat_answer),
            Message::Transacted { number, result, snapshot } => self.transacted(context, number, result, snapshot),
            Message::Notify => self.heartbeat(context),
            Message::WentBack => self.went_back(context),
            _ => {}
        }
    }

    pub fn closed(&mut self, context: &mut Context, connection: ConnectionId) {
        let Some(process) = &mut self.process else { return };
        process.sessions.remove(&connection);
        process.tickets.retain(|ticket| ticket.connection != connection);
        process.following.take_if(|following| following.connection == connection);
        process.heartbeats.take_if(|heartbeats| *heartbeats == connection);
        if process.transactions.take_if(|transactions| *transactions == connection).is_some() {
            self.unknown_outcome(context);
        }
    }

    pub fn on_timer(&mut self, context: &mut Context, life: u64, timer: Timer) {
        if self.process.as_ref().is_none_or(|process| process.life != life) {
            return;
        }
        let (node, settings) = (self.node(), context.settings);
        match timer {
            Timer::Heartbeat => {
                context.after(settings.heartbeat_us, node, life, Timer::Heartbeat);
                self.heartbeat_or_register(context);
            }
            Timer::Tick => {
                context.after(settings.lag_us / 2, node, life, Timer::Tick);
                if context.random.one_in(2) {
                    self.disk.flushed = self.disk.log.len();
                }
                self.event(context, |partition, now| partition.tick(now));
            }
            Timer::Follow => {
                context.after(10_000, node, life, Timer::Follow);
                self.follow(context);
            }
            Timer::Serve => self.serve(context),
            Timer::Produce => {}
        }
    }

    /// Returns the broker id and epoch of this process. `None` before its registration.
    fn state(&self) -> Option<BrokerState> {
        let broker_epoch = self.process.as_ref()?.broker_epoch?;
        Some(BrokerState { broker_id: self.id, broker_epoch })
    }

    /// Opens the partition from the log on the disk.
    fn open_log(&mut self, settings: ReplicaSettings) {
        let end_offset = self.disk.log.len() as i64;
        let found = LocalLog { start_offset: 0, end_offset, high_watermark: self.disk.checkpoint };
        let partition = Partition::new(self.id, found, settings);
        if let Some(process) = &mut self.process {
            process.partition = Some(partition);
        }
    }

    /// Applies an event to the partition and carries out its effects.
    fn event(&mut self, context: &mut Context, apply: impl FnOnce(&mut Partition, &Now<'_>) -> Effects) {
        let Some(Process { partition: Some(partition), image, broker_epoch, .. }) = &mut self.process else { return };
        let none = Brokers::new();
        let brokers = image.as_ref().map_or(&none, |image| &image.cluster.brokers);
        let now = Now { ms: context.now(), broker_epoch: broker_epoch.unwrap_or(-1), brokers };
        let effects = apply(partition, &now);
        match effects.role {
            Some(RoleChange::Lead { epoch, .. }) => {
                context.check.leads(epoch, self.id);
                self.turn_away(context);
            }
            Some(RoleChange::Follow { .. } | RoleChange::Stop) => {
                self.turn_away(context);
                if context.settings.fault == Some(Fault::TruncatesToHighWatermark) {
                    let high_watermark = self.partition().map_or(0, Partition::high_watermark);
                    self.truncate(high_watermark);
                }
            }
            None => {}
        }
        if let Some(requested) = effects.propose {
            self.propose(context, requested);
        }
        self.answer_tickets(context);
    }

    fn partition(&self) -> Option<&Partition> {
        self.process.as_ref()?.partition.as_ref()
    }

    /// Truncates the log to the offset `to`, as a follower does.
    fn truncate(&mut self, to: i64) {
        let Some(Process { partition: Some(partition), producers, .. }) = &mut self.process else { return };
        self.disk.log.truncate(to as usize);
        self.disk.flushed = self.disk.flushed.min(self.disk.log.len());
        *producers = replay(&self.disk.log);
        partition.truncated(self.disk.log.len() as i64);
    }
}
