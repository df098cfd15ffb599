//! What is read ahead of consumers that are behind: which runs, and when the next ones are to be asked for.
//!
//! Invariant: there are at most so many windows; the one that was not used for longest goes first.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};
use tokio::time::Instant;

/// Windows of all partitions.
const WINDOWS_MAX: usize = 256;
/// Who has read nothing for so long reads no more.
const RESTS_AFTER: Duration = Duration::from_secs(5);

/// Runs of a partition that lie behind each other.
#[derive(Debug)]
pub struct Window {
    from: i64,
    end: i64,
    runs: Vec<Arc<BatchRun>>,
    /// Who reads it has the next one asked for.
    wants_next: bool,
    used: u64,
    used_at: Instant,
}

impl Window {
    /// One of these runs, from this offset on to before that one; whether the next one is to be asked for as soon as it is read.
    pub fn new((from, end): (i64, i64), runs: Vec<Arc<BatchRun>>, wants_next: bool) -> Window {
        Window { from, end, runs, wants_next, used: 0, used_at: Instant::now() }
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
        (windows[at].used, windows[at].used_at) = (self.clock, Instant::now());
        let Window { wants_next, end, .. } = windows[at];
        let has_next = windows.iter().any(|window| window.from <= end && end < window.end);
        let runs = windows[at].runs.iter().filter(|run| run.end_offset() > offset).cloned().collect();
        (runs, (wants_next && !has_next).then_some(end))
    }

    /// Partitions that are read, with this one.
    pub fn readers(&self, partition: DisklessPartitionId) -> usize {
        let reads = |windows: &[Window]| windows.iter().any(|window| window.used_at.elapsed() < RESTS_AFTER);
        let others = self.of_partition.iter().filter(|(id, windows)| **id != partition && reads(windows));
        others.count() + 1
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
