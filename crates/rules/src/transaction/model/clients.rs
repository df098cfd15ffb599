//! Clients that share the transactional id, and their requests.

use super::super::{ProducerIdAndEpoch, TransactionAnswer, TransactionVersion};
use fullbore_schedules::Random;
use fullbore_wire::ErrorCode;
use std::collections::BTreeSet;

/// Request that a client repeats until it gets a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    Init(Option<ProducerIdAndEpoch>),
    Add(ProducerIdAndEpoch, i32),
    /// End of a transaction; true for a commit.
    End(ProducerIdAndEpoch, bool),
}

/// Request in flight.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub call: Call,
    /// Number of the call, by which a client recognises the response.
    pub number: u64,
    pub slot: usize,
    pub incarnation: usize,
    pub version: TransactionVersion,
    /// Transaction of the request; None for an Init.
    pub transaction: Option<usize>,
}

/// Transaction, as its client and the partitions know it.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub records: usize,
    /// Outcome that the client has requested; None before the request.
    pub asked: Option<bool>,
    /// Outcome in the response to the client; None before it.
    pub answered: Option<bool>,
    /// Outcome by the first marker after a record; None before it.
    pub outcome: Option<bool>,
}

#[derive(Debug)]
pub struct Client {
    /// Number of the client's process, unique among all clients.
    pub incarnation: usize,
    pub version: TransactionVersion,
    pub producer: Option<ProducerIdAndEpoch>,
    pub transaction: Option<usize>,
    pub added: BTreeSet<i32>,
    /// True if the transaction can only be aborted.
    pub must_abort: bool,
    pub call: Option<(u64, Call)>,
}

/// Next step of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Sends the waiting call.
    Send,
    /// Begins another call.
    Begin(Call),
    /// Writes a record.
    Write(ProducerIdAndEpoch, i32),
    /// Restarts as a new process.
    Crash,
}

impl Client {
    pub fn new(incarnation: usize, version: TransactionVersion) -> Client {
        Client {
            incarnation,
            version,
            producer: None,
            transaction: None,
            added: BTreeSet::new(),
            must_abort: false,
            call: None,
        }
    }

    /// Chooses the client's next step.
    pub fn next(&self, random: &mut Random, partitions: usize) -> Next {
        if random.one_in(100) {
            return Next::Crash;
        }
        let Some(producer) = self.producer else {
            return if self.call.is_some() { Next::Send } else { Next::Begin(Call::Init(None)) };
        };
        if self.call.is_some() && !random.one_in(80) {
            return Next::Send;
        }
        // After a failure or a long wait, the client gives the transaction up.
        if self.call.is_some() || random.one_in(100) {
            return Next::Begin(Call::Init(Some(producer)));
        }
        if self.must_abort {
            return Next::Begin(Call::End(producer, false));
        }
        let any = random.below(partitions) as i32;
        let added = self.added.iter().nth(random.below(self.added.len().max(1)));
        match (random.below(8), added) {
            (0..=3, Some(added)) => Next::Write(producer, *added),
            (4..=5, Some(_)) => Next::Begin(Call::End(producer, true)),
            (6, _) if self.transaction.is_some() && random.one_in(3) => Next::Begin(Call::End(producer, false)),
            _ => Next::Begin(Call::Add(producer, any)),
        }
    }

    /// Handles the response to the client's call.
    pub fn answered(&mut self, call: Call, answer: TransactionAnswer) {
        let error = match answer {
            TransactionAnswer::InitProducerId(Err(code))
            | TransactionAnswer::AddPartitions(Err(code))
            | TransactionAnswer::EndTxn(Err(code)) => code,
            _ => ErrorCode::NONE,
        };
        match error {
            ErrorCode::NONE => {}
            ErrorCode::TRANSACTION_ABORTABLE | ErrorCode::POLICY_VIOLATION => {
                (self.call, self.must_abort) = (None, true);
                return;
            }
            code if code.is_retriable() => return,
            _ => {
                *self = Client { ..Client::new(self.incarnation, self.version) };
                return;
            }
        }
        self.call = None;
        match (call, answer) {
            (Call::Init(_), TransactionAnswer::InitProducerId(Ok(producer))) => {
                *self = Client { producer: Some(producer), ..Client::new(self.incarnation, self.version) };
            }
            (Call::Add(_, partition), _) => drop(self.added.insert(partition)),
            (Call::End(producer, _), TransactionAnswer::EndTxn(Ok(next))) => {
                let producer = Some(next.unwrap_or(producer));
                *self = Client { producer, ..Client::new(self.incarnation, self.version) };
            }
            (call, answer) => panic!("{call:?} is answered {answer:?}"),
        }
    }
}
