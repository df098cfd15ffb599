//! Producers of one partition: the verdict on a batch, and the state that is retained of each producer.
//!
//! Not durable: [`super::snapshot`] converts the state to entries and back.
//!
//! Invariant: a producer without an open transaction is once in the order of idleness, one with an open transaction is
//! not in it. Producers without an open transaction never exceed the limit. A producer without batches has ended a
//! transaction by a marker, and has written nothing since in that epoch.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use super::producer_tails::{ProducerTail, ProducerTails};
use super::transactions::OpenTransactions;
use super::window::{BatchMetadata, SequenceWindow, WINDOW_MIN};
use super::{HALF_RANGE, SequenceRefusal, SnapshotEntry, Stamp, Verdict, sequence_add, sequence_distance};

/// Largest number of remembered producers of a partition: 3 MB at five batches each, 250 MB if all fill a window of
/// 1024. Beyond it the longest idle producer is evicted, as if it had expired.
pub const PRODUCERS_MAX: usize = 10_000;

/// Epoch of a producer that has neither written nor ended a transaction.
pub(super) const NO_EPOCH: i16 = -1;

/// Coordinator epoch of a producer that has ended no transaction.
pub const NO_COORDINATOR: i32 = -1;

/// State of one producer.
#[derive(Clone, Debug)]
pub(super) struct Producer {
    pub epoch: i16,
    /// Number of consecutive sequences of this epoch, up to the newest, that are known to be in the log. It includes
    /// those that have left the window, which proves that a very old batch is a duplicate.
    pub run: u64,
    pub window: SequenceWindow,
    /// Epoch of the coordinator that ended its last transaction here; [`NO_COORDINATOR`] before.
    pub coordinator_epoch: i32,
    /// First offset of its open transaction.
    pub open_from: Option<i64>,
    /// Last offset of its last marker or batch without a sequence; None if unknown, as after a restart.
    pub last_unsequenced: Option<i64>,
    /// Number of producers remembered before, including this one: a producer that was forgotten and returns has another
    /// number.
    pub number: u64,
    /// Offset of the last marker that ended a transaction of this epoch, and so fences no batch of it.
    pub last_marker: Option<i64>,
    /// Timestamp of its last batch or marker, in ms.
    pub last_timestamp: i64,
    pub(super) last_active_ms: i64,
    /// Key in [`Producers::idle`].
    pub(super) turn: u64,
}

impl Producer {
    pub fn next_sequence(&self) -> i32 {
        self.window.newest().map_or(0, |newest| sequence_add(newest.last_sequence(), 1))
    }

    fn tail(&self) -> ProducerTail {
        ProducerTail { epoch: self.epoch, unwritten: self.next_sequence() }
    }

    fn check(&self, stamp: &Stamp) -> Verdict {
        if stamp.producer_epoch < self.epoch {
            return Verdict::Refuse(SequenceRefusal::InvalidProducerEpoch);
        }
        if stamp.producer_epoch > self.epoch {
            return first_of_epoch(stamp);
        }
        if stamp.base_sequence == self.next_sequence() {
            return Verdict::Append;
        }
        if let Some(&BatchMetadata { base_offset, timestamp, .. }) = self.window.find(stamp) {
            return Verdict::Duplicate { base_offset, timestamp };
        }
        if self.proves_older_than_window(stamp) {
            return Verdict::Refuse(SequenceRefusal::DuplicateSequence);
        }
        Verdict::Refuse(SequenceRefusal::OutOfOrderSequence)
    }

    /// Returns true if the log is known to have every record of the batch, and the window has none.
    fn proves_older_than_window(&self, stamp: &Stamp) -> bool {
        let Some(newest) = self.window.newest() else { return false };
        let behind = |sequence| sequence_distance(sequence, newest.last_sequence()) as u64;
        let (first, last) = (behind(stamp.base_sequence), behind(stamp.last_sequence()));
        last <= first && last >= self.window.span() && first < self.run.min(HALF_RANGE as u64)
    }
}

fn first_of_epoch(stamp: &Stamp) -> Verdict {
    match stamp.base_sequence {
        0 => Verdict::Append,
        _ => Verdict::Refuse(SequenceRefusal::OutOfOrderSequence),
    }
}

