//! A client that copies numbers in transactions, together with its group's offset. It keeps working while brokers fail.
//! The output must have each number once.
//!
//! [`Resolve`] decides how the client reacts if a request gets no response. Including its retries, no request may take
//! longer than [`HANGS`], or five times as long while the test injects faults.

use crate::history::{Attempt, History, Outcome};
use crate::{Client, Protocol, Transactional, transactional_request};
use fullbore_wire::apis::add_offsets_to_txn::AddOffsetsToTxnRequest;
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};
use fullbore_wire::apis::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use fullbore_wire::apis::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use fullbore_wire::{ErrorCode, Text};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The transaction timeout, in milliseconds.
const TIMEOUT_MS: i32 = 10_000;
/// How long a request with its retries may take: the transaction timeout plus fifty seconds. A failover takes several
/// seconds, and on a busy machine a multiple of that.
const HANGS: Duration = Duration::from_secs(60);
/// How long the client waits for a response before it closes the connection.
const ANSWER_MAX: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);
/// How many numbers each transaction copies.
const NUMBERS: i64 = 2;

/// How the client reacts if a request gets no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolve {
    /// The client repeats the request.
    Again,
    /// The client starts over from its group's offset, as a new process would.
    Anew,
}

/// The error of a step after which the client cannot continue its transaction.
struct Over;

type Step<T> = Result<T, Over>;

/// The broker that must receive a request.
#[derive(Clone, Copy, Debug)]
enum To {
    Transactions,
    Group,
    Leader(i32),
}

/// A client that copies numbers.
pub struct Copier<'a> {
    id: String,
    topic: String,
    partitions: i32,
    protocol: Protocol,
    resolve: Resolve,
    /// Returns the brokers' addresses. The argument is the last number that the client has copied. The client calls
    /// this after each transaction, retriable error and missing response, and the test may then restart a broker.
    brokers: Box<dyn FnMut(i64) -> Vec<SocketAddr> + 'a>,
    known: Vec<SocketAddr>,
    connections: HashMap<SocketAddr, Client>,
    /// Brokers that did not respond to their last request. The client tries other brokers first.
    silent: HashSet<SocketAddr>,
    producer: Option<Transactional>,
    /// The last number that the client has copied.
    copied: i64,
    /// How long each request may take with its retries.
    hangs: Duration,
    attempts: Vec<Attempt>,
}

