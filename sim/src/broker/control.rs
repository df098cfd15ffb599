//! How a broker takes part in the control plane. It registers, sends heartbeats, issues one command at a time, reads
//! metadata images and runs the failure detector.

use fullbore_rules::cluster::lease::PeerEvidence;
use fullbore_rules::cluster::room::{DiskRoom, RoomReport, is_missed};
use fullbore_rules::cluster::{DirectoryMarks, Joining, LogEndReport, Member, PreviousShutdown, contenders};
use fullbore_rules::replica::{AlterPartition, BrokerState, PartitionRegistration, ReplicaSettings};
use fullbore_wire::ErrorCode;

use super::{Broker, Process, position};
use crate::cluster::{Command, Snapshot};
use crate::context::Context;
use crate::database::UNKNOWN_OUTCOME;
use crate::fault::Fault;
use crate::message::{HeartbeatAnswer, Message, Note};
use crate::network::{ConnectionId, Node};

/// A command that was sent to the database and has no response yet.
#[derive(Debug)]
pub struct Outstanding {
    number: u64,
    command: Command,
    since_us: i64,
}

/// Maximum number of waiting commands. Further commands are dropped, and the broker requests them again later.
const COMMANDS_MAX: usize = 16;

/// How many microseconds of simulated time are a millisecond for the failure detector. Its timeouts thus take a tenth
/// of their real time, which keeps schedules short.
pub(super) const LEASE_MS_US: i64 = 100;

impl Broker {
    pub(super) fn heartbeat_or_register(&mut self, context: &mut Context) {
        let (node, now, overdue_us) = (self.node(), context.now(), context.settings.overdue_us);
        let Some(process) = &mut self.process else { return };
        if process.outstanding.as_ref().is_some_and(|outstanding| now - outstanding.since_us > overdue_us) {
            if let Some(connection) = process.transactions.take() {
                context.close(connection, node);
            }
            self.unknown_outcome(context);
        }
        let Some(process) = &mut self.process else { return };
        if now - process.last_heartbeat_us > overdue_us
            && let Some(connection) = process.heartbeats.take()
        {
            context.close(connection, node);
        }
        if process.heartbeats.is_none() {
            process.heartbeats = context.open(node, Node::Database);
            process.last_heartbeat_us = now;
        }
        if process.broker_epoch.is_some() {
            self.heartbeat(context);
        } else if process.outstanding.is_none() && process.commands.is_empty() {
            self.join(context);
        }
        self.pump(context);
    }

    /// Writes this process's id to the disk, and requests the registration of this process. Does nothing if the
    /// database cannot be read.
    fn join(&mut self, context: &Context) {
        let Some(newest) = context.database.read(self.disk.known) else { return };
        let Some(process) = &mut self.process else { return };
        let fault = context.settings.fault;
        let lies = fault == Some(Fault::ElectsLostTail) && self.disk.ended == PreviousShutdown::Lost;
        let ended = if lies { PreviousShutdown::Killed } else { self.disk.ended };
        let (directory, joins, users) = (self.disk.directory, u128::from(process.life), self.disk.users);
        let registered = newest.cluster.members.get(&self.id).map(|member| member.process);
        let note = registered.and_then(|registered| context.database.note_of(self.id, registered));
        let reported = note.filter(|_| fault != Some(Fault::BelievesCopyOfRunningBroker)).map_or(0, |note| note.number);
        let noted = (self.disk.ended != PreviousShutdown::Lost).then_some(self.disk.noted);
        let mut marks = DirectoryMarks { users, noted };
        let known = registered.filter(|registered| !marks.is_older_than(*registered, reported));
        let former = known.or(users.map(|users| users[0])).unwrap_or(joins);
        self.disk.users = Some([former, joins]);
        marks.users = users.filter(|_| fault != Some(Fault::BelievesOlderDirectory));
        let joining = Joining { directory, process: joins, ended, marks, reported };
        process.commands.push_back(Command::Register { id: self.id, joining });
    }