/// Batch from which a producer continues: a replay of the log without it would not know the producer's sequence or
/// epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastBatch {
    /// Batch that ends with this offset.
    At(i64),
    /// Any marker of this epoch, in which the producer has written nothing.
    MarkerOf(i16),
}

impl LastBatch {
    /// Returns true if this is a batch of the producer that ends with `last_offset`.
    pub fn is(self, last_offset: i64, producer_epoch: i16, is_control: bool) -> bool {
        match self {
            LastBatch::At(offset) => offset == last_offset,
            LastBatch::MarkerOf(epoch) => is_control && epoch == producer_epoch,
        }
    }
}

/// State of one producer, for DescribeProducers and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerState {
    /// Producer id, at least 0.
    pub producer_id: i64,
    /// Epoch: 0..=32767.
    pub producer_epoch: i16,
    /// Sequence of the last record; -1 if the epoch has written none.
    pub last_sequence: i32,
    /// Timestamp, in ms, of the last batch, or of the marker if the epoch has written none.
    pub last_timestamp: i64,
    /// Number of batches whose retry gets the original offset.
    pub retained_batches: usize,
    /// Epoch of the coordinator that ended its last transaction; [`NO_COORDINATOR`] before.
    pub coordinator_epoch: i32,
    /// First offset of its open transaction.
    pub open_from: Option<i64>,
}

/// Idempotent-producer state of one partition.
#[derive(Clone, Debug)]
pub struct Producers {
    pub(super) by_id: HashMap<i64, Producer>,
    /// Producer ids in the order of their last append, the longest idle first, without those with an open transaction.
    pub(super) idle: BTreeMap<u64, i64>,
    pub(super) open: OpenTransactions,
    turns: u64,
    pub(super) limit: usize,
    evicted: u64,
    /// Number of producers remembered since the log was opened.
    pub(super) remembered: u64,
    /// Largest [`Producer::number`] of the forgotten producers.
    pub(super) forgotten: u64,
    /// State carried from the deleted partition of the same name, of producers that have written nothing here.
    pub(super) predecessor: ProducerTails,
    /// True once any unknown producer may have written here, or to the deleted partition.
    has_forgotten: bool,
    /// Bound of ids: forgotten producers have smaller ids.
    forgotten_below: i64,
    /// Offset of the newest marker of a forgotten producer; -1 if none is known.
    pub(super) forgotten_marker: i64,
}

impl Default for Producers {
    fn default() -> Self {
        Producers::bounded(PRODUCERS_MAX)
    }
}

impl Producers {
    /// Creates the state without producers, with room for `limit`, at least one.
    pub fn bounded(limit: usize) -> Producers {
        Producers {
            by_id: HashMap::new(),
            idle: BTreeMap::new(),
            open: OpenTransactions::default(),
            turns: 0,
            limit: limit.max(1),
            evicted: 0,
            remembered: 0,
            forgotten: 0,
            predecessor: ProducerTails::default(),
            has_forgotten: false,
            forgotten_below: 0,
            forgotten_marker: -1,
        }
    }

    /// Takes over the state carried from a deleted partition of the same name. Each producer continues from it until it
    /// has written here. Kafka before 4.5 accepts any first sequence instead. That lets a client survive the recreation
    /// of its topic if a refused batch is fatal to it, as with librdkafka.
    pub fn succeed(&mut self, predecessor: ProducerTails) {
        self.predecessor = predecessor;
    }

    /// Returns the state carried from the deleted partition of the same name, of producers that have written nothing
    /// here.
    pub fn predecessor(&self) -> &ProducerTails {
        &self.predecessor
    }

    /// Returns true if the batch of a producer without writes here continues its carried state. Any batch does if that
    /// state may be missing.
    pub fn is_carried_on(&self, stamp: &Stamp) -> bool {
        let before = &self.predecessor;
        !self.knows(stamp.producer_id)
            && (before.tail_is_continued_by(stamp) || before.may_lack_that_of(stamp.producer_id))
    }

    /// Returns true if a producer without writes here may have written to a deleted partition of this name.
    pub fn has_predecessor(&self) -> bool {
        !self.predecessor.is_empty()
    }

    /// Records that any unknown producer may have written to the partition, or to the deleted one before it.
    pub fn note_forgotten(&mut self) {
        self.has_forgotten = true;
    }

