//! Keeps bytes of objects in memory. Consumers at the log end read from the objects that this broker has uploaded. All
//! other consumers read from blocks that were fetched from the store. Neither kind evicts the other.
//!
//! The cache never waits and does no I/O.
//!
//! The blocks of a batch that is being fetched with several GETs are *kept*: other blocks are evicted before them.
//!
//! Invariant: each kind has a limit of bytes, which it does not exceed. If necessary, the limit of fetched blocks is
//! raised to twice the largest range that a reader requested at once. An evicted part or block stays in memory while a
//! response uses a slice of it, but no longer counts for the limit.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use fullbore_rules::commit::ObjectId;

/// Size of a block in bytes. Blocks are fetched and evicted as a whole.
pub const BLOCK: u32 = 1 << 20;
/// A response that uses less than 1/`BLOCK_SHARE` of the bytes of its blocks gets copies of these bytes. Slices would
/// keep the whole blocks in memory.
const BLOCK_SHARE: usize = 4;
/// Estimated memory for the bookkeeping of an uploaded object, in bytes. Its parts are not included.
const OBJECT_COST: usize = 512;
/// Estimated memory for the bookkeeping of one part of an uploaded object, in bytes.
const PART_COST: usize = 128;

/// A cache of uploaded objects and fetched blocks.
#[derive(Debug)]
pub struct ObjectCache {
    uploaded: HashMap<ObjectId, Arc<UploadedParts>>,
    /// Ids of the uploaded objects, oldest first.
    order: VecDeque<ObjectId>,
    uploaded_bytes: usize,
    uploaded_bytes_max: usize,
    fetched: HashMap<(ObjectId, u32), FetchedBlock>,
    /// Fetched blocks in order of their last use.
    used: BTreeMap<u64, (ObjectId, u32)>,
    clock: u64,
    /// How many fetches keep each of these blocks, whether it is in the cache or not.
    kept: HashMap<(ObjectId, u32), usize>,
    fetched_bytes: usize,
    fetched_bytes_max: usize,
    /// Size of the largest range that a reader requested at once. If the cache could not hold all blocks of that range,
    /// they would evict each other and the reader would fetch them forever.
    range_max: usize,
}

/// An object that this broker uploaded. Its bytes can be sliced without the lock of the cache.
#[derive(Debug)]
pub struct UploadedParts {
    /// The parts of the object, each with its position.
    parts: Vec<(u32, Bytes)>,
    bytes: usize,
}

#[derive(Debug)]
struct FetchedBlock {
    bytes: Bytes,
    used: u64,
}

/// Bytes of an object that were found in the cache.
#[derive(Clone, Debug)]
pub struct FoundRange {
    /// The bytes of the range, in order.
    pub parts: Vec<Bytes>,
    /// True if this broker uploaded the bytes. Uploaded bytes did not pass through the store, so the reader need not
    /// check their checksum.
    pub is_uploaded: bool,
}

impl ObjectCache {
    /// Creates an empty cache with a limit for each kind of bytes.
    pub fn new(uploaded_bytes_max: usize, fetched_bytes_max: usize) -> ObjectCache {
        ObjectCache {
            uploaded: HashMap::new(),
            order: VecDeque::new(),
            uploaded_bytes: 0,
            uploaded_bytes_max,
            fetched: HashMap::new(),
            used: BTreeMap::new(),
            clock: 0,
            kept: HashMap::new(),
            fetched_bytes: 0,
            fetched_bytes_max,
            range_max: 0,
        }
    }

    /// Returns how many bytes of fetched blocks the cache may hold.
    pub fn fetched_room(&self) -> usize {
        self.fetched_bytes_max.max(2 * self.range_max)
    }

    /// Returns the number of cached bytes: first of uploaded objects with their bookkeeping, then of fetched blocks.
    pub fn bytes(&self) -> (usize, usize) {
        (self.uploaded_bytes, self.fetched_bytes)
    }

    /// Adds an uploaded object. Returns the evicted objects, so that the caller can drop them after it has released the
    /// cache's lock.
    pub fn insert_uploaded(&mut self, id: ObjectId, object: UploadedParts) -> Vec<(ObjectId, Arc<UploadedParts>)> {
        self.uploaded_bytes += object.bytes;
        match self.uploaded.insert(id, Arc::new(object)) {
            Some(before) => self.uploaded_bytes -= before.bytes,
            None => self.order.push_back(id),
        }
        let mut gone = Vec::new();
        while self.uploaded_bytes > self.uploaded_bytes_max {
            let Some(oldest) = self.order.pop_front() else { break };
            let Some(object) = self.uploaded.remove(&oldest) else { continue };
            self.uploaded_bytes -= object.bytes;
            gone.push((oldest, object));
        }
        gone
    }