impl<'a> Copier<'a> {
    /// Creates a client. `id` is its transactional id and also its group. `brokers` is called with the number that the
    /// client has reached.
    pub fn new(
        id: &str,
        (topic, partitions): (&str, i32),
        protocol: Protocol,
        resolve: Resolve,
        brokers: impl FnMut(i64) -> Vec<SocketAddr> + 'a,
    ) -> Copier<'a> {
        let mut brokers: Box<dyn FnMut(i64) -> Vec<SocketAddr> + 'a> = Box::new(brokers);
        let known = brokers(0);
        Copier {
            id: id.to_owned(),
            topic: topic.to_owned(),
            partitions,
            protocol,
            resolve,
            brokers,
            known,
            connections: HashMap::new(),
            silent: HashSet::new(),
            producer: None,
            copied: 0,
            hangs: HANGS,
            attempts: Vec::new(),
        }
    }

    /// Copies the numbers up to `last` and checks the output.
    pub fn copy_until(&mut self, last: i64) {
        let mut since = Instant::now();
        while self.copied < last {
            if self.step() {
                since = Instant::now();
            }
            assert!(since.elapsed() < 3 * HANGS, "{} hangs at {}\n{}", self.id, self.copied, self.described());
        }
        self.check();
    }

    /// Copies numbers through faults while `go_on` returns true. Then copies a few more without faults and checks the
    /// output.
    pub fn copy_while(&mut self, go_on: impl Fn() -> bool) {
        self.hangs = 5 * HANGS;
        while go_on() {
            self.step();
        }
        self.hangs = HANGS;
        self.copy_until(self.copied + 2 * NUMBERS);
    }

    /// Runs one transaction. Returns true if the transaction was committed.
    fn step(&mut self) -> bool {
        let is_done = self.transaction().is_ok();
        match is_done {
            true => self.known = (self.brokers)(self.copied),
            false => self.producer = None,
        }
        is_done
    }

    fn transaction(&mut self) -> Step<()> {
        if self.producer.is_none() {
            self.begin()?;
        }
        let upto = self.copied + NUMBERS;
        self.attempts.push(Attempt { records: Vec::new(), offset: upto, outcome: Outcome::Aborted });
        for number in self.copied + 1..=upto {
            self.write(number)?;
        }
        self.commit_offset(upto)?;
        self.note(Outcome::InDoubt);
        self.end()?;
        self.note(Outcome::Committed);
        self.copied = upto;
        Ok(())
    }

    fn note(&mut self, outcome: Outcome) {
        self.attempts.last_mut().into_iter().for_each(|attempt| attempt.outcome = outcome);
    }

    fn begin(&mut self) -> Step<()> {
        let (id, protocol) = (self.id.clone(), self.protocol);
        let request = crate::transactional::init_request(&id, TIMEOUT_MS, None);
        let version = protocol.init_producer_id();
        // The client repeats this request even with `Resolve::Anew`. If an earlier attempt has started a producer, the
        // repeated one fences that producer.
        let found = self.request(To::Transactions, true, |client| {
            let response = client.try_call(&request, version)?;
            Some((response.error_code, (response.producer_id, response.producer_epoch)))
        })?;
        self.producer = Some(Transactional::resume(&id, protocol, found.0, found.1));
        self.copied = self.fetch_offset()?;
        Ok(())
    }

    fn fetch_offset(&mut self) -> Step<i64> {
        let topic = OffsetFetchRequestTopics {
            name: Text::from(&*self.topic),
            partition_indexes: vec![0],
            ..Default::default()
        };
        let group = OffsetFetchRequestGroup {
            group_id: Text::from(&*self.id),
            member_epoch: -1,
            topics: Some(vec![topic]),
            ..Default::default()
        };
        let request = OffsetFetchRequest { groups: vec![group], require_stable: true, ..Default::default() };
        self.request(To::Group, true, |client| {
            let mut group = client.try_call(&request, 8)?.groups.remove(0);
            let partition = group.topics.pop().and_then(|mut topic| topic.partitions.pop());
            let code = partition.as_ref().map_or(group.error_code, |partition| partition.error_code);
            Some((code, partition.map_or(0, |partition| partition.committed_offset.max(0))))
        })
    }

    fn write(&mut self, number: i64) -> Step<()> {
        let partition = i32::try_from(number % i64::from(self.partitions)).expect("small");
        let producer = self.producer.as_mut().ok_or(Over)?;
        let (producer_id, protocol) = (producer.producer(), producer.protocol);
        let value = format!("{number}.{}", self.attempts.len());
        let batch = producer.batch(&self.topic, partition, &[&value]);
        self.attempts.last_mut().ok_or(Over)?.records.push((partition, value));
        let (id, topic) = (self.id.clone(), self.topic.clone());
        if protocol == Protocol::Old {
            self.request(To::Transactions, false, |client| {
                Some((client.try_add_partition(&id, producer_id, &topic, partition)?, ()))
            })?;
        }
        let request = transactional_request(&id, &topic, partition, batch.bytes());
        self.request(To::Leader(partition), false, |client| {
            let mut response = client.try_call(&request, protocol.produce())?;
            Some((response.responses.remove(0).partition_responses.remove(0).error_code, ()))
        })
    }

    fn commit_offset(&mut self, upto: i64) -> Step<()> {
        let producer = self.producer.as_ref().ok_or(Over)?;
        let ((producer_id, producer_epoch), protocol) = (producer.producer(), producer.protocol);
        let (transactional_id, group_id) = (Text::from(&*self.id), Text::from(&*self.id));
        if protocol == Protocol::Old {
            let request = AddOffsetsToTxnRequest {
                transactional_id: transactional_id.clone(),
                producer_id,
                producer_epoch,
                group_id: group_id.clone(),
                ..Default::default()
            };
            let add = |client: &mut Client| Some((client.try_call(&request, 3)?.error_code, ()));
            self.request(To::Transactions, false, add)?;
        }
        let partition = TxnOffsetCommitRequestPartition { committed_offset: upto, ..Default::default() };
        let topic = TxnOffsetCommitRequestTopic {
            name: Text::from(&*self.topic),
            partitions: vec![partition],
            ..Default::default()
        };
        let request = TxnOffsetCommitRequest {
            transactional_id,
            group_id,
            producer_id,
            producer_epoch,
            topics: vec![topic],
            ..Default::default()
        };
        let version = if protocol == Protocol::Old { 4 } else { 5 };
        self.request(To::Group, false, |client| {
            Some((client.try_call(&request, version)?.topics[0].partitions[0].error_code, ()))
        })
    }

    fn end(&mut self) -> Step<()> {
        let producer = self.producer.as_ref().ok_or(Over)?;
        let (request, version) = (producer.end_request(true), producer.protocol.end_txn());
        let response = self.request(To::Transactions, false, |client| {
            let response = client.try_call(&request, version)?;
            Some((response.error_code, response))
        })?;
        self.producer.iter_mut().for_each(|producer| producer.ended(&response));
        Ok(())
    }

    /// Repeats a request until its response has no transient error.
    fn request<T>(
        &mut self,
        to: To,
        always_again: bool,
        mut send: impl FnMut(&mut Client) -> Option<(ErrorCode, T)>,
    ) -> Step<T> {
        let began = Instant::now();
        loop {
            if began.elapsed() > self.hangs {
                panic!("{} has no answer: {to:?} at {}\n{}", self.id, self.copied, self.described());
            }
            let answered = self.address(to).and_then(|address| {
                let answered = send(self.connection(address)?);
                if answered.is_none() {
                    self.connections.remove(&address);
                }
                answered
            });
            match answered {
                Some((ErrorCode::NONE | ErrorCode::DUPLICATE_SEQUENCE_NUMBER, answer)) => return Ok(answer),
                Some((code, _)) if code.is_retriable() => {
                    self.known = (self.brokers)(self.copied);
                    std::thread::sleep(PAUSE);
                }
                Some((code, _)) => {
                    eprintln!("{}: {to:?} at {}: {code}", self.id, self.copied);
                    return Err(Over);
                }
                None => {
                    self.known = (self.brokers)(self.copied);
                    if self.resolve == Resolve::Anew && !always_again {
                        return Err(Over);
                    }
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Returns how each broker describes the partitions and the transaction, for the message of a failed test.
    fn described(&self) -> String {
        let find = |address: &SocketAddr, arguments: &[&str]| {
            let mut command = std::process::Command::new("timeout");
            command.arg("5").arg(crate::binary()).args(arguments).args(["--bootstrap-server", &address.to_string()]);
            let output = command.output().expect("it runs");
            format!("{address}: {}\n", String::from_utf8_lossy(&output.stdout))
        };
        let of = |address| {
            let transaction = ["transactions", "describe", "--transactional-id", &self.id];
            find(address, &["topics", "describe"]) + &find(address, &transaction)
        };
        self.known.iter().map(of).collect()
    }

    fn connection(&mut self, address: SocketAddr) -> Option<&mut Client> {
        match self.connections.entry(address) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => {
                let mut client = Client::try_connect(address).ok()?;
                client.give_up_after(ANSWER_MAX);
                Some(new.insert(client))
            }
        }
    }

    /// Looks up in any broker's metadata which broker must receive a request. `None` if no broker responds.
    fn address(&mut self, to: To) -> Option<SocketAddr> {
        let mut known = self.known.clone();
        known.sort_by_key(|address| self.silent.contains(address));
        known.into_iter().find_map(|address| {
            let found = self.find(address, to);
            if found.is_none() {
                self.connections.remove(&address);
                self.silent.insert(address);
            } else {
                self.silent.remove(&address);
            }
            found
        })
    }

    fn find(&mut self, address: SocketAddr, to: To) -> Option<SocketAddr> {
        let (id, topic) = (self.id.clone(), self.topic.clone());
        let client = self.connection(address)?;
        let key_type = match to {
            To::Leader(partition) => return leader(client, &topic, partition),
            To::Transactions => 1,
            To::Group => 0,
        };
        let request =
            FindCoordinatorRequest { key_type, coordinator_keys: vec![Text::from(&*id)], ..Default::default() };
        let found = client.try_call(&request, 4)?.coordinators.remove(0);
        socket(&found.host, found.port)
    }

    /// Connects to the leader of a partition.
    fn leader_of(&mut self, partition: i32) -> Client {
        let mut found = None;
        crate::wait_until("a partition has a leader", HANGS, || {
            found = self.address(To::Leader(partition)).and_then(|address| Client::try_connect(address).ok());
            found.is_some()
        });
        found.expect("waited for it")
    }

    /// Waits until no transaction is open. Then returns the outcomes that the client knows and the output.
    pub fn history(&mut self) -> History {
        let mut history = History { attempts: self.attempts.clone(), ..History::default() };
        let topic = self.topic.clone();
        for partition in 0..self.partitions {
            let mut client = self.leader_of(partition);
            crate::wait_until("the stable offset reaches the end", HANGS, || {
                client.stable(&topic, partition) == client.latest(&topic, partition)
            });
            history.ends.insert(partition, (client.stable(&topic, partition), client.latest(&topic, partition)));
            history.found.extend(client.committed_texts(&topic, partition).into_iter().map(|text| (partition, text)));
        }
        history.offset = self.fetch_offset().ok().expect("the group has an offset");
        history
    }

    /// Checks that the output has exactly the numbers that the client copied.
    fn check(&mut self) {
        let history = self.history();
        let violations = history.violations();
        assert!(violations.is_empty(), "{}: {violations:#?}", self.id);
        let number = |text: &String| text.split('.').next().and_then(|number| number.parse().ok()).expect("a number");
        let mut found: Vec<i64> = history.found.iter().map(|(_, text)| number(text)).collect();
        found.sort_unstable();
        assert!(found.iter().copied().eq(1..=self.copied), "{}: {found:?}, and {} are copied", self.id, self.copied);
        assert_eq!(history.offset, self.copied);
    }
}

fn socket(host: &str, port: i32) -> Option<SocketAddr> {
    format!("{host}:{port}").parse().ok().filter(|address: &SocketAddr| address.port() > 0)
}

fn leader(client: &mut Client, topic: &str, partition: i32) -> Option<SocketAddr> {
    let topics = vec![MetadataRequestTopic { name: Some(Text::from(topic)), ..Default::default() }];
    let request = MetadataRequest { topics: Some(topics), allow_auto_topic_creation: false, ..Default::default() };
    let response = client.try_call(&request, 12)?;
    let of = response.topics.first()?.partitions.iter().find(|of| of.partition_index == partition)?;
    let node = response.brokers.iter().find(|broker| broker.node_id == of.leader_id)?;
    socket(&node.host, node.port)
}
