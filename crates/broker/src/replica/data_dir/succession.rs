//! Where producers stopped on deleted partitions, for the next partition of the same name.
//!
//! A client whose topic is deleted and made again while it produces goes on with the sequence that it has come to. On a
//! partition that was never written that would be refused, since it may have overtaken others; here it is known which one is
//! next, and which may be sent again. Where the deleted one was on other brokers, or this one was behind, any sequence of a producer is taken whose id was
//! given out before the new topic was made, as Kafka does of all producers.
//!
//! Diskless topics are among them. The index has the stops on deleted diskless partitions for the next diskless one of the name, and gets those
//! on classic partitions from here.
//!
//! In memory only, for a moment: the new partition's folder is made for the stops at once, and its first producer snapshot has them
//! (`Replica::keep_stops`). A restart before that finds the folders of deleted partitions, and so which names had one.
//!
//! Invariant: never more than [`BYTES_MAX`]; what was deleted longest ago is forgotten first, its producers before its name.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

use fullbore_rules::sequence::Stops;
use parking_lot::Mutex;

use super::checkpoints::TopicPartition;

/// Memory for all of it, as far as it is counted: 150,000 producers of a few partitions, 20,000 partitions of a few producers, the names of 14,000.
const BYTES_MAX: usize = 8 << 20;
/// Bytes that a partition takes, besides its name twice, and that a producer takes in a map that is half full.
const OF_PARTITION: usize = 256;
const OF_PRODUCER: usize = 48;

/// What deleted partitions leave behind.
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
    bytes: usize,
    /// End of the turns whose partitions have left their names alone.
    shortened_below: u64,
    /// Bytes of those, at most half of all.
    name_bytes: usize,
}

#[derive(Debug)]
struct LeftStops {
    key: TopicPartition,
    stops: Stops,
    /// True if the index of diskless topics has them as well.
    are_indexed: bool,
}

impl Succession {
    /// A partition is deleted, and this is where its producers stopped.
    pub fn leave(&self, key: TopicPartition, stops: Stops) {
        self.put(LeftStops { key, stops, are_indexed: false });
    }

    /// Notes the same of a diskless partition.
    pub fn leave_indexed(&self, key: TopicPartition, stops: Stops) {
        self.put(LeftStops { key, stops, are_indexed: true });
    }

    fn put(&self, of: LeftStops) {
        let LeftStops { key, stops, .. } = &of;
        let mut left = self.left.lock();
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

    /// Where producers stopped on the last partition of this name; asked once, by the next one.
    pub fn take(&self, key: &TopicPartition) -> Stops {
        self.left.lock().take(key)
    }

    /// Returns the stops on the last partition of this name, which stay for a classic one, unless that was diskless.
    pub fn of_classic(&self, key: &TopicPartition) -> Stops {
        let left = self.left.lock();
        let last = left.by_key.get(key).and_then(|turn| left.by_age.get(turn));
        last.filter(|last| !last.are_indexed).map(|last| last.stops.clone()).unwrap_or_default()
    }

    /// Returns true if a partition of this name has left stops.
    pub fn has(&self, key: &TopicPartition) -> bool {
        self.left.lock().by_key.contains_key(key)
    }

    /// Notes the next producer id of the image whose topics follow.
    pub fn note_producer_ids(&self, next: i64) {
        self.producer_ids_below.store(next, Relaxed);
    }

    /// Returns a bound of the producer ids that were given out before a partition that is new in the newest image.
    pub fn producer_ids_below(&self) -> i64 {
        self.producer_ids_below.load(Relaxed)
    }
}

impl DeletedStops {
    /// Forgets the stops of the partition deleted longest ago, of which the name stays: its producers may go on anywhere. Then names, the eldest
    /// first. Returns false if nothing is left.
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
            true
        })
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
        succession.leave(key.clone(), stops(3));
        assert!(succession.take(&("t".to_owned(), 1)).is_empty());
        assert_eq!(succession.take(&key), stops(3));
        assert!(succession.take(&key).is_empty());
        assert_eq!(succession.left.lock().bytes, 0);
    }

    #[test]
    fn stops_of_a_classic_partition_are_left_for_a_diskless_one_and_those_of_a_diskless_one_are_not() {
        let succession = Succession::default();
        let key = ("t".to_owned(), 0);
        succession.leave(key.clone(), stops(3));
        assert_eq!([succession.of_classic(&key), succession.of_classic(&key)], [stops(3), stops(3)]);
        succession.leave_indexed(key.clone(), stops(4));
        assert!(succession.of_classic(&key).is_empty());
        assert_eq!(succession.take(&key), stops(4), "a classic one takes either");
    }

    /// Two hundred producers of each of a thousand partitions.
    #[test]
    fn more_producers_than_there_is_room_for_those_of_the_eldest_partitions_may_go_on_anywhere() {
        let succession = Succession::default();
        (0..1_000).for_each(|n| succession.leave(("t".to_owned(), n), stops(200)));
        let taken: Vec<_> = (0..1_000).map(|n| succession.take(&("t".to_owned(), n))).collect();
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
            succession.leave(("t".repeat(200), n), stops(1));
        }
        for n in 0..100 {
            succession.leave(("many".to_owned(), n), stops(10_000));
        }
        let left = succession.left.lock();
        assert!(left.bytes <= BYTES_MAX && left.by_age.len() == left.by_key.len());
        let names = left.by_age.range(..left.shortened_below).map(|(_, of)| bytes_of(&of.key, &of.stops));
        assert_eq!(left.name_bytes, names.sum::<usize>());
        drop(left);
        assert_eq!(succession.take(&("many".to_owned(), 99)).len(), 10_000);
        assert_eq!(succession.take(&("many".to_owned(), 0)), Stops::partial(), "its producers may go on anywhere");
    }
}
