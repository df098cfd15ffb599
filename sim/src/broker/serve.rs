//! Leader side of a broker. It appends the records of producers and responds to the fetches of followers.

use std::collections::VecDeque;

use fullbore_rules::replica::epochs::{Divergence, divergence};
use fullbore_rules::replica::pipe::Ask;
use fullbore_rules::replica::spacing::Spacing;
use fullbore_rules::replica::{Acknowledgement, FollowerFetch, NO_BROKER_EPOCH, Partition};
use fullbore_rules::sequence::{SequenceRefusal, Stamp, Verdict};
use fullbore_wire::ErrorCode;

use super::{Broker, Process, epochs, remember};
use crate::context::{Context, Timer};
use crate::fault::Fault;
use crate::message::{Fetch, Fetched, Found, Message, Record};
use crate::network::ConnectionId;

/// A produce request that waits until its record is replicated.
#[derive(Debug)]
pub struct Ticket {
    pub connection: ConnectionId,
    epoch: i32,
    end_offset: i64,
    value: u64,
}

/// State that the leader keeps for one connection of a follower.
#[derive(Debug)]
pub struct Session {
    /// The offset after the last record that the leader has sent to the follower.
    cursor: i64,
    /// The number of the last fetch that began at the follower's log end. Later fetches continue at `cursor`.
    requested_in: i32,
    answered: i64,
    spacing: Spacing,
    waiting: VecDeque<(Fetch, i64)>,
}

/// Maximum number of records in the response to a fetch.
const FETCHED_MAX: usize = 8;
/// How long a fetch waits for new records before it gets an empty response.
const FETCH_WAIT_US: i64 = 200_000;

impl Broker {
    pub(super) fn produce(
        &mut self,
        context: &mut Context,
        connection: ConnectionId,
        value: u64,
        stamp: Option<(i64, i32)>,
        is_acks_all: bool,
    ) {
        match self.append(value, stamp, is_acks_all) {
            Err(error) => self.answer(context, connection, value, Err(error)),
            Ok((offset, is_new)) => {
                let waits = is_acks_all && context.settings.fault != Some(Fault::AcknowledgesBeforeReplication);
                if waits {
                    self.wait(connection, offset, value);
                } else {
                    self.answer(context, connection, value, Ok(offset));
                }
                let log_end = self.disk.log.len() as i64;
                if is_new {
                    self.event(context, |partition, now| partition.appended(log_end, now));
                    self.serve(context);
                } else {
                    self.answer_tickets(context);
                }
            }
        }
    }

