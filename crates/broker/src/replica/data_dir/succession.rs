//! Stops of producers on deleted partitions, for the next partition of the same name.
//!
//! A client whose topic is deleted and made again while it produces goes on with the sequence that it has come to. On a
//! partition that was never written that would be refused, since it may have overtaken others; here it is known which
//! one is next, and which may be sent again. Where the deleted one was on other brokers, or this one was behind, any
//! sequence of a producer is taken whose id was given out before the new topic was made, as Kafka does of all
//! producers.
//!
//! Diskless topics are among them. The index has the stops on deleted diskless partitions for the next diskless one of
//! the name, and gets those on classic partitions from here.
//!
//! In memory only: the new partition's folder is made for the stops at once, and its first producer snapshot has them
//! (`Replica::keep_stops`). After a restart the metadata shows which partitions there were ([`PastTopic`]). Where a
//! deletion was not followed by this process, the producers of that topic go on with any sequence, unless stops of the
//! same topic are here.
//!
//! Invariant: never more than [`BYTES_MAX`]; what was deleted longest ago is forgotten first, its producers before its
//! name. Stops of topics deleted after `complete_since` are here, but for partitions that no producer has written to.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

use fullbore_rules::sequence::{PastTopic, Stops};
use fullbore_wire::Uuid;
use parking_lot::Mutex;

use super::checkpoints::TopicPartition;

/// Memory for all of it, as far as it is counted: 150,000 producers of a few partitions, 20,000 partitions of a few
/// producers, the names of 14,000.
const BYTES_MAX: usize = 8 << 20;
/// Bytes that a partition takes, besides its name twice, and that a producer takes in a map that is half full.
const OF_PARTITION: usize = 256;
const OF_PRODUCER: usize = 48;

/// Stops on deleted partitions.
#[derive(Debug)]
pub struct Succession {
    left: Mutex<DeletedStops>,
    /// Producer ids below this one were given out, as far as the newest image shows.
    producer_ids_below: AtomicI64,
}

impl Default for Succession {
    fn default() -> Self {
        Succession { left: Mutex::default(), producer_ids_below: AtomicI64::new(i64::MAX) }
    }
}

#[derive(Debug, Default)]
struct DeletedStops {
    /// By when they were deleted, the longest ago first.
    by_age: BTreeMap<u64, LeftStops>,
    by_key: HashMap<TopicPartition, u64>,
    deleted: u64,
    /// Version of the newest image.
    epoch: u64,
    /// Version of the metadata after which this process has followed every deletion, and has forgotten none.
    complete_since: u64,
    bytes: usize,
    /// End of the turns whose partitions have left their names alone.
    shortened_below: u64,
    /// Bytes of those, at most half of all.
    name_bytes: usize,
}

#[derive(Debug)]
struct LeftStops {
    key: TopicPartition,
    /// Id of the deleted topic.
    topic_id: Uuid,
    stops: Stops,
    /// Version of the image in which this process followed the deletion.
    deleted_at: u64,
    /// True if the index of diskless topics has them as well.
    are_indexed: bool,
}

impl Succession {
    /// Notes the stops on a classic partition that was deleted in the image of version `deleted_at`. They are dropped
    /// if those of a later partition of its name are here: a partition may be retired long after its deletion.
    pub fn leave(&self, key: TopicPartition, topic_id: Uuid, stops: Stops, deleted_at: u64) {
        self.put(LeftStops { key, topic_id, stops, deleted_at, are_indexed: false });
    }

    /// Notes the stops on a diskless partition that is deleted in the newest image.
    pub fn leave_indexed(&self, key: TopicPartition, topic_id: Uuid, stops: Stops) {
        self.put(LeftStops { key, topic_id, stops, deleted_at: self.epoch(), are_indexed: true });
    }

    /// Returns the version of the newest image.
    pub fn epoch(&self) -> u64 {
        self.left.lock().epoch
    }

    fn put(&self, of: LeftStops) {
        let LeftStops { key, stops, .. } = &of;
        let mut left = self.left.lock();
        if left.last(key).is_some_and(|last| last.deleted_at > of.deleted_at) {
            return;
        }
        left.take(key);
        if stops.is_empty() {
            return;
        }
        left.bytes += bytes_of(key, stops);
        left.deleted += 1;
        let turn = left.deleted;
        left.by_key.insert(key.clone(), turn);
        left.by_age.insert(turn, of);
        while left.bytes > BYTES_MAX && left.shorten() {}
    }

    /// Takes the stops on the last partition of this name, which was that of `past` as the metadata has it, for the
    /// next one.
    pub fn take(&self, key: &TopicPartition, past: Option<PastTopic>) -> Stops {
        let mut left = self.left.lock();
        let unknown = past.filter(|past| left.lacks(key, past));
        let taken = left.take(key);
        unknown.map_or(taken, |past| Stops::partial().of_ids_below(past.producer_ids_below))
    }

