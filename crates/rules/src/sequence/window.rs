//! The last batches of a producer, which are remembered to recognise retries.
//!
//! [`Producers`](super::Producers) makes the decisions.
//!
//! Invariant: the batches have consecutive sequences and the oldest comes first. They span at most half of the sequence
//! range, so a sequence is in at most one of them.

use std::collections::VecDeque;

use super::{HALF_RANGE, Stamp, sequence_add, sequence_distance};

/// Minimum number of batches that a window remembers. All idempotent clients expect that the broker remembers five.
pub const WINDOW_MIN: usize = 5;

/// Maximum number of batches that a window remembers, whatever is configured. They take 240 kB per producer.
pub const WINDOW_MAX: usize = 10_000;

/// An appended batch, in 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchMetadata {
    pub base_offset: i64,
    pub timestamp: i64,
    pub base_sequence: i32,
    pub record_count: i32,
}

impl BatchMetadata {
    pub fn last_sequence(&self) -> i32 {
        sequence_add(self.base_sequence, self.record_count - 1)
    }

    pub fn last_offset(&self) -> i64 {
        self.base_offset.saturating_add(i64::from(self.record_count) - 1)
    }
}

#[derive(Clone, Debug)]
pub(super) struct SequenceWindow {
    batches: VecDeque<BatchMetadata>,
    /// How many batches may be remembered now. This is at least the number that the producer may rely on.
    size: usize,
    /// The size that was configured at the last append. It is below `size` while the window is about to shrink.
    configured: usize,
    /// How many appends there were since a smaller size was configured. Used only until the window shrinks.
    overdue: usize,
}

impl SequenceWindow {
    /// Creates the window of a producer that has written nothing in its epoch.
    pub fn empty() -> SequenceWindow {
        SequenceWindow { batches: VecDeque::new(), size: WINDOW_MIN, configured: WINDOW_MIN, overdue: 0 }
    }

    /// Creates a window that has only the batch `first`.
    pub fn of(first: BatchMetadata, size: usize) -> SequenceWindow {
        let mut window = SequenceWindow::empty();
        window.push(first, size);
        window
    }

