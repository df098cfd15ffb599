//! One leader's thread: fetch, and while the records of one answer are read the next is already asked for.
//!
//! Invariant: exactly one fetch is in flight while the thread waits or reads; none once every partition was asked for up to
//! its end.

use super::cursor::{Batches, Count, Cursor, Reading, Sink};
use super::{ConsumeError, Progress};
use crate::client::{ClientError, Connection};
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The last version whose topics are named instead of numbered.
const NAMED_VERSION_MAX: i16 = 12;

/// A consumer's fetch settings; names and defaults are Kafka's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchSettings {
    /// fetch.max.wait.ms.
    pub max_wait_ms: i32,
    /// fetch.min.bytes.
    pub min_bytes: i32,
    /// fetch.max.bytes.
    pub max_bytes: i32,
    /// max.partition.fetch.bytes.
    pub partition_max_bytes: i32,
    /// check.crcs.
    pub check_crcs: bool,
    /// isolation.level=read_committed: neither records of aborted transactions nor of those still open.
    pub read_committed: bool,
    /// Whether a partition whose records were deleted before they were read is started again as the plan says; else the
    /// run ends (auto.offset.reset=none).
    pub restarts: bool,
}

impl Default for FetchSettings {
    fn default() -> Self {
        FetchSettings {
            max_wait_ms: 500,
            min_bytes: 1,
            max_bytes: 50 << 20,
            partition_max_bytes: 1 << 20,
            check_crcs: true,
            read_committed: false,
            restarts: true,
        }
    }
}

/// Why a lane ended.
pub(super) enum LaneEnd {
    /// It was told to.
    Stopped,
    /// Every cursor reached its end.
    Done,
    /// Leaders moved or the connection broke, with the error if there was one: look them up again.
    Stale(Option<ClientError>),
    /// No retry can help.
    Failed(ConsumeError),
}

impl From<ClientError> for LaneEnd {
    fn from(error: ClientError) -> Self {
        if error.is_retriable() { LaneEnd::Stale(Some(error)) } else { LaneEnd::Failed(error.into()) }
    }
}

pub(super) struct Lane<S> {
    connection: Connection,
    /// In the order in which they are asked for: those that gave records last come last.
    cursors: Vec<Cursor<S>>,
    /// The offset each cursor is asked for next, which runs ahead of the one read.
    asked: HashMap<PartitionKey, i64>,
    settings: FetchSettings,
    progress: Arc<Progress>,
    answered: Arc<Mutex<Instant>>,
    version: i16,
}

/// How a response names a partition: by id and no name from version 13 on, by name and no id before.
type PartitionKey = (Uuid, Text, i32);

impl<S: Sink> Lane<S> {
    pub(super) fn new(
        connection: Connection,
        cursors: Vec<Cursor<S>>,
        settings: FetchSettings,
        progress: Arc<Progress>,
    ) -> Self {
        let answered = Arc::new(Mutex::new(Instant::now()));
        Lane { connection, cursors, asked: HashMap::new(), settings, progress, answered, version: 0 }
    }

    /// When the leader last answered, or the lane began.
    pub(super) fn answered(&self) -> Arc<Mutex<Instant>> {
        self.answered.clone()
    }

    /// Fetches until the run ends or something breaks, and gives the cursors back.
    pub(super) fn run(mut self) -> (Vec<Cursor<S>>, LaneEnd) {
        let Err(end) = self.fetch_on();
        let end = if self.progress.stopping() && matches!(end, LaneEnd::Stale(_)) { LaneEnd::Stopped } else { end };
        (self.cursors, end)
    }

    fn fetch_on(&mut self) -> Result<std::convert::Infallible, LaneEnd> {
        let highest = self.connection.version::<FetchRequest>()?;
        let named = self.cursors.iter().any(|cursor| cursor.topic_id.is_zero());
        self.version = if named { highest.min(NAMED_VERSION_MAX) } else { highest };
        for cursor in &self.cursors {
            self.asked.insert(self.key(&cursor.topic, cursor.topic_id, cursor.partition), cursor.offset.unwrap_or(0));
        }
        self.connection.send(&self.request(), self.version)?;
        self.progress.first_fetch.get_or_init(Instant::now);
        loop {
            let (frame, response) = self.connection.receive::<FetchRequest>(self.version)?;
            *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            self.advance(&response)?;
            if self.progress.stopping() {
                return Err(LaneEnd::Stopped);
            }
            if self.open().next().is_some() {
                self.connection.send(&self.request(), self.version)?;
            }
            self.read(&response)?;
            if self.open().next().is_none() {
                return Err(LaneEnd::Done);
            }
            drop(response);
            self.connection.recycle(frame);
        }
    }