    /// Records that unknown producers with ids below `bound` may have written to the partition, or to the deleted one
    /// before it.
    pub fn note_forgotten_below(&mut self, bound: i64) {
        self.forgotten_below = self.forgotten_below.max(bound);
    }

    /// Takes over the carried state of `before` for producers that this state lacks. The writes that `before` has of
    /// them here were truncated with the log.
    pub fn succeed_again(&mut self, before: &Producers) {
        self.predecessor = before.tails_to_keep();
        if before.has_predecessor() {
            before.by_id.keys().for_each(|&producer_id| self.predecessor.may_lack(producer_id));
        }
        self.by_id.keys().for_each(|&producer_id| self.predecessor.forget(producer_id));
    }

    /// Returns the carried state of producers without writes here, marked as lacking that of forgotten producers.
    pub(super) fn tails_to_keep(&self) -> ProducerTails {
        let mut tails = self.predecessor.clone();
        tails.may_lack_below(self.forgotten_below);
        tails
    }

    /// Returns the state to carry to the next partition of the name. If there is room, it includes carried state of
    /// producers without writes here.
    pub fn tails(&self) -> ProducerTails {
        let here = self.by_id.iter().map(|(&id, producer)| (id, producer.tail()));
        let tails = self.tails_to_keep().followed_by(here, self.limit);
        if self.has_forgotten { tails.of_unknown() } else { tails }
    }

    /// Decides on a batch without a change; O(log window).
    ///
    /// `log_end_offset` is the partition's next offset. If it is 0, the partition was never written. Only then is a
    /// producer's first sequence certain: 0, or that of [`Producers::succeed`]. Otherwise the producer's state may have
    /// expired or been evicted, unless it is known to have written nothing here.
    pub fn check(&self, stamp: &Stamp, log_end_offset: i64) -> Verdict {
        if !stamp.is_idempotent() {
            return Verdict::Append;
        }
        if !stamp.is_valid() {
            return Verdict::Refuse(SequenceRefusal::InvalidRecord);
        }
        match self.by_id.get(&stamp.producer_id) {
            Some(producer) => producer.check(stamp),
            None if self.predecessor.are_continued_by(stamp) => Verdict::Append,
            None if !self.has_forgotten && self.predecessor.are_overtaken_by(stamp) => first_of_epoch(stamp),
            None if log_end_offset > 0 => Verdict::Append,
            None => first_of_epoch(stamp),
        }
    }

    /// Records a batch that is in the log, after a write or while the log is replayed.
    ///
    /// The call never refuses, since the log is the truth. A batch with another epoch or a gap before it starts a new
    /// run of sequences, and drops the retained batches. A batch at an offset already seen is ignored, so that a replay
    /// may begin before the end of its snapshot.
    ///
    /// `timestamp` is in the response to a retry; `window` is the configured number of retained batches.
    /// [`Producers::expire`] counts from `now_ms`.
    pub fn append(&mut self, stamp: &Stamp, base_offset: i64, timestamp: i64, now_ms: i64, window: usize) {
        if !stamp.is_valid() {
            return;
        }
        self.predecessor.forget(stamp.producer_id);
        let &Stamp { base_sequence, record_count, .. } = stamp;
        let batch = BatchMetadata { base_offset, timestamp, base_sequence, record_count };
        match self.by_id.get_mut(&stamp.producer_id) {
            Some(producer) if producer.window.newest().is_some_and(|newest| base_offset <= newest.last_offset()) => {
                return;
            }
            Some(producer) if producer.epoch == stamp.producer_epoch && producer.next_sequence() == base_sequence => {
                producer.window.push(batch, window);
                producer.run += record_count as u64;
                producer.last_timestamp = timestamp;
            }
            _ => self.begin_run(stamp, batch, window),
        }
        self.touch(stamp.producer_id, now_ms);
        self.evict();
    }

    /// Forgets the producers idle for `expiration_ms` or longer (`producer.id.expiration.ms`). Returns their number.
    pub fn expire(&mut self, now_ms: i64, expiration_ms: i64) -> usize {
        let mut count = 0;
        self.expire_each(now_ms, expiration_ms, |_| count += 1);
        count
    }