    pub(super) fn heartbeat(&mut self, context: &mut Context) {
        let (node, known) = (self.node(), self.disk.known);
        let Some(Process { heartbeats: Some(connection), broker_epoch: Some(_), life, .. }) = self.process else {
            return;
        };
        self.heartbeats += 1;
        self.disk.noted += 1;
        // If the disk is slow, the heartbeat goes out before its own number is on the disk. It then reports the number
        // of the previous heartbeat.
        let number = self.disk.noted - u64::from(context.random.one_in(4));
        let note = Note { process: u128::from(life), number, heartbeats: self.heartbeats };
        context.send(connection, node, Message::Heartbeat { id: self.id, known, note });
    }

    pub(super) fn heartbeat_answer(&mut self, context: &mut Context, heartbeat_answer: HeartbeatAnswer) {
        let now_ms = context.now() / LEASE_MS_US;
        let Some(process) = &mut self.process else { return };
        process.last_heartbeat_us = context.now();
        process.detector.heartbeat(now_ms);
        let brokers = heartbeat_answer.snapshot.cluster.brokers.clone();
        self.image(context, heartbeat_answer.snapshot);
        for (id, age) in heartbeat_answer.ages {
            let Some(broker) = brokers.get(&id).filter(|broker| !broker.is_fenced) else { continue };
            let refuses = !context.running.contains_key(&id) && context.network.reaches(self.node(), Node::Broker(id));
            let heartbeat_age_ms = age / LEASE_MS_US;
            let is_dead = match context.settings.fault {
                Some(Fault::JudgesAfterOutage) => heartbeat_age_ms * LEASE_MS_US >= context.settings.session_timeout_us,
                _ => self.process.as_ref().is_some_and(|process| {
                    process.detector.is_dead(&PeerEvidence { heartbeat_age_ms, refuses }, now_ms)
                }),
            };
            if is_dead {
                let whom = BrokerState { broker_id: id, broker_epoch: broker.epoch };
                self.request(context, Command::Fence(whom));
            }
        }
        self.settle_what_is_left(context);
        self.check_disk(context);
        self.request_for_oneself(context);
    }

    /// Requests the next piece of a change, such as a registration, that is not decided for all partitions yet. Any
    /// broker may request it.
    fn settle_what_is_left(&mut self, context: &mut Context) {
        let image = self.process.as_ref().and_then(|process| process.image.as_ref());
        if image.is_some_and(|image| !image.cluster.is_settled()) && context.random.one_in(4) {
            self.request(context, Command::Settle);
        }
    }

    /// Reports that the disk is full or has free space again.
    fn check_disk(&mut self, context: &mut Context) {
        let Some(state) = self.state() else { return };
        let Some(Process { image: Some(image), room, .. }) = &mut self.process else { return };
        let Some(own) = image.cluster.brokers.get(&self.id).filter(|own| own.epoch == state.broker_epoch) else {
            return;
        };
        let disk = if self.disk.is_full { DiskRoom::Full } else { DiskRoom::Ample };
        let is_missed = || is_missed(&image.cluster.partition, self.id, image.cluster.min_insync_replicas);
        match room.report(context.now() / LEASE_MS_US, disk, own.is_full, is_missed) {
            Some(RoomReport::Full) => self.request(context, Command::Full(state)),
            Some(RoomReport::Room) => self.request(context, Command::Room(state)),
            None => {}
        }
    }

