//! The producers of a partition: decides on their batches, and remembers the last batches of each producer.
//!
//! The state is only in memory. [`super::snapshot`] converts it to entries that can be stored, and back.
//!
//! Invariant: `idle` contains each producer without an open transaction once, and no producer that has an open one.
//! Producers are evicted above the limit, except those with an open transaction. If a producer has no remembered
//! batches, its epoch began with a marker or another batch without a sequence, and it has written no sequence in that
//! epoch.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use super::producer_tails::{ProducerTail, ProducerTails};
use super::transactions::OpenTransactions;
use super::window::{BatchMetadata, SequenceWindow, WINDOW_MIN};
use super::{HALF_RANGE, SequenceRefusal, SnapshotEntry, Stamp, Verdict, sequence_add, sequence_distance};

/// Maximum number of producers that a partition remembers. They take 3 MB with five batches each, and 250 MB if each
/// fills a window of 1024. Above this limit, the producer that has been idle the longest is evicted, as if it had
/// expired.
pub const PRODUCERS_MAX: usize = 10_000;

/// The epoch of a producer that has neither written nor ended a transaction.
pub(super) const NO_EPOCH: i16 = -1;

/// The coordinator epoch of a producer that has not ended any transaction.
pub const NO_COORDINATOR: i32 = -1;

/// The state of a producer.
#[derive(Clone, Debug)]
pub(super) struct Producer {
    pub epoch: i16,
    /// How many consecutive sequences of this epoch, up to the newest, are known to be in the log. This includes
    /// sequences of batches that have left the window, so that even a retry of a very old batch is recognised as a
    /// duplicate.
    pub run: u64,
    pub window: SequenceWindow,
    /// The epoch of the coordinator that ended the producer's last transaction here; [`NO_COORDINATOR`] before the
    /// first.
    pub coordinator_epoch: i32,
    /// The first offset of the producer's open transaction; `None` if it has none.
    pub open_from: Option<i64>,
    /// The last offset of the producer's last marker or batch without a sequence. `None` if it is unknown, as after a
    /// restart.
    pub last_unsequenced: Option<i64>,
    /// The value of [`Producers::remembered`] when this producer was added. A producer that is forgotten and added
    /// again gets a larger number.
    pub number: u64,
    /// The offset of the last marker that ended a transaction of this epoch and left the epoch unchanged.
    pub last_marker: Option<i64>,
    /// The timestamp of the producer's last batch or marker, in ms.
    pub last_timestamp: i64,
    pub(super) last_active_ms: i64,
    /// The producer's key in [`Producers::idle`]; 0 if the producer was never in it.
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

    /// Returns true if the log is known to have every record of the batch, although the batch is older than the window.
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

/// The last batch of a producer, which compaction must keep. Without this batch, a replay of the log would not restore
/// the producer's sequence or epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastBatch {
    /// The batch that ends at this offset.
    At(i64),
    /// Any marker of this epoch. The producer has written nothing else in the epoch.
    MarkerOf(i16),
}

impl LastBatch {
    /// Returns true if the producer's batch that ends at `last_offset` is this last batch.
    pub fn is(self, last_offset: i64, producer_epoch: i16, is_control: bool) -> bool {
        match self {
            LastBatch::At(offset) => offset == last_offset,
            LastBatch::MarkerOf(epoch) => is_control && epoch == producer_epoch,
        }
    }
}

/// The state of a producer, as DescribeProducers and the metrics show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerState {
    /// The producer id, at least 0.
    pub producer_id: i64,
    /// The producer's epoch: 0..=32767.
    pub producer_epoch: i16,
    /// The sequence of the last record; -1 if the producer has written nothing in its epoch.
    pub last_sequence: i32,
    /// The timestamp of the producer's last batch or marker, in ms.
    pub last_timestamp: i64,
    /// How many batches are remembered. If one of them is retried, it gets its original offset.
    pub retained_batches: usize,
    /// The epoch of the coordinator that ended the producer's last transaction; [`NO_COORDINATOR`] before the first.
    pub coordinator_epoch: i32,
    /// The first offset of the producer's open transaction; `None` if it has none.
    pub open_from: Option<i64>,
}

/// The state of all idempotent producers of a partition.
#[derive(Clone, Debug)]
pub struct Producers {
    pub(super) by_id: HashMap<i64, Producer>,
    /// The producers without an open transaction in the order of their last append, so the one that has been idle the
    /// longest comes first.
    pub(super) idle: BTreeMap<u64, i64>,
    pub(super) open: OpenTransactions,
    turns: u64,
    pub(super) limit: usize,
    evicted: u64,
    /// How many producers have been remembered since the log was opened, including those that were forgotten.
    pub(super) remembered: u64,
    /// The largest [`Producer::number`] of a producer that was forgotten.
    pub(super) forgotten: u64,
    /// The state taken over from the deleted partition of the same name, for producers that have written nothing here
    /// yet.
    pub(super) predecessor: ProducerTails,
    /// True if any unknown producer may have written here or to the deleted partition.
    has_forgotten: bool,
    /// All forgotten producers have smaller ids than this.
    forgotten_below: i64,
    /// The offset of the newest marker of a forgotten producer; -1 if none is known.
    pub(super) forgotten_marker: i64,
}

