//! A bounded queue of records between the fetchers and the transactions of a copier.
//!
//! [`transfer`](super::transfer) writes the records. Invariant: chunks of a partition are in the order of its offsets.
//! No chunk is queued between [`Intake::close`] and [`Intake::open`].

use fullbore_client::consume::{BatchView, Record, Sink};
use fullbore_producer::{Header, ProducerRecord};
use fullbore_wire::Uuid;
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// How many bytes may be queued before fetchers have to wait.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// A chunk is queued once it has this many bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// The memory that a record needs in addition to its key, value and headers, in bytes.
const RECORD_BYTES: usize = size_of::<ReadRecord>();

/// A range of a chunk's bytes.
type Span = Range<usize>;

/// A record in a chunk.
#[derive(Debug)]
struct ReadRecord {
    offset: i64,
    timestamp: i64,
    key: Option<Span>,
    value: Option<Span>,
    /// The range of the chunk's headers that belong to the record.
    headers: Span,
}

/// Consecutive records of one partition.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// The number of the partition.
    pub(super) partition: i32,
    /// The next offset to read. It may be later than the offset after the last record, because offsets without records
    /// may follow.
    pub(super) next: i64,
    /// The leader epoch of the last record before `next`, or -1 if it is unknown.
    pub(super) leader_epoch: i32,
    /// True if the position goes back, because the log has lost records after they were copied.
    pub(super) goes_back: bool,
    bytes: Vec<u8>,
    records: Vec<ReadRecord>,
    headers: Vec<(Span, Option<Span>)>,
}

impl Chunk {
    fn new(partition: i32, next: i64) -> Self {
        Chunk { partition, next, leader_epoch: -1, ..Chunk::default() }
    }

    fn keep(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn append(&mut self, batch: &BatchView<'_>, record: &Record<'_>) {
        let first = self.headers.len();
        let key = record.key.map(|key| self.keep(key));
        let value = record.value.map(|value| self.keep(value));
        for (name, value) in record.headers {
            let header = (self.keep(name), value.map(|value| self.keep(value)));
            self.headers.push(header);
        }
        let (offset, timestamp) = (record.offset(batch), record.timestamp(batch));
        self.records.push(ReadRecord { offset, timestamp, key, value, headers: first..self.headers.len() });
        (self.next, self.leader_epoch) = (offset + 1, batch.partition_leader_epoch());
    }

    /// Moves the position to `offset`, unless it is there or later. `leader_epoch` is the epoch of the last record
    /// before `offset`, if it is known.
    fn advance(&mut self, offset: i64, leader_epoch: Option<i32>) {
        if offset > self.next {
            (self.next, self.leader_epoch) = (offset, leader_epoch.unwrap_or(-1));
        }
    }

    fn size(&self) -> usize {
        self.bytes.len() + self.records.len() * RECORD_BYTES
    }

    fn at(&self, span: &Span) -> &[u8] {
        self.bytes.get(span.clone()).unwrap_or_default()
    }

    /// Returns how many records the chunk has.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns the headers of record `number`, which [`Chunk::record`] needs.
    pub(super) fn headers(&self, number: usize) -> Vec<Header<'_>> {
        let Some(record) = self.records.get(number) else { return Vec::new() };
        let header = |(name, value): &(Span, Option<Span>)| Header {
            key: self.at(name),
            value: value.as_ref().map(|value| self.at(value)),
        };
        self.headers.get(record.headers.clone()).unwrap_or_default().iter().map(header).collect()
    }

    /// Returns the offset of record `number`, and the record to send to the given topic and partition. Returns `None`
    /// if the chunk has no such record.
    pub(super) fn record<'a>(
        &'a self,
        number: usize,
        topic: &'a str,
        partition: Option<i32>,
        headers: &'a [Header<'a>],
    ) -> Option<(i64, ProducerRecord<'a>)> {
        let ReadRecord { offset, timestamp, key, value, .. } = self.records.get(number)?;
        let (key, value) = (key.as_ref().map(|key| self.at(key)), value.as_ref().map(|value| self.at(value)));
        let timestamp = Some(*timestamp);
        Some((*offset, ProducerRecord { topic, partition, key, value, headers, timestamp }))
    }
}

#[derive(Default)]
struct IntakeState {
    queue: VecDeque<Chunk>,
    bytes: usize,
    is_closed: bool,
}

/// The queue, which the fetchers, the transfer thread and the member share.
#[derive(Default)]
pub(super) struct Intake {
    state: Mutex<IntakeState>,
    /// Notified when memory is freed and when the queue closes.
    room: Condvar,
    arrived: Notify,
}