    /// Requests changes of this broker's own state that the metadata does not show yet.
    fn request_for_oneself(&mut self, context: &mut Context) {
        let Some(state) = self.state() else { return };
        let Some(Process { image: Some(image), partition: Some(partition), is_stopping, .. }) = &self.process else {
            return;
        };
        let Some(own) = image.cluster.brokers.get(&self.id).filter(|own| own.epoch == state.broker_epoch) else {
            return;
        };
        let has_reported = |end: &LogEndReport| end.broker_id == self.id && end.broker_epoch == state.broker_epoch;
        let command = if *is_stopping {
            match (own.is_shutting_down, partition.is_leader()) {
                (false, _) => Command::ShutDown(state),
                (true, true) if image.cluster.partition.leader == Some(self.id) && !context.random.one_in(8) => return,
                (true, _) => Command::Stopped(state),
            }
        } else if own.is_fenced {
            Command::Unfence(state)
        } else if contenders(&image.cluster.partition).contains(&self.id)
            && !image.cluster.ends.iter().any(has_reported)
        {
            let position = position(&self.disk.log);
            Command::ReportEnd(LogEndReport { broker_id: self.id, broker_epoch: state.broker_epoch, position })
        } else {
            return;
        };
        self.request(context, command);
    }

    /// Stops the process cleanly. The process first hands over its leaderships.
    pub fn stop(&mut self) {
        if let Some(process) = &mut self.process {
            process.is_stopping = true;
        }
    }

    pub(super) fn propose(&mut self, context: &mut Context, requested: AlterPartition) {
        let Some(from) = self.state() else { return };
        if context.settings.fault == Some(Fault::ShrinksBeforeCommit) {
            self.shrink_at_once(context, &requested);
        }
        self.request(context, Command::Alter { from, requested });
    }

    fn shrink_at_once(&mut self, context: &mut Context, requested: &AlterPartition) {
        let Some(Process { partition: Some(partition), image: Some(image), .. }) = &self.process else { return };
        let isr: Vec<i32> = requested.new_isr.iter().map(|member| member.broker_id).collect();
        if isr.len() < partition.isr().len() {
            let believed = PartitionRegistration {
                isr,
                leader_epoch: requested.leader_epoch,
                partition_epoch: requested.partition_epoch + 1,
                ..image.cluster.partition.clone()
            };
            self.event(context, |partition, now| partition.apply(&believed, now));
        }
    }

    /// Returns the connection to the database that carries commands. `None` if it is closed.
    pub fn transactions(&self) -> Option<ConnectionId> {
        self.process.as_ref()?.transactions
    }

    /// Returns true if this broker has requested, or is about to request, an ISR for which `is_kept` is false.
    pub fn requests_for_isr_without(&self, is_kept: &dyn Fn(&[i32]) -> bool) -> bool {
        let Some(process) = &self.process else { return false };
        let outstanding = process.outstanding.iter().map(|outstanding| &outstanding.command);
        outstanding.chain(&process.commands).any(|command| match command {
            Command::Alter { requested, .. } => {
                let isr: Vec<i32> = requested.new_isr.iter().map(|member| member.broker_id).collect();
                !is_kept(&isr)
            }
            _ => false,
        })
    }

    /// Queues a command for the database unless a command of the same kind is already waiting.
    pub fn request(&mut self, context: &mut Context, command: Command) {
        let Some(process) = &mut self.process else { return };
        let kind = std::mem::discriminant(&command);
        let is_same = |other: &Command| std::mem::discriminant(other) == kind;
        let is_requested = process.outstanding.as_ref().is_some_and(|outstanding| is_same(&outstanding.command))
            || process.commands.iter().any(is_same);
        // The queue holds at most one command of each kind. Only of changes of the ISR it may hold several, because
        // they differ from each other.
        if (!is_requested || matches!(command, Command::Alter { .. })) && process.commands.len() < COMMANDS_MAX {
            process.commands.push_back(command);
        }
        self.pump(context);
    }

    fn pump(&mut self, context: &mut Context) {
        let (node, known) = (self.node(), self.disk.known);
        let Some(process) = &mut self.process else { return };
        if process.outstanding.is_some() || process.commands.is_empty() {
            return;
        }
        if process.transactions.is_none() {
            process.transactions = context.open(node, Node::Database);
        }
        let Some(connection) = process.transactions else { return };
        let Some(command) = process.commands.pop_front() else { return };
        process.last_number += 1;
        let number = process.last_number;
        process.outstanding = Some(Outstanding { number, command: command.clone(), since_us: context.now() });
        context.send(connection, node, Message::Transact { number, command, known });
    }

