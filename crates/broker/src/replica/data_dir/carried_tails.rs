//! Remembers the last sequences of the producers of deleted partitions (their *tails*, [`ProducerTails`]), for the next
//! partitions of the same names.
//!
//! If a topic is deleted and recreated while a client produces, the client continues its sequence. An empty partition
//! would refuse that sequence, because it must assume that earlier batches will still arrive. The tails contain the
//! sequence with which each producer continues. This broker has no tails if it had no replica of the deleted partition,
//! or an outdated one. In that case a producer may begin with any sequence if its id was allocated before the new topic
//! was created. Kafka allows that for all producers.
//!
//! The tails of a deleted diskless partition are stored here only for a classic partition that may get its name. A
//! diskless partition reads the tails of its predecessor from the index. This module passes the tails of classic
//! predecessors to the index.
//!
//! The tails are only in memory. A new partition that inherits tails creates its directory at once and writes them to
//! its first producer snapshot (`Replica::keep_tails`). After a restart only the metadata still lists the deleted
//! topics ([`PastTopic`]). The producers of such a topic may begin with any sequence, unless this process has the
//! topic's tails or has followed its deletion.
//!
//! Invariant: all entries together use at most [`BYTES_MAX`] of memory. To free memory, the tails of the oldest
//! deletion are dropped first, and later also the partition's name. For topics deleted after `complete_since`, this
//! process has the tails of every partition that a producer has written to.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

use fullbore_rules::sequence::{PastTopic, ProducerTails};
use fullbore_wire::Uuid;
use parking_lot::Mutex;

use super::checkpoints::TopicPartition;

/// Maximum estimated size of all producer tails, in bytes. This is enough for 150,000 producers of a few partitions,
/// for 20,000 partitions with a few producers each, or for the names of 14,000 partitions.
const BYTES_MAX: usize = 8 << 20;
/// Estimated memory for a partition without its producers, in bytes. The estimate also includes twice the length of the
/// topic's name.
const OF_PARTITION: usize = 256;
/// Estimated memory for each slot in the map of a partition's tails, in bytes. Includes empty slots.
const OF_PRODUCER: usize = 48;

/// The producer tails of deleted partitions.
#[derive(Debug)]
pub struct CarriedTails {
    left: Mutex<DeletedStops>,
    /// An upper bound: all producer ids that are allocated in the newest image are smaller.
    producer_ids_below: AtomicI64,
}

impl Default for CarriedTails {
    fn default() -> Self {
        CarriedTails { left: Mutex::default(), producer_ids_below: AtomicI64::new(i64::MAX) }
    }
}

#[derive(Debug, Default)]
struct DeletedStops {
    /// The entries in the order of the deletions, oldest first.
    by_age: BTreeMap<u64, LeftTails>,
    by_key: HashMap<TopicPartition, u64>,
    deleted: u64,
    /// The version of the newest image.
    epoch: u64,
    /// The metadata version since which this process has seen every deletion and has not forgotten the name of any
    /// deleted partition.
    complete_since: u64,
    bytes: usize,
    /// Entries of `by_age` with keys below this one contain only their names, because their tails were dropped.
    shortened_below: u64,
    /// The size in bytes of the entries that contain only their names. At most about half of [`BYTES_MAX`].
    name_bytes: usize,
}

#[derive(Debug)]
struct LeftTails {
    key: TopicPartition,
    /// The id of the deleted topic.
    topic_id: Uuid,
    tails: ProducerTails,
    /// The version of the image in which this process has seen the deletion.
    deleted_at: u64,
    /// True if the index of diskless topics also contains these tails.
    are_indexed: bool,
}

impl CarriedTails {
    /// Stores the last sequences of the producers (*tails*) of a classic partition that was deleted in the image of
    /// version `deleted_at`. Does nothing if there already are tails of a later partition with the same name, because a
    /// partition may be retired long after its deletion.
    pub fn leave(&self, key: TopicPartition, topic_id: Uuid, tails: ProducerTails, deleted_at: u64) {
        self.put(LeftTails { key, topic_id, tails, deleted_at, are_indexed: false });
    }

    /// Stores the last sequences of the producers of a diskless partition that is deleted in the newest image.
    pub fn leave_indexed(&self, key: TopicPartition, topic_id: Uuid, tails: ProducerTails) {
        self.put(LeftTails { key, topic_id, tails, deleted_at: self.epoch(), are_indexed: true });
    }

