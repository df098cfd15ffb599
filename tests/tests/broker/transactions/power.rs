//! Power losses during transactions. The file system is left as a power loss would leave it ([`Disk`]). With flushes,
//! each acknowledged commit must be whole. Without them, no transaction may stay open, no aborted record may be read,
//! and no earlier producer may continue. Skipped without root.
//!
//! `FULLBORE_POWER_ROUNDS` is the number of power losses (by default 3, in `make soak` 60). Each round prints its seed
//! when it begins.

use super::{DISKLESS, SOON};
use fullbore_tests::{Broker, Client, Disk, Protocol, Random, Transactional, another_boot, wait_until};
use fullbore_wire::apis::add_offsets_to_txn::AddOffsetsToTxnRequest;
use fullbore_wire::apis::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use fullbore_wire::apis::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use fullbore_wire::{ErrorCode, Text};
use std::collections::HashSet;
use std::fs::{self, File};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

const TOPIC: &str = "cut";
const REMOTE: &str = "cut-remote";
const PARTITIONS: i32 = 3;
const IDS: usize = 5;
const PAGE: u64 = 4096;
/// A file in the data directory. It exists from a power loss until all transactions from before that have ended.
const UNSETTLED: &str = "transactions-unsettled";
const SETS: &[&str] = &["transaction.state.log.num.partitions=2", "offsets.topic.num.partitions=1"];

/// How the broker flushes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The broker does not flush, so records reach the disk when the system writes them back.
    Plain,
    /// `fullbore.transaction.flush=true` is set.
    Flush,
    /// `flush.messages=1` is set on every topic.
    EachMessage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Open,
    Aborted,
    Committed,
}

struct Written {
    values: Vec<(i32, String)>,
    offset: Option<i64>,
    outcome: Outcome,
}

/// A transactional id with its producer and transactions.
struct Writer {
    producer: Transactional,
    /// All producer ids and epochs of this id's clients so far.
    known: HashSet<(i64, i16)>,
    written: Vec<Written>,
}

impl Writer {
    fn begin(client: &mut Client, n: usize) -> Writer {
        let producer = Transactional::begin(client, &format!("writer-{n}"), Protocol::BOTH[n % 2]);
        Writer { known: HashSet::from([producer.producer()]), producer, written: Vec::new() }
    }

    fn name(&self) -> &str {
        &self.producer.transactional_id
    }

    fn step(&mut self, client: &mut Client, random: &mut Random) {
        let number = self.written.len();
        match self.written.last_mut().filter(|last| last.outcome == Outcome::Open) {
            None => {
                if random.below(8) == 0 {
                    self.producer =
                        Transactional::begin(client, &self.producer.transactional_id, self.producer.protocol);
                }
                let written = Written { values: Vec::new(), offset: None, outcome: Outcome::Open };
                self.written.push(written);
                self.write(client, random, number);
            }
            Some(_) if random.below(3) > 0 => self.write(client, random, number - 1),
            Some(last) => {
                let is_commit = random.below(3) > 0;
                self.producer.end(client, is_commit);
                last.outcome = if is_commit { Outcome::Committed } else { Outcome::Aborted };
            }
        }
        self.known.insert(self.producer.producer());
    }

    fn write(&mut self, client: &mut Client, random: &mut Random, number: usize) {
        let partition = i32::try_from(random.below(PARTITIONS as usize)).expect("small");
        let fill = "x".repeat(random.below(9_000));
        let written = &mut self.written[number];
        let value = format!("{} {number} {} {fill}", self.producer.transactional_id, written.values.len());
        self.producer.write(client, TOPIC, partition, &[&value]);
        written.values.push((partition, value));
        if random.below(3) == 0 {
            let offset = i64::try_from(number * 100 + written.values.len()).expect("small");
            written.offset = Some(offset);
            commit_offset(client, &self.producer, offset);
        }
    }

    /// Returns the offset that the group must have after its committed transactions.
    fn offset(&self) -> Option<i64> {
        let committed = self.written.iter().filter(|one| one.outcome == Outcome::Committed);
        committed.filter_map(|one| one.offset).next_back()
    }
}

/// Commits an offset of the producer's group as part of its transaction.
fn commit_offset(client: &mut Client, producer: &Transactional, committed_offset: i64) {
    let (producer_id, producer_epoch) = producer.producer();
    let transactional_id = Text::from(producer.transactional_id.as_str());
    let (group_id, is_old) = (transactional_id.clone(), producer.protocol == Protocol::Old);
    if is_old {
        let (transactional_id, group_id) = (transactional_id.clone(), group_id.clone());
        let request =
            AddOffsetsToTxnRequest { transactional_id, producer_id, producer_epoch, group_id, ..Default::default() };
        wait_until("the group is added", SOON, || client.call(&request, 3).error_code == ErrorCode::NONE);
    }
    let partition = TxnOffsetCommitRequestPartition { partition_index: 0, committed_offset, ..Default::default() };
    let topics = vec![TxnOffsetCommitRequestTopic {
        name: Text::from(TOPIC),
        partitions: vec![partition],
        ..Default::default()
    }];
    let request = TxnOffsetCommitRequest {
        transactional_id,
        group_id,
        producer_id,
        producer_epoch,
        topics,
        ..Default::default()
    };
    let version = if is_old { 4 } else { 5 };
    let mut committed = || client.call(&request, version).topics[0].partitions[0].error_code;
    wait_until("the offset is committed", SOON, || committed() == ErrorCode::NONE);
}