    /// Returns an uploaded object, or `None` if it is not in the cache.
    pub fn uploaded(&self, id: ObjectId) -> Option<Arc<UploadedParts>> {
        self.uploaded.get(&id).cloned()
    }

    /// Adds a fetched block of an object.
    pub fn insert_fetched(&mut self, id: ObjectId, block: u32, bytes: Bytes) {
        self.forget_fetched(id, block);
        self.clock += 1;
        self.fetched_bytes += bytes.len();
        self.used.insert(self.clock, (id, block));
        self.fetched.insert((id, block), FetchedBlock { bytes, used: self.clock });
        let mut kept_left = self.kept.len();
        while self.fetched_bytes > self.fetched_room() {
            let Some((_, (id, block))) = self.used.pop_first() else { break };
            if kept_left > 0 && self.kept.contains_key(&(id, block)) {
                kept_left -= 1;
                self.touch(id, block);
                continue;
            }
            self.fetched_bytes -= self.fetched.remove(&(id, block)).map_or(0, |held| held.bytes.len());
        }
    }

    /// Keeps the blocks of a range, until [`ObjectCache::release`] is called with the same range. Blocks that are
    /// fetched later are kept too.
    pub fn keep(&mut self, id: ObjectId, range: &Range<u32>) {
        blocks(range).for_each(|block| *self.kept.entry((id, block)).or_default() += 1);
    }

    /// No longer keeps the blocks of a range. They count as used now, so that a reader can read them.
    pub fn release(&mut self, id: ObjectId, range: &Range<u32>) {
        for block in blocks(range) {
            if let Some(fetches) = self.kept.get_mut(&(id, block)) {
                *fetches -= 1;
                if *fetches == 0 {
                    self.kept.remove(&(id, block));
                }
            }
            self.touch(id, block);
        }
    }

    /// Makes a fetched block the most recently used one.
    fn touch(&mut self, id: ObjectId, block: u32) {
        if let Some(held) = self.fetched.get_mut(&(id, block)) {
            self.clock += 1;
            self.used.remove(&held.used);
            held.used = self.clock;
            self.used.insert(self.clock, (id, block));
        }
    }

    /// Removes a fetched block.
    pub fn forget_fetched(&mut self, id: ObjectId, block: u32) {
        if let Some(FetchedBlock { bytes, used }) = self.fetched.remove(&(id, block)) {
            self.fetched_bytes -= bytes.len();
            self.used.remove(&used);
        }
    }

    /// Returns a range of an object, or `None` if the cache lacks any of its bytes.
    pub fn find(&mut self, id: ObjectId, position: u32, size: u32) -> Option<FoundRange> {
        match self.uploaded.get(&id) {
            Some(object) => object.find(position, size),
            None => self.find_fetched(id, position, size).map(|parts| FoundRange { parts, is_uploaded: false }),
        }
    }

    fn find_fetched(&mut self, id: ObjectId, position: u32, size: u32) -> Option<Vec<Bytes>> {
        let end = position.checked_add(size)?;
        let mut parts = Vec::new();
        for block in blocks(&(position..end)) {
            let held = self.fetched.get_mut(&(id, block))?;
            let begin = block * BLOCK;
            let from = position.saturating_sub(begin) as usize;
            let to = (end - begin).min(BLOCK) as usize;
            held.bytes.get(from..to)?;
            parts.push(held.bytes.slice(from..to));
            self.clock += 1;
            self.used.remove(&held.used);
            held.used = self.clock;
            self.used.insert(self.clock, (id, block));
        }
        Some(parts)
    }

    /// Returns the first blocks that the cache lacks of `range`, as one range of up to `blocks_max` adjacent blocks.
    /// Returns `None` if it lacks none. If `range` is the largest so far, the limit of fetched bytes is raised.
    pub fn missing(&mut self, id: ObjectId, range: Range<u32>, blocks_max: u32) -> Option<Range<u32>> {
        if self.uploaded.contains_key(&id) {
            return None;
        }
        self.range_max = self.range_max.max(blocks(&range).len() * BLOCK as usize);
        // The last block of an object may be short, so a cached block needs to have only the bytes within `range`.
        let wanted = |block: u32| (range.end - block * BLOCK).min(BLOCK) as usize;
        let is_held = |block| self.fetched.get(&(id, block)).is_some_and(|held| held.bytes.len() >= wanted(block));
        let first = blocks(&range).find(|block| !is_held(*block))?;
        let missing = blocks(&range).skip_while(|block| *block < first).take_while(|block| !is_held(*block));
        let count = missing.take(blocks_max.max(1) as usize).count() as u32;
        Some(first * BLOCK..(first * BLOCK).saturating_add(count * BLOCK))
    }
}