    pub(super) fn transacted(
        &mut self,
        context: &mut Context,
        number: u64,
        result: Result<(), ErrorCode>,
        snapshot: Snapshot,
    ) {
        let Some(process) = &mut self.process else { return };
        let outstanding = process.outstanding.take_if(|outstanding| outstanding.number == number);
        let Some(Outstanding { command, .. }) = outstanding else { return };
        match command {
            Command::Register { .. } => return self.registered(context, result, snapshot),
            Command::Stopped(_) if result.is_ok() => return self.stopped(context),
            _ => {}
        }
        let partition = snapshot.cluster.partition.clone();
        self.image(context, snapshot);
        if let Command::Alter { requested, .. } = command {
            let answer = result.as_ref().map(|()| &partition).map_err(|error| *error);
            self.event(context, |partition, now| partition.altered(&requested, answer, now));
        }
        self.pump(context);
    }

    fn registered(&mut self, context: &mut Context, result: Result<(), ErrorCode>, snapshot: Snapshot) {
        let Some(process) = &mut self.process else { return };
        let member = snapshot.cluster.members.get(&self.id).copied();
        match member.filter(|member| result.is_ok() && member.process == u128::from(process.life)) {
            // The command handed over only some leaderships of the former process. This process requests the next
            // piece.
            None if result.is_ok() => {}
            None => self.kill(context),
            Some(member) => {
                process.broker_epoch = Some(member.registration.epoch);
                process.last_heartbeat_us = context.now();
                self.disk.ended = PreviousShutdown::Killed;
                self.disk.has_lost = false;
                self.disk.is_copy = false;
                self.disk.is_live_copy = false;
                let settings = context.settings;
                self.open_log(ReplicaSettings {
                    min_insync_replicas: settings.min_insync_replicas,
                    replica_lag_time_max_ms: settings.lag_us,
                });
                self.image(context, snapshot);
                self.request_for_oneself(context);
            }
        }
    }

    fn stopped(&mut self, context: &mut Context) {
        self.kill(context);
        self.disk.flushed = self.disk.log.len();
        self.disk.ended = PreviousShutdown::Clean;
    }

    /// Continues after the response to a command was lost. The command might have been carried out.
    pub(super) fn unknown_outcome(&mut self, context: &mut Context) {
        let Some(process) = &mut self.process else { return };
        let Some(Outstanding { command, .. }) = process.outstanding.take() else { return };
        if let Command::Alter { requested, .. } = command {
            let error = match context.settings.fault {
                Some(Fault::TakesUnknownForFailure) => ErrorCode::INELIGIBLE_REPLICA,
                _ => UNKNOWN_OUTCOME,
            };
            self.event(context, |partition, now| partition.altered(&requested, Err(error), now));
        }
    }

    /// Reacts to a database that was restored from an older backup. A process that is starting ends. A running process
    /// goes on as if the database were down.
    pub(super) fn went_back(&mut self, context: &mut Context) {
        match self.process.as_ref().is_some_and(|process| process.broker_epoch.is_some()) {
            true => self.unknown_outcome(context),
            false => self.kill(context),
        }
    }

    fn image(&mut self, context: &mut Context, snapshot: Snapshot) {
        let Some(process) = &mut self.process else { return };
        let is_newer = process.image.as_ref().is_none_or(|image| image.number < snapshot.number);
        let Some(broker_epoch) = process.broker_epoch.filter(|_| is_newer) else { return };
        let is_another = |member: &Member| !member.is_held_by(u128::from(process.life), broker_epoch);
        if snapshot.cluster.members.get(&self.id).is_some_and(is_another) {
            // Either another process is registered as this broker, or a delayed request has registered this process a
            // second time. In both cases this process ends. It may be started again.
            return self.kill(context);
        }
        self.disk.known = Some((snapshot.number, snapshot.nonce));
        let partition = snapshot.cluster.partition.clone();
        process.image = Some(snapshot);
        self.event(context, |replica, now| replica.apply(&partition, now));
    }
}