impl Intake {
    fn lock(&self) -> MutexGuard<'_, IntakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a chunk, and waits while the queue is full. If the intake is closed, drops the chunk and returns false.
    fn push(&self, chunk: Chunk) -> bool {
        let mut state = self.lock();
        while state.bytes >= QUEUE_BYTES_MAX && !state.is_closed {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return false;
        }
        state.bytes += chunk.size();
        state.queue.push_back(chunk);
        drop(state);
        self.arrived.notify_one();
        true
    }

    /// Queues a chunk without records, which only advances the position. Does not wait for memory.
    fn push_position(&self, position: Chunk) {
        let mut state = self.lock();
        if !state.is_closed {
            state.queue.push_back(position);
            drop(state);
            self.arrived.notify_one();
        }
    }

    /// Removes and returns the next chunk, or `None` if the queue is empty.
    pub(super) fn try_take(&self) -> Option<Chunk> {
        let mut state = self.lock();
        let chunk = state.queue.pop_front()?;
        state.bytes = state.bytes.saturating_sub(chunk.size());
        drop(state);
        self.room.notify_all();
        Some(chunk)
    }

    /// Waits for the next chunk, and removes and returns it. Safe to cancel.
    pub(super) async fn take(&self) -> Chunk {
        loop {
            let arrived = self.arrived.notified();
            if let Some(chunk) = self.try_take() {
                return chunk;
            }
            arrived.await;
        }
    }

    /// Closes the intake and drops queued chunks.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        *state = IntakeState { is_closed: true, ..IntakeState::default() };
        drop(state);
        self.room.notify_all();
    }

    /// Accepts chunks again.
    pub(super) fn open(&self) {
        self.lock().is_closed = false;
    }
}

/// The sink of one partition.
pub(super) struct IntakeSink {
    intake: Arc<Intake>,
    chunk: Chunk,
    /// The position at which the present chunk begins. If no offset was read since, the chunk is not queued.
    least: i64,
}

impl IntakeSink {
    /// Creates a sink for records of `partition` from the offset `least` on.
    pub(super) fn new(intake: Arc<Intake>, partition: i32, least: i64) -> Self {
        IntakeSink { intake, chunk: Chunk::new(partition, least), least }
    }

    /// Removes and returns the present chunk, and starts the next one.
    fn take(&mut self) -> Chunk {
        let fresh = Chunk::new(self.chunk.partition, self.chunk.next);
        self.least = fresh.next;
        std::mem::replace(&mut self.chunk, fresh)
    }

    fn push(&mut self) -> bool {
        let chunk = self.take();
        self.intake.push(chunk)
    }
}