    /// Returns the version of the newest image.
    pub fn epoch(&self) -> u64 {
        self.left.lock().epoch
    }

    fn put(&self, of: LeftTails) {
        let LeftTails { key, tails, .. } = &of;
        let mut left = self.left.lock();
        if left.last(key).is_some_and(|last| last.deleted_at > of.deleted_at) {
            return;
        }
        left.take(key);
        if tails.is_empty() {
            return;
        }
        left.bytes += bytes_of(key, tails);
        left.deleted += 1;
        let turn = left.deleted;
        left.by_key.insert(key.clone(), turn);
        left.by_age.insert(turn, of);
        while left.bytes > BYTES_MAX && left.shorten() {}
    }

    /// Removes and returns the last sequences of the producers (*tails*) of the latest deleted partition with this
    /// name. The next partition of that name inherits them. `past` is the latest deleted topic with this name, if the
    /// metadata still lists one. If this process may lack that topic's tails, returns partial tails, which allow
    /// unknown producers to begin with any sequence.
    pub fn take(&self, key: &TopicPartition, past: Option<PastTopic>) -> ProducerTails {
        let mut left = self.left.lock();
        let unknown = past.filter(|past| left.lacks(key, past));
        let taken = left.take(key);
        unknown.map_or(taken, |past| ProducerTails::partial().of_ids_below(past.producer_ids_below))
    }

    /// Returns the tails like [`CarriedTails::take`], but does not remove them. Returns no tails if the deleted
    /// partition was diskless.
    pub fn of_classic(&self, key: &TopicPartition, past: Option<PastTopic>) -> ProducerTails {
        let left = self.left.lock();
        let bound = past.map_or(i64::MAX, |past| past.producer_ids_below);
        if past.is_some_and(|past| !past.is_diskless && left.lacks(key, &past)) {
            return ProducerTails::partial().of_ids_below(bound);
        }
        let last = left.last(key).filter(|last| !last.are_indexed);
        last.map(|last| last.tails.clone().of_ids_below(bound)).unwrap_or_default()
    }

    /// Returns true if this process may lack the producers' last sequences (*tails*) of the latest deleted partition
    /// with this name. `past` is the topic of that partition.
    pub fn lacks(&self, key: &TopicPartition, past: Option<PastTopic>) -> bool {
        past.is_some_and(|past| self.left.lock().lacks(key, &past))
    }

    /// Returns true if there are producer tails of a deleted partition with this name.
    pub fn has(&self, key: &TopicPartition) -> bool {
        self.left.lock().by_key.contains_key(key)
    }

    /// Records the version of the newest image and its next producer id. `is_gap` is true if this process may have
    /// missed deletions before that image.
    pub fn note_image(&self, epoch: u64, next_producer_id: i64, is_gap: bool) {
        self.producer_ids_below.store(next_producer_id, Relaxed);
        let mut left = self.left.lock();
        left.epoch = epoch;
        if is_gap {
            left.complete_since = epoch;
        }
    }

    /// Returns an id that is larger than all producer ids allocated in the newest image. Returns `i64::MAX` before the
    /// first image.
    pub fn producer_ids_below(&self) -> i64 {
        self.producer_ids_below.load(Relaxed)
    }
}

impl DeletedStops {
    /// Frees memory: drops the producers' last sequences (*tails*) of the oldest entry that still has some. The entry
    /// keeps its name, so that earlier producers may begin with any sequence in the next partition of that name.
    /// Removes the oldest entry completely if no entry has tails, or if the names alone use more than half of
    /// [`BYTES_MAX`]. Returns false if no entry remains.
    fn shorten(&mut self) -> bool {
        if self.name_bytes <= BYTES_MAX / 2
            && let Some((turn, eldest)) = self.by_age.range_mut(self.shortened_below..).next()
        {
            self.bytes -= bytes_of(&eldest.key, &eldest.tails);
            eldest.tails = ProducerTails::partial();
            let left = bytes_of(&eldest.key, &eldest.tails);
            (self.bytes, self.name_bytes) = (self.bytes + left, self.name_bytes + left);
            self.shortened_below = turn + 1;
            return true;
        }
        let eldest = self.by_age.first_key_value().map(|(_, eldest)| eldest.key.clone());
        eldest.is_some_and(|eldest| {
            self.take(&eldest);
            self.complete_since = self.epoch;
            true
        })
    }

