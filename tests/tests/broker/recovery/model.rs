//! A model of the written and acknowledged records, which is compared with a broker.
//!
//! Invariant: the model's expectations follow from the requests, and from the files before and after the damage. They
//! never follow from responses after the damage.

use fullbore_tests::{Batch, Broker, Client, Random};
use fullbore_wire::apis::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use fullbore_wire::apis::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use fullbore_wire::{ErrorCode, Text};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// How many of each producer's last batches a broker remembers.
const WINDOW: usize = 5;
const OFFSET: std::ops::Range<usize> = 0..8;
const EPOCH: std::ops::Range<usize> = 12..16;

/// A batch of the only producer that writes to its partition. Its sequences therefore equal the offsets.
#[derive(Clone)]
struct One {
    batch: Batch,
    first: i64,
    count: i64,
    timestamp: i64,
    /// The encoded batch, as it is in the log.
    bytes: Vec<u8>,
}

impl One {
    fn end(&self) -> i64 {
        self.first + self.count
    }

    fn found(&self, bytes: &[u8]) -> Found {
        if bytes[OFFSET.end..EPOCH.start] != self.bytes[OFFSET.end..EPOCH.start]
            || bytes[EPOCH.end..] != self.bytes[EPOCH.end..]
        {
            return Found::Damaged;
        }
        let offset = i64::from_be_bytes(bytes[OFFSET].try_into().expect("eight bytes"));
        if offset == self.first { Found::Whole } else { Found::At(offset) }
    }
}

/// The state of a batch in a damaged file. The checksum covers neither the offset nor the leader epoch.
#[derive(PartialEq)]
enum Found {
    /// At most the leader epoch differs. The broker cannot notice that, so it must serve the batch.
    Whole,
    /// The base offset differs, and perhaps also the leader epoch. The value is the base offset that the damaged batch
    /// has.
    At(i64),
    Damaged,
}

/// A model of one partition.
pub struct Log {
    pub topic: &'static str,
    pub partition: i32,
    producer_id: i64,
    /// The acknowledged batches, followed by batches that were sent without waiting for a response.
    batches: Vec<One>,
    acknowledged: usize,
    start: i64,
    first_timestamp: i64,
    /// How many batches the files contained after the broker's end and before the damage.
    present: usize,
    /// How many of these batches must still be served.
    kept: usize,
    /// The damaged segment, if the broker must report the partition as unavailable. It must do so if a batch follows
    /// the damage, or if the damage hits flushed bytes. After a reboot, it must do so only if both are true.
    refused: Option<PathBuf>,
    /// The offset up to which records were flushed when the broker ended.
    flushed: i64,
    /// True if the data directory shows that the machine has rebooted since the broker's end.
    has_rebooted: bool,
    /// The file to which the broker must move the bytes from the first damaged batch on, and these bytes.
    aside: Option<(PathBuf, Vec<u8>)>,
    newest: PathBuf,
    /// The content of the newest segment after the damage.
    damaged: Vec<u8>,
    /// The index in `batches` of the newest segment's first batch.
    newest_from: usize,
}

impl Log {
    pub fn new(topic: &'static str, partition: i32, producer_id: i64) -> Log {
        Log {
            topic,
            partition,
            producer_id,
            batches: Vec::new(),
            acknowledged: 0,
            start: 0,
            first_timestamp: Batch::of(&["now"]).base_timestamp,
            present: 0,
            kept: 0,
            refused: None,
            flushed: 0,
            has_rebooted: false,
            aside: None,
            newest: PathBuf::new(),
            damaged: Vec::new(),
            newest_from: 0,
        }
    }

    /// Returns the offset after the last acknowledged record.
    pub fn end(&self) -> i64 {
        self.acknowledged.checked_sub(1).map_or(0, |last| self.batches[last].end())
    }

