//! The clients of the model, which share the transactional id, and their requests.

use super::super::{ProducerIdAndEpoch, TransactionAnswer, TransactionVersion};
use fullbore_schedules::Random;
use fullbore_wire::ErrorCode;
use std::collections::BTreeSet;

/// A request that a client repeats until it gets a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    Init(Option<ProducerIdAndEpoch>),
    Add(ProducerIdAndEpoch, i32),
    /// Ends a transaction. True means commit.
    End(ProducerIdAndEpoch, bool),
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub call: Call,
    /// The number of the call, by which the client recognises the response.
    pub number: u64,
    pub slot: usize,
    pub incarnation: usize,
    pub version: TransactionVersion,
    /// The transaction that the request belongs to; `None` for an Init.
    pub transaction: Option<usize>,
}

/// A transaction as its client and the partitions know it.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub records: usize,
    /// The outcome that the client has requested; `None` before that.
    pub requested: Option<bool>,
    /// The outcome that the client got in a response; `None` before that.
    pub answered: Option<bool>,
    /// The outcome in the first marker that follows a record of the transaction; `None` before that marker.
    pub outcome: Option<bool>,
}

#[derive(Debug)]
pub struct Client {
    /// The number of the client's process, which is unique among all clients.
    pub incarnation: usize,
    pub version: TransactionVersion,
    pub producer: Option<ProducerIdAndEpoch>,
    pub transaction: Option<usize>,
    pub added: BTreeSet<i32>,
    /// True if the client can only abort the transaction.
    pub must_abort: bool,
    pub call: Option<(u64, Call)>,
}

/// The next step of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// The client sends its waiting call.
    Send,
    /// The client begins another call.
    Begin(Call),
    /// The client writes a record.
    Write(ProducerIdAndEpoch, i32),
    /// The client restarts as a new process.
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
        // A client gives up its transaction after a failure, or if it has waited for long.
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