    /// Forgets idle producers like [`Producers::expire`], and calls `forgotten` with the id of each.
    pub fn expire_each(&mut self, now_ms: i64, expiration_ms: i64, mut forgotten: impl FnMut(i64)) {
        while let Some((_, &producer_id)) = self.idle.first_key_value() {
            if now_ms.saturating_sub(self.by_id[&producer_id].last_active_ms) < expiration_ms {
                break;
            }
            self.forget_longest_idle();
            forgotten(producer_id);
        }
        self.predecessor.expire(now_ms, expiration_ms);
    }

    /// Returns the time of each producer's last activity, in ms.
    pub fn last_active(&self) -> impl Iterator<Item = i64> {
        self.by_id.values().map(|producer| producer.last_active_ms)
    }

    /// Evicts producers that are silent since `since_ms` or longer, at most `count`, the longest idle first. Returns
    /// their number.
    pub fn forget_idle(&mut self, since_ms: i64, count: usize) -> usize {
        let mut forgotten = 0;
        while forgotten < count
            && let Some((_, producer_id)) = self.idle.first_key_value()
            && self.by_id[producer_id].last_active_ms <= since_ms
        {
            self.forget_longest_idle();
            forgotten += 1;
        }
        self.evicted += forgotten as u64;
        forgotten
    }

    /// Returns all producers: the longest idle first, then those with an open transaction, by its first offset.
    pub fn iter(&self) -> impl Iterator<Item = ProducerState> {
        self.in_order().map(|(producer_id, producer)| ProducerState {
            producer_id,
            producer_epoch: producer.epoch,
            last_sequence: producer.window.newest().map_or(-1, |newest| newest.last_sequence()),
            last_timestamp: producer.last_timestamp,
            retained_batches: producer.window.len(),
            coordinator_epoch: producer.coordinator_epoch,
            open_from: producer.open_from,
        })
    }

    pub(super) fn in_order(&self) -> impl Iterator<Item = (i64, &Producer)> {
        self.idle.values().copied().chain(self.open.producers()).map(|id| (id, &self.by_id[&id]))
    }

    /// Returns the batch from which each producer continues.
    pub fn last_batches(&self) -> impl Iterator<Item = (i64, LastBatch)> {
        self.by_id.iter().map(|(id, producer)| {
            let newest = producer.window.newest().map(|newest| newest.last_offset());
            let last = newest.or(producer.last_unsequenced).map_or(LastBatch::MarkerOf(producer.epoch), LastBatch::At);
            (*id, last)
        })
    }

    /// Returns the largest window that any producer may still rely on, which is more than its last grant while a shrink
    /// is pending. [`Producers::restore`] and the replay need it after a restart.
    pub fn window(&self) -> usize {
        self.by_id.values().map(|producer| producer.window.size()).max().unwrap_or(WINDOW_MIN)
    }

    /// Returns true if the producer is remembered.
    pub fn knows(&self, producer_id: i64) -> bool {
        self.by_id.contains_key(&producer_id)
    }

    /// Returns true if the producer's newest batch is this one, a later one, or of a later epoch.
    pub fn has_passed(&self, stamp: &Stamp) -> bool {
        let reaches =
            |newest: &BatchMetadata| sequence_distance(stamp.last_sequence(), newest.last_sequence()) < HALF_RANGE;
        let has_passed = |producer: &Producer| {
            producer.epoch > stamp.producer_epoch
                || producer.epoch == stamp.producer_epoch && producer.window.newest().is_some_and(reaches)
        };
        stamp.is_valid() && self.by_id.get(&stamp.producer_id).is_some_and(has_passed)
    }

    /// Returns true if the batch is before the oldest retained one of its producer, in the same epoch. It was then
    /// written, or its producer has given it up.
    pub fn is_before_retained(&self, stamp: &Stamp) -> bool {
        let end = sequence_add(stamp.last_sequence(), 1);
        let follows = |oldest: &BatchMetadata| sequence_distance(end, oldest.base_sequence) < HALF_RANGE;
        let is_before = |producer: &Producer| {
            producer.epoch == stamp.producer_epoch && producer.window.oldest().is_some_and(follows)
        };
        stamp.is_valid() && self.by_id.get(&stamp.producer_id).is_some_and(is_before)
    }