    fn next_batch(&mut self, random: &mut Random) -> Batch {
        let first = self.batches.last().map_or(0, One::end);
        let count = random.between(1, 5) as i64;
        let value = |n: i64| {
            let mut value = format!("{} {} {n} ", self.topic, self.partition).into_bytes();
            value.resize(value.len() + random.below(400), b'.');
            value
        };
        let values: Vec<Vec<u8>> = (first..first + count).map(value).collect();
        let timestamp = self.first_timestamp + self.batches.len() as i64;
        let sequence = i32::try_from(first).expect("few records");
        let batch = Batch::at(timestamp, &values).from_producer(self.producer_id, 0, sequence);
        let bytes = Batch { base_offset: first, leader_epoch: 0, ..batch.clone() }.bytes().to_vec();
        self.batches.push(One { batch: batch.clone(), first, count, timestamp, bytes });
        batch
    }

    /// Writes one batch and waits for its acknowledgement.
    pub fn append(&mut self, client: &mut Client, random: &mut Random) {
        let first = self.batches.last().map_or(0, One::end);
        let batch = self.next_batch(random);
        assert_eq!(client.produced(self.topic, self.partition, &batch), first);
        self.acknowledged = self.batches.len();
    }

    /// Sends a few batches without waiting for their responses.
    pub fn send(&mut self, client: &mut Client, random: &mut Random) {
        for _ in 0..random.below(4) {
            let batch = self.next_batch(random);
            client.send_produce(self.topic, self.partition, &batch);
        }
    }

    /// Deletes records up to a random offset.
    pub fn delete_some(&mut self, client: &mut Client, random: &mut Random) {
        if self.end() == 0 {
            return;
        }
        self.start = random.below(self.end() as usize + 1) as i64;
        let partition =
            DeleteRecordsPartition { partition_index: self.partition, offset: self.start, ..Default::default() };
        let topic = DeleteRecordsTopic { name: self.topic.into(), partitions: vec![partition], ..Default::default() };
        let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
        let deleted = client.call(&request, 2).topics.remove(0).partitions.remove(0);
        assert_eq!((deleted.error_code, deleted.low_watermark), (ErrorCode::NONE, self.start));
    }

    /// Notes that the machine has rebooted since the broker was killed.
    pub fn reboot(&mut self) {
        self.has_rebooted = true;
    }

    /// Returns the recovery point in the killed broker's checkpoint.
    fn flushed(&self, broker: &Broker) -> i64 {
        let text = fs::read_to_string(broker.data_dir().join("recovery-point-offset-checkpoint")).unwrap_or_default();
        let name = format!("{} {} ", self.topic, self.partition);
        text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
    }

