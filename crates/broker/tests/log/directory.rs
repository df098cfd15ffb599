//! A data directory with one partition. Tests write to it, crash and open it again.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use fullbore_broker::partitions::{
    Acks, AppendError, AppendTerms, Appended, Origin, Partitions, Replica, ValidBatch, WrittenBatch, led_by,
};
use fullbore_config::{BrokerConfig, Properties, TopicConfig};
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::batch::{BatchBuilder, BatchView, Compression, Stamp, batches};
use fullbore_wire::{Records, Uuid};

pub const TOPIC: &str = "topic";
pub const ID: Uuid = Uuid([7; 16]);
pub const NOW: i64 = 1_700_000_000_000;

pub struct Directory {
    pub dir: PathBuf,
    pub config: TopicConfig,
    pub settings: BrokerConfig,
    pub logs: Arc<Partitions>,
    /// Removes the directory when dropped. `None` if the directory belongs to the test.
    _temporary: Option<tempfile::TempDir>,
}

impl Directory {
    pub fn new() -> Directory {
        // These tests crash thousands of times and do not need fsync, so the directory is in memory if possible.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let temporary = tempfile::tempdir_in(parent).expect("temporary directory");
        let mut directory = Directory::at(temporary.path());
        directory._temporary = Some(temporary);
        directory
    }

    pub fn at(dir: &Path) -> Directory {
        let (settings, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        Directory {
            dir: dir.to_owned(),
            config: TopicConfig { message_timestamp_after_max_ms: i64::MAX, ..settings.topics.defaults.clone() },
            logs: Partitions::open(dir, &settings).expect("opened"),
            settings,
            _temporary: None,
        }
    }

    /// Changes settings of the topic.
    pub fn with(mut self, change: impl FnOnce(&mut TopicConfig)) -> Directory {
        change(&mut self.config);
        self
    }

    pub fn partition(&self) -> Arc<Replica> {
        self.partition_of(TOPIC, ID, 0)
    }

    /// Creates a topic, or changes its settings to `config`. Returns one of its partitions.
    pub fn partition_of(&self, topic: &str, id: Uuid, index: i32) -> Arc<Replica> {
        self.logs.put_topic(topic, id, &led_by(1, index + 1), &Arc::new(self.config.clone()), Origin::Kept);
        self.logs.find(&id, index).expect("it has just been told of")
    }

    /// Crashes as if by kill -9: finishes, writes and flushes nothing. Then opens the partition again.
    pub fn crash(&mut self) -> Arc<Replica> {
        self.kill();
        self.partition()
    }

    /// Crashes, but does not open a partition again.
    pub fn kill(&mut self) {
        // A killed process has no threads left. Here the threads of the dropped broker continue, so this waits until
        // they no longer use the directory.
        if let Some(partition) = self.logs.find(&ID, 0) {
            let _ = partition.offsets();
        }
        self.logs = Partitions::open(&self.dir, &self.settings).expect("opened");
    }

    /// Crashes as if by a power loss, after which the machine has another boot id. Then opens the partition again.
    pub fn power_cut(&mut self) -> Arc<Replica> {
        fs::write(self.dir.join("boot-id"), "00000000-0000-4000-8000-000000000000\n").expect("written");
        self.crash()
    }

    pub fn restart(&mut self) -> Arc<Replica> {
        self.logs.close();
        self.crash()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{TOPIC}-0")).join(name)
    }

    /// Returns the number of partition directories, including those that are being deleted.
    pub fn partition_directories(&self) -> usize {
        let entries = fs::read_dir(&self.dir).expect("listed");
        entries.filter(|entry| entry.as_ref().expect("listed").path().is_dir()).count()
    }

    /// Returns the names of the partition's files with this suffix, in order. Empty if the partition has no directory.
    pub fn files(&self, suffix: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.dir.join(format!("{TOPIC}-0"))) else { return Vec::new() };
        let names = entries.map(|entry| entry.expect("listed").file_name().into_string().expect("text"));
        let mut names: Vec<_> = names.filter(|name| name.ends_with(suffix)).collect();
        names.sort();
        names
    }
}