    /// Returns true if the state has a batch of the producer at this offset or a later one.
    pub fn has_reached(&self, producer_id: i64, offset: i64) -> bool {
        let last = |producer: &Producer| {
            let newest = producer.window.newest().map(|newest| newest.last_offset());
            newest.into_iter().chain(producer.last_unsequenced).chain(producer.open_from).max()
        };
        self.by_id.get(&producer_id).and_then(last).is_some_and(|last| offset <= last)
    }

    /// Returns true if the state of a producer depends on these offsets: by a retained batch, its last marker, or the
    /// first batch of its open transaction.
    pub fn needs(&self, producer_id: i64, offsets: RangeInclusive<i64>) -> bool {
        let needs = |producer: &Producer| {
            let single = producer.last_unsequenced.into_iter().chain(producer.open_from);
            let oldest = producer.window.oldest();
            oldest.is_some_and(|oldest| oldest.base_offset <= *offsets.end())
                || single.into_iter().any(|at| offsets.contains(&at))
        };
        self.by_id.get(&producer_id).is_some_and(needs)
    }

    /// Returns the sequence with which a producer continues in its epoch; 0 if the producer is unknown.
    pub fn next_sequence(&self, producer_id: i64) -> i32 {
        self.by_id.get(&producer_id).map_or(0, Producer::next_sequence)
    }

    /// Returns the number of remembered producers.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns true if no producer is remembered.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the number of producers evicted by the limit since the start. Above zero, a retry of theirs may have
    /// been written twice: the limit is too low for this partition.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Starts a run of sequences. An open transaction, and the coordinator epoch of the last one, outlive an epoch.
    fn begin_run(&mut self, stamp: &Stamp, batch: BatchMetadata, window: usize) {
        let producer = self.known_or_new(stamp.producer_id);
        if producer.epoch != stamp.producer_epoch {
            producer.last_marker = None;
        }
        producer.epoch = stamp.producer_epoch;
        producer.run = batch.record_count as u64;
        producer.window = SequenceWindow::of(batch, window);
        producer.last_timestamp = batch.timestamp;
    }

    /// Returns the state of the producer. A new one has written nothing; the caller must call [`Producers::touch`].
    pub(super) fn known_or_new(&mut self, producer_id: i64) -> &mut Producer {
        if !self.by_id.contains_key(&producer_id) {
            self.remembered += 1;
        }
        // Keys start with 1, so that the 0 of a new producer is no key.
        self.by_id.entry(producer_id).or_insert_with(|| Producer {
            epoch: NO_EPOCH,
            run: 0,
            window: SequenceWindow::empty(),
            coordinator_epoch: NO_COORDINATOR,
            open_from: None,
            last_unsequenced: None,
            number: self.remembered,
            last_marker: None,
            last_timestamp: SnapshotEntry::NONE,
            last_active_ms: 0,
            turn: 0,
        })
    }

    /// Makes a producer the most recent one. With an open transaction it leaves the order of idleness.
    pub(super) fn touch(&mut self, producer_id: i64, now_ms: i64) {
        let producer = self.by_id.get_mut(&producer_id).expect("the producer has just been written");
        producer.last_active_ms = now_ms;
        // The usual case of one producer that appends again and again leaves the order as it is.
        if self.idle.last_key_value().is_some_and(|(_, &last)| last == producer_id) {
            return;
        }
        self.idle.remove(&producer.turn);
        if producer.open_from.is_some() {
            return;
        }
        self.turns += 1;
        producer.turn = self.turns;
        self.idle.insert(self.turns, producer_id);
    }

    /// Evicts the longest idle producers above the limit; those with an open transaction stay.
    pub(super) fn evict(&mut self) {
        while self.by_id.len() > self.limit && self.forget_longest_idle() {
            self.evicted += 1;
        }
    }

    fn forget_longest_idle(&mut self) -> bool {
        let Some((_, producer_id)) = self.idle.pop_first() else { return false };
        if let Some(producer) = self.by_id.remove(&producer_id) {
            self.forgotten = self.forgotten.max(producer.number);
            self.forgotten_marker = self.forgotten_marker.max(producer.last_unsequenced.unwrap_or(-1));
        }
        self.forgotten_below = self.forgotten_below.max(producer_id.saturating_add(1));
        true
    }
}