/// Returns the committed offset of a group. `None` while a transaction may change it.
fn committed_offset(client: &mut Client, group: &str) -> Option<i64> {
    let topic = OffsetFetchRequestTopics { name: Text::from(TOPIC), partition_indexes: vec![0], ..Default::default() };
    let requested = OffsetFetchRequestGroup {
        group_id: Text::from(group),
        member_epoch: -1,
        topics: Some(vec![topic]),
        ..Default::default()
    };
    let request = OffsetFetchRequest { groups: vec![requested], require_stable: true, ..Default::default() };
    let found = client.call(&request, 8).groups.remove(0);
    let partition = found.topics.first()?.partitions.first()?;
    (found.error_code == ErrorCode::NONE && partition.error_code == ErrorCode::NONE)
        .then_some(partition.committed_offset)
}

/// Makes the system write back random parts of files, as it may do at any time.
fn write_back(broker: &Broker, random: &mut Random) {
    for path in logs(broker.data_dir()) {
        let pages = usize::try_from(fs::metadata(&path).expect("ours").len() / PAGE).expect("small") + 1;
        let file = File::options().write(true).open(&path).expect("ours");
        for _ in 0..random.below(4) {
            let (from, count) = (random.below(pages) as u64, random.between(1, pages + 1) as u64);
            let advice = rustix::fs::Advice::DontNeed;
            rustix::fs::fadvise(&file, from * PAGE, NonZeroU64::new(count * PAGE), advice).expect("a file");
        }
    }
}

/// Returns the segments of every partition.
fn logs(data_dir: &Path) -> Vec<PathBuf> {
    let partitions = fs::read_dir(data_dir).expect("ours").filter_map(|entry| Some(entry.ok()?.path()));
    let files = partitions.filter_map(|dir| fs::read_dir(dir).ok()).flatten();
    let paths = files.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect()
}

/// Writes until the power fails. Returns the writers, and the disk as the power loss left it.
fn run(mode: Mode, random: &mut Random) -> Option<(Vec<Writer>, Disk)> {
    let disk = Disk::make()?;
    let flushes: &[&str] = match mode {
        Mode::Plain => &[],
        Mode::Flush => &["fullbore.transaction.flush=true"],
        Mode::EachMessage => &["log.flush.interval.messages=1"],
    };
    let mut broker = Broker::start_in(&disk.data(), &[SETS, flushes].concat());
    let mut client = broker.client();
    client.create_topic(TOPIC, PARTITIONS, &[("segment.bytes", "1048576")]);
    let mut writers: Vec<_> = (0..IDS).map(|n| Writer::begin(&mut client, n)).collect();
    for _ in 0..random.between(5, 120) {
        let n = random.below(IDS);
        writers[n].step(&mut client, random);
        if random.below(12) == 0 {
            write_back(&broker, random);
        }
        if random.below(25) == 0 {
            disk.commit();
        }
        if random.below(60) == 0 {
            broker.stop();
            broker.restart();
            client = broker.client();
        }
    }
    if random.below(2) == 0 {
        disk.commit();
    }
    let cut = disk.cut_power();
    broker.kill();
    another_boot(&cut.data());
    Some((writers, cut))
}

/// Compares the records with the outcomes that clients know.
fn check(mode: Mode, client: &mut Client, writers: &[Writer]) {
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
        for (number, written) in writer.written.iter().enumerate() {
            let there = written.values.iter().filter(|value| read.remove(*value)).count();
            let (all, of) = (written.values.len(), format!("{}: transaction {number}", writer.name()));
            match written.outcome {
                Outcome::Open | Outcome::Aborted => assert_eq!(there, 0, "{of} is {:?}", written.outcome),
                Outcome::Committed if mode != Mode::Plain => assert_eq!(there, all, "{of} was committed"),
                Outcome::Committed => {}
            }
        }
        let mut offset = None;
        wait_until("no offset is pending", SOON, || {
            offset = committed_offset(client, writer.name());
            offset.is_some()
        });
        if mode != Mode::Plain {
            assert_eq!(offset, Some(writer.offset().unwrap_or(-1)), "{}", writer.name());
        }
    }
    assert!(read.is_empty(), "records that were never written: {read:?}");
}