impl Default for Producers {
    fn default() -> Self {
        Producers::bounded(PRODUCERS_MAX)
    }
}

impl Producers {
    /// Creates a state without producers that remembers at most `limit` of them, which is at least one.
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

    /// Takes over the state of a deleted partition of the same name. A producer must continue from that state with its
    /// first batch here. Clients like librdkafka, for which a refused batch is fatal, can thus go on after a topic was
    /// recreated. Kafka before 4.5 accepts any first sequence instead.
    pub fn succeed(&mut self, predecessor: ProducerTails) {
        self.predecessor = predecessor;
    }

    /// Returns the state taken over from the deleted partition, for producers that have written nothing here yet.
    pub fn predecessor(&self) -> &ProducerTails {
        &self.predecessor
    }

    /// Returns true if the producer has written nothing here and may continue with this batch from the deleted
    /// partition. If its state may be missing and its id is below a known bound, it may continue with any batch.
    pub fn is_carried_on(&self, stamp: &Stamp) -> bool {
        let before = &self.predecessor;
        !self.knows(stamp.producer_id)
            && (before.tail_is_continued_by(stamp) || before.may_lack_that_of(stamp.producer_id))
    }

    /// Returns true if a producer that has written nothing here may have written to a deleted partition of this name.
    pub fn has_predecessor(&self) -> bool {
        !self.predecessor.is_empty()
    }

    /// Notes that any unknown producer may have written to the partition or to its deleted predecessor.
    pub fn note_forgotten(&mut self) {
        self.has_forgotten = true;
    }

    /// Notes that unknown producers with ids below `bound` may have written to the partition or to its deleted
    /// predecessor.
    pub fn note_forgotten_below(&mut self, bound: i64) {
        self.forgotten_below = self.forgotten_below.max(bound);
    }

    /// Takes over the state of the deleted partition from `before`, which is the state before the log was truncated.
    /// Producers that the new state knows are left out. Other producers in `before` have lost their batches here, so
    /// they may continue with any batch.
    pub fn succeed_again(&mut self, before: &Producers) {
        self.predecessor = before.tails_to_keep();
        if before.has_predecessor() {
            before.by_id.keys().for_each(|&producer_id| self.predecessor.may_lack(producer_id));
        }
        self.by_id.keys().for_each(|&producer_id| self.predecessor.forget(producer_id));
    }

    /// Returns the state taken over from the deleted partition, without the producers that have written here. The
    /// result records that the state of forgotten producers may be missing.
    pub(super) fn tails_to_keep(&self) -> ProducerTails {
        let mut tails = self.predecessor.clone();
        tails.may_lack_below(self.forgotten_below);
        tails
    }

    /// Returns the state for the next partition of this name. It has the producers of this partition. If the limit
    /// allows it, it also has those of the deleted partition that have written nothing here.
    pub fn tails(&self) -> ProducerTails {
        let here = self.by_id.iter().map(|(&id, producer)| (id, producer.tail()));
        let tails = self.tails_to_keep().followed_by(here, self.limit);
        if self.has_forgotten { tails.of_unknown() } else { tails }
    }

    /// Decides on a batch without changing anything. Takes O(log window).
    ///
    /// `log_end_offset` is the partition's next offset. If it is 0, the partition was never written. An unknown
    /// producer must then begin at 0, or continue from the deleted partition ([`Producers::succeed`]). Otherwise an
    /// unknown producer may begin anywhere, because its state may have expired or been evicted.
    ///
    /// There is one exception. If the deleted partition's state has the producer in this epoch, the producer must
    /// continue from that state, because it has written nothing here. After [`Producers::note_forgotten`] this is no
    /// longer certain, so the exception does not apply.
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

    /// Notes a batch that is in the log, after a write or while the log is replayed.
    ///
    /// The batch is never refused, because it is in the log already. If it has another epoch, or if sequences are
    /// missing before it, it starts a new series and the remembered batches are dropped. A batch at an offset that was
    /// already noted is ignored, so a replay may begin before the end of the snapshot.
    ///
    /// `timestamp` is repeated in the response to a retry. `window` is the configured number of batches to remember.
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

    /// Removes the producers that have been idle for `expiration_ms` (`producer.id.expiration.ms`). Returns how many
    /// there were.
    pub fn expire(&mut self, now_ms: i64, expiration_ms: i64) -> usize {
        let mut count = 0;
        self.expire_each(now_ms, expiration_ms, |_| count += 1);
        count
    }

