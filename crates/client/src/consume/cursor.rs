//! The position in a partition that is read: where the read starts and ends, and the sink of its records.
//!
//! Invariant: `offset` moves past a batch only after the sink got each of its records. The sink does not get records
//! before `offset` or past `end`, lost records, or records of skipped bad batches. If only committed records are read,
//! it does not get those of aborted transactions either.

use super::deleted::DeletedOffsets;
use super::epochs::{FetchPosition, ReadEpochs};
use super::error::ConsumeError;
use super::start::{Placed, StartOffset};
use crate::blocking::PartitionPlace;
use crate::error::ClientError;
use bytes::Bytes;
use fullbore_wire::apis::fetch::{AbortedTransaction, EpochEndOffset};
use fullbore_wire::batch::{BatchError, BatchView, Compression, Record, RecordIter, decompress};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

/// Maximum number of former topics of the same name whose positions a cursor remembers.
const FORMER_MAX: usize = 4;
/// Maximum size of a batch's decompressed records, in bytes.
const PAYLOAD_BYTES_MAX: usize = 256 << 20;

/// Takes the records of a partition.
pub trait Sink: Send + 'static {
    /// Takes the next record. If the result is `Break`, the sink has not taken the record, and the read of the
    /// partition ends before that record.
    ///
    /// # Errors
    /// Returns a text about the fault if the sink refuses the record. The error ends the run.
    fn record(&mut self, batch: &BatchView<'_>, record: &Record<'_>) -> Result<ControlFlow<()>, String>;

    /// Called when the partition's records in a response were read, and when the read moves past lost records or to a
    /// recreated topic. `offset` is the next offset to read, and `leader_epoch` the epoch of the last record before it
    /// if that is known.
    fn read_to(&mut self, _offset: i64, _leader_epoch: Option<i32>) {}

    /// Called when the read goes back to `offset`, because the log has lost the records from there on after they were
    /// read. The offsets then get new records. [`Sink::read_to`] follows. The run's own thread may call both, so they
    /// must not wait for the run.
    fn go_back_to(&mut self, _offset: i64) {}

    /// Called with the id of the topic to which offsets belong from now on. The id changes if the topic was recreated.
    fn follow(&mut self, _topic_id: Uuid) {}

    /// Called when the read continues at `offset`, because earlier records were deleted before they were read. The
    /// run's own thread calls this method, so the method must not wait.
    fn skip_to(&mut self, _offset: i64) {}
}

/// A sink that drops the records. The run still counts them.
impl Sink for () {
    fn record(&mut self, _: &BatchView<'_>, _: &Record<'_>) -> Result<ControlFlow<()>, String> {
        Ok(ControlFlow::Continue(()))
    }
}

/// The position in a partition, with its bounds and its sink.
#[derive(Debug)]
pub struct Cursor<S> {
    /// The name of the topic.
    pub topic: Text,
    /// The id of the topic. Zero from brokers before 2.8.
    pub topic_id: Uuid,
    /// The number of the partition.
    pub partition: i32,
    /// The next offset to read, or `None` until the leader has returned it.
    pub offset: Option<i64>,
    /// The first offset that is not read any more, or `None` to read forever.
    pub end: Option<i64>,
    /// The end of a cursor whose start is not before the end, until a leader has compared the start with its log.
    suspended_end: Option<i64>,
    /// The bounds with which the read of the present topic began. The start stays while `offset` moves.
    pub placed: Placed,
    /// True once the position was outside of the log, for example because unread records were deleted.
    /// auto.offset.reset then decides where the read continues.
    pub(super) is_reset: bool,
    /// The position that the leader refused. It is kept until the partition has a new start.
    refused_at: Option<i64>,
    /// A start that takes precedence over the plan and over auto.offset.reset, until a response is read.
    pub(super) start: Option<StartOffset>,
    /// The leader epochs of the records that were read.
    epochs: ReadEpochs,
    /// The time since which no leader knows the newest of these epochs. `None` while leaders know it.
    unknown_epoch_since: Option<Instant>,
    /// True if a leader has answered a fetch under the topic's id, so that the topic exists or has existed.
    is_confirmed: bool,
    /// The positions in topics that had this name before, oldest first. Only topics with `is_confirmed` are remembered.
    former: Vec<FormerTopic>,
    /// The sink of the records.
    pub sink: S,
}

/// The position in a topic that had the name of the present one before.
#[derive(Debug)]
struct FormerTopic {
    placed: Placed,
    offset: Option<i64>,
    refused_at: Option<i64>,
    start: Option<StartOffset>,
    epochs: ReadEpochs,
}