impl Sink for IntakeSink {
    fn record(&mut self, batch: &BatchView<'_>, record: &Record<'_>) -> Result<ControlFlow<()>, String> {
        let offset = record.offset(batch);
        if offset < self.chunk.next {
            return Err(format!(
                "records up to offset {} were copied already, and the log has lost some of them since; copying them \
                 again would write records twice; choose the start with `fullbore groups reset-offsets`",
                self.chunk.next - 1
            ));
        }
        self.chunk.append(batch, record);
        if self.chunk.size() >= CHUNK_BYTES && !self.push() {
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn follow(&mut self, _: Uuid) {
        // The topic was recreated, so all its records are new, and the position starts at 0 again.
        (self.chunk.next, self.chunk.leader_epoch, self.least) = (0, -1, 0);
    }

    fn go_back_to(&mut self, offset: i64) {
        // The records that were taken are copied, although the log has lost them. From `offset` on, each is new. The
        // position is committed at once, because a restarted copier would take the new records for copied ones.
        (self.chunk.next, self.chunk.leader_epoch, self.chunk.goes_back) = (offset, -1, true);
        let position = self.take();
        self.intake.push_position(position);
    }

    fn skip_to(&mut self, offset: i64) {
        // The new position is committed even if no record follows. Otherwise a restarted copier would report the same
        // deletion again.
        self.chunk.advance(offset, None);
        let position = self.take();
        self.intake.push_position(position);
    }

    fn read_to(&mut self, offset: i64, leader_epoch: Option<i32>) {
        // Transaction markers and records that compaction has removed also advance the position.
        self.chunk.advance(offset, leader_epoch);
        if self.chunk.next > self.least {
            self.push();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::batch::{BatchBuilder, Compression, RecordIter, Stamp};

    /// Returns a batch of records with these values, from offset `base` on.
    fn batch(base: i64, values: &[Option<&[u8]>]) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        let headers = [Header { key: b"h", value: None }, Header { key: b"\xff", value: Some(b"1") }];
        for (at, value) in values.iter().enumerate() {
            builder.append(at as i64, Some(b"key"), *value, if at == 0 { &headers } else { &[] });
        }
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        let mut bytes = bytes.to_vec();
        bytes[..8].copy_from_slice(&base.to_be_bytes());
        bytes
    }

    fn feed(sink: &mut IntakeSink, bytes: &[u8]) -> Result<ControlFlow<()>, String> {
        let view = BatchView::first(bytes).expect("a batch");
        for record in RecordIter::new(view.payload(), view.record_count()) {
            if sink.record(&view, &record.expect("a record"))?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        sink.read_to(view.last_offset() + 1, None);
        Ok(ControlFlow::Continue(()))
    }

    #[test]
    fn records_pass_the_intake_byte_for_byte() {
        let intake = Arc::new(Intake::default());
        let mut sink = IntakeSink::new(intake.clone(), 3, 10);
        assert!(feed(&mut sink, &batch(10, &[Some(b"value"), None, Some(b"")])).expect("taken").is_continue());
        let chunk = intake.try_take().expect("a chunk");
        assert_eq!((chunk.partition, chunk.next, chunk.len()), (3, 13, 3));
        let of = |number| {
            let headers = chunk.headers(number);
            let (offset, record) = chunk.record(number, "b", Some(3), &headers)?;
            let headers: Vec<_> = headers.iter().map(|of| (of.key.to_vec(), of.value.map(<[u8]>::to_vec))).collect();
            let bytes = |of: Option<&[u8]>| of.map(<[u8]>::to_vec);
            Some((offset, record.timestamp, bytes(record.key), bytes(record.value), headers))
        };
        let key = || Some(b"key".to_vec());
        let headers = vec![(b"h".to_vec(), None), (b"\xff".to_vec(), Some(b"1".to_vec()))];
        assert_eq!(of(0), Some((10, Some(0), key(), Some(b"value".to_vec()), headers)));
        assert_eq!(of(1), Some((11, Some(1), key(), None, vec![])));
        assert_eq!(of(2), Some((12, Some(2), key(), Some(vec![]), vec![])));
        assert_eq!(of(3), None);
    }

    #[test]
    fn a_closed_intake_drops_its_chunks_and_stops_the_fetchers() {
        let intake = Arc::new(Intake::default());
        let mut sink = IntakeSink::new(intake.clone(), 0, 0);
        let large = vec![7; CHUNK_BYTES];
        assert!(feed(&mut sink, &batch(0, &[Some(&large)])).expect("taken").is_continue());
        intake.close();
        assert!(feed(&mut sink, &batch(1, &[Some(&large)])).expect("no error").is_break());
        intake.open();
        assert!(intake.try_take().is_none());
    }

    #[test]
    fn a_log_that_lost_records_is_refused_and_a_recreated_topic_is_read() {
        let mut sink = IntakeSink::new(Arc::default(), 0, 5);
        let refused = feed(&mut sink, &batch(4, &[Some(b"v")])).expect_err("copied already");
        assert!(refused.contains("up to offset 4"), "{refused}");
        sink.follow(Uuid::ZERO);
        assert!(feed(&mut sink, &batch(0, &[Some(b"v")])).is_ok());
    }

    #[test]
    fn log_lost_copied_records_the_position_goes_back_and_new_records_are_taken() {
        let intake = Arc::new(Intake::default());
        let mut sink = IntakeSink::new(intake.clone(), 0, 5);
        assert!(feed(&mut sink, &batch(5, &[Some(b"v"), Some(b"v"), Some(b"v")])).expect("taken").is_continue());
        sink.go_back_to(6);
        sink.read_to(6, None);
        assert!(feed(&mut sink, &batch(6, &[Some(b"w")])).expect("new").is_continue());
        let chunk = || intake.try_take().map(|chunk| (chunk.next, chunk.len(), chunk.goes_back));
        assert_eq!([chunk(), chunk(), chunk()], [Some((8, 3, false)), Some((6, 0, true)), Some((7, 1, false))]);
        assert_eq!(chunk(), None);
    }

    #[test]
    fn the_position_after_deleted_records_is_queued_without_memory() {
        let intake = Arc::new(Intake::default());
        let mut sink = IntakeSink::new(intake.clone(), 0, 5);
        let large = vec![7; QUEUE_BYTES_MAX];
        assert!(feed(&mut sink, &batch(5, &[Some(&large)])).expect("taken").is_continue());
        sink.skip_to(50);
        assert_eq!(intake.try_take().map(|chunk| (chunk.next, chunk.len())), Some((6, 1)));
        assert_eq!(intake.try_take().map(|chunk| (chunk.next, chunk.len())), Some((50, 0)));
        intake.close();
        sink.skip_to(60);
        assert!(intake.try_take().is_none());
    }

    #[test]
    fn offsets_without_records_queue_one_position() {
        let intake = Arc::new(Intake::default());
        let mut sink = IntakeSink::new(intake.clone(), 0, 5);
        for offset in [5, 7, 7] {
            sink.read_to(offset, Some(4));
        }
        assert_eq!(intake.try_take().map(|chunk| (chunk.next, chunk.leader_epoch, chunk.len())), Some((7, 4, 0)));
        assert!(intake.try_take().is_none());
    }
}