    pub fn len(&self) -> usize {
        self.batches.len()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &BatchMetadata> {
        self.batches.iter()
    }

    pub fn oldest(&self) -> Option<&BatchMetadata> {
        self.batches.front()
    }

    pub fn newest(&self) -> Option<&BatchMetadata> {
        self.batches.back()
    }

    /// Returns the number of sequences from the first one of the oldest batch to the last one of the newest; 0 if there
    /// are no batches.
    pub fn span(&self) -> u64 {
        match (self.oldest(), self.newest()) {
            (Some(oldest), Some(newest)) => sequence_distance(oldest.base_sequence, newest.last_sequence()) as u64 + 1,
            _ => 0,
        }
    }

    /// Returns the batch with exactly these sequences, if it is remembered. Takes O(log n).
    pub fn find(&self, stamp: &Stamp) -> Option<&BatchMetadata> {
        let origin = self.oldest()?.base_sequence;
        let place = |sequence| sequence_distance(origin, sequence);
        let wanted = place(stamp.base_sequence);
        let index = self.batches.partition_point(|batch| place(batch.base_sequence) < wanted);
        let found = self.batches.get(index)?;
        let same = found.base_sequence == stamp.base_sequence && found.record_count == stamp.record_count;
        same.then_some(found)
    }

    /// Adds the batch after the newest one, and removes the oldest ones beyond the size. `configured` is the number of
    /// batches to remember.
    pub fn push(&mut self, batch: BatchMetadata, configured: usize) {
        self.resize(configured.clamp(WINDOW_MIN, WINDOW_MAX));
        while self.batches.len() >= self.size || self.outreached_by(&batch) {
            self.batches.pop_front();
        }
        let follows = |newest: &BatchMetadata| {
            sequence_add(newest.last_sequence(), 1) == batch.base_sequence && newest.last_offset() < batch.base_offset
        };
        debug_assert!(self.batches.back().is_none_or(follows), "the run of batches is unbroken");
        self.make_room();
        self.batches.push_back(batch);
    }

    /// Returns the number of batches that the producer may rely on.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Sets the size after a restart to `granted`, or to the number of batches if that is larger. If a smaller size is
    /// configured, the window shrinks as it would without the restart.
    pub fn restore_size(&mut self, granted: usize) {
        self.size = self.batches.len().max(granted.clamp(WINDOW_MIN, WINDOW_MAX));
        self.configured = self.size;
        self.overdue = 0;
    }

    /// Grows the window at once if a larger size is configured. If the configured size is smaller than the current size
    /// W, the window stays for W more appends and shrinks with the next one.
    ///
    /// A producer that was granted W may already have sent W batches. Before it sends another one, it must get the
    /// response to one of them, which contains the new grant.
    fn resize(&mut self, configured: usize) {
        if configured < self.configured {
            self.overdue = 0;
        }
        self.configured = configured;
        self.overdue += 1;
        if configured >= self.size || self.overdue > self.size {
            self.size = configured;
            self.overdue = 0;
        }
    }

    /// Returns true if the window would span more than half of the sequence range with `batch` added.
    fn outreached_by(&self, batch: &BatchMetadata) -> bool {
        self.batches
            .front()
            .is_some_and(|oldest| sequence_distance(oldest.base_sequence, batch.last_sequence()) >= HALF_RANGE)
    }

    /// Makes room for another batch. The capacity doubles when needed, up to the size, and shrinks when a quarter of it
    /// is enough.
    fn make_room(&mut self) {
        let retained = self.batches.len();
        let target = (retained * 2).clamp(WINDOW_MIN, self.size);
        if retained == self.batches.capacity() {
            self.batches.reserve_exact(target - retained);
        } else if target * 2 < self.batches.capacity() {
            self.batches.shrink_to(target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(n: i32) -> BatchMetadata {
        BatchMetadata { base_offset: i64::from(n), timestamp: 0, base_sequence: n, record_count: 1 }
    }

    fn filled(count: i32, size: usize) -> SequenceWindow {
        let mut window = SequenceWindow::of(batch(0), size);
        (1..count).for_each(|n| window.push(batch(n), size));
        window
    }

    #[test]
    fn batch_takes_24_bytes() {
        assert_eq!(size_of::<BatchMetadata>(), 24);
    }

    #[test]
    fn five_batches_take_five_entries_in_any_window() {
        let window = filled(5, 1024);
        assert_eq!((window.len(), window.batches.capacity()), (5, 5));
    }

    #[test]
    fn memory_never_exceeds_the_window() {
        for size in [5, 64, 1024, 1500, WINDOW_MAX] {
            let window = filled(2 * size as i32 + 1, size);
            assert_eq!((window.len(), window.batches.capacity()), (size, size));
        }
    }

    #[test]
    fn shrunk_window_keeps_its_old_size_for_as_many_appends_then_frees_memory() {
        let mut window = filled(64, 64);
        for n in 64..128 {
            window.push(batch(n), 5);
            assert_eq!(window.len(), 64);
        }
        assert_eq!(window.oldest(), Some(&batch(64)));
        window.push(batch(128), 5);
        assert_eq!((window.len(), window.oldest()), (5, Some(&batch(124))));
        assert!(window.batches.capacity() <= 10);
    }

    #[test]
    fn window_that_grows_again_while_draining_loses_no_batch() {
        let mut window = filled(64, 64);
        (64..100).for_each(|n| window.push(batch(n), 5));
        (100..200).for_each(|n| window.push(batch(n), 64));
        assert_eq!((window.len(), window.overdue), (64, 0));
    }

    #[test]
    fn window_shrunk_before_it_was_full_fills_to_its_old_size() {
        let mut window = filled(10, 64);
        (10..74).for_each(|n| window.push(batch(n), 5));
        assert_eq!(window.len(), 64);
        window.push(batch(74), 5);
        assert_eq!(window.len(), 5);
    }

    #[test]
    fn second_shrink_waits_as_long_as_the_first() {
        let mut window = filled(64, 64);
        (64..120).for_each(|n| window.push(batch(n), 32));
        (120..184).for_each(|n| window.push(batch(n), 5));
        assert_eq!(window.len(), 64);
        window.push(batch(184), 5);
        assert_eq!(window.len(), 5);
    }

    #[test]
    fn huge_batches_span_at_most_half_the_range() {
        let mut window = SequenceWindow::of(batch(0), 64);
        let mut next = 1;
        for n in 1..10 {
            let base_offset = n * i64::from(HALF_RANGE);
            let huge = BatchMetadata { base_offset, base_sequence: next, record_count: HALF_RANGE / 2, ..batch(0) };
            window.push(huge, 64);
            assert!(window.span() <= HALF_RANGE as u64);
            next = sequence_add(next, HALF_RANGE / 2);
        }
        assert_eq!(window.len(), 2);
    }
}