/// How many records were read, and the bytes of their keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

/// The bad batches of a partition that were skipped.
#[derive(Debug, Default)]
pub(super) struct SkippedBatches {
    count: u64,
    /// The error of the first skipped batch.
    first: Option<ConsumeError>,
}

impl SkippedBatches {
    fn add(&mut self, error: ConsumeError) {
        self.count += 1;
        self.first.get_or_insert(error);
    }

    /// Returns one line about all skipped batches, or `None` if no batch was skipped.
    pub(super) fn notice(&self) -> Option<String> {
        let Some(ConsumeError::BadBatch { topic, partition, offset, last_offset, reason }) = &self.first else {
            return None;
        };
        let others = match self.count {
            1 => String::new(),
            count => format!(", and {} more after it", count - 1),
        };
        Some(format!(
            "skipped the producer's batch at offsets {offset} to {last_offset} of partition {partition} of topic \
             '{topic}'{others}: {reason}"
        ))
    }
}

impl<S> Cursor<S> {
    /// Creates a cursor that starts where the plan demands.
    pub fn new(place: PartitionPlace, sink: S) -> Self {
        let PartitionPlace { topic, topic_id, partition, .. } = place;
        Cursor::placed(topic, partition, Placed { topic_id, ..Placed::default() }, sink)
    }

    /// Creates a cursor whose start and end are known, at least in part.
    pub fn placed(topic: Text, partition: i32, placed: Placed, sink: S) -> Self {
        let Placed { topic_id, offset, leader_epoch, end } = placed;
        let epochs = offset.zip(leader_epoch).map(|(offset, last)| ReadEpochs::before(offset, last));
        let epochs = epochs.unwrap_or_default();
        let (suspended_end, is_reset, refused_at, start) = Default::default();
        let (unknown_epoch_since, is_confirmed, former) = Default::default();
        Cursor {
            topic,
            topic_id,
            partition,
            offset,
            end,
            suspended_end,
            placed,
            is_reset,
            refused_at,
            start,
            epochs,
            unknown_epoch_since,
            is_confirmed,
            former,
            sink,
        }
    }

    /// Moves the cursor to the start of the log, so that every remaining record is read.
    #[must_use]
    pub(super) fn at_start(mut self) -> Self {
        self.begin_at_start();
        self
    }

    fn begin_at_start(&mut self) {
        (self.offset, self.start) = (Some(0), Some(StartOffset::Earliest));
        (self.placed.offset, self.placed.leader_epoch) = (Some(0), None);
    }

    /// Sets the start and the end to the bounds that the leader returned for `start`. Until a response is read, an
    /// offset that the leader refuses is replaced by another one for `start`. The log start may move at any time.
    pub(super) fn place(&mut self, (offset, end): super::start::OffsetBounds, start: StartOffset) {
        if self.offset.is_none() && !matches!(start, StartOffset::At(_)) {
            self.start = Some(start);
        }
        self.offset = self.offset.or(Some(offset));
        self.end = self.end.or(end);
        self.placed = Placed { offset: self.offset, end: self.end, ..self.placed };
    }

    /// Discards the position, so that the run has to determine a new start.
    pub(super) fn reset(&mut self) {
        self.resume_end();
        self.refused_at = self.offset.or(self.refused_at);
        (self.offset, self.is_reset) = (None, true);
        (self.placed.offset, self.placed.leader_epoch) = (None, None);
        self.forget_epochs();
    }

    /// Removes the end, so that a leader compares a position that has reached the end with its log. Returns false
    /// without a change if the epoch of the position is unknown, since the leader then compares nothing.
    pub(super) fn suspend_end(&mut self) -> bool {
        let is_compared = self.position().leader_epoch().is_some();
        if is_compared {
            self.suspended_end = self.end.take();
        }
        is_compared
    }

    /// Returns true between [`Cursor::suspend_end`] and [`Cursor::resume_end`].
    pub(super) fn is_end_suspended(&self) -> bool {
        self.suspended_end.is_some()
    }

    /// Restores the end that [`Cursor::suspend_end`] has removed.
    pub(super) fn resume_end(&mut self) {
        self.end = self.suspended_end.take().or(self.end);
    }

    /// Forgets the end, so that a leader determines it again.
    pub(super) fn forget_end(&mut self) {
        (self.end, self.suspended_end, self.placed.end) = (None, None, None);
    }

    /// Returns the position of the next fetch.
    pub(super) fn position(&self) -> FetchPosition {
        self.epochs.position(self.offset.unwrap_or(0))
    }

