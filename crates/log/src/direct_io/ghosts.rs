//! Ghosts: file ranges that the broker has dropped from the page cache. A reader may return to them.
//!
//! A reader that returns to such a range shows that the cache was too small by the bytes dropped since. This is the
//! ghost list of ARC, and the refault distance of Linux. [`Ghosts::wanted`] is the number of bytes by which the cache
//! was too small.
//!
//! Invariant: the list has at most [`GHOSTS_MAX`] ranges. A range and the ranges dropped after it have at most `reach`
//! bytes together.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Most ranges that are remembered, whatever their length.
const GHOSTS_MAX: usize = 64 << 10;
/// Time after the last read of a ghost during which the cache stays larger.
const WANTED_FOR: Duration = Duration::from_secs(600);

/// Ghosts of one broker.
#[derive(Debug)]
pub struct Ghosts {
    /// Most bytes of a range and of all ranges dropped after it, together. A range farther back is forgotten.
    reach: u64,
    list: Mutex<GhostList>,
}

#[derive(Debug, Default)]
struct GhostList {
    /// Ranges by the address of the file's `Arc`.
    files: HashMap<usize, GhostFile>,
    /// Every range, oldest first, including ranges that were read since they were dropped.
    order: VecDeque<(usize, u64)>,
    /// Number of bytes dropped since the broker's start.
    let_go: u64,
    /// Largest distance of a range that was read: the bytes of the range, and those dropped between it and its read.
    furthest: u64,
    wanted: u64,
    read_at: Option<Instant>,
}

#[derive(Debug)]
struct GhostFile {
    /// Keeps the address from being reused for another file.
    _file: Weak<File>,
    /// End of each range, and number of bytes dropped before it, by the begin of the range.
    ranges: BTreeMap<u64, (u64, u64)>,
}

impl Default for Ghosts {
    /// Reaches back over half of the machine's memory, since the rest is the system's and the broker's own.
    fn default() -> Ghosts {
        let system = rustix::system::sysinfo();
        Ghosts::reaching((system.totalram as u64).saturating_mul(u64::from(system.mem_unit)) / 2)
    }
}

impl Ghosts {
    fn reaching(reach: u64) -> Ghosts {
        Ghosts { reach, list: Mutex::default() }
    }

    /// Adds a range that is dropped from the page cache.
    pub fn add(&self, file: &Weak<File>, from: u64, len: u64) {
        let mut list = self.list.lock();
        let before = list.let_go;
        list.let_go += len;
        let ghosts = list
            .files
            .entry(file.as_ptr().addr())
            .or_insert_with(|| GhostFile { _file: Weak::clone(file), ranges: BTreeMap::new() });
        ghosts.ranges.insert(from, (from + len, before));
        list.order.push_back((file.as_ptr().addr(), from));
        list.forget(self.reach);
    }

    /// Records a read of the byte at `position` from the disk.
    pub fn read(&self, file: &Arc<File>, position: u64) {
        self.list.lock().read(Arc::as_ptr(file).addr(), position, Instant::now());
    }

    /// Returns the bytes by which a larger cache would have avoided the disk reads of the last ten minutes.
    pub fn wanted(&self) -> u64 {
        let mut list = self.list.lock();
        if list.read_at.is_some_and(|read_at| read_at.elapsed() >= WANTED_FOR) {
            (list.furthest, list.wanted, list.read_at) = (0, 0, None);
        }
        list.wanted
    }
}

impl GhostList {
    /// Records a read at `position`, if a range contains it. Raises `wanted` by the range's bytes, but at most to the
    /// largest distance of a range that was read. The largest distance counts, since a reader that goes forward reads
    /// the oldest range first.
    fn read(&mut self, file: usize, position: u64, now: Instant) {
        let Some(ghosts) = self.files.get_mut(&file) else { return };
        let Some((&from, &(end, before))) = ghosts.ranges.range(..=position).next_back() else { return };
        if position >= end {
            return;
        }
        ghosts.ranges.remove(&from);
        self.furthest = self.furthest.max(self.let_go - before);
        self.wanted = self.furthest.min(self.wanted + (end - from));
        self.read_at = Some(now);
    }

    fn forget(&mut self, reach: u64) {
        while let Some(&(file, from)) = self.order.front() {
            let Some(ghosts) = self.files.get_mut(&file) else {
                self.order.pop_front();
                continue;
            };
            let is_far = ghosts.ranges.get(&from).is_none_or(|(_, before)| self.let_go - before > reach);
            if !is_far && self.order.len() <= GHOSTS_MAX {
                return;
            }
            ghosts.ranges.remove(&from);
            if ghosts.ranges.is_empty() {
                self.files.remove(&file);
            }
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn file() -> Arc<File> {
        Arc::new(File::open("/dev/null").expect("there"))
    }

    #[test]
    fn ranges_are_read_back_wanted_grows_by_them_up_to_their_distance() {
        let (file, ghosts) = (file(), Ghosts::reaching(100 * MIB));
        (0..10).for_each(|at| ghosts.add(&Arc::downgrade(&file), at * 4 * MIB, 4 * MIB));
        assert_eq!(ghosts.wanted(), 0);
        ghosts.read(&file, 9 * 4 * MIB + 17);
        assert_eq!(ghosts.wanted(), 4 * MIB, "the newest range was 4 MiB away");
        ghosts.read(&file, 9 * 4 * MIB + 18);
        assert_eq!(ghosts.wanted(), 4 * MIB, "a range counts once");
        ghosts.read(&file, 0);
        assert_eq!(ghosts.wanted(), 8 * MIB, "two ranges, of which one was 40 MiB away");
        (1..9).for_each(|at| ghosts.read(&file, at * 4 * MIB));
        assert_eq!(ghosts.wanted(), 40 * MIB, "all of them");
        ghosts.read(&file, 40 * MIB);
        ghosts.read(&self::file(), 0);
        assert_eq!(ghosts.wanted(), 40 * MIB, "never let go of");
    }

    #[test]
    fn nothing_is_read_back_for_ten_minutes_nothing_is_wanted() {
        let (file, ghosts) = (file(), Ghosts::reaching(100 * MIB));
        ghosts.add(&Arc::downgrade(&file), 0, MIB);
        let read_at = Instant::now().checked_sub(WANTED_FOR).expect("the machine has run for longer");
        ghosts.list.lock().read(Arc::as_ptr(&file).addr(), 0, read_at);
        assert_eq!(ghosts.wanted(), 0);
    }

    #[test]
    fn ranges_are_many_or_far_the_list_is_bounded() {
        let ghosts = Ghosts::reaching(100 * MIB);
        let files: Vec<_> = (0..10).map(|_| file()).collect();
        for at in 0..200 {
            ghosts.add(&Arc::downgrade(&files[at % 10]), at as u64 * MIB, MIB);
        }
        assert_eq!(ghosts.list.lock().order.len(), 100);
        ghosts.read(&files[0], 0);
        assert_eq!(ghosts.wanted(), 0, "further back than the reach");
        (0..GHOSTS_MAX as u64 + 10).for_each(|at| ghosts.add(&Arc::downgrade(&files[0]), at, 1));
        let list = ghosts.list.lock();
        assert_eq!(list.order.len(), GHOSTS_MAX);
        assert!(
            list.files.len() <= 10 && list.files.values().map(|file| file.ranges.len()).sum::<usize>() <= GHOSTS_MAX
        );
    }
}
