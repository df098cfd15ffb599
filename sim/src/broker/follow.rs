//! Follower side of a broker. It keeps several fetches in flight and handles their responses.

use fullbore_rules::replica::epochs::truncation;
use fullbore_rules::replica::pipe::{FetchPipe, PartitionPipe};
use fullbore_wire::ErrorCode;

use super::{Broker, Process, epochs, position, remember};
use crate::context::Context;
use crate::fault::Fault;
use crate::message::{Fetch, Fetched, Found, Message, Record};
use crate::network::{ConnectionId, Node};

/// A follower's connection to its leader.
#[derive(Debug)]
pub struct Following {
    pub connection: ConnectionId,
    pipe: FetchPipe,
    /// A leader epoch of the partition, and the state of the follower's fetches in that epoch.
    partition: (i32, PartitionPipe),
    /// The number of the next fetch.
    number: i32,
    carried_out: i64,
    /// True if the last response had no records. The follower then sends one fetch at a time.
    is_idle: bool,
    last_answer_us: i64,
}

impl Broker {
    /// Connects to the leader if there is one. Closes a connection whose responses are overdue.
    pub(super) fn follow(&mut self, context: &mut Context) {
        let node = self.node();
        let (id, overdue_us) = (self.id, context.settings.overdue_us);
        let Some(Process { partition: Some(partition), following, .. }) = &mut self.process else { return };
        let leader = partition.leader().filter(|leader| *leader != id);
        let is_overdue =
            |of: &mut Following| context.now() - of.last_answer_us > overdue_us && of.pipe.outstanding() > 0;
        if let Some(given_up) = following.take_if(is_overdue) {
            context.close(given_up.connection, node);
        }
        let (Some(leader), None) = (leader, &following) else { return };
        let Some(connection) = context.open(node, Node::Broker(leader)) else { return };
        let pipe = FetchPipe::new(context.settings.fetches);
        let partition = (partition.leader_epoch(), PartitionPipe::default());
        let last_answer_us = context.now();
        *following =
            Some(Following { connection, pipe, partition, number: 0, carried_out: 0, is_idle: false, last_answer_us });
        self.send_fetches(context);
    }

    fn send_fetches(&mut self, context: &mut Context) {
        let node = self.node();
        let Some(Process { partition: Some(partition), following: Some(following), broker_epoch, .. }) =
            &mut self.process
        else {
            return;
        };
        let leader_epoch = partition.leader_epoch();
        if following.partition.0 != leader_epoch {
            following.partition = (leader_epoch, PartitionPipe::default());
        }
        while following.pipe.may_send(!following.is_idle, following.partition.1.is_from_log_end()) {
            let Some(request) = following.partition.1.request(following.number) else { break };
            let fetch = Fetch {
                broker_id: self.id,
                broker_epoch: broker_epoch.unwrap_or(-1),
                leader_epoch,
                position: position(&self.disk.log),
                request,
                number: following.number,
                carried_out: following.carried_out,
            };
            following.number += 1;
            following.pipe.sent();
            context.send(following.connection, node, Message::Fetch(fetch));
        }
    }

    pub(super) fn fetched(&mut self, context: &mut Context, connection: ConnectionId, answer: Fetched) {
        let node = self.node();
        let Some(Process { partition: Some(partition), following: Some(following), .. }) = &mut self.process else {
            return;
        };
        if following.connection != connection {
            return;
        }
        let epoch = match context.settings.fault {
            Some(Fault::ComparesNoEpoch) => partition.leader_epoch(),
            _ => answer.leader_epoch,
        };
        following.last_answer_us = context.now();
        let log_end = self.disk.log.len() as i64;
        let is_of_now = partition.check_following(epoch).is_ok();
        let fits = is_of_now && answer.from == log_end && matches!(answer.found, Ok(Found::Records(_)));
        following.pipe.answered();
        following.carried_out += 1;
        let concerns = following.partition.1.concerns(answer.requested_in);
        let takes = following.partition.1.answered(answer.requested_in, fits);
        let found = match answer.found {
            Ok(Found::Records(records)) if self.disk.is_full && !records.is_empty() => {
                Err(ErrorCode::KAFKA_STORAGE_ERROR)
            }
            found => found,
        };
        match found {
            Ok(Found::Records(records)) if takes => {
                following.is_idle = records.is_empty();
                self.take(context, epoch, records, answer.high_watermark);
            }
            Ok(Found::Diverging(end)) if is_of_now && concerns => {
                if let Some(to) = truncation(&epochs(&self.disk.log), log_end, answer.requested, end) {
                    context.check.truncates(self.id, to);
                    self.truncate(to);
                }
            }
            Ok(_) => {}
            Err(_) => {
                if let Some(Process { following, .. }) = &mut self.process {
                    *following = None;
                }
                context.close(connection, node);
            }
        }
        self.send_fetches(context);
    }

    fn take(&mut self, context: &mut Context, epoch: i32, records: Vec<Record>, high_watermark: i64) {
        let Some(Process { producers, .. }) = &mut self.process else { return };
        for record in records {
            remember(producers, &record, self.disk.log.len() as i64);
            self.disk.log.push(record);
        }
        let log_end = self.disk.log.len() as i64;
        self.event(context, |partition, _| partition.replicated(epoch, log_end, high_watermark).unwrap_or_default());
    }
}