    /// Reads the files after the broker's end. They must have every acknowledged batch, and none that was not sent.
    pub fn look(&mut self, broker: &Broker) {
        self.kept = self.acknowledged;
        self.present = self.acknowledged;
        self.flushed = self.flushed(broker);
        if self.batches.is_empty() || !broker.partition_dir(self.topic, self.partition).is_dir() {
            assert_eq!(self.acknowledged, 0);
            return;
        }
        let mut number = 0;
        for path in broker.partition_files(self.topic, self.partition, "log") {
            let base: i64 = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).expect("an offset");
            // DeleteRecords may have removed older segments.
            number = self.batches.iter().position(|one| one.first == base).unwrap_or(self.batches.len());
            let bytes = fs::read(&path).expect("ours");
            (self.newest, self.newest_from) = (path, number);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let one = self.batches.get(number).expect("more is in the log than was sent");
                if number >= self.acknowledged && rest.len() < one.bytes.len() && one.bytes.starts_with(rest) {
                    // The broker was killed while it wrote this batch, so the batch is incomplete.
                    break;
                }
                assert!(
                    rest.starts_with(&one.bytes),
                    "batch {number} of {}-{} in {}, {} bytes from its end, is not what was sent: {rest:?}, {:?}",
                    self.topic,
                    self.partition,
                    self.newest.display(),
                    rest.len(),
                    one.bytes,
                );
                rest = &rest[one.bytes.len()..];
                number += 1;
            }
        }
        assert!(
            number >= self.acknowledged,
            "{number} batches are in the files, {} were acknowledged",
            self.acknowledged
        );
        (self.present, self.kept) = (number, number);
    }

    pub fn newest(&self) -> &PathBuf {
        &self.newest
    }

    /// Replaces the newest segment by `bytes` and derives which batches must still be served.
    pub fn damage_newest(&mut self, bytes: &[u8]) {
        fs::write(&self.newest, bytes).expect("ours");
        self.damaged = bytes.to_vec();
        let mut at = 0;
        let mut found = Vec::new();
        for one in &mut self.batches[self.newest_from..self.present] {
            let end = at + one.bytes.len();
            found.push(bytes.get(at..end).map_or(Found::Damaged, |bytes| one.found(bytes)));
            if found.last() == Some(&Found::Whole) {
                one.bytes = bytes[at..end].to_vec();
            }
            at = end;
        }
        let first_damaged = found.iter().position(|found| *found != Found::Whole).unwrap_or(found.len());
        self.kept = self.newest_from + first_damaged;
        let cut: usize = self.batches[self.newest_from..self.kept].iter().map(|one| one.bytes.len()).sum();
        if bytes.len() == cut {
            return;
        }
        let cut_offset = self.batches[self.kept].first;
        let was_flushed = cut_offset < self.flushed;
        let follows = found.iter().skip(first_damaged + 1).any(|found| match found {
            Found::Whole => true,
            Found::At(offset) => (cut_offset + 1..cut_offset + (1 << 31)).contains(offset),
            Found::Damaged => false,
        });
        if !follows && !was_flushed {
            return;
        }
        // After a reboot, unflushed pages may be missing, and the page in which the flushed bytes end may be torn.
        let may_be_lost = self.has_rebooted && !(follows && was_flushed);
        if !may_be_lost {
            self.refused = Some(self.newest.clone());
            return;
        }
        let path = self.newest.with_file_name(format!("{cut_offset:020}.log.aside-1"));
        self.aside = Some((path, bytes[cut..].to_vec()));
    }

    /// Flips the bits `bits` of one byte in a batch of the newest segment. The last batch has the number `back` = 1.
    pub fn flip_in_batch_from_the_end(&mut self, back: usize, byte: usize, bits: u8) -> String {
        let mut bytes = fs::read(&self.newest).expect("ours");
        let start: usize = self.batches[self.present - back..self.present].iter().map(|one| one.bytes.len()).sum();
        let at = bytes.len() - start + byte;
        bytes[at] ^= bits;
        self.damage_newest(&bytes);
        format!("byte {byte} of batch {back} from the end")
    }

    /// Replaces the value of the file's last record and corrects the checksum.
    pub fn forge_last(&mut self) {
        let one = &self.batches[self.present - 1];
        let mut forged = Batch { base_offset: one.first, leader_epoch: 0, ..one.batch.clone() };
        forged.records.last_mut().expect("records").value[0] ^= 1;
        let mut bytes = fs::read(&self.newest).expect("ours");
        bytes.truncate(bytes.len() - one.bytes.len());
        bytes.extend_from_slice(&forged.bytes());
        fs::write(&self.newest, bytes).expect("ours");
    }

    pub fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Restores the newest segment as it was before the damage.
    pub fn restore(&mut self) {
        let path = self.refused.take().expect("it was refused");
        let found = fs::read(&path).expect("ours");
        assert!(found == self.damaged, "{} was changed", path.display());
        self.kept = self.present;
        let batches = &mut self.batches[self.newest_from..self.present];
        batches.iter_mut().for_each(|one| one.bytes[EPOCH].fill(0));
        let whole: Vec<u8> = batches.iter().flat_map(|one| one.bytes.clone()).collect();
        fs::write(&path, whole).expect("ours");
    }

    /// Compares the model with a broker. The log start may differ if a file with log starts was damaged
    /// (`start_may_differ`).
    pub fn check(&self, broker: &Broker, client: &mut Client, start_may_differ: bool, random: &mut Random) {
        if let Some(path) = &self.refused {
            for timestamp in [-1, -2] {
                let code = client.list_offset(self.topic, self.partition, timestamp).error_code;
                assert_eq!(code, ErrorCode::KAFKA_STORAGE_ERROR);
            }
            assert_eq!(client.fetch(self.topic, self.partition, 0).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
            return broker.wait_for_stderr(&path.display().to_string());
        }
        if let Some((path, bytes)) = &self.aside {
            assert_eq!(client.list_offset(self.topic, self.partition, -1).error_code, ErrorCode::NONE);
            assert!(fs::read(path).is_ok_and(|found| found == *bytes), "{} is not what was cut off", path.display());
            broker.wait_for_stderr(&path.display().to_string());
        }
        let end = self.kept.checked_sub(1).map_or(0, |last| self.batches[last].end());
        let what = format!("{}-{}", self.topic, self.partition);
        assert_eq!(client.latest(self.topic, self.partition), end, "the end of {what}");
        let start = client.earliest(self.topic, self.partition);
        let expected = self.start.min(end);
        assert!(
            start <= expected && (start == expected || start_may_differ),
            "{what} starts at {start}, not {expected}"
        );
        self.check_contents(client, start, end, &what);
        self.check_lookups(client, start, random, &what);
        self.check_producer(client, end, &what);
    }

    /// Compares the content of the log byte for byte.
    fn check_contents(&self, client: &mut Client, start: i64, end: i64, what: &str) {
        let kept = self.batches[..self.kept].iter().filter(|one| one.end() > start);
        let expected: Vec<u8> = kept.flat_map(|one| one.bytes.clone()).collect();
        let mut found: Vec<u8> = Vec::new();
        let mut offset = start;
        while offset < end {
            let data = client.fetch(self.topic, self.partition, offset);
            assert_eq!((data.error_code, data.high_watermark, data.log_start_offset), (ErrorCode::NONE, end, start));
            let records = data.records.expect("records");
            let bytes = records.memory().expect("read");
            let batches = Batch::parse_all(bytes);
            let last = batches.last().expect("a whole batch below the high watermark");
            offset = last.base_offset + last.records.len() as i64;
            let len: usize = batches.iter().map(|batch| batch.bytes().len()).sum();
            found.extend_from_slice(&bytes[..len]);
        }
        assert!(found == expected, "the records of {what} differ: {} bytes, not {}", found.len(), expected.len());
    }

    /// Looks up batches by offset and by time, which uses the indexes as they are now.
    fn check_lookups(&self, client: &mut Client, start: i64, random: &mut Random, what: &str) {
        let kept: Vec<&One> = self.batches[..self.kept].iter().filter(|one| one.first >= start).collect();
        for _ in 0..kept.len().min(30) {
            let one = kept[random.below(kept.len())];
            let offset = one.first + random.below(one.count as usize) as i64;
            let data = client.fetch(self.topic, self.partition, offset);
            let records = data.records.expect("records");
            let bytes = records.memory().expect("read");
            assert!(bytes.starts_with(&one.bytes), "{what}: offset {offset} is in the batch at {}", one.first);
            let found = client.list_offset(self.topic, self.partition, one.timestamp);
            assert_eq!((found.error_code, found.offset), (ErrorCode::NONE, one.first), "{what} by time");
        }
    }

    /// Resends the producer's last batches and then those after the kept ones. Finally sends a batch of a new epoch.
    fn check_producer(&self, client: &mut Client, end: i64, what: &str) {
        for one in &self.batches[self.kept.saturating_sub(WINDOW)..self.kept] {
            let again = client.produce(self.topic, self.partition, &one.batch);
            assert_eq!((again.error_code, again.base_offset), (ErrorCode::NONE, one.first), "{what}: a duplicate");
        }
        assert_eq!(client.latest(self.topic, self.partition), end, "{what}: nothing is there twice");
        let lost = self.kept < self.acknowledged;
        for one in &self.batches[self.kept.max(self.acknowledged)..] {
            let sent = client.produce(self.topic, self.partition, &one.batch);
            let survived = [ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode::UNKNOWN_PRODUCER_ID];
            match lost {
                false => {
                    assert_eq!((sent.error_code, sent.base_offset), (ErrorCode::NONE, one.first), "{what}: sent again")
                }
                true if end > 0 => assert!(survived.contains(&sent.error_code), "{what}: {:?}", sent.error_code),
                // The log has no records, so the broker may not know the producer, and may accept any sequence.
                true => return,
            }
        }
        let next = client.latest(self.topic, self.partition);
        let bumped = Batch::of(&["a new epoch"]).from_producer(self.producer_id, 1, 0);
        assert_eq!(client.produced(self.topic, self.partition, &bumped), next, "{what}: a new epoch");
    }
}

