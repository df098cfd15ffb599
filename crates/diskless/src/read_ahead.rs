//! Keeps track of the extents that are read ahead of consumers. They are grouped into windows. Also decides when a
//! reader must request the next window.
//!
//! [`super::reader`] finds and fetches the extents.
//!
//! Invariant: there are at most [`WINDOWS_MAX`] windows. Together they have at most [`BATCHES_MAX`] batches, unless the
//! newest window alone has more. The least recently used window is dropped first.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};
use tokio::time::Instant;

/// Maximum number of windows of all partitions together.
const WINDOWS_MAX: usize = 4096;
/// Maximum number of batches in all windows together. Each batch takes 16 bytes of memory. A single window of small
/// batches may have up to 250,000 of them.
const BATCHES_MAX: usize = 2 << 20;
/// How long after its last read a window counts as having a reader.
const RESTS_AFTER: Duration = Duration::from_secs(5);

/// A window: adjacent extents of a partition.
#[derive(Debug)]
pub struct Window {
    from: i64,
    end: i64,
    runs: Vec<Arc<BatchRun>>,
    /// True if a reader of this window should request the next window.
    wants_next: bool,
    used: u64,
    used_at: Instant,
}

impl Window {
    /// Creates a window of `runs`, which cover `offsets`. If `wants_next` is true, a reader of this window should
    /// request the next one, unless the next one already exists.
    pub fn new(offsets: Range<i64>, runs: Vec<Arc<BatchRun>>, wants_next: bool) -> Window {
        Window { from: offsets.start, end: offsets.end, runs, wants_next, used: 0, used_at: Instant::now() }
    }

    fn batches(&self) -> usize {
        self.runs.iter().map(|run| run.batches.len()).sum()
    }
}

/// The windows of all partitions.
#[derive(Debug, Default)]
pub struct ReadAhead {
    of_partition: HashMap<DisklessPartitionId, Vec<Window>>,
    /// The partition of each window, ordered by the last use of the window.
    order: BTreeMap<u64, DisklessPartitionId>,
    count: usize,
    batches: usize,
    clock: u64,
}

impl ReadAhead {
    /// Adds a window, or replaces the window that begins at the same offset.
    pub fn insert(&mut self, partition: DisklessPartitionId, window: Window) {
        self.clock += 1;
        self.remove(partition, |other| other.from == window.from);
        (self.count, self.batches) = (self.count + 1, self.batches + window.batches());
        self.order.insert(self.clock, partition);
        self.of_partition.entry(partition).or_default().push(Window { used: self.clock, ..window });
        while self.count > WINDOWS_MAX || self.batches > BATCHES_MAX && self.count > 1 {
            self.drop_oldest();
        }
    }

    /// Returns the extents of the window that contains `offset`, from the extent with `offset` on. Returns none if
    /// there is no such window. If the caller must now request the next window, also returns the offset at which it
    /// begins.
    pub fn runs_from(&mut self, partition: DisklessPartitionId, offset: i64) -> (Vec<Arc<BatchRun>>, Option<i64>) {
        self.clock += 1;
        let Some(windows) = self.of_partition.get_mut(&partition) else { return (Vec::new(), None) };
        let Some(at) = windows.iter().position(|window| window.from <= offset && offset < window.end) else {
            return (Vec::new(), None);
        };
        self.order.remove(&windows[at].used);
        self.order.insert(self.clock, partition);
        (windows[at].used, windows[at].used_at) = (self.clock, Instant::now());
        let Window { wants_next, end, .. } = windows[at];
        let has_next = windows.iter().any(|window| window.from <= end && end < window.end);
        let runs = windows[at].runs.iter().filter(|run| run.end_offset() > offset).cloned().collect();
        (runs, (wants_next && !has_next).then_some(end))
    }

    /// Returns the number of partitions with a recently read window. `partition` itself always counts.
    pub fn readers(&self, partition: DisklessPartitionId) -> usize {
        let now = Instant::now();
        let reads = |windows: &[Window]| windows.iter().any(|window| now - window.used_at < RESTS_AFTER);
        let others = self.of_partition.iter().filter(|(id, windows)| **id != partition && reads(windows));
        others.count() + 1
    }

    /// Removes the windows of a partition.
    pub fn forget(&mut self, partition: DisklessPartitionId) {
        self.remove(partition, |_| true);
    }

    fn drop_oldest(&mut self) {
        let Some((used, partition)) = self.order.first_key_value().map(|(used, partition)| (*used, *partition)) else {
            return;
        };
        self.remove(partition, |window| window.used == used);
    }

    fn remove(&mut self, partition: DisklessPartitionId, is_one: impl Fn(&Window) -> bool) {
        let Some(windows) = self.of_partition.get_mut(&partition) else { return };
        for window in windows.extract_if(.., |window| is_one(window)) {
            self.order.remove(&window.used);
            (self.count, self.batches) = (self.count - 1, self.batches - window.batches());
        }
        if windows.is_empty() {
            self.of_partition.remove(&partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use fullbore_rules::commit::PackedBatch;

    use super::*;

    #[test]
    fn windows_of_very_many_small_batches_are_few() {
        let batches = vec![PackedBatch { size: 70, record_count: 1, max_timestamp: 0 }; 10_000];
        let run = BatchRun { partition: 1, object: 1, base_offset: 0, position: 0, max_timestamp_so_far: 0, batches };
        let run = Arc::new(run);
        let mut windows = ReadAhead::default();
        for from in 0..300 {
            let window = Window::new(from..from + 1, vec![Arc::clone(&run); 24], true);
            windows.insert(from % 7, window);
            assert!(!windows.runs_from(from % 7, from).0.is_empty(), "the newest is there");
        }
        let held: usize = windows.of_partition.values().flatten().map(Window::batches).sum();
        assert_eq!((held, windows.batches), (8 * 240_000, held), "of 16 bytes each");
        assert_eq!(windows.of_partition.values().map(Vec::len).sum::<usize>(), windows.count);
        // A window that alone exceeds the limit is kept, and all others are dropped.
        windows.insert(1, Window::new(900..901, vec![run; 300], true));
        assert_eq!((windows.count, windows.runs_from(1, 900).0.len()), (1, 300));
        windows.forget(1);
        assert_eq!((windows.count, windows.batches, windows.of_partition.len(), windows.order.len()), (0, 0, 0, 0));
    }
}
