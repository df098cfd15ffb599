//! The broker is killed at random moments of transactions. Readers must get all records of a committed transaction and
//! none of an aborted one. No transaction may stay open.
//!
//! `FULLBORE_TRANSACTION_ROUNDS` sets how often each test kills the broker (by default 3, in `make soak` 60).

use super::{DISKLESS, SOON};
use fullbore_tests::{Broker, Client, Protocol, Random, TRANSIENT, Transactional, transactional_request, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::end_txn::EndTxnResponse;
use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const TOPIC: &str = "transacted";
const PARTITIONS: i32 = 4;
const WRITERS: usize = 3;
const TIMEOUT_MS: i32 = 1_500;
const SETS: &[&str] =
    &["transaction.abort.timed.out.transaction.cleanup.interval.ms=20", "transaction.state.log.num.partitions=3"];

fn rounds() -> usize {
    fullbore_tests::rounds("FULLBORE_TRANSACTION_ROUNDS", 3, 60)
}

/// The outcome of a transaction as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The client has sent an abort, or has not sent EndTxn.
    Aborted,
    /// The broker acknowledged the commit.
    Committed,
    /// The client has sent a commit and got no response. Readers must get all records of the transaction or none.
    InDoubt,
}

/// A transaction, with the partition and value of each record.
#[derive(Clone, Debug)]
struct Written {
    values: Vec<(i32, String)>,
    outcome: Outcome,
}

/// A client that writes transactions until the broker ends.
struct Writer {
    name: String,
    protocol: Protocol,
    producer: Option<Transactional>,
    random: Random,
    written: Vec<Written>,
}

impl Writer {
    fn new(n: usize, seed: u64) -> Writer {
        let (protocol, random) = (Protocol::BOTH[n % 2], Random::new(seed + n as u64));
        Writer { name: format!("writer-{n}"), protocol, producer: None, random, written: Vec::new() }
    }