    fn key(&self, topic: &Text, topic_id: Uuid, partition: i32) -> PartitionKey {
        match self.version > NAMED_VERSION_MAX {
            true => (topic_id, Text::default(), partition),
            false => (Uuid::ZERO, topic.clone(), partition),
        }
    }

    /// The cursors with something left to ask for, and the offset to ask for next.
    fn open(&self) -> impl Iterator<Item = (&Cursor<S>, i64)> {
        self.cursors.iter().filter_map(|cursor| {
            let asked = self.asked.get(&self.key(&cursor.topic, cursor.topic_id, cursor.partition));
            let asked = asked.copied().unwrap_or(0);
            (!cursor.is_done() && !cursor.ends_at(asked)).then_some((cursor, asked))
        })
    }

    fn request(&self) -> FetchRequest {
        let mut topics: Vec<FetchTopic> = Vec::new();
        for (cursor, asked) in self.open() {
            if topics.last().is_none_or(|last| last.topic != cursor.topic) {
                let (topic, topic_id) = (cursor.topic.clone(), cursor.topic_id);
                topics.push(FetchTopic { topic, topic_id, ..Default::default() });
            }
            topics.last_mut().expect("just pushed").partitions.push(FetchPartition {
                partition: cursor.partition,
                fetch_offset: asked,
                partition_max_bytes: self.settings.partition_max_bytes,
                ..Default::default()
            });
        }
        FetchRequest {
            max_wait_ms: self.settings.max_wait_ms,
            min_bytes: self.settings.min_bytes,
            max_bytes: self.settings.max_bytes,
            isolation_level: i8::from(self.settings.read_committed),
            topics,
            ..Default::default()
        }
    }

    /// Looks at the batches' headers only, to know what to ask for next.
    fn advance(&mut self, response: &FetchResponse) -> Result<(), LaneEnd> {
        if response.error_code.is_err() {
            return Err(ClientError::kafka("cannot fetch", response.error_code, None).into());
        }
        for topic in &response.responses {
            for data in &topic.partitions {
                let key = (topic.topic_id, topic.topic.clone(), data.partition_index);
                self.check(data, &key)?;
                let last = Batches(bytes_of(data)).filter_map(Result::ok).last();
                if let (Some(asked), Some(last)) = (self.asked.get_mut(&key), last) {
                    *asked = (*asked).max(last.last_offset() + 1);
                }
            }
        }
        Ok(())
    }

    fn check(&mut self, data: &PartitionData, key: &PartitionKey) -> Result<(), LaneEnd> {
        let code = data.error_code;
        if !code.is_err() {
            return Ok(());
        }
        let Some(at) = self.position(key) else { return Ok(()) };
        let asked = self.asked.get(key).copied();
        let cursor = &mut self.cursors[at];
        if code == ErrorCode::OFFSET_OUT_OF_RANGE && self.settings.restarts {
            // The records were deleted meanwhile: start again where the plan says, as auto.offset.reset does.
            cursor.offset = None;
            return Err(LaneEnd::Stale(None));
        }
        if code == ErrorCode::OFFSET_OUT_OF_RANGE {
            let (topic, partition) = (cursor.topic.clone(), cursor.partition);
            let offset = asked.unwrap_or(0);
            return Err(LaneEnd::Failed(ConsumeError::OutOfRange { topic, partition, offset }));
        }
        let what = format!("cannot fetch partition {} of topic '{}'", cursor.partition, cursor.topic);
        Err(ClientError::kafka(what, code, None).into())
    }

    fn position(&self, key: &PartitionKey) -> Option<usize> {
        self.cursors.iter().position(|cursor| self.key(&cursor.topic, cursor.topic_id, cursor.partition) == *key)
    }

    fn read(&mut self, response: &FetchResponse) -> Result<(), LaneEnd> {
        let mut count = Count::default();
        for topic in &response.responses {
            for data in topic.partitions.iter().filter(|data| !bytes_of(data).is_empty()) {
                let key = (topic.topic_id, topic.topic.clone(), data.partition_index);
                let Some(at) = self.position(&key) else { continue };
                if self.cursors[at].is_done() {
                    continue;
                }
                let aborted = data.aborted_transactions.as_deref().unwrap_or_default();
                let aborted = self.settings.read_committed.then_some(aborted);
                let reading = Reading { check_crcs: self.settings.check_crcs, aborted };
                let read = self.cursors[at].read(bytes_of(data), reading).map_err(LaneEnd::Failed)?;
                count.records += read.records;
                count.bytes += read.bytes;
                let fed = self.cursors.remove(at);
                self.cursors.push(fed);
            }
        }
        if count.records > 0 {
            self.progress.count(count.records, count.bytes);
        }
        Ok(())
    }
}

fn bytes_of(data: &PartitionData) -> &[u8] {
    data.records.as_ref().and_then(|records| records.memory()).map_or(&[], |bytes| bytes)
}