    /// Removes idle producers as [`Producers::expire`] does, and calls `forgotten` with the id of each removed
    /// producer.
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

    /// Returns when each producer was last active, in ms.
    pub fn last_active(&self) -> impl Iterator<Item = i64> {
        self.by_id.values().map(|producer| producer.last_active_ms)
    }

    /// Evicts up to `count` producers that have been silent since `since_ms` or longer, beginning with the one that has
    /// been idle the longest. Returns how many there were.
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

    /// Returns all producers. Those that have been idle the longest come first. Producers with an open transaction come
    /// last, in the order of the first offsets of these transactions.
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

    /// Returns, for each producer, the batch from which it continues.
    pub fn last_batches(&self) -> impl Iterator<Item = (i64, LastBatch)> {
        self.by_id.iter().map(|(id, producer)| {
            let newest = producer.window.newest().map(|newest| newest.last_offset());
            let last = newest.or(producer.last_unsequenced).map_or(LastBatch::MarkerOf(producer.epoch), LastBatch::At);
            (*id, last)
        })
    }

    /// Returns the largest window on which a producer may still rely. While a window is about to shrink, this is larger
    /// than the window that was granted last. After a restart, [`Producers::restore`] and the replay need this number.
    pub fn window(&self) -> usize {
        self.by_id.values().map(|producer| producer.window.size()).max().unwrap_or(WINDOW_MIN)
    }

    /// Returns true if the producer is remembered.
    pub fn knows(&self, producer_id: i64) -> bool {
        self.by_id.contains_key(&producer_id)
    }

    /// Returns true if the producer's newest batch is this one, a later one, or one of a later epoch.
    pub fn has_passed(&self, stamp: &Stamp) -> bool {
        let reaches =
            |newest: &BatchMetadata| sequence_distance(stamp.last_sequence(), newest.last_sequence()) < HALF_RANGE;
        let has_passed = |producer: &Producer| {
            producer.epoch > stamp.producer_epoch
                || producer.epoch == stamp.producer_epoch && producer.window.newest().is_some_and(reaches)
        };
        stamp.is_valid() && self.by_id.get(&stamp.producer_id).is_some_and(has_passed)
    }

    /// Returns true if the batch has its producer's epoch and is older than all remembered batches. Either it was
    /// written, or its producer has given it up.
    pub fn is_before_retained(&self, stamp: &Stamp) -> bool {
        let end = sequence_add(stamp.last_sequence(), 1);
        let follows = |oldest: &BatchMetadata| sequence_distance(end, oldest.base_sequence) < HALF_RANGE;
        let is_before = |producer: &Producer| {
            producer.epoch == stamp.producer_epoch && producer.window.oldest().is_some_and(follows)
        };
        stamp.is_valid() && self.by_id.get(&stamp.producer_id).is_some_and(is_before)
    }

    /// Returns true if the state has a batch or marker of the producer at this offset or later.
    pub fn has_reached(&self, producer_id: i64, offset: i64) -> bool {
        let last = |producer: &Producer| {
            let newest = producer.window.newest().map(|newest| newest.last_offset());
            newest.into_iter().chain(producer.last_unsequenced).chain(producer.open_from).max()
        };
        self.by_id.get(&producer_id).and_then(last).is_some_and(|last| offset <= last)
    }

    /// Returns true if a producer's state may depend on records at these offsets. The state depends on the remembered
    /// batches, the last marker, and the first batch of an open transaction.
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

    /// Returns how many producers the limit has evicted since the start. If it is not 0, retries of these producers may
    /// have been appended a second time, and the limit is too low for this partition.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Starts a new series of consecutive sequences, which may be in a new epoch. A new epoch keeps the open
    /// transaction and the coordinator epoch of the last marker.
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

    /// Returns the state of a producer, and creates it if the producer is unknown. Afterwards the caller must call
    /// [`Producers::touch`].
    pub(super) fn known_or_new(&mut self, producer_id: i64) -> &mut Producer {
        if !self.by_id.contains_key(&producer_id) {
            self.remembered += 1;
        }
        // The keys of `idle` begin with 1, so `turn: 0` means that a new producer is not in `idle`.
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

    /// Makes a producer the most recently active one. A producer with an open transaction is removed from `idle`
    /// instead.
    pub(super) fn touch(&mut self, producer_id: i64, now_ms: i64) {
        let producer = self.by_id.get_mut(&producer_id).expect("the producer has just been written");
        producer.last_active_ms = now_ms;
        // In the common case, the producer that appended last appends again, so the order stays the same.
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

    /// Evicts producers above the limit, beginning with the one that has been idle the longest. Producers with an open
    /// transaction stay.
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