/// The topics and committed offsets that are expected.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    /// The topics in the order in which they were created.
    topics: Vec<String>,
    /// The committed offsets by group, topic and partition.
    offsets: BTreeMap<(String, String, i32), i64>,
}

/// A model of the topics and committed offsets.
#[derive(Default)]
pub struct Control {
    /// The state after all acknowledged requests.
    state: State,
    last: Option<(String, String, i32)>,
}

impl Control {
    pub fn create(&mut self, client: &mut Client, topic: &str, partitions: i32, configs: &[(&str, &str)]) {
        client.create_topic(topic, partitions, configs);
        self.state.topics.push(topic.to_owned());
    }

    pub fn commit(&mut self, client: &mut Client, group: usize, topic: &str, partition: i32, offset: i64) {
        let group = format!("group {group}");
        let committed =
            OffsetCommitRequestPartition { partition_index: partition, committed_offset: offset, ..Default::default() };
        let topics =
            vec![OffsetCommitRequestTopic { name: topic.into(), partitions: vec![committed], ..Default::default() }];
        let request = OffsetCommitRequest {
            group_id: Text::from(&*group),
            generation_id_or_member_epoch: -1,
            topics,
            ..Default::default()
        };
        let response = client.call(&request, 9);
        assert_eq!(response.topics[0].partitions[0].error_code, ErrorCode::NONE);
        let place = (group, topic.to_owned(), partition);
        self.last = Some(place.clone());
        self.state.offsets.insert(place, offset);
    }