/// Returns a batch that has one record for each timestamp.
pub fn timed(stamp: Stamp, compression: Compression, timestamps: &[i64], value: &[u8]) -> BytesMut {
    let mut builder = BatchBuilder::new(BytesMut::new(), compression, None);
    for timestamp in timestamps {
        builder.append(*timestamp, Some(b"key"), Some(value), &[]);
    }
    builder.seal(stamp).expect("sealed").0
}

/// Returns a batch of `records` records without a producer id.
pub fn plain(records: usize, value: &[u8]) -> BytesMut {
    timed(Stamp::NONE, Compression::None, &vec![NOW; records], value)
}

/// Returns a batch of an idempotent producer.
pub fn idempotent(producer_id: i64, producer_epoch: i16, base_sequence: i32, records: usize) -> BytesMut {
    let stamp = Stamp { producer_id, producer_epoch, base_sequence };
    timed(stamp, Compression::None, &vec![NOW; records], b"value")
}

/// Checks a batch as if a producer had sent it.
pub fn valid<'a>(partition: &Replica, batch: &'a [u8]) -> Result<ValidBatch<'a>, AppendError> {
    let batch = BatchView::first(batch).expect("a batch");
    Ok(ValidBatch::of(batch, &partition.config(), NOW)?)
}

/// Appends a batch in sequence order with these acks.
pub fn append_with(partition: &Arc<Replica>, batch: &[u8], acks: Acks) -> Result<WrittenBatch, AppendError> {
    let step = partition.append(&valid(partition, batch)?, AppendTerms::in_turn(acks, NOW))?;
    Ok(step.into_written().expect("a batch in its turn is written"))
}

pub fn append(partition: &Arc<Replica>, batch: &[u8]) -> Result<Appended, AppendError> {
    append_with(partition, batch, Acks::Leader).map(|written| written.appended)
}

/// Appends a batch that must be accepted, and returns its offset.
pub fn offset(partition: &Arc<Replica>, batch: &[u8]) -> i64 {
    append(partition, batch).expect("appended").base_offset
}

/// Returns the bytes of the records that a read has returned.
pub fn bytes(records: &Records) -> Bytes {
    match records {
        Records::Pieces(_) | Records::Ranges(_) => panic!("no log has them"),
        Records::Memory(bytes) => bytes.clone(),
        Records::File(slice) => {
            let mut bytes = vec![0; slice.len as usize];
            slice.file.read_exact_at(&mut bytes, slice.position).expect("read");
            bytes.into()
        }
    }
}

/// Returns every batch from `offset` on. Checks that the checksums are valid and that the offsets have no gap.
pub fn read_all(partition: &Replica, mut offset: i64) -> Vec<Bytes> {
    let mut all = Vec::new();
    loop {
        let read = partition.read(offset, 1 << 20, true).expect("read");
        if read.records.is_empty() {
            assert_eq!(offset, read.high_watermark);
            return all;
        }
        let bytes = bytes(&read.records);
        for batch in batches(&bytes) {
            let batch = batch.expect("a batch");
            batch.check_crc().expect("a valid checksum");
            assert!(batch.base_offset() <= offset && offset <= batch.last_offset());
            offset = batch.last_offset() + 1;
            all.push(Bytes::copy_from_slice(batch.bytes()));
        }
    }
}

/// Waits until `holds` returns true. Panics after 20 s.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Makes this broker the leader in the epoch `leader_epoch`. The partition has no followers.
pub fn lead(partition: &Replica, leader_epoch: i32) {
    let before = PartitionRegistration::clone(&led_by(1, 1)[0]);
    let registered = PartitionRegistration { leader_epoch, partition_epoch: leader_epoch, ..before };
    partition.follow(&Arc::new(registered), &partition.config());
}