    /// Returns the stops on the last partition of this name, which stay for a classic one, unless that was diskless.
    pub fn of_classic(&self, key: &TopicPartition, past: Option<PastTopic>) -> Stops {
        let left = self.left.lock();
        let bound = past.map_or(i64::MAX, |past| past.producer_ids_below);
        if past.is_some_and(|past| !past.is_diskless && left.lacks(key, &past)) {
            return Stops::partial().of_ids_below(bound);
        }
        let last = left.last(key).filter(|last| !last.are_indexed);
        last.map(|last| last.stops.clone().of_ids_below(bound)).unwrap_or_default()
    }

    /// Returns true if producers may have written to the last partition of this name, which was that of `past`, and
    /// their stops are not here.
    pub fn lacks(&self, key: &TopicPartition, past: Option<PastTopic>) -> bool {
        past.is_some_and(|past| self.left.lock().lacks(key, &past))
    }

    /// Returns true if a partition of this name has left stops.
    pub fn has(&self, key: &TopicPartition) -> bool {
        self.left.lock().by_key.contains_key(key)
    }

    /// Notes the version of the image whose topics follow, and its next producer id. `is_gap` where deletions before it
    /// were not followed.
    pub fn note_image(&self, epoch: u64, next_producer_id: i64, is_gap: bool) {
        self.producer_ids_below.store(next_producer_id, Relaxed);
        let mut left = self.left.lock();
        left.epoch = epoch;
        if is_gap {
            left.complete_since = epoch;
        }
    }

    /// Returns a bound of the producer ids that were given out before a partition that is new in the newest image.
    pub fn producer_ids_below(&self) -> i64 {
        self.producer_ids_below.load(Relaxed)
    }
}