    /// Forgets the epochs of the records that were read, so that the leader does not compare them with its log.
    pub(super) fn forget_epochs(&mut self) {
        self.epochs = ReadEpochs::default();
    }

    /// Returns the offsets that were read and that the leader has lost since, or `None` if no loss is certain. The
    /// leader has returned `leader` as the newest epoch that its log and the records may have in common. If the epoch
    /// ends after the records, the leader may only lack an epoch that compaction has removed.
    pub(super) fn lost(&self, leader: &EpochEndOffset) -> Option<Range<i64>> {
        let offset = self.offset.filter(|offset| leader.end_offset < *offset)?;
        Some(self.epochs.common_end(leader, offset)..offset)
    }

    /// Notes that a leader has refused the partition.
    pub(super) fn note_refusal(&mut self, error: &ClientError, now: Instant) {
        if matches!(error, ClientError::Kafka { code: ErrorCode::UNKNOWN_LEADER_EPOCH, .. }) {
            self.unknown_epoch_since.get_or_insert(now);
        }
    }

    /// Returns how long leaders have not known the epoch of the last record that was read.
    pub(super) fn unknown_epoch_for(&self, now: Instant) -> Duration {
        self.unknown_epoch_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Notes that a broker knows the epoch of the last record that was read.
    pub(super) fn epoch_is_known(&mut self) {
        self.unknown_epoch_since = None;
    }

    /// Returns the offsets that were read in later epochs than `epoch`, or `None` if there are none.
    pub(super) fn lost_since(&self, epoch: i32) -> Option<Range<i64>> {
        let offset = self.offset?;
        let leader = EpochEndOffset { epoch, end_offset: offset, ..Default::default() };
        Some(self.epochs.common_end(&leader, offset)..offset).filter(|lost| !lost.is_empty())
    }

    /// Returns true if every record before `end` was read.
    pub fn is_done(&self) -> bool {
        self.offset.is_some_and(|offset| self.ends_at(offset))
    }

    pub(super) fn ends_at(&self, offset: i64) -> bool {
        self.end.is_some_and(|end| offset >= end)
    }
}

/// The settings that decide how batches are checked and which of them are read.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub(super) check_crcs: bool,
    /// True if bad batches of a producer are skipped.
    pub(super) skips_bad_batches: bool,
    /// The aborted transactions in the response, whose records are left out. With `None` all records are read.
    pub(super) aborted: Option<&'a [AbortedTransaction]>,
}

impl<S: Sink> Cursor<S> {
    /// Notes that a leader has answered a fetch under the topic's id.
    pub(super) fn confirm(&mut self) {
        self.is_confirmed = true;
    }

    /// Continues where the records that were read and the leader's log part, or at `log_start` if the log now begins
    /// later. The position is the same if no records are lost. All later records are newer than the lost ones. So with
    /// `restarts`, the read continues at the log start if the log no longer has the position.
    ///
    /// An end after certainly lost records moves to the position if records were read since the end was determined.
    /// Otherwise the records were lost before.
    pub(super) fn follow_truncation(&mut self, leader: &EpochEndOffset, log_start: i64, restarts: bool) {
        self.resume_end();
        let Some(offset) = self.offset else { return };
        let common_end = self.epochs.common_end(leader, offset);
        if common_end == offset {
            // Without an epoch the leader does not compare its log again.
            return self.forget_epochs();
        }
        let (is_lost, has_read) = (self.lost(leader).is_some(), self.placed.offset != Some(offset));
        self.epochs.truncate(leader, common_end);
        let to = common_end.max(log_start.min(offset));
        let least = |of: Option<i64>| of.map(|of| of.min(to));
        (self.offset, self.placed.offset, self.placed.leader_epoch) = (Some(to), least(self.placed.offset), None);
        if is_lost && has_read {
            (self.end, self.placed.end) = (least(self.end), least(self.placed.end));
        }
        if restarts {
            self.start = Some(StartOffset::Earliest);
        }
        self.sink.go_back_to(to);
        self.notify_position();
    }

    /// Goes back to the leader epoch `epoch`, because no leader knows the later epochs of records that were read. Its
    /// leader then compares the position with its log.
    pub(super) fn go_back_to_epoch(&mut self, epoch: i32, restarts: bool) {
        self.unknown_epoch_since = None;
        if let Some(Range { start, .. }) = self.lost_since(epoch) {
            let leader = EpochEndOffset { epoch, end_offset: start, ..Default::default() };
            self.follow_truncation(&leader, 0, restarts);
        } else {
            self.forget_epochs();
        }
        let FetchPosition { offset, last_epoch } = self.position();
        if last_epoch < 0 {
            self.epochs = ReadEpochs::before(offset, epoch);
        }
    }

