//! Remembers which file ranges the broker has dropped from the page cache. These ranges are called ghosts.
//!
//! When a reader needs such a range again, the cache was too small by the number of bytes that were dropped since then.
//! The ghost list of ARC and the refault distance of Linux work in the same way. [`Ghosts::wanted`] is the number of
//! bytes by which the cache was too small.
//!
//! Invariant: there are at most [`GHOSTS_MAX`] ranges. The sum of a range and of all ranges dropped after it is at most
//! `reach` bytes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Maximum number of ranges that are remembered.
const GHOSTS_MAX: usize = 64 << 10;
/// How long the cache stays larger after a reader has returned to a dropped file range (a *ghost*).
const WANTED_FOR: Duration = Duration::from_secs(600);

/// The file ranges that one broker has dropped from the page cache.
#[derive(Debug)]
pub struct Ghosts {
    /// Limit in bytes. A range is forgotten when the ranges from it to the newest one have a larger total size than
    /// this.
    reach: u64,
    list: Mutex<GhostList>,
}

#[derive(Debug, Default)]
struct GhostList {
    /// The ranges of each file. The key is the address of the file's `Arc`.
    files: HashMap<usize, GhostFile>,
    /// All ranges, oldest first, even those that were read in the meantime.
    order: VecDeque<(usize, u64)>,
    /// Total number of bytes that were dropped since the broker's start.
    let_go: u64,
    /// The largest distance of the ranges that readers needed again, or 0 after [`WANTED_FOR`] without such a range.
    /// The distance of a range is the number of bytes that were dropped from this range on until a reader needed it.
    furthest: u64,
    wanted: u64,
    read_at: Option<Instant>,
}

#[derive(Debug)]
struct GhostFile {
    /// The file. This reference keeps its address from being reused for another file.
    _file: Weak<File>,
    /// The ranges by their start. The value has the end of the range, and the number of bytes that were dropped before
    /// it.
    ranges: BTreeMap<u64, (u64, u64)>,
}

impl Default for Ghosts {
    /// Remembers ranges up to half of the machine's memory. The other half is needed by the system and the broker
    /// itself.
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

    /// Records that the byte at `position` had to be read from the disk.
    pub fn read(&self, file: &Arc<File>, position: u64) {
        self.list.lock().read(Arc::as_ptr(file).addr(), position, Instant::now());
    }

    /// Returns by how many bytes the cache would have to be larger to avoid the disk reads of the last ten minutes.
    pub fn wanted(&self) -> u64 {
        let mut list = self.list.lock();
        if list.read_at.is_some_and(|read_at| read_at.elapsed() >= WANTED_FOR) {
            (list.furthest, list.wanted, list.read_at) = (0, 0, None);
        }
        list.wanted
    }
}

impl GhostList {
    /// If a range contains `position`, removes the range, because a reader needs it again. Increases `wanted` by the
    /// size of the range, but at most to `furthest`. With `furthest` more bytes, the cache would still have had all
    /// ranges that readers needed again, so more would be of no use.
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
