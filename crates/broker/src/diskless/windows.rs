//! What is read ahead of consumers that are behind: which runs, and when the next ones are to be asked for.
//!
//! Invariant: there are at most so many windows; the one that was not used for longest goes first.

use std::collections::HashMap;
use std::sync::Arc;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};

/// Windows of all partitions.
const WINDOWS_MAX: usize = 64;

/// Runs of a partition that lie behind each other.
#[derive(Debug)]
pub struct Window {
    from: i64,
    /// Who reads from here on has the next window asked for.
    middle: i64,
    end: i64,
    runs: Vec<Arc<BatchRun>>,
    used: u64,
}

impl Window {
    /// One that was asked for from this offset on; `None` without runs.
    pub fn new(from: i64, runs: Vec<Arc<BatchRun>>) -> Option<Window> {
        let end = runs.last()?.end_offset();
        let middle = runs[runs.len() / 2].base_offset.max(from);
        Some(Window { from, middle, end, runs, used: 0 })
    }
}

/// The windows of all partitions.
#[derive(Debug, Default)]
pub struct Windows {
    of_partition: HashMap<DisklessPartitionId, Vec<Window>>,
    count: usize,
    clock: u64,
}

impl Windows {
    /// Takes one in the place of what was asked for from the same offset.
    pub fn insert(&mut self, partition: DisklessPartitionId, window: Window) {
        self.clock += 1;
        let windows = self.of_partition.entry(partition).or_default();
        let before = windows.len();
        windows.retain(|other| other.from != window.from);
        windows.push(Window { used: self.clock, ..window });
        self.count = self.count + windows.len() - before;
        if self.count > WINDOWS_MAX {
            self.drop_oldest();
        }
    }

    /// The runs of a window from the one with this offset on; and where the next window begins, if that is to be asked for now.
    pub fn runs_from(&mut self, partition: DisklessPartitionId, offset: i64) -> (Vec<Arc<BatchRun>>, Option<i64>) {
        self.clock += 1;
        let Some(windows) = self.of_partition.get_mut(&partition) else { return (Vec::new(), None) };
        let Some(at) = windows.iter().position(|window| window.from <= offset && offset < window.end) else {
            return (Vec::new(), None);
        };
        windows[at].used = self.clock;
        let Window { middle, end, .. } = windows[at];
        let has_next = windows.iter().any(|window| window.from <= end && end < window.end);
        let runs = windows[at].runs.iter().filter(|run| run.end_offset() > offset).cloned().collect();
        (runs, (offset >= middle && !has_next).then_some(end))
    }

    /// Forgets those of a partition.
    pub fn forget(&mut self, partition: DisklessPartitionId) {
        self.count -= self.of_partition.remove(&partition).map_or(0, |windows| windows.len());
    }

    fn drop_oldest(&mut self) {
        let all = self.of_partition.iter().flat_map(|(id, windows)| windows.iter().map(|window| (window.used, *id)));
        let Some((used, partition)) = all.min() else { return };
        if let Some(windows) = self.of_partition.get_mut(&partition) {
            windows.retain(|window| window.used != used);
            self.count -= 1;
            if windows.is_empty() {
                self.of_partition.remove(&partition);
            }
        }
    }
}