    /// Changes the expected value of the last committed offset.
    pub fn forge_last(&mut self, offset: i64) {
        let last = self.last.as_ref().and_then(|place| self.state.offsets.get_mut(place));
        *last.expect("something was committed") = offset;
    }

    /// Compares the model with a broker. Up to `lost_max` of the topics that were created last may be missing.
    pub fn check(&self, client: &mut Client, lost_max: usize) {
        let (found, wanted) = (self.found(client), &self.state);
        let are_first =
            wanted.topics.starts_with(&found.topics) && found.topics.len() + lost_max >= wanted.topics.len();
        assert!(are_first, "no prefix of what was acknowledged: {:?} of {:?}", found.topics, wanted.topics);
        let of_found = wanted.offsets.iter().filter(|((_, topic, _), _)| found.topics.contains(topic));
        let offsets: BTreeMap<_, _> = of_found.map(|(place, offset)| (place.clone(), *offset)).collect();
        assert_eq!(found.offsets, offsets, "found, and committed");
    }

    fn found(&self, client: &mut Client) -> State {
        let wanted = &self.state;
        let exists =
            |topic: &&String| !client.list_offset(topic, 0, -1).error_code.eq(&ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        let topics = wanted.topics.iter().filter(exists).cloned().collect();
        let mut offsets = BTreeMap::new();
        for (group, topic, partition) in wanted.offsets.keys() {
            let requested = OffsetFetchRequestTopics {
                name: Text::from(&**topic),
                partition_indexes: vec![*partition],
                ..Default::default()
            };
            let of_group = OffsetFetchRequestGroup {
                group_id: Text::from(&**group),
                topics: Some(vec![requested]),
                member_epoch: -1,
                ..Default::default()
            };
            let request = OffsetFetchRequest { groups: vec![of_group], ..Default::default() };
            let mut of_group = client.call(&request, 9).groups.remove(0);
            // The broker may already serve requests while it still loads the group. The request is then repeated.
            while of_group.error_code == ErrorCode::COORDINATOR_LOAD_IN_PROGRESS {
                of_group = client.call(&request, 9).groups.remove(0);
            }
            let answer = of_group.topics.remove(0).partitions.remove(0);
            if answer.committed_offset >= 0 {
                offsets.insert((group.clone(), topic.clone(), *partition), answer.committed_offset);
            }
        }
        State { topics, offsets }
    }
}
