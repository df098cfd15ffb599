//! Simulated producers. An idempotent producer uses acks=all and resends each record until it is acknowledged. It sends
//! in the order of sequences, over one connection at a time. Any other producer uses acks=1 and does not resend a
//! record that fails.

use std::collections::VecDeque;

use fullbore_wire::ErrorCode;

use crate::context::{Context, Timer};
use crate::message::Message;
use crate::network::{ConnectionId, Node};

#[derive(Debug)]
struct Pending {
    value: u64,
    sequence: i32,
    is_sent: bool,
}

#[derive(Debug)]
pub struct Client {
    at: usize,
    /// The producer id. `None` if the producer is not idempotent.
    producer_id: Option<i64>,
    connection: Option<ConnectionId>,
    /// True if the client believes that the connection is to the leader.
    has_leader: bool,
    pending: VecDeque<Pending>,
    next_sequence: i32,
    has_succeeded: bool,
    last_answer_us: i64,
    pub is_closing: bool,
}

/// Maximum number of batches without an acknowledgement.
const WINDOW: usize = 5;

impl Client {
    pub fn new(at: usize, is_idempotent: bool) -> Client {
        Client {
            at,
            producer_id: is_idempotent.then_some(at as i64),
            connection: None,
            has_leader: false,
            pending: VecDeque::new(),
            next_sequence: 0,
            has_succeeded: false,
            last_answer_us: 0,
            is_closing: false,
        }
    }

    pub fn start(&self, context: &mut Context) {
        context.after(0, Node::Client(self.at), 0, Timer::Produce);
    }

    /// Returns how many records the client has neither got acknowledged nor given up.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    pub fn on_timer(&mut self, context: &mut Context) {
        let pause = context.random.between(2_000, 30_000);
        context.after(pause, Node::Client(self.at), 0, Timer::Produce);
        let is_overdue = context.now() - self.last_answer_us > 2 * context.settings.overdue_us;
        if is_overdue && self.connection.is_some() && (!self.has_leader || self.pending.iter().any(|one| one.is_sent)) {
            self.disconnect(context);
        }
        if self.connection.is_none() {
            let brokers: Vec<i32> = context.running.keys().copied().collect();
            if brokers.is_empty() {
                return;
            }
            let any = brokers[context.random.below(brokers.len())];
            self.connect(context, any, false);
        }
        // Before its first success a producer has one batch in flight (KAFKA-15591).
        let window = if self.has_succeeded { WINDOW } else { 1 };
        if !self.is_closing && self.pending.len() < window {
            let value = context.check.new_value();
            self.pending.push_back(Pending { value, sequence: self.next_sequence, is_sent: false });
            self.next_sequence += 1;
        }
        self.send(context);
    }

    fn connect(&mut self, context: &mut Context, to: i32, is_leader: bool) {
        let node = Node::Client(self.at);
        self.connection = context.open(node, Node::Broker(to));
        self.has_leader = is_leader;
        self.last_answer_us = context.now();
        self.pending.iter_mut().for_each(|one| one.is_sent = false);
        match self.connection {
            Some(_) if is_leader => self.send(context),
            Some(connection) => context.send(connection, node, Message::WhoLeads),
            None => {}
        }
    }

    fn disconnect(&mut self, context: &mut Context) {
        if let Some(connection) = self.connection.take() {
            context.close(connection, Node::Client(self.at));
        }
        self.give_up();
    }

    fn give_up(&mut self) {
        self.has_leader = false;
        if self.producer_id.is_none() {
            self.pending.retain(|one| !one.is_sent);
        }
    }

    fn send(&mut self, context: &mut Context) {
        let (Some(connection), true) = (self.connection, self.has_leader) else { return };
        for one in self.pending.iter_mut().filter(|one| !one.is_sent) {
            one.is_sent = true;
            let stamp = self.producer_id.map(|id| (id, one.sequence));
            let message = Message::Produce { value: one.value, stamp, is_acks_all: stamp.is_some() };
            context.send(connection, Node::Client(self.at), message);
        }
    }

    pub fn closed(&mut self, connection: ConnectionId) {
        if self.connection.take_if(|own| *own == connection).is_some() {
            self.give_up();
        }
    }

    pub fn deliver(&mut self, context: &mut Context, connection: ConnectionId, message: Message) {
        if self.connection != Some(connection) {
            return;
        }
        self.last_answer_us = context.now();
        match message {
            Message::Leads(leader) => {
                context.close(connection, Node::Client(self.at));
                self.connection = None;
                if let Some(leader) = leader {
                    self.connect(context, leader, true);
                }
            }
            Message::Produced { value, result } => self.produced(context, value, result),
            _ => {}
        }
    }

    fn produced(&mut self, context: &mut Context, value: u64, result: Result<i64, ErrorCode>) {
        match result {
            Ok(offset) if self.producer_id.is_some() => context.check.acknowledged(offset, value),
            Ok(_) | Err(ErrorCode::DUPLICATE_SEQUENCE_NUMBER) => {}
            Err(_) => return self.disconnect(context),
        }
        self.has_succeeded = true;
        self.pending.retain(|one| one.value != value);
    }
}