/// Returns the numbers of the blocks that a range touches.
pub fn blocks(range: &Range<u32>) -> Range<u32> {
    if range.is_empty() { 0..0 } else { range.start / BLOCK..(range.end - 1) / BLOCK + 1 }
}

/// Returns true if the ranges are a small part of their blocks, so that the caller should copy them. A slice would keep
/// its whole block in memory until the client has received the response, but the memory budget counts only the bytes of
/// the response.
pub fn are_little_of_blocks(ranges: impl Iterator<Item = (ObjectId, Range<u32>)>) -> bool {
    let (mut bytes, mut held) = (0, BTreeSet::new());
    for (id, range) in ranges {
        bytes += range.len();
        held.extend(blocks(&range).map(|block| (id, block)));
    }
    bytes < held.len() * BLOCK as usize / BLOCK_SHARE
}

impl UploadedParts {
    /// Creates an object from its parts, in their order.
    pub fn new(parts: &[Bytes]) -> UploadedParts {
        let mut at = 0_u32;
        let place = |part: &Bytes| {
            let placed = (at, part.clone());
            at = at.saturating_add(u32::try_from(part.len()).unwrap_or(u32::MAX));
            placed
        };
        let parts: Vec<_> = parts.iter().map(place).collect();
        let bytes = OBJECT_COST + parts.iter().map(|(_, part)| PART_COST + part.len()).sum::<usize>();
        UploadedParts { parts, bytes }
    }