    /// Writes transactions until the connection breaks.
    fn run(&mut self, client: &mut Client, ended: &AtomicUsize) {
        while self.transaction(client).is_some() {
            ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn transaction(&mut self, client: &mut Client) -> Option<()> {
        self.resolve(client)?;
        let mut producer = match self.producer.take() {
            Some(producer) => producer,
            None => begin(client, &self.name, self.protocol)?,
        };
        let number = self.written.len();
        self.written.push(Written { values: Vec::new(), outcome: Outcome::Aborted });
        for step in 0..1 + self.random.below(6) {
            let partition = i32::try_from(self.random.below(PARTITIONS as usize)).expect("small");
            let size = self.random.below(3_000);
            let value = format!("{} {number} {step} {}", self.name, "x".repeat(size));
            self.written[number].values.push((partition, value.clone()));
            let request = |producer: &mut Transactional| {
                let batch = producer.batch(TOPIC, partition, &[&value]);
                transactional_request(&self.name, TOPIC, partition, batch.bytes())
            };
            if self.protocol == Protocol::Old && !try_add(client, &producer, partition)? {
                return Some(());
            }
            let response = client.try_call(&request(&mut producer), self.protocol.produce());
            let code = response?.responses[0].partition_responses[0].error_code;
            if code.is_err() {
                // On a slow machine, the transaction may have timed out.
                assert_eq!(code, ErrorCode::INVALID_PRODUCER_EPOCH, "{}", self.name);
                return Some(());
            }
        }
        let is_commit = self.random.below(3) > 0;
        if is_commit {
            self.written[number].outcome = Outcome::InDoubt;
        }
        self.producer = Some(producer);
        self.end(client, number, is_commit)
    }

    /// Ends the transaction `number` and notes the outcome.
    fn end(&mut self, client: &mut Client, number: usize, is_commit: bool) -> Option<()> {
        let Some(producer) = &mut self.producer else { return Some(()) };
        let response = try_end(client, producer, is_commit)?;
        if response.error_code.is_err() {
            let is_late = [ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_TXN_STATE].contains(&response.error_code);
            assert!(is_late, "{}: {}", self.name, response.error_code);
            self.written[number].outcome = Outcome::Aborted;
            self.producer = None;
        } else {
            self.written[number].outcome = if is_commit { Outcome::Committed } else { Outcome::Aborted };
            producer.ended(&response);
        }
        Some(())
    }

    /// Finds the outcome of a commit that got no response. At random, the client either repeats the commit, or starts a
    /// new producer. The new producer aborts the transaction if it is still undecided.
    fn resolve(&mut self, client: &mut Client) -> Option<()> {
        match self.written.last() {
            Some(last) if last.outcome == Outcome::InDoubt && self.producer.is_some() => {
                if self.random.below(2) == 0 {
                    return self.end(client, self.written.len() - 1, true);
                }
                self.producer = None;
            }
            _ => {}
        }
        Some(())
    }
}

fn begin(client: &mut Client, name: &str, protocol: Protocol) -> Option<Transactional> {
    Transactional::try_begin(client, name, protocol, TIMEOUT_MS)
}

/// Adds a partition. Returns false if the producer was fenced. `None` if the connection broke.
fn try_add(client: &mut Client, producer: &Transactional, partition: i32) -> Option<bool> {
    loop {
        match client.try_add_partition(&producer.transactional_id, producer.producer(), TOPIC, partition)? {
            ErrorCode::NONE => return Some(true),
            code if TRANSIENT.contains(&code) => {}
            code => {
                assert_eq!(code, ErrorCode::PRODUCER_FENCED);
                return Some(false);
            }
        }
    }
}

fn try_end(client: &mut Client, producer: &Transactional, is_commit: bool) -> Option<EndTxnResponse> {
    loop {
        let response = client.try_call(&producer.end_request(is_commit), producer.protocol.end_txn())?;
        if !TRANSIENT.contains(&response.error_code) {
            return Some(response);
        }
    }
}

/// Runs the writers until `transactions` transactions have ended, then calls `end`.
fn run_and(broker: &mut Broker, writers: Vec<Writer>, transactions: usize, end: fn(&mut Broker)) -> Vec<Writer> {
    let ended = Arc::new(AtomicUsize::new(0));
    let start = |mut writer: Writer| {
        let (mut client, ended) = (broker.client(), Arc::clone(&ended));
        std::thread::spawn(move || {
            writer.run(&mut client, &ended);
            writer
        })
    };
    let running: Vec<_> = writers.into_iter().map(start).collect();
    wait_until("transactions end", SOON, || {
        let failed = running.iter().any(std::thread::JoinHandle::is_finished);
        failed || ended.load(Ordering::Relaxed) >= transactions
    });
    end(broker);
    running.into_iter().map(|thread| thread.join().expect("a writer saw a wrong answer")).collect()
}

/// Waits until no transaction is open. Then compares the records with the outcomes that clients know.
fn check(client: &mut Client, writers: &mut [Writer]) {
    wait_until("the stable offset reaches the end", SOON, || {
        (0..PARTITIONS).all(|partition| client.stable(TOPIC, partition) == client.latest(TOPIC, partition))
    });
    let mut read = HashSet::new();
    for partition in 0..PARTITIONS {
        for text in client.committed_texts(TOPIC, partition) {
            assert!(read.insert((partition, text)), "twice");
        }
    }
    for writer in writers {
        let last = writer.written.len().saturating_sub(1);
        for (number, written) in writer.written.iter_mut().enumerate() {
            let there = written.values.iter().filter(|value| read.remove(*value)).count();
            let (all, of) = (written.values.len(), format!("{}: transaction {number}", writer.name));
            match written.outcome {
                Outcome::Aborted => assert_eq!(there, 0, "{of} was aborted"),
                Outcome::Committed => assert_eq!(there, all, "{of} was committed"),
                Outcome::InDoubt => assert!(there == 0 || there == all, "{of}: {there} of {all} records"),
            }
            if written.outcome == Outcome::InDoubt && number != last {
                // The transaction is no longer in doubt: it was committed if its records can be read.
                written.outcome = if there == 0 { Outcome::Aborted } else { Outcome::Committed };
            }
        }
    }
    assert!(read.is_empty(), "records that were never written: {read:?}");
}

const CONFIGS: &[(&str, &str)] = &[("segment.bytes", "1048576"), ("index.interval.bytes", "256")];

fn start(seed: u64, configs: &[(&str, &str)]) -> (Broker, Vec<Writer>) {
    let broker = Broker::start(SETS);
    broker.client().create_topic(TOPIC, PARTITIONS, configs);
    (broker, (0..WRITERS).map(|n| Writer::new(n, seed)).collect())
}

fn survives(seed: u64, end: fn(&mut Broker), damage: impl Fn(&Broker, &mut Random)) {
    survives_on(seed, CONFIGS, end, damage);
}

fn survives_on(seed: u64, configs: &[(&str, &str)], end: fn(&mut Broker), damage: impl Fn(&Broker, &mut Random)) {
    let (mut broker, mut writers) = start(seed, configs);
    let mut random = Random::new(seed);
    for _ in 0..rounds() {
        let transactions = 30 + random.below(300);
        writers = run_and(&mut broker, writers, transactions, end);
        damage(&broker, &mut random);
        broker.restart();
        check(&mut broker.client(), &mut writers);
    }
    let committed = writers.iter().flat_map(|writer| &writer.written).filter(|one| one.outcome == Outcome::Committed);
    assert!(committed.count() > 10, "something was tested");
}

#[test]
fn transactions_are_whole_or_absent_after_each_kill_9() {
    survives(1, Broker::kill, |_, _| {});
}

#[test]
fn transactions_on_a_diskless_topic_are_whole_or_absent_after_each_kill_9() {
    survives_on(7, DISKLESS, Broker::kill, |_, _| {});
}

#[test]
fn transactions_on_a_diskless_topic_are_whole_or_absent_after_each_stop() {
    survives_on(8, DISKLESS, Broker::stop, |_, _| {});
}

#[test]
fn transactions_are_whole_or_absent_after_each_stop() {
    survives(2, Broker::stop, |_, _| {});
}

/// Returns the files of the topic that have one of these extensions.
fn files(broker: &Broker, extensions: &[&str]) -> Vec<PathBuf> {
    let of =
        |partition| extensions.iter().flat_map(move |extension| broker.partition_files(TOPIC, partition, extension));
    (0..PARTITIONS).flat_map(of).collect()
}

#[test]
fn lost_indexes_of_aborted_transactions_are_rebuilt_after_a_kill_9() {
    survives(3, Broker::kill, |broker, _| {
        files(broker, &["txnindex"]).iter().for_each(|file| fs::remove_file(file).expect("ours"));
    });
}

#[test]
fn lost_snapshots_leave_transactions_whole_after_a_kill_9() {
    survives(4, Broker::kill, |broker, _| {
        files(broker, &["snapshot"]).iter().for_each(|file| fs::remove_file(file).expect("ours"));
    });
}

#[test]
fn torn_or_lost_indexes_and_snapshots_leave_transactions_whole_after_a_kill_9() {
    survives(5, Broker::kill, |broker, random| {
        for path in files(broker, &["txnindex", "snapshot"]) {
            let file = fs::OpenOptions::new().write(true).open(&path).expect("ours");
            let len = file.metadata().expect("ours").len();
            match random.below(4) {
                0 => fs::remove_file(path).expect("ours"),
                1 => file.set_len(random.below(1 + usize::try_from(len).expect("small")) as u64).expect("shorter"),
                2 => file.set_len(len + 1 + random.below(100) as u64).expect("longer"),
                _ => {}
            }
        }
    });
}

#[test]
#[should_panic(expected = "was aborted")]
fn record_of_an_aborted_transaction_fails_the_check() {
    let (broker, mut writers) = start(6, CONFIGS);
    let mut client = broker.client();
    let mut producer = Transactional::begin(&mut client, "writer-0", Protocol::New);
    producer.write(&mut client, TOPIC, 0, &["writer-0 0 0 "]);
    producer.end(&mut client, true);
    writers[0].written.push(Written { values: vec![(0, "writer-0 0 0 ".into())], outcome: Outcome::Aborted });
    check(&mut client, &mut writers);
}