    /// Appends a record. Returns its offset, and false if the log already contained the record.
    fn append(&mut self, value: u64, stamp: Option<(i64, i32)>, is_acks_all: bool) -> Result<(i64, bool), ErrorCode> {
        let Some(Process { partition: Some(partition), producers, .. }) = &mut self.process else {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        };
        partition.check_append(is_acks_all)?;
        let offset = self.disk.log.len() as i64;
        if let Some((producer_id, base_sequence)) = stamp {
            let stamp = Stamp { producer_id, producer_epoch: 0, base_sequence, record_count: 1 };
            match producers.check(&stamp, offset) {
                Verdict::Append => {}
                Verdict::Duplicate { base_offset, .. } => return Ok((base_offset, false)),
                Verdict::Refuse(SequenceRefusal::DuplicateSequence) => {
                    return Err(ErrorCode::DUPLICATE_SEQUENCE_NUMBER);
                }
                Verdict::Refuse(_) => return Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER),
            }
        }
        if self.disk.is_full {
            return Err(ErrorCode::KAFKA_STORAGE_ERROR);
        }
        let record = Record { epoch: partition.leader_epoch(), value, stamp };
        self.disk.log.push(record);
        remember(producers, &record, offset);
        Ok((offset, true))
    }

    fn wait(&mut self, connection: ConnectionId, offset: i64, value: u64) {
        let Some(Process { partition: Some(partition), tickets, .. }) = &mut self.process else { return };
        tickets.push(Ticket { connection, epoch: partition.leader_epoch(), end_offset: offset + 1, value });
    }

    fn answer(&self, context: &mut Context, connection: ConnectionId, value: u64, result: Result<i64, ErrorCode>) {
        context.send(connection, self.node(), Message::Produced { value, result });
    }

    pub(super) fn answer_tickets(&mut self, context: &mut Context) {
        let Some(Process { partition: Some(partition), tickets, .. }) = &mut self.process else { return };
        let mut answers = Vec::new();
        tickets.retain(|ticket| match partition.acknowledgement(ticket.epoch, ticket.end_offset) {
            Acknowledgement::Wait => true,
            Acknowledgement::Refused(error) => {
                answers.push((ticket.connection, ticket.value, Err(error)));
                false
            }
            Acknowledgement::Done => {
                answers.push((ticket.connection, ticket.value, Ok(ticket.end_offset - 1)));
                false
            }
        });
        for (connection, value, result) in answers {
            self.answer(context, connection, value, result);
        }
    }

    pub(super) fn fetch(&mut self, context: &mut Context, connection: ConnectionId, fetch: Fetch) {
        if let Err(found) = self.count(context, connection, &fetch) {
            return self.answer_fetch(context, connection, &fetch, fetch.position.offset, found);
        }
        self.serve(context);
    }

    /// Registers a fetch that has arrived. Returns `Err` with the response if the leader can respond without a wait for
    /// records.
    fn count(
        &mut self,
        context: &mut Context,
        connection: ConnectionId,
        fetch: &Fetch,
    ) -> Result<(), Result<Found, ErrorCode>> {
        let fault = context.settings.fault;
        let Some(Process { partition: Some(partition), sessions, .. }) = &mut self.process else {
            return Err(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        };
        if !partition.is_leader() {
            return Err(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        }
        let leader_epoch = match fault {
            Some(Fault::ComparesNoEpoch) => partition.leader_epoch(),
            _ => fetch.leader_epoch,
        };
        partition.check_leader_epoch(leader_epoch).map_err(Err)?;
        let log_end = self.disk.log.len() as i64;
        if fetch.request == Ask::FromLogEnd {
            match divergence(&epochs(&self.disk.log), log_end, fetch.position) {
                Divergence::None => {}
                Divergence::At(end) => return Err(Ok(Found::Diverging(end))),
                Divergence::OutOfRange => return Err(Err(ErrorCode::OFFSET_OUT_OF_RANGE)),
            }
            let session = sessions.entry(connection).or_insert_with(|| {
                let spacing = Spacing::new(context.settings.fetches, 0);
                Session { cursor: 0, requested_in: 0, answered: 0, spacing, waiting: VecDeque::new() }
            });
            (session.cursor, session.requested_in) = (fetch.position.offset, fetch.number);
        }
        let session = sessions.get_mut(&connection).ok_or(Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND))?;
        session.spacing.acknowledged(fetch.carried_out, context.now());
        session.waiting.push_back((*fetch, context.now()));
        let offset = if fault == Some(Fault::CountsWhatWasSent) { session.cursor } else { fetch.position.offset };
        let broker_epoch = match fault {
            Some(Fault::AdmitsOldBrokerEpoch) => NO_BROKER_EPOCH,
            _ => fetch.broker_epoch,
        };
        let counted = FollowerFetch { broker_id: fetch.broker_id, broker_epoch, leader_epoch, offset };
        let mut refused = None;
        self.event(context, |partition, now| {
            partition.fetched(&counted, now).unwrap_or_else(|error| {
                refused = Some(error);
                Default::default()
            })
        });
        match refused {
            None => Ok(()),
            Some(error) => {
                if let Some(process) = &mut self.process
                    && let Some(session) = process.sessions.get_mut(&connection)
                {
                    session.waiting.pop_back();
                }
                Err(Err(error))
            }
        }
    }

    /// Responds to fetches that have records to return or that have waited long enough.
    pub(super) fn serve(&mut self, context: &mut Context) {
        let (node, now) = (self.node(), context.now());
        let Some(Process { partition: Some(partition), sessions, life, .. }) = &mut self.process else { return };
        let (log, high_watermark) = (&self.disk.log, partition.high_watermark());
        let (mut answers, mut wait_us) = (Vec::new(), i64::MAX);
        for (connection, session) in sessions {
            while let Some((fetch, since)) = session.waiting.front() {
                let has_more = session.cursor < log.len() as i64;
                let due = if has_more { session.spacing.due_us(0, now) } else { since + FETCH_WAIT_US };
                if due > now {
                    wait_us = wait_us.min(due - now);
                    break;
                }
                let from = session.cursor;
                let end = log.len().min(from as usize + FETCHED_MAX);
                let records = log[from as usize..end].to_vec();
                answers.push((*connection, *fetch, (session.requested_in, from), records));
                session.cursor = end as i64;
                session.answered += 1;
                if has_more {
                    session.spacing.answered(session.answered, now);
                }
                session.waiting.pop_front();
            }
        }
        let life = *life;
        for (connection, fetch, (requested_in, from), records) in answers {
            let found = Ok(Found::Records(records));
            let leader_epoch = fetch.leader_epoch;
            let answer = Fetched { leader_epoch, requested_in, from, high_watermark, requested: fetch.position, found };
            context.send(connection, node, Message::Fetched(answer));
        }
        if wait_us != i64::MAX {
            context.after(wait_us, node, life, Timer::Serve);
        }
    }

    fn answer_fetch(
        &self,
        context: &mut Context,
        connection: ConnectionId,
        fetch: &Fetch,
        from: i64,
        found: Result<Found, ErrorCode>,
    ) {
        let high_watermark = self.partition().map_or(0, Partition::high_watermark);
        let leader_epoch = fetch.leader_epoch;
        let requested_in = fetch.number;
        let answer = Fetched { leader_epoch, requested_in, from, high_watermark, requested: fetch.position, found };
        context.send(connection, self.node(), Message::Fetched(answer));
    }

    /// Refuses all waiting fetches, so that the followers look for the new leader.
    pub(super) fn turn_away(&mut self, context: &mut Context) {
        let Some(process) = &mut self.process else { return };
        let sessions = std::mem::take(&mut process.sessions);
        if let Some(following) = process.following.take() {
            context.close(following.connection, self.node());
        }
        for (connection, session) in sessions {
            for (fetch, _) in session.waiting {
                let error = Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
                self.answer_fetch(context, connection, &fetch, fetch.position.offset, error);
            }
        }
    }
}