    /// Returns a range of the object, or `None` if the object is shorter.
    pub fn find(&self, position: u32, size: u32) -> Option<FoundRange> {
        let end = position.checked_add(size)?;
        let first = self.parts.partition_point(|(at, part)| at.saturating_add(part.len() as u32) <= position);
        let mut found = Vec::new();
        for (at, part) in self.parts[first..].iter().take_while(|(at, _)| *at < end) {
            let from = position.saturating_sub(*at) as usize;
            found.push(part.slice(from..part.len().min((end - at) as usize)));
        }
        let is_whole = found.iter().map(Bytes::len).sum::<usize>() == size as usize;
        is_whole.then_some(FoundRange { parts: found, is_uploaded: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize, first: usize) -> Bytes {
        (first..first + len).map(|at| (at % 251) as u8).collect::<Vec<_>>().into()
    }

    /// Adds an object that consists of these parts. Returns the ids of the evicted objects.
    fn insert(cache: &mut ObjectCache, id: ObjectId, parts: &[Bytes]) -> Vec<ObjectId> {
        cache.insert_uploaded(id, UploadedParts::new(parts)).into_iter().map(|(gone, _)| gone).collect()
    }

    #[test]
    fn ranges_are_found_across_parts_and_blocks() {
        let (mut cache, object) = (ObjectCache::new(1 << 23, 1 << 23), bytes(3 << 20, 0));
        insert(&mut cache, 1, &[object.slice(..10), object.slice(10..1 << 20), object.slice(1 << 20..)]);
        (0..3).for_each(|block| {
            cache.insert_fetched(2, block, object.slice(block as usize * (1 << 20)..).slice(..1 << 20))
        });
        let len = object.len() as u32;
        for (position, size) in [(0, 5), (5, 10), (9, 1), (BLOCK - 1, 2), (BLOCK, 7), (0, len), (len - 1, 1)] {
            for (id, is_uploaded) in [(1, true), (2, false)] {
                let found = cache.find(id, position, size).expect("held");
                let expected = &object[position as usize..(position + size) as usize];
                assert_eq!((found.parts.concat().as_slice(), found.is_uploaded), (expected, is_uploaded));
            }
        }
        assert!(cache.find(1, len - 1, 2).is_none() && cache.find(2, len - 1, 2).is_none());
        assert!(cache.find(3, 0, 1).is_none());
    }

    #[test]
    fn full_cache_evicts_the_oldest_upload_and_the_least_recently_used_block() {
        let cost = OBJECT_COST + PART_COST;
        let mut cache = ObjectCache::new(25 + 2 * cost, 25);
        assert_eq!(insert(&mut cache, 1, &[bytes(10, 0)]), [0; 0]);
        assert_eq!(insert(&mut cache, 2, &[bytes(10, 0)]), [0; 0]);
        cache.find(1, 0, 1).expect("held");
        assert_eq!(insert(&mut cache, 3, &[bytes(10, 0)]), [1]);
        assert_eq!(insert(&mut cache, 4, &[bytes(30 + 2 * cost, 0)]), [2, 3, 4], "larger than all the room");
        (0..2).for_each(|block| cache.insert_fetched(9, block, bytes(10, 0)));
        cache.find(9, 0, 1).expect("held");
        cache.insert_fetched(9, 2, bytes(10, 0));
        assert!(cache.find(9, 0, 1).is_some() && cache.find(9, BLOCK, 1).is_none());
        assert_eq!(cache.bytes(), (0, 20));
        cache.forget_fetched(9, 0);
        assert_eq!((cache.bytes(), cache.used.len()), ((0, 10), 1));
    }

    #[test]
    fn blocks_of_a_batch_are_kept_others_are_evicted_before_them() {
        let mut cache = ObjectCache::new(0, 40);
        cache.keep(1, &(0..2 * BLOCK));
        cache.insert_fetched(1, 0, bytes(10, 0));
        (0..10).for_each(|block| cache.insert_fetched(2, block, bytes(10, 0)));
        cache.insert_fetched(1, 1, bytes(10, 0));
        assert!(cache.find(1, 0, 10).is_some() && cache.find(1, BLOCK, 10).is_some());
        assert!(cache.find(2, 9 * BLOCK, 10).is_some() && cache.find(2, 7 * BLOCK, 10).is_none());
        cache.release(1, &(0..2 * BLOCK));
        (0..4).for_each(|block| cache.insert_fetched(3, block, bytes(10, 0)));
        assert!(cache.find(1, 0, 10).is_none() && cache.kept.is_empty() && cache.used.len() == 4);
        // Even kept blocks are evicted if there are no others.
        cache.keep(4, &(0..9 * BLOCK));
        (0..9).for_each(|block| cache.insert_fetched(4, block, bytes(10, 0)));
        assert_eq!((cache.bytes(), cache.used.len()), ((0, 40), 4));
    }

    #[test]
    fn missing_range_is_requested_in_whole_blocks() {
        let mut cache = ObjectCache::new(1 << 30, 1 << 30);
        let missing = |cache: &mut ObjectCache, id, range| {
            cache.missing(id, range, 8).map(|range| (range.start / BLOCK, range.end / BLOCK))
        };
        assert_eq!(missing(&mut cache, 1, 0..1), Some((0, 1)));
        assert_eq!(missing(&mut cache, 1, 5..5), None);
        assert_eq!(missing(&mut cache, 1, BLOCK - 1..BLOCK + 1), Some((0, 2)));
        cache.insert_fetched(1, 2, bytes(1 << 20, 0));
        assert_eq!(missing(&mut cache, 1, 0..5 * BLOCK), Some((0, 2)));
        assert_eq!(missing(&mut cache, 1, 2 * BLOCK..5 * BLOCK), Some((3, 5)));
        assert_eq!(missing(&mut cache, 2, 0..10 * BLOCK), Some((0, 8)));
        assert_eq!(cache.missing(2, 3 * BLOCK..10 * BLOCK, 2), Some(3 * BLOCK..5 * BLOCK));
        insert(&mut cache, 1, &[bytes(10, 0)]);
        assert_eq!(missing(&mut cache, 1, 0..5 * BLOCK), None);
    }

    #[test]
    fn ranges_are_a_small_part_of_their_blocks_they_are_copied() {
        let are_little = |ranges: &[(ObjectId, Range<u32>)]| are_little_of_blocks(ranges.iter().cloned());
        assert!(!are_little(&[]));
        assert!(are_little(&[(1, 0..5000)]) && !are_little(&[(1, 0..BLOCK / 4)]));
        // First line: two ranges of nearly the same size, of which only the first crosses a block boundary and so uses
        // two blocks. Second line: two ranges that are together a quarter of one block, and then two ranges in two
        // blocks.
        assert!(are_little(&[(1, BLOCK - 1..BLOCK * 5 / 4)]) && !are_little(&[(1, BLOCK..BLOCK * 5 / 4)]));
        let halves = [(1, 0..BLOCK / 8), (1, BLOCK / 8..BLOCK / 4)];
        assert!(!are_little(&halves) && are_little(&[halves[0].clone(), (2, 0..BLOCK / 8)]));
    }

    #[test]
    fn range_larger_than_the_cache_is_requested_the_cache_holds_two_of_it() {
        let mut cache = ObjectCache::new(0, 0);
        assert_eq!(cache.missing(1, 0..3 * BLOCK, 8), Some(0..3 * BLOCK));
        for id in 1..=3 {
            (0..3).for_each(|block| cache.insert_fetched(id, block, bytes(BLOCK as usize, 0)));
        }
        assert!(cache.find(1, 0, 3 * BLOCK).is_none());
        assert!(cache.find(2, 0, 3 * BLOCK).is_some() && cache.find(3, 0, 3 * BLOCK).is_some());
    }
}
