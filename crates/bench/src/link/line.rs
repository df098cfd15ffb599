//! The two parts of a simulated distance. A relay uses them for bytes, and a link between namespaces for packets. A
//! delay line holds items, in order, until they are due. A bottleneck computes when the last byte of an item has left.
//!
//! Times are in nanoseconds since an arbitrary start. Invariant: items leave the line in order, and none before it is
//! due.

use std::collections::VecDeque;
use std::time::Duration;

const NS_PER_SEC: u128 = 1_000_000_000;

/// The items in transit, oldest first.
pub struct DelayLine<T> {
    waiting: VecDeque<Delayed<T>>,
    bytes: usize,
    last_due_ns: u64,
}

struct Delayed<T> {
    due_ns: u64,
    bytes: usize,
    item: T,
}

impl<T> Default for DelayLine<T> {
    fn default() -> Self {
        DelayLine { waiting: VecDeque::new(), bytes: 0, last_due_ns: 0 }
    }
}

impl<T> DelayLine<T> {
    /// Adds an item at the end. It leaves the line at `due_ns`, or later if an earlier item is due later.
    pub fn push(&mut self, due_ns: u64, bytes: usize, item: T) {
        self.last_due_ns = self.last_due_ns.max(due_ns);
        self.waiting.push_back(Delayed { due_ns: self.last_due_ns, bytes, item });
        self.bytes += bytes;
    }

    /// Returns the oldest item if it is due.
    pub fn pop(&mut self, now_ns: u64) -> Option<T> {
        if self.waiting.front()?.due_ns > now_ns {
            return None;
        }
        let oldest = self.waiting.pop_front()?;
        self.bytes -= oldest.bytes;
        Some(oldest.item)
    }

    /// Returns the time at which the oldest item is due, or `None` if nothing is in transit.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.waiting.front().map(|oldest| oldest.due_ns)
    }

    /// Returns how many bytes are in transit.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how many items are in transit.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if nothing is in transit.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// The limited rate of a link. Bytes are sent one after another, and later bytes wait in a queue.
#[derive(Debug, Clone, Copy)]
pub struct Bottleneck {
    bytes_per_sec: Option<u64>,
    free_at_ns: u64,
}

impl Bottleneck {
    /// Creates a bottleneck of `bytes_per_sec`. `None` means no limit.
    pub fn new(bytes_per_sec: Option<u64>) -> Self {
        Bottleneck { bytes_per_sec: bytes_per_sec.map(|rate| rate.max(1)), free_at_ns: 0 }
    }

    /// Queues `bytes` bytes. Returns the time at which the last of them will have been sent.
    pub fn send(&mut self, now_ns: u64, bytes: usize) -> u64 {
        let Some(rate) = self.bytes_per_sec else { return now_ns };
        let took_ns = (bytes as u128 * NS_PER_SEC).div_ceil(u128::from(rate)) as u64;
        self.free_at_ns = self.free_at_ns.max(now_ns) + took_ns;
        self.free_at_ns
    }

    /// Returns how many bytes are queued and not sent yet.
    pub fn queued_bytes(&self, now_ns: u64) -> u64 {
        let Some(rate) = self.bytes_per_sec else { return 0 };
        let left_ns = self.free_at_ns.saturating_sub(now_ns);
        (u128::from(left_ns) * u128::from(rate) / NS_PER_SEC) as u64
    }

    /// Returns the time from which on no more than `buffer_bytes` are queued.
    pub fn room_at_ns(&self, buffer_bytes: u64) -> u64 {
        let Some(rate) = self.bytes_per_sec else { return 0 };
        let buffer_ns = (u128::from(buffer_bytes) * NS_PER_SEC / u128::from(rate)).min(u128::from(u64::MAX)) as u64;
        self.free_at_ns.saturating_sub(buffer_ns)
    }
}

/// A simple generator of random numbers (splitmix64). The same seed yields the same numbers.
pub struct Chance(u64);

impl Chance {
    /// Creates the generator from a seed.
    pub fn new(seed: u64) -> Self {
        Chance(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns true with the given probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// Returns a random number of nanoseconds up to `most`.
    pub fn up_to(&mut self, most: Duration) -> u64 {
        let most_ns = most.as_nanos() as u64;
        if most_ns == 0 { 0 } else { self.next() % (most_ns + 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_leaves_before_it_is_due() {
        let mut line = DelayLine::default();
        line.push(100, 3, 'a');
        assert_eq!((line.pop(99), line.next_due_ns(), line.bytes()), (None, Some(100), 3));
        assert_eq!((line.pop(100), line.bytes(), line.is_empty()), (Some('a'), 0, true));
    }

    #[test]
    fn a_bottleneck_sends_one_after_the_other() {
        let mut bottleneck = Bottleneck::new(Some(1_000));
        assert_eq!(bottleneck.send(0, 500), 500_000_000);
        assert_eq!(bottleneck.send(0, 500), 1_000_000_000);
        assert_eq!((bottleneck.queued_bytes(0), bottleneck.queued_bytes(250_000_000)), (1_000, 750));
        assert_eq!((bottleneck.room_at_ns(750), bottleneck.room_at_ns(5_000)), (250_000_000, 0));
        // An idle link does not save up bandwidth for later.
        assert_eq!(bottleneck.send(5_000_000_000, 1), 5_001_000_000);
    }

    #[test]
    fn without_a_rate_nothing_queues() {
        let mut free = Bottleneck::new(None);
        assert_eq!((free.send(7, 1 << 40), free.queued_bytes(7), free.room_at_ns(0)), (7, 0, 0));
    }

    #[test]
    fn chances_follow_their_probability() {
        let mut chance = Chance::new(1);
        let happened = (0..100_000).filter(|_| chance.happens(0.1)).count();
        assert!((9_500..10_500).contains(&happened), "{happened}");
        assert!((0..1_000).all(|_| !chance.happens(0.0)));
        let most = Duration::from_nanos(10);
        let extras: std::collections::BTreeSet<u64> = (0..1_000).map(|_| chance.up_to(most)).collect();
        assert_eq!(extras, (0..=10).collect());
    }

    proptest! {
        #[test]
        fn order_is_kept_whatever_the_delays(pushes in prop::collection::vec((0u64..1_000, 0usize..100), 0..200)) {
            let mut line = DelayLine::default();
            for (number, (due, bytes)) in pushes.iter().enumerate() {
                line.push(*due, *bytes, number);
            }
            prop_assert_eq!(line.bytes(), pushes.iter().map(|(_, bytes)| bytes).sum::<usize>());
            let mut out = Vec::new();
            for now in 0..1_000 {
                while let Some(number) = line.pop(now) {
                    prop_assert!(pushes[number].0 <= now);
                    out.push(number);
                }
            }
            prop_assert_eq!(out, (0..pushes.len()).collect::<Vec<_>>());
            prop_assert_eq!(line.bytes(), 0);
        }

        #[test]
        fn a_bottleneck_never_exceeds_its_rate(
            rate in 1u64..1_000_000_000,
            sends in prop::collection::vec((0u64..1_000_000, 1usize..100_000), 1..100),
        ) {
            let mut bottleneck = Bottleneck::new(Some(rate));
            let (mut now, mut bytes, mut left) = (0, 0u128, 0);
            for (pause, size) in sends {
                now += pause;
                bytes += size as u128;
                left = bottleneck.send(now, size);
                prop_assert!(left >= now);
            }
            prop_assert!(u128::from(left) * u128::from(rate) >= bytes * 1_000_000_000);
        }
    }
}
