//! The sink of one partition. It formats records and appends them to chunks for the [`Outlet`], up to the planned
//! number.
//!
//! Invariant: when the sink has processed a fetch response, all its records are in chunks that were pushed to the
//! outlet.

use super::format::{Seen, Style};
use super::outlet::{Chunk, Outlet};
use fullbore_client::consume::{BatchView, Record, Sink};
use fullbore_client::group::{Position, TopicPartition};
use fullbore_wire::Uuid;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A chunk is pushed once it has this many bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The state that the printers of all partitions share.
pub struct PrinterContext {
    /// The printed form of the records.
    pub style: Style,
    /// The destination of the chunks.
    pub outlet: Arc<Outlet>,
    /// How many records all printers together may still print.
    pub left: AtomicU64,
    /// The end as a timestamp: a partition ends before its first record with this timestamp or a later one. `None` for
    /// no such end.
    pub until: Option<i64>,
}

impl PrinterContext {
    /// Returns true if the printers have printed the planned number of records.
    pub fn is_spent(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    fn takes_one(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// The printer of one partition.
pub struct Printer {
    shared: Arc<PrinterContext>,
    place: Arc<TopicPartition>,
    topic_id: Uuid,
    bytes: Vec<u8>,
    records: u64,
    /// The offset after the last printed record, or `None` before the first one.
    next: Option<i64>,
}

impl Printer {
    /// Creates a printer that has not printed any record.
    pub fn new(shared: Arc<PrinterContext>, place: TopicPartition, topic_id: Uuid) -> Self {
        Printer { shared, place: Arc::new(place), topic_id, bytes: Vec::new(), records: 0, next: None }
    }

    /// Pushes the present chunk, after which reading continues at `next`. The record before `next` has this leader
    /// epoch, if it is known. Returns false if the outlet is closed.
    fn push(&mut self, next: i64, leader_epoch: Option<i32>) -> bool {
        let chunk = Chunk {
            place: self.place.clone(),
            bytes: std::mem::take(&mut self.bytes),
            records: std::mem::take(&mut self.records),
            next: Position { topic_id: self.topic_id, offset: next, leader_epoch },
        };
        self.shared.outlet.push(chunk)
    }
}

impl Sink for Printer {
    fn record(&mut self, batch: &BatchView<'_>, record: &Record<'_>) -> Result<ControlFlow<()>, String> {
        let (offset, timestamp) = (record.offset(batch), record.timestamp(batch));
        if self.shared.until.is_some_and(|until| timestamp >= until) || !self.shared.takes_one() {
            return Ok(ControlFlow::Break(()));
        }
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(CHUNK_BYTES + CHUNK_BYTES / 8);
        }
        let (topic, timestamp_type) = (self.place.0.as_str(), batch.timestamp_type());
        let seen = Seen { topic, partition: self.place.1, offset, timestamp, timestamp_type, record };
        self.shared.style.print(&seen, &mut self.bytes);
        self.records += 1;
        self.next = Some(offset + 1);
        let leader_epoch = || Some(batch.partition_leader_epoch()).filter(|epoch| *epoch >= 0);
        if self.bytes.len() >= CHUNK_BYTES && !self.push(offset + 1, leader_epoch()) {
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn follow(&mut self, topic_id: Uuid) {
        (self.topic_id, self.next) = (topic_id, None);
    }

    fn read_to(&mut self, offset: i64, leader_epoch: Option<i32>) {
        // The position is pushed even if no records were printed, so that these offsets are not read again.
        if self.next != Some(offset) || self.records > 0 {
            self.next = Some(offset);
            self.push(offset, leader_epoch);
        }
    }
}