impl DeletedStops {
    /// Forgets the stops of the partition deleted longest ago, of which the name stays: its producers may go on
    /// anywhere. Then names, the eldest first. Returns false if nothing is left.
    fn shorten(&mut self) -> bool {
        if self.name_bytes <= BYTES_MAX / 2
            && let Some((turn, eldest)) = self.by_age.range_mut(self.shortened_below..).next()
        {
            self.bytes -= bytes_of(&eldest.key, &eldest.stops);
            eldest.stops = Stops::partial();
            let left = bytes_of(&eldest.key, &eldest.stops);
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

    fn last(&self, key: &TopicPartition) -> Option<&LeftStops> {
        self.by_age.get(self.by_key.get(key)?)
    }

    fn lacks(&self, key: &TopicPartition, past: &PastTopic) -> bool {
        past.deleted_at <= self.complete_since && self.last(key).is_none_or(|last| last.topic_id != past.id)
    }

    fn take(&mut self, key: &TopicPartition) -> Stops {
        let found = self.by_key.remove(key).and_then(|turn| Some((turn, self.by_age.remove(&turn)?)));
        let Some((turn, LeftStops { key, stops, .. })) = found else { return Stops::default() };
        let bytes = bytes_of(&key, &stops);
        self.bytes -= bytes;
        if turn < self.shortened_below {
            self.name_bytes -= bytes;
        }
        stops
    }
}

fn bytes_of((topic, _): &TopicPartition, stops: &Stops) -> usize {
    OF_PARTITION + 2 * topic.len() + OF_PRODUCER * stops.capacity()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_rules::sequence::{Producers, Stamp};

    const ID: Uuid = Uuid([1; 16]);

    fn stops(count: i64) -> Stops {
        let mut producers = Producers::default();
        for producer_id in 0..count {
            let stamp = Stamp { producer_id, producer_epoch: 0, base_sequence: 0, record_count: 7 };
            producers.append(&stamp, producer_id * 7, 0, 0, 5);
        }
        producers.stops()
    }

    #[test]
    fn what_a_partition_leaves_is_there_for_the_next_one_of_its_name_once() {
        let succession = Succession::default();
        let key = ("t".to_owned(), 0);
        succession.leave(key.clone(), ID, stops(3), 0);
        assert!(succession.take(&("t".to_owned(), 1), None).is_empty());
        assert_eq!(succession.take(&key, None), stops(3));
        assert!(succession.take(&key, None).is_empty());
        assert_eq!(succession.left.lock().bytes, 0);
    }

    #[test]
    fn stops_of_a_classic_partition_are_left_for_a_diskless_one_and_those_of_a_diskless_one_are_not() {
        let succession = Succession::default();
        let key = ("t".to_owned(), 0);
        succession.leave(key.clone(), ID, stops(3), 0);
        assert_eq!([succession.of_classic(&key, None), succession.of_classic(&key, None)], [stops(3), stops(3)]);
        succession.leave_indexed(key.clone(), ID, stops(4));
        assert!(succession.of_classic(&key, None).is_empty());
        assert_eq!(succession.take(&key, None), stops(4), "a classic one takes either");
    }

    fn past(id: Uuid, deleted_at: u64, is_diskless: bool) -> Option<PastTopic> {
        Some(PastTopic { id, partitions: 1, is_diskless, deleted_at, producer_ids_below: 5 })
    }

    #[test]
    fn deletion_before_the_start_left_nothing_producers_of_then_may_go_on_anywhere() {
        let succession = Succession::default();
        succession.note_image(7, 9, true);
        let key = ("t".to_owned(), 0);
        assert!(succession.take(&key, None).is_empty(), "no topic had the name");
        assert!(succession.take(&key, past(ID, 8, false)).is_empty(), "no producer wrote, as far as was followed");
        assert!(succession.lacks(&key, past(ID, 7, false)));
        assert_eq!(succession.take(&key, past(ID, 7, false)), Stops::partial().of_ids_below(5));
        let of_classic = [false, true].map(|is_diskless| succession.of_classic(&key, past(ID, 7, is_diskless)));
        assert_eq!(
            of_classic,
            [Stops::partial().of_ids_below(5), Stops::default()],
            "the index has those of a diskless one"
        );
        succession.leave(key.clone(), ID, stops(3), 0);
        assert_eq!(succession.of_classic(&key, past(ID, 7, false)), stops(3), "its folder waited for its removal");
        assert_eq!(succession.take(&key, past(ID, 7, false)), stops(3));
    }

    #[test]
    fn partition_retires_after_a_later_one_of_its_name_stops_of_the_later_one_stay() {
        let succession = Succession::default();
        succession.note_image(1, 9, true);
        let (key, later) = (("t".to_owned(), 0), Uuid([2; 16]));
        succession.leave(key.clone(), later, Stops::partial(), 3);
        succession.leave(key.clone(), ID, stops(3), 2);
        assert_eq!(succession.take(&key, past(later, 3, false)), Stops::partial());
        succession.leave(key.clone(), ID, stops(3), 2);
        succession.leave(key.clone(), later, stops(4), 3);
        assert_eq!(succession.take(&key, past(later, 3, false)), stops(4));
    }

    #[test]
    fn topic_came_and_went_unseen_stops_of_the_one_before_it_count_no_more() {
        let succession = Succession::default();
        succession.note_image(1, 9, true);
        succession.note_image(4, 9, true);
        let key = ("t".to_owned(), 0);
        succession.leave(key.clone(), ID, stops(3), 0);
        let missed = past(Uuid([2; 16]), 4, false);
        assert_eq!(succession.of_classic(&key, missed), Stops::partial().of_ids_below(5));
        assert_eq!(succession.take(&key, missed), Stops::partial().of_ids_below(5));
        assert!(!succession.has(&key), "they are taken all the same");
    }

    #[test]
    fn names_are_forgotten_what_was_deleted_until_then_is_unknown() {
        let succession = Succession::default();
        succession.note_image(1, 9, true);
        succession.note_image(9, 9, false);
        let key = ("unwritten".to_owned(), 0);
        assert!(!succession.lacks(&key, past(ID, 9, false)));
        (0..100_000).for_each(|n| succession.leave(("t".repeat(200), n), ID, Stops::partial(), 0));
        assert!(succession.lacks(&key, past(ID, 9, false)) && !succession.lacks(&key, past(ID, 10, false)));
    }

    /// Two hundred producers of each of a thousand partitions.
    #[test]
    fn more_producers_than_there_is_room_for_those_of_the_eldest_partitions_may_go_on_anywhere() {
        let succession = Succession::default();
        (0..1_000).for_each(|n| succession.leave(("t".to_owned(), n), ID, stops(200), 0));
        let taken: Vec<_> = (0..1_000).map(|n| succession.take(&("t".to_owned(), n), None)).collect();
        let of_some = taken.iter().filter(|taken| **taken == Stops::partial()).count();
        let of_all = taken.iter().filter(|taken| **taken == stops(200)).count();
        assert!((100..900).contains(&of_some), "{of_some}");
        assert_eq!(of_some + of_all, 1_000);
        let left = succession.left.lock();
        assert_eq!((left.bytes, left.name_bytes), (0, 0));
    }

    #[test]
    fn topics_made_and_deleted_for_ever_take_bounded_memory_and_the_last_ones_are_known() {
        let succession = Succession::default();
        for n in 0..100_000 {
            succession.leave(("t".repeat(200), n), ID, stops(1), 0);
        }
        for n in 0..100 {
            succession.leave(("many".to_owned(), n), ID, stops(10_000), 0);
        }
        let left = succession.left.lock();
        assert!(left.bytes <= BYTES_MAX && left.by_age.len() == left.by_key.len());
        let names = left.by_age.range(..left.shortened_below).map(|(_, of)| bytes_of(&of.key, &of.stops));
        assert_eq!(left.name_bytes, names.sum::<usize>());
        drop(left);
        assert_eq!(succession.take(&("many".to_owned(), 99), None).len(), 10_000);
        assert_eq!(
            succession.take(&("many".to_owned(), 0), None),
            Stops::partial(),
            "its producers may go on anywhere"
        );
    }
}
