//! A client that copies numbers. Each transaction writes the next numbers and commits the offset that the client has
//! reached. A restarted client continues from that offset, so the output must have each number once.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{DATA, OFFSETS, PartitionId, TransactionalId};
use super::message::{Answer, Request, Write};
use fullbore_rules::transaction::{ProducerIdAndEpoch, TransactionAnswer, TransactionVersion};
use fullbore_schedules::Random;
use fullbore_wire::ErrorCode;

/// Maximum number of batches in flight.
const WINDOW: usize = 3;
/// Maximum number of numbers that one transaction copies.
const NUMBERS_MAX: usize = 4;

/// A transaction that the client has begun and not ended.
#[derive(Debug)]
pub struct Open {
    /// The transaction's number, which no other client uses.
    pub number: usize,
    /// How many numbers the transaction will still write.
    left: usize,
    /// The last number that the transaction wrote.
    pub copied: u64,
    pub added: BTreeSet<PartitionId>,
    has_offsets: bool,
}

#[derive(Debug)]
pub struct Client {
    /// The process's number, which no other client process uses.
    pub incarnation: usize,
    pub id: TransactionalId,
    pub version: TransactionVersion,
    pub producer: Option<ProducerIdAndEpoch>,
    /// The last number whose copy is committed.
    position: Option<u64>,
    pub open: Option<Open>,
    pub call: Option<(u64, Request)>,
    /// Batches in flight, each with the number of its request.
    pub unanswered: Vec<(u64, Write)>,
    sequences: BTreeMap<PartitionId, i32>,
    must_abort: bool,
    must_begin_again: bool,
}

/// The next step of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Resends the requests that have no response.
    SendAgain,
    Call(Request),
    /// Begins a transaction.
    Open,
    /// Writes the next number to this partition.
    Write(PartitionId),
    /// Commits the client's offset in the transaction.
    Commit,
    Crash,
}

impl Client {
    pub fn new(incarnation: usize, id: TransactionalId, version: TransactionVersion) -> Client {
        Client {
            incarnation,
            id,
            version,
            producer: None,
            position: None,
            open: None,
            call: None,
            unanswered: Vec::new(),
            sequences: BTreeMap::new(),
            must_abort: false,
            must_begin_again: false,
        }
    }

    fn bumps(&self) -> bool {
        self.version.supports_epoch_bump()
    }

    pub fn next(&self, random: &mut Random) -> Next {
        if random.one_in(500) {
            return Next::Crash;
        }
        let Some(producer) = self.producer else {
            return if self.call.is_some() { Next::SendAgain } else { Next::Call(Request::Init(None)) };
        };
        if self.call.is_some() && !random.one_in(400) {
            return Next::SendAgain;
        }
        // After a failure or a long wait, the client gives up and starts over.
        if self.call.is_some() || self.must_begin_again || random.one_in(500) {
            return Next::Call(Request::Init(Some(producer)));
        }
        if self.position.is_none() {
            return Next::Call(Request::FetchOffset);
        }
        let Some(open) = &self.open else { return Next::Open };
        if self.must_abort || random.one_in(120) {
            // A client of the old protocol cannot know whether batches without a response were written, so it must not
            // end the transaction.
            let may_end = self.bumps() || self.unanswered.is_empty();
            return Next::Call(if may_end { Request::End(producer, false) } else { Request::Init(Some(producer)) });
        }
        if open.left > 0 && self.unanswered.len() < WINDOW && !random.one_in(4) {
            return self.or_add(random.below(DATA), producer, Next::Write);
        }
        if open.left > 0 || !self.unanswered.is_empty() {
            return Next::SendAgain;
        }
        match open.has_offsets {
            false => self.or_add(OFFSETS, producer, |_| Next::Commit),
            true => Next::Call(Request::End(producer, true)),
        }
    }

    /// Returns `next` if the partition is in the transaction. Otherwise a client of the old protocol must add the
    /// partition first, so returns that request.
    fn or_add(
        &self,
        partition: PartitionId,
        producer: ProducerIdAndEpoch,
        next: impl FnOnce(PartitionId) -> Next,
    ) -> Next {
        let is_added = self.bumps() || self.open.as_ref().is_some_and(|open| open.added.contains(&partition));
        if is_added { next(partition) } else { Next::Call(Request::Add(producer, partition)) }
    }