/// Checks that earlier producers are fenced and that new ones do not reuse their producer ids.
fn check_producers(client: &mut Client, writers: &mut [Writer]) {
    let known: HashSet<(i64, i16)> = writers.iter().flat_map(|writer| writer.known.iter().copied()).collect();
    for writer in writers.iter_mut() {
        let refused = writer.producer.try_end(client, true).error_code;
        let fenced = [ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_PRODUCER_ID_MAPPING];
        assert!(fenced.contains(&refused), "{}: {refused}", writer.name());
        let last = writer.producer.clone();
        let mut new = Transactional::begin(client, writer.name(), last.protocol);
        assert!(known.iter().all(|(id, _)| *id != new.id), "{} has {:?} again", writer.name(), new.producer());
        let mut old = last;
        let batch = old.batch(TOPIC, 0, &["late"]);
        assert!(old.send(client, TOPIC, 0, &batch).error_code.is_err(), "{} goes on", writer.name());
        new.write(client, TOPIC, 0, &[&format!("{} after", writer.name())]);
        new.end(client, true);
    }
    let texts = client.committed_texts(TOPIC, 0);
    for writer in writers {
        assert!(texts.contains(&format!("{} after", writer.name())));
    }
}

fn survives(mode: Mode, first: u64) {
    let mut committed = 0;
    for seed in first..first + fullbore_tests::rounds("FULLBORE_POWER_ROUNDS", 3, 60) as u64 {
        eprintln!("{mode:?}, seed {seed}");
        let mut random = Random::new(seed);
        let Some((mut writers, disk)) = run(mode, &mut random) else { return };
        let mut broker = Broker::start_in(&disk.data(), SETS);
        if random.below(3) == 0 {
            // The broker is killed while it cleans up after the power loss.
            broker.kill();
            broker.restart();
        }
        let mut client = broker.client();
        check(mode, &mut client, &writers);
        wait_until("transactions are settled", SOON, || !broker.data_dir().join(UNSETTLED).exists());
        broker.kill();
        broker.restart();
        let mut client = broker.client();
        check(mode, &mut client, &writers);
        check_producers(&mut client, &mut writers);
        let all = writers.iter().flat_map(|writer| &writer.written);
        committed += all.filter(|one| one.outcome == Outcome::Committed).count();
    }
    assert!(committed > 0, "something was tested");
}

#[test]
fn power_loss_in_flush_mode_keeps_committed_transactions_whole() {
    survives(Mode::Flush, 1_000);
}

#[test]
fn power_loss_with_a_flush_per_message_keeps_committed_transactions_whole() {
    survives(Mode::EachMessage, 2_000);
}

#[test]
fn power_loss_without_flushes_leaves_no_open_transaction_and_fences_earlier_producers() {
    survives(Mode::Plain, 3_000);
}

/// In the power loss, `__transaction_state` is lost, while the index and the store lose nothing. No transactional id
/// then knows of the open transactions in the index.
#[test]
fn power_loss_aborts_open_transactions_on_a_diskless_topic_and_fences_their_producers() {
    let Some(disk) = Disk::make() else { return };
    let mut broker = Broker::start_in(&disk.data(), SETS);
    let mut client = broker.client();
    client.create_topic(REMOTE, PARTITIONS, DISKLESS);
    disk.commit();
    let mut producers = super::both(&mut client, "cut");
    for producer in &mut producers {
        producer.write(&mut client, REMOTE, 0, &["committed"]);
        producer.end(&mut client, true);
        for partition in 0..PARTITIONS {
            producer.write(&mut client, REMOTE, partition, &["open"]);
        }
    }
    let cut = disk.cut_power();
    broker.kill();
    another_boot(&cut.data());
    let broker = Broker::start_in(&cut.data(), SETS);
    let mut client = broker.client();
    for partition in 0..PARTITIONS {
        let expected: &[&str] = if partition == 0 { &["committed", "committed"] } else { &[] };
        assert_eq!(super::settled(&mut client, REMOTE, partition), expected);
    }
    wait_until("transactions are settled", SOON, || !broker.data_dir().join(UNSETTLED).exists());
    for producer in &mut producers {
        let refused = producer.try_end(&mut client, true).error_code;
        let fenced = [ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_PRODUCER_ID_MAPPING];
        assert!(fenced.contains(&refused), "{}: {refused}", producer.transactional_id);
        let late = producer.batch(REMOTE, 0, &["late"]);
        assert!(producer.send(&mut client, REMOTE, 0, &late).error_code.is_err());
        let mut new = Transactional::begin(&mut client, &producer.transactional_id, producer.protocol);
        new.write(&mut client, REMOTE, 1, &["after"]);
        new.end(&mut client, true);
    }
    assert_eq!(super::settled(&mut client, REMOTE, 1), ["after", "after"]);
}