    fn last(&self, key: &TopicPartition) -> Option<&LeftTails> {
        self.by_age.get(self.by_key.get(key)?)
    }

    fn lacks(&self, key: &TopicPartition, past: &PastTopic) -> bool {
        past.deleted_at <= self.complete_since && self.last(key).is_none_or(|last| last.topic_id != past.id)
    }

    fn take(&mut self, key: &TopicPartition) -> ProducerTails {
        let found = self.by_key.remove(key).and_then(|turn| Some((turn, self.by_age.remove(&turn)?)));
        let Some((turn, LeftTails { key, tails, .. })) = found else { return ProducerTails::default() };
        let bytes = bytes_of(&key, &tails);
        self.bytes -= bytes;
        if turn < self.shortened_below {
            self.name_bytes -= bytes;
        }
        tails
    }
}

fn bytes_of((topic, _): &TopicPartition, tails: &ProducerTails) -> usize {
    OF_PARTITION + 2 * topic.len() + OF_PRODUCER * tails.capacity()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_rules::sequence::{Producers, Stamp};

    const ID: Uuid = Uuid([1; 16]);

    fn tails(count: i64) -> ProducerTails {
        let mut producers = Producers::default();
        for producer_id in 0..count {
            let stamp = Stamp { producer_id, producer_epoch: 0, base_sequence: 0, record_count: 7 };
            producers.append(&stamp, producer_id * 7, 0, 0, 5);
        }
        producers.tails()
    }

    #[test]
    fn tails_of_a_deleted_partition_are_taken_once_by_the_next_of_its_name() {
        let carried_tails = CarriedTails::default();
        let key = ("t".to_owned(), 0);
        carried_tails.leave(key.clone(), ID, tails(3), 0);
        assert!(carried_tails.take(&("t".to_owned(), 1), None).is_empty());
        assert_eq!(carried_tails.take(&key, None), tails(3));
        assert!(carried_tails.take(&key, None).is_empty());
        assert_eq!(carried_tails.left.lock().bytes, 0);
    }

    #[test]
    fn tails_of_a_classic_partition_stay_for_a_diskless_one_and_indexed_tails_do_not() {
        let carried_tails = CarriedTails::default();
        let key = ("t".to_owned(), 0);
        carried_tails.leave(key.clone(), ID, tails(3), 0);
        assert_eq!([carried_tails.of_classic(&key, None), carried_tails.of_classic(&key, None)], [tails(3), tails(3)]);
        carried_tails.leave_indexed(key.clone(), ID, tails(4));
        assert!(carried_tails.of_classic(&key, None).is_empty());
        assert_eq!(carried_tails.take(&key, None), tails(4), "a classic one takes either");
    }

    fn past(id: Uuid, deleted_at: u64, is_diskless: bool) -> Option<PastTopic> {
        Some(PastTopic { id, partitions: 1, is_diskless, deleted_at, producer_ids_below: 5 })
    }

    #[test]
    fn deletion_before_the_start_lets_older_producers_begin_anywhere() {
        let carried_tails = CarriedTails::default();
        carried_tails.note_image(7, 9, true);
        let key = ("t".to_owned(), 0);
        assert!(carried_tails.take(&key, None).is_empty(), "no topic had the name");
        assert!(carried_tails.take(&key, past(ID, 8, false)).is_empty(), "no producer wrote, as far as was followed");
        assert!(carried_tails.lacks(&key, past(ID, 7, false)));
        assert_eq!(carried_tails.take(&key, past(ID, 7, false)), ProducerTails::partial().of_ids_below(5));
        let of_classic = [false, true].map(|is_diskless| carried_tails.of_classic(&key, past(ID, 7, is_diskless)));
        assert_eq!(
            of_classic,
            [ProducerTails::partial().of_ids_below(5), ProducerTails::default()],
            "the index has those of a diskless one"
        );
        carried_tails.leave(key.clone(), ID, tails(3), 0);
        assert_eq!(
            carried_tails.of_classic(&key, past(ID, 7, false)),
            tails(3),
            "its directory waited for its removal"
        );
        assert_eq!(carried_tails.take(&key, past(ID, 7, false)), tails(3));
    }

    #[test]
    fn partition_retired_after_a_later_one_of_its_name_keeps_the_later_tails() {
        let carried_tails = CarriedTails::default();
        carried_tails.note_image(1, 9, true);
        let (key, later) = (("t".to_owned(), 0), Uuid([2; 16]));
        carried_tails.leave(key.clone(), later, ProducerTails::partial(), 3);
        carried_tails.leave(key.clone(), ID, tails(3), 2);
        assert_eq!(carried_tails.take(&key, past(later, 3, false)), ProducerTails::partial());
        carried_tails.leave(key.clone(), ID, tails(3), 2);
        carried_tails.leave(key.clone(), later, tails(4), 3);
        assert_eq!(carried_tails.take(&key, past(later, 3, false)), tails(4));
    }

    #[test]
    fn unfollowed_topic_of_the_name_invalidates_the_tails_before_it() {
        let carried_tails = CarriedTails::default();
        carried_tails.note_image(1, 9, true);
        carried_tails.note_image(4, 9, true);
        let key = ("t".to_owned(), 0);
        carried_tails.leave(key.clone(), ID, tails(3), 0);
        let missed = past(Uuid([2; 16]), 4, false);
        assert_eq!(carried_tails.of_classic(&key, missed), ProducerTails::partial().of_ids_below(5));
        assert_eq!(carried_tails.take(&key, missed), ProducerTails::partial().of_ids_below(5));
        assert!(!carried_tails.has(&key), "they are taken all the same");
    }

    #[test]
    fn forgotten_names_make_all_earlier_deletions_unknown() {
        let carried_tails = CarriedTails::default();
        carried_tails.note_image(1, 9, true);
        carried_tails.note_image(9, 9, false);
        let key = ("unwritten".to_owned(), 0);
        assert!(!carried_tails.lacks(&key, past(ID, 9, false)));
        (0..100_000).for_each(|n| carried_tails.leave(("t".repeat(200), n), ID, ProducerTails::partial(), 0));
        assert!(carried_tails.lacks(&key, past(ID, 9, false)) && !carried_tails.lacks(&key, past(ID, 10, false)));
    }

    /// A thousand partitions with two hundred producers each are deleted. Their tails exceed [`BYTES_MAX`], so the
    /// tails of the oldest partitions are dropped.
    #[test]
    fn tails_over_the_budget_let_producers_of_the_oldest_partitions_begin_anywhere() {
        let carried_tails = CarriedTails::default();
        (0..1_000).for_each(|n| carried_tails.leave(("t".to_owned(), n), ID, tails(200), 0));
        let taken: Vec<_> = (0..1_000).map(|n| carried_tails.take(&("t".to_owned(), n), None)).collect();
        let of_some = taken.iter().filter(|taken| **taken == ProducerTails::partial()).count();
        let of_all = taken.iter().filter(|taken| **taken == tails(200)).count();
        assert!((100..900).contains(&of_some), "{of_some}");
        assert_eq!(of_some + of_all, 1_000);
        let left = carried_tails.left.lock();
        assert_eq!((left.bytes, left.name_bytes), (0, 0));
    }

    #[test]
    fn endless_deletions_take_bounded_memory_and_keep_the_last_topics() {
        let carried_tails = CarriedTails::default();
        for n in 0..100_000 {
            carried_tails.leave(("t".repeat(200), n), ID, tails(1), 0);
        }
        for n in 0..100 {
            carried_tails.leave(("many".to_owned(), n), ID, tails(10_000), 0);
        }
        let left = carried_tails.left.lock();
        assert!(left.bytes <= BYTES_MAX && left.by_age.len() == left.by_key.len());
        let names = left.by_age.range(..left.shortened_below).map(|(_, of)| bytes_of(&of.key, &of.tails));
        assert_eq!(left.name_bytes, names.sum::<usize>());
        drop(left);
        assert_eq!(carried_tails.take(&("many".to_owned(), 99), None).len(), 10_000);
        assert_eq!(
            carried_tails.take(&("many".to_owned(), 0), None),
            ProducerTails::partial(),
            "its producers may go on anywhere"
        );
    }
}