    /// Moves to the start of a recreated topic. If the cursor has read the topic `topic_id` before, continues there
    /// instead. The id that the cursor now leaves then came from a broker that was behind, and no leader knew it.
    fn change_topic(&mut self, topic_id: Uuid) {
        let (placed, offset) = (self.placed, self.offset);
        let (refused_at, start, epochs) = (self.refused_at, self.start, std::mem::take(&mut self.epochs));
        let present = FormerTopic { placed, offset, refused_at, start, epochs };
        let is_known = self.former.iter().position(|former| former.placed.topic_id == topic_id);
        match is_known {
            Some(at) => {
                let former = self.former.remove(at);
                (self.placed, self.offset) = (former.placed, former.offset);
                (self.refused_at, self.start, self.epochs) = (former.refused_at, former.start, former.epochs);
            }
            None => {
                self.refused_at = None;
                self.begin_at_start();
            }
        }
        // A topic that was found among the former ones is confirmed, since only confirmed topics are remembered.
        if std::mem::replace(&mut self.is_confirmed, is_known.is_some()) {
            self.former.push(present);
        }
        if self.former.len() > FORMER_MAX {
            self.former.remove(0);
        }
    }

    /// Continues with the topic that now has this id. A recreated topic is read from its start, because all of its
    /// records are new. If `restarts` is false, the recreation is an error that ends the read of the partition. The
    /// same applies if the cursor has an end, because the end belongs to the old topic.
    pub(super) fn follow(&mut self, topic_id: Uuid, restarts: bool) -> Result<(), ConsumeError> {
        if self.topic_id == topic_id {
            return Ok(());
        }
        let was_recreated = !self.topic_id.is_zero() && !topic_id.is_zero();
        if was_recreated && (self.end.or(self.suspended_end).is_some() || !restarts) {
            return Err(ConsumeError::Recreated { topic: self.topic.clone() });
        }
        if was_recreated {
            self.change_topic(topic_id);
        }
        (self.topic_id, self.placed.topic_id) = (topic_id, topic_id);
        self.sink.follow(topic_id);
        if self.offset.is_some() {
            self.notify_position();
        }
        Ok(())
    }

    /// Returns the offsets that a reset has skipped, from the position that the leader refused to the new start. Only
    /// the first call after a reset returns them, and notifies the sink. Returns `None` if no position was refused, if
    /// the new start is unknown, or if it is not after the refused position.
    pub(super) fn take_deleted(&mut self) -> Option<DeletedOffsets> {
        let to = self.offset?;
        let from = self.refused_at.take().filter(|from| *from < to)?;
        self.sink.skip_to(to);
        Some(DeletedOffsets { topic: self.topic.clone(), partition: self.partition, offsets: from..to })
    }

    /// Continues at this offset, because the records before it are lost.
    pub(super) fn skip_to(&mut self, offset: i64) {
        (self.offset, self.start) = (Some(offset), None);
        self.notify_position();
    }