    pub fn begin(&mut self, number: usize, random: &mut Random) {
        let copied = self.position.unwrap_or_default();
        let left = 1 + random.below(NUMBERS_MAX);
        self.open = Some(Open { number, left, copied, added: BTreeSet::new(), has_offsets: false });
    }

    /// Returns the sequence of the next batch for `partition` and the number that it copies. `None` if no transaction
    /// is open.
    pub fn write(&mut self, partition: PartitionId) -> Option<(i32, u64)> {
        let open = self.open.as_mut()?;
        (open.left, open.copied) = (open.left - 1, open.copied + 1);
        let next = self.sequences.entry(partition).or_default();
        *next += 1;
        Some((*next - 1, open.copied))
    }

    /// Handles the response to a batch. Returns false if the process must end.
    pub fn written(&mut self, number: u64, result: Result<(), ErrorCode>) -> bool {
        let Some(at) = self.unanswered.iter().position(|(of, _)| *of == number) else { return true };
        let partition = self.unanswered[at].1.partition;
        let is_first = !self.unanswered[..at].iter().any(|(_, write)| write.partition == partition);
        match result {
            Ok(()) | Err(ErrorCode::DUPLICATE_SEQUENCE_NUMBER) => drop(self.unanswered.remove(at)),
            Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER) if !is_first => {}
            Err(code) if code.is_retriable() => {}
            Err(ErrorCode::INVALID_PRODUCER_EPOCH | ErrorCode::PRODUCER_FENCED) => return false,
            Err(_) => {
                (self.must_abort, self.must_begin_again) = (true, !self.bumps());
                self.unanswered.clear();
            }
        }
        true
    }

    /// Handles the response to the client's call. Returns false if the process must end.
    pub fn answered(&mut self, request: &Request, answer: Answer) -> bool {
        let error = match answer {
            Answer::Transaction(
                TransactionAnswer::InitProducerId(Err(code))
                | TransactionAnswer::AddPartitions(Err(code))
                | TransactionAnswer::EndTxn(Err(code)),
            )
            | Answer::Written(Err(code))
            | Answer::Offset(Err(code)) => code,
            _ => ErrorCode::NONE,
        };
        match error {
            ErrorCode::NONE => {}
            ErrorCode::TRANSACTION_ABORTABLE | ErrorCode::POLICY_VIOLATION => {
                (self.call, self.must_abort) = (None, true);
                return true;
            }
            code if code.is_retriable() => return true,
            ErrorCode::INVALID_TXN_STATE => {
                (self.call, self.must_begin_again) = (None, true);
                return true;
            }
            _ => return false,
        }
        self.call = None;
        match (request, answer) {
            (Request::Init(_), Answer::Transaction(TransactionAnswer::InitProducerId(Ok(producer)))) => {
                let new = Client::new(self.incarnation, self.id, self.version);
                *self = Client { producer: Some(producer), ..new };
            }
            (Request::End(producer, is_commit), Answer::Transaction(TransactionAnswer::EndTxn(Ok(next)))) => {
                let copied = self.open.take().map(|open| open.copied);
                if *is_commit {
                    self.position = copied.or(self.position);
                }
                self.producer = Some(next.unwrap_or(*producer));
                if self.bumps() {
                    self.sequences.clear();
                }
                self.unanswered.clear();
                self.must_abort = false;
            }
            (Request::Add(_, partition), _) => {
                self.open.iter_mut().for_each(|open| _ = open.added.insert(*partition));
            }
            (Request::Write(_), Answer::Written(Ok(()))) => {
                self.open.iter_mut().for_each(|open| open.has_offsets = true);
            }
            (Request::FetchOffset, Answer::Offset(Ok(position))) => self.position = Some(position),
            (request, answer) => panic!("{request:?} is answered {answer:?}"),
        }
        true
    }
}
