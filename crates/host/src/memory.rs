//! Returns freed memory to the system. The broker does this after two successive polls have found too much freed memory
//! in the allocator, and immediately after work that used much memory.
//!
//! By itself, glibc's malloc returns only large blocks and the free memory at the end of an arena. It keeps all free
//! blocks that lie below a used block, and responses that wait for slow clients cause many of these. With another libc,
//! this module does nothing.
//!
//! Invariant: the allocator is only queried if the process uses more than [`KEPT_MAX`] bytes of memory.

use std::time::{Duration, Instant};

/// Time between two polls. Memory that is used again within this time is not returned.
const INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of freed bytes that the allocator may keep.
const KEPT_MAX: usize = 64 << 20;

/// Returns freed memory to the system from time to time.
#[derive(Debug)]
pub struct Trimmer {
    due: Instant,
    history: KeptBytes,
}

/// The numbers of freed bytes that earlier polls found in the allocator.
#[derive(Debug, Default)]
struct KeptBytes {
    before: usize,
    /// Number of freed bytes that the allocator cannot return, because their pages also contain used blocks. This is
    /// the number that was left after the last trim, or a smaller number that a later poll found.
    floor: usize,
}

impl Default for Trimmer {
    /// Creates a trimmer whose first poll is due after [`INTERVAL`].
    fn default() -> Trimmer {
        Trimmer { due: Instant::now() + INTERVAL, history: KeptBytes::default() }
    }
}

impl Trimmer {
    /// Polls if [`INTERVAL`] has passed. If two successive polls have found too much freed memory, returns it to the
    /// system. This takes milliseconds per gigabyte, and threads that allocate may have to wait.
    pub fn trim_if_due(&mut self) {
        if Instant::now() < self.due {
            return;
        }
        self.due = Instant::now() + INTERVAL;
        let kept = allocator::kept_bytes(KEPT_MAX);
        if self.history.is_trim_due(kept) {
            allocator::trim();
            self.history.trimmed(allocator::kept_bytes(KEPT_MAX));
            tracing::debug!(kept, left = self.history.floor, "returned freed memory to the operating system");
        }
    }
}

/// Returns freed memory to the system now. This takes milliseconds per gigabyte, and threads that allocate may have to
/// wait.
pub fn give_back() {
    allocator::trim();
}

impl KeptBytes {
    /// Records `kept`, the number of freed bytes that a poll has found. The allocator cannot return `floor` of them.
    /// Returns true if more than [`KEPT_MAX`] others were found, both in this poll and in the previous one.
    fn is_trim_due(&mut self, kept: usize) -> bool {
        self.floor = self.floor.min(kept);
        let lasting = kept.min(self.before);
        self.before = kept;
        lasting > self.floor + KEPT_MAX
    }

    fn trimmed(&mut self, left: usize) {
        *self = KeptBytes { before: left, floor: left };
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod allocator {
    /// Returns how many unused bytes the allocator keeps. If the process uses at most `few` bytes, returns 0 without a
    /// query.
    pub(super) fn kept_bytes(few: usize) -> usize {
        let resident = std::fs::read_to_string("/proc/self/statm").ok().and_then(|statm| private_bytes(&statm));
        let Some(resident) = resident.filter(|resident| *resident > few) else { return 0 };
        // SAFETY: the function takes no arguments, locks each arena while it counts its blocks, and returns numbers.
        let counted = unsafe { libc::mallinfo2() };
        resident.saturating_sub(counted.uordblks + counted.hblkhd)
    }

    /// Returns all pages to the system that have no used blocks.
    pub(super) fn trim() {
        // SAFETY: the function touches no used block, and locks each arena while it returns its pages.
        unsafe { libc::malloc_trim(0) };
    }

    /// Returns the bytes of resident memory that are not backed by a file. `statm` is a line with the numbers of pages:
    /// total, resident, of files. Returns `None` if these are missing.
    pub(super) fn private_bytes(statm: &str) -> Option<usize> {
        let mut pages = statm.split(' ').skip(1).map_while(|number| number.parse::<usize>().ok());
        let (resident, of_files) = (pages.next()?, pages.next()?);
        Some(resident.saturating_sub(of_files) * rustix::param::page_size())
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod allocator {
    pub(super) fn kept_bytes(_few: usize) -> usize {
        0
    }

    pub(super) fn trim() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn memory_kept_for_two_polls_is_returned_once() {
        let mut history = KeptBytes::default();
        assert_eq!([60, 1000, 50, 1000].map(|kept| history.is_trim_due(kept * MIB)), [false; 4], "it is used again");
        assert!(history.is_trim_due(900 * MIB));
        history.trimmed(200 * MIB);
        assert_eq!(
            [200, 250, 260, 264].map(|kept| history.is_trim_due(kept * MIB)),
            [false; 4],
            "it cannot be given back"
        );
        assert_eq!([300, 300].map(|kept| history.is_trim_due(kept * MIB)), [false, true]);
        history.trimmed(200 * MIB);
        assert_eq!(
            [10, 80, 80].map(|kept| history.is_trim_due(kept * MIB)),
            [false, false, true],
            "what was left is used"
        );
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn freed_blocks_between_used_ones_are_returned() {
        // The blocks are below the size from which malloc maps each block on its own. Other tests allocate at the same
        // time, so the limits below are generous.
        let blocks: Vec<Vec<u8>> = (0..4096).map(|_| vec![1; 64 << 10]).collect();
        let used: Vec<Vec<u8>> = blocks.into_iter().step_by(64).collect();
        let kept = allocator::kept_bytes(0);
        assert!(kept > 200 * MIB, "{kept} of 252 MiB");
        allocator::trim();
        let left = allocator::kept_bytes(0);
        assert!(left < kept - 150 * MIB, "{left} of {kept}");
        assert!(used.iter().all(|block| block.iter().all(|byte| *byte == 1)));
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn private_memory_is_resident_without_files() {
        let page = rustix::param::page_size();
        assert_eq!(allocator::private_bytes("1000 300 100 5 0 90 0\n"), Some(200 * page));
        assert_eq!(allocator::private_bytes("1000 x"), None);
    }
}