    /// Reads the whole batches in `bytes` from `offset` on and adds their records to `count`. Returns the bad batches
    /// that were skipped.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        reading: Reading<'_>,
        count: &mut Count,
    ) -> Result<SkippedBatches, ConsumeError> {
        let outcome = self.read_batches(bytes, reading, count);
        // The sink gets the position even after an error, since the records before an unreadable batch were read.
        self.notify_position();
        outcome
    }

    /// Passes the position to the sink.
    fn notify_position(&mut self) {
        let position = self.position();
        self.sink.read_to(position.offset, position.leader_epoch());
    }

    fn read_batches(
        &mut self,
        bytes: &[u8],
        reading: Reading<'_>,
        count: &mut Count,
    ) -> Result<SkippedBatches, ConsumeError> {
        let mut skipped = SkippedBatches::default();
        self.start = None;
        let mut aborted = reading.aborted.map(Aborted::new);
        for batch in Batches(bytes) {
            let from = self.offset.unwrap_or(0);
            let broken = |error: BatchError, cursor: &Self| cursor.corrupt(from, &error);
            let batch = batch.map_err(|error| broken(error, self))?;
            // Even a batch before the wanted offset is passed on here, because it may end an aborted transaction.
            let is_aborted = aborted.as_mut().is_some_and(|aborted| aborted.holds(&batch));
            // A response may begin with batches before the wanted offset. Their records are not read.
            if batch.last_offset() < from {
                continue;
            }
            if reading.check_crcs {
                batch.check_crc().map_err(|error| broken(error, self))?;
            }
            if !batch.is_control() && !is_aborted {
                match self.read_batch(&batch, from, count) {
                    Ok(ControlFlow::Break(())) => break,
                    Ok(ControlFlow::Continue(())) => {}
                    Err(bad @ ConsumeError::BadBatch { .. }) if reading.skips_bad_batches => skipped.add(bad),
                    Err(error) => return Err(error),
                }
            }
            let next = batch.last_offset() + 1;
            self.offset = Some(next);
            self.epochs.note(batch.partition_leader_epoch(), batch.base_offset(), next);
            if self.is_done() {
                break;
            }
        }
        Ok(skipped)
    }

    fn read_batch(
        &mut self,
        batch: &BatchView<'_>,
        from: i64,
        count: &mut Count,
    ) -> Result<ControlFlow<()>, ConsumeError> {
        let decompressed = decompressed(batch).map_err(|error| self.unreadable(batch, &error))?;
        let payload = decompressed.as_deref().unwrap_or(batch.payload());
        for record in RecordIter::new(payload, batch.record_count()) {
            let record = record.map_err(|error| self.unreadable(batch, &error))?;
            let offset = record.offset(batch);
            if offset < from {
                continue;
            }
            let refused = |reason| {
                let (topic, partition) = (self.topic.clone(), self.partition);
                ConsumeError::Refused { topic, partition, offset, reason }
            };
            if self.ends_at(offset) || self.sink.record(batch, &record).map_err(refused)?.is_break() {
                (self.offset, self.end) = (Some(offset), Some(offset));
                return Ok(ControlFlow::Break(()));
            }
            count.records += 1;
            count.bytes += (record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len)) as u64;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns the error of a batch whose records cannot be read. If the checksum matches, the producer is at fault and
    /// not the disk.
    fn unreadable(&self, batch: &BatchView<'_>, error: &BatchError) -> ConsumeError {
        if let Err(error) = batch.check_crc() {
            return self.corrupt(batch.base_offset(), &error);
        }
        let (topic, partition) = (self.topic.clone(), self.partition);
        let (offset, last_offset) = (batch.base_offset(), batch.last_offset());
        ConsumeError::BadBatch { topic, partition, offset, last_offset, reason: error.to_string() }
    }

    fn corrupt(&self, offset: i64, error: &BatchError) -> ConsumeError {
        let (topic, partition) = (self.topic.clone(), self.partition);
        ConsumeError::Corrupt { topic, partition, offset, reason: error.to_string() }
    }
}

/// The aborted transactions of a response, while the reader passes its batches (as in Kafka's `CompletedFetch`).
struct Aborted {
    /// The aborted transactions that begin later, as pairs of first offset and producer id, in descending order.
    ahead: Vec<(i64, i64)>,
    /// The producers whose transaction is open at the present batch and was aborted later.
    open: HashSet<i64>,
}

impl Aborted {
    fn new(transactions: &[AbortedTransaction]) -> Self {
        let mut ahead: Vec<_> = transactions.iter().map(|of| (of.first_offset, of.producer_id)).collect();
        ahead.sort_unstable_by(|a, b| b.cmp(a));
        Aborted { ahead, open: HashSet::new() }
    }

    /// Returns true if a batch belongs to an aborted transaction. Batches must be passed in order.
    fn holds(&mut self, batch: &BatchView<'_>) -> bool {
        while let Some((_, producer_id)) = self.ahead.pop_if(|(first, _)| *first <= batch.last_offset()) {
            self.open.insert(producer_id);
        }
        match batch.is_control() {
            // An abort marker ends the producer's open transaction. A commit marker removes nothing, because `open` has
            // only producers whose transaction was aborted.
            true => {
                self.open.remove(&batch.producer_id());
                false
            }
            false => batch.is_transactional() && self.open.contains(&batch.producer_id()),
        }
    }
}

/// Returns the decompressed records of a batch, or `None` if the batch is not compressed.
fn decompressed(batch: &BatchView<'_>) -> Result<Option<Bytes>, BatchError> {
    match batch.compression()? {
        Compression::None => Ok(None),
        codec => decompress(codec, batch.payload(), PAYLOAD_BYTES_MAX).map(Some),
    }
}

/// The whole batches at the start of a partition's bytes. If a batch is cut off at the end, the next fetch returns it
/// again.
pub(super) struct Batches<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Batches<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        match BatchView::first(self.0) {
            Ok(batch) => {
                self.0 = &self.0[batch.size()..];
                Some(Ok(batch))
            }
            Err(BatchError::Truncated) => None,
            Err(error) => {
                self.0 = &[];
                Some(Err(error))
            }
        }
    }
}

#[cfg(test)]
mod tests;
