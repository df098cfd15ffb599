//! Reads records of diskless partitions, from memory or from the store. The positions of records in the store are in
//! the index.
//!
//! Objects that this broker has uploaded stay in the cache for a while, so that consumers at the log end cause no GET.
//! For older records, the reader reads ahead: while the client reads a window of extents, the next window is found and
//! fetched. Readers share the cache. Each of them gets a limited part of it, so that no block is evicted before it is
//! read.
//!
//! A request may wait for records. When they arrive, its partition wakes it.
//!
//! Invariant: a response has whole batches in the order of their offsets, without a gap. The reader verifies bytes from
//! the store before it returns them.

pub mod aborted;
mod batch_units;
mod by_time;
#[cfg(test)]
mod by_time_tests;
mod failed_reads;
mod under_way;

use fullbore_host::task;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use fullbore_rules::commit::{BatchRun, DisklessPartitionId, ObjectId};
use fullbore_wire::Records;
use parking_lot::{Mutex, RwLock};
use tokio::task::JoinSet;

use self::aborted::AbortedRanges;
use self::under_way::UnderWay;
use super::assemble::{Assembly, is_intact};
use super::cache::{BLOCK, FoundRange, ObjectCache, UploadedParts, are_little_of_blocks, blocks};
use super::fair_permits::{FairPermit, FairPermits, ReadFor, ReaderId};
use super::fetch::RangeFetcher;
use super::index::{PartitionRow, RunFinder};
use super::partition_view::PartitionView;
use super::read_ahead::{ReadAhead, Window};
use super::response_budget::ResponseBudget;
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_log::partition::error::ReadError;

/// Maximum number of blocks in a read-ahead window. Each reader has two windows: one is read while the other is
/// fetched.
const AHEAD_BLOCKS: usize = 24;
/// Minimum size of the cache for fetched blocks, in bytes. Reading ahead needs this much memory.
pub const AHEAD_BYTES: u64 = 16 << 20;
/// Maximum number of concurrent searches in the index.
const FINDS: usize = 16;
/// Maximum number of batches in the windows that are found but not fetched yet. Each batch takes 16 bytes of memory.
const FOUND_BATCHES_MAX: usize = 1 << 20;
/// The cost of an extent that is being fetched, in addition to its batches. The unit is the cost of one batch.
const RUN_COST: usize = 64;
/// Number of GETs in a row with wrong bytes after which a batch counts as lost.
const WRONG_MAX: u32 = 3;

/// The result of a search for batches in memory.
pub enum Found {
    /// The batches from the requested offset on, and the offset after them. There are no batches if the first one is
    /// larger than the limit.
    Records(Records, i64),
    /// The batch with the requested offset is not in memory.
    Missing,
}

/// The reader of all diskless partitions.
#[derive(Clone)]
pub struct Reader {
    shared: Arc<ReaderShared>,
}

/// An extent in the view of a partition, identified by the view and the first offset of the extent.
type RunOfView = (Weak<PartitionView>, i64);

struct ReaderShared {
    cache: Arc<Mutex<ObjectCache>>,
    /// The memory budget for responses that clients have not received yet.
    given: Arc<ResponseBudget>,
    fetcher: RangeFetcher,
    finder: RunFinder,
    /// The partitions that are ready, by internal id.
    partitions: RwLock<HashMap<DisklessPartitionId, Weak<PartitionView>>>,
    /// The extents in the views of partitions, grouped by the uploaded object that has their bytes.
    uploaded: Mutex<HashMap<ObjectId, Vec<RunOfView>>>,
    windows: Mutex<ReadAhead>,
    aborted: Mutex<AbortedRanges>,
    to_refresh: Mutex<ToRefresh>,
    under_way: Mutex<UnderWay>,
    finds: FairPermits,
    /// Permits for the batches of windows that are found but not fetched yet.
    found: FairPermits,
    failures: LogRateLimit,
}

/// The partitions that wait for a refresh. One query refreshes all of them.
#[derive(Default)]
struct ToRefresh {
    partitions: HashMap<DisklessPartitionId, Arc<PartitionView>>,
    /// True while a refresh task is under way.
    is_under_way: bool,
}

/// The position of a batch in the store, and the offsets of the batch.
#[derive(Clone, Copy, Debug)]
struct Place {
    object: ObjectId,
    position: u32,
    size: u32,
    base_offset: i64,
    end_offset: i64,
}

/// The cache, and the uploaded object that was used last. Ranges of this object are read without locking the cache
/// again.
struct HeldObject<'c> {
    cache: &'c Mutex<ObjectCache>,
    uploaded: Option<(ObjectId, Arc<UploadedParts>)>,
}

impl HeldObject<'_> {
    fn in_cache(cache: &Mutex<ObjectCache>) -> HeldObject<'_> {
        HeldObject { cache, uploaded: None }
    }

    fn find(&mut self, place: &Place) -> Option<FoundRange> {
        let Place { object, position, size, .. } = *place;
        if self.uploaded.as_ref().is_none_or(|(id, _)| *id != object) {
            let mut cache = self.cache.lock();
            match cache.uploaded(object) {
                Some(parts) => self.uploaded = Some((object, parts)),
                None => return cache.find(object, position, size),
            }
        }
        self.uploaded.as_ref().and_then(|(_, parts)| parts.find(position, size))
    }
}

impl Place {
    fn range(&self) -> Range<u32> {
        self.position..self.position.saturating_add(self.size)
    }
}

/// A part of an extent that will be fetched before a reader needs it.
struct PartAhead {
    run: Arc<BatchRun>,
    range: Range<u32>,
    end_offset: i64,
}

/// Returns the parts of `runs` to be fetched, from the batch with `offset` on. They are whole extents, with up to
/// `blocks_max` blocks in total. If the first extent has more blocks, it is cut after the last batch that fits, but at
/// least after one batch.
fn ahead(offset: i64, runs: &[Arc<BatchRun>], blocks_max: usize) -> Vec<PartAhead> {
    let (mut parts, mut left) = (Vec::<PartAhead>::new(), blocks_max);
    for run in runs {
        let mut part: Option<PartAhead> = None;
        let mut is_whole = true;
        for (position, base_offset, batch) in run.placed() {
            let (end, end_offset) = (position + batch.size, base_offset + i64::from(batch.record_count));
            match &mut part {
                _ if end_offset <= offset => {}
                None => part = Some(PartAhead { run: Arc::clone(run), range: position..end, end_offset }),
                Some(part) if blocks(&(part.range.start..end)).len() <= left => {
                    (part.range.end, part.end_offset) = (end, end_offset);
                }
                Some(_) => {
                    is_whole = false;
                    break;
                }
            }
        }
        let Some(part) = part else { continue };
        let count = blocks(&part.range).len();
        // If this extent does not fit completely, end here. Adding a later extent would leave a gap.
        if !parts.is_empty() && (!is_whole || count > left) {
            break;
        }
        parts.push(part);
        left = left.saturating_sub(count);
        if !is_whole || left == 0 {
            break;
        }
    }
    parts
}

/// Returns the lost range that contains `offset`, or `None` if this offset is not lost. `lost` maps the first offset of
/// each lost extent to its end. Adjacent lost extents count as one range, so that a reader skips them together.
fn lost_at(offset: i64, lost: &BTreeMap<i64, i64>) -> Option<ReadError> {
    let (from, mut next) = lost.range(..=offset).next_back().map(|(from, next)| (*from, *next))?;
    while let Some(end) = lost.get(&next).filter(|end| **end > next) {
        next = *end;
    }
    (offset < next).then_some(ReadError::Lost { from, next })
}

impl Reader {
    /// Creates a reader without any records in memory.
    pub fn new(
        cache: Arc<Mutex<ObjectCache>>,
        given: Arc<ResponseBudget>,
        fetcher: RangeFetcher,
        finder: RunFinder,
    ) -> Reader {
        let shared = ReaderShared {
            cache,
            given,
            fetcher,
            finder,
            partitions: RwLock::default(),
            uploaded: Mutex::default(),
            windows: Mutex::default(),
            aborted: Mutex::default(),
            to_refresh: Mutex::default(),
            under_way: Mutex::default(),
            finds: FairPermits::new(FINDS),
            found: FairPermits::new(FOUND_BATCHES_MAX),
            failures: LogRateLimit::default(),
        };
        Reader { shared: Arc::new(shared) }
    }

    /// Registers a ready partition under its internal id.
    pub fn register(&self, number: DisklessPartitionId, partition: &Arc<PartitionView>) {
        self.shared.partitions.write().insert(number, Arc::downgrade(partition));
    }

    /// Forgets a deleted partition.
    pub fn retired(&self, number: DisklessPartitionId) {
        self.shared.partitions.write().remove(&number);
        self.shared.windows.lock().forget(number);
        self.shared.aborted.lock().forget(number);
    }

    /// Adds committed objects to the cache. Applies the rows and extents of the commit to the views of the partitions.
    pub fn committed(&self, objects: Vec<(ObjectId, Vec<Bytes>)>, rows: &[PartitionRow], runs: Vec<BatchRun>) {
        let shared = &self.shared;
        let mut of_partition: HashMap<DisklessPartitionId, Vec<Arc<BatchRun>>> = HashMap::new();
        for run in runs {
            of_partition.entry(run.partition).or_default().push(Arc::new(run));
        }
        let mut gone = Vec::new();
        for (id, parts) in &objects {
            let object = UploadedParts::new(parts);
            gone.extend(shared.cache.lock().insert_uploaded(*id, object));
        }
        let partitions: Vec<_> = rows.iter().filter_map(|row| Some((row, shared.partition(row.id)?))).collect();
        let mut uploaded = shared.uploaded.lock();
        for (row, partition) in &partitions {
            let runs = of_partition.remove(&row.id).unwrap_or_default();
            for run in &runs {
                uploaded.entry(run.object).or_default().push((Arc::downgrade(partition), run.base_offset));
            }
            partition.moved(row, runs);
        }
        let forgotten: Vec<_> = gone.iter().filter_map(|(id, _)| uploaded.remove(id)).flatten().collect();
        drop(uploaded);
        for (partition, base_offset) in forgotten {
            if let Some(partition) = partition.upgrade() {
                partition.forget_run(base_offset);
            }
        }
        partitions.iter().for_each(|(_, partition)| partition.wake());
    }

    /// Returns the partition with this internal id, or `None` if it is not ready or is deleted.
    pub fn partition(&self, number: DisklessPartitionId) -> Option<Arc<PartitionView>> {
        self.shared.partition(number)
    }

    /// Applies a change that another broker has committed.
    pub fn apply_change(&self, row: &PartitionRow) {
        if let Some(partition) = self.shared.partition(row.id) {
            partition.moved(row, Vec::new());
            partition.wake();
        }
    }

    /// Refreshes the views of these partitions. They are then at least as new as the index was at the time of this
    /// call.
    ///
    /// # Errors
    /// Returns a [`ReadError`] if the index cannot be searched.
    pub async fn refresh(&self, partitions: &[Arc<PartitionView>]) -> Result<(), ReadError> {
        self.shared.refresh(partitions).await
    }

    /// Requests a refresh of a partition and returns at once. The partition's waiters are woken after the refresh.
    pub fn request_refresh(&self, partition: &Arc<PartitionView>) {
        let Some(number) = partition.number() else { return };
        {
            let mut requested = self.shared.to_refresh.lock();
            requested.partitions.insert(number, Arc::clone(partition));
            if std::mem::replace(&mut requested.is_under_way, true) {
                return;
            }
        }
        let reader = self.clone();
        task::spawn(async move {
            while let Some(partitions) = reader.shared.next_to_refresh() {
                let refreshed = reader.refresh(&partitions).await;
                for partition in partitions {
                    if let Err(why) = refreshed {
                        partition.failed(why);
                    }
                    partition.wake();
                }
            }
        });
    }

    /// Returns the first batches of `offsets`, as far as they are in memory. `offsets.end` must not exceed the high
    /// watermark, because clients must not see later records yet. The batches have at most `max_bytes` in total; with
    /// `at_least_one`, the first batch may be larger. `client` is the number of the connection that reads.
    pub fn find(
        &self,
        partition: &Arc<PartitionView>,
        offsets: Range<i64>,
        max_bytes: u32,
        at_least_one: bool,
        client: u64,
    ) -> Found {
        let (max_bytes, start) = (self.shared.given.share(max_bytes, at_least_one), offsets.start);
        let places = self.places(partition, offsets, max_bytes, client);
        let Some(first) = places.first() else { return Found::Missing };
        if first.size > max_bytes && !at_least_one {
            return Found::Records(Records::default(), start);
        }
        let mut found = Vec::with_capacity(places.len());
        let (mut left, mut held) = (max_bytes, HeldObject::in_cache(&self.shared.cache));
        for place in places {
            if place.size > left && !(at_least_one && found.is_empty()) {
                break;
            }
            let Some(bytes) = held.find(&place) else { break };
            left = left.saturating_sub(place.size);
            found.push((place, bytes));
        }
        let fetched = found.iter().filter(|(_, bytes)| !bytes.is_uploaded);
        let is_copied = are_little_of_blocks(fetched.map(|(place, _)| (place.object, place.range())));
        let (mut assembly, mut end_offset) = (Assembly::new(partition.leader_epoch()), start);
        for (place, bytes) in found {
            if !bytes.is_uploaded && !is_intact(&bytes.parts, place.object) {
                partition.failed(self.shared.is_wrong(partition, place));
                break;
            }
            assembly.add(place.base_offset, bytes.parts, is_copied);
            end_offset = place.end_offset;
        }
        match assembly.is_empty() {
            true => Found::Missing,
            false => Found::Records(assembly.finish(&self.shared.given), end_offset),
        }
    }

    /// Counts the bytes of the batches in `offsets`, which must end at the high watermark or the last stable offset.
    /// May stop counting as soon as the count exceeds `enough`. Returns `None` if counting would need a query of the
    /// index.
    pub fn count(&self, partition: &Arc<PartitionView>, offsets: Range<i64>, enough: u64) -> Option<u64> {
        let (mut at, mut bytes) = (offsets.start, 0);
        while at < offsets.end && bytes <= enough {
            if let Some(rest) = partition.bytes_between(at..offsets.end) {
                return Some(bytes + rest);
            }
            let mut runs = partition.runs_from(at);
            if runs.is_empty() {
                (runs, _) = self.shared.windows.lock().runs_from(partition.number()?, at);
            }
            bytes += runs.iter().map(|run| run.bytes_from(at)).sum::<u64>();
            at = runs.last()?.end_offset();
        }
        // An extent that ends after `offsets.end` may have records that are not readable yet. The count would then be
        // wrong.
        (at <= offsets.end).then_some(bytes)
    }

    /// Returns the positions of the first batches in `offsets`, with about `max_bytes` bytes in total. If the next
    /// read-ahead window is due, requests it.
    fn places(&self, partition: &Arc<PartitionView>, offsets: Range<i64>, max_bytes: u32, client: u64) -> Vec<Place> {
        let Range { start: offset, end: log_end } = offsets;
        let mut runs = partition.runs_from(offset);
        if runs.is_empty()
            && let Some(number) = partition.number()
        {
            let (found, next) = self.shared.windows.lock().runs_from(number, offset);
            runs = found;
            if let Some(next) = next.filter(|next| *next < log_end) {
                self.request(partition, next, client);
            }
        }
        let (mut places, mut bytes, mut next) = (Vec::new(), 0_u64, offset);
        for run in &runs {
            for (position, base_offset, batch) in run.placed() {
                let end_offset = base_offset + i64::from(batch.record_count);
                if end_offset <= offset {
                    continue;
                }
                // If the records before this batch are missing, the answer ends at the gap.
                let is_gap = base_offset > next;
                if is_gap || base_offset >= log_end || bytes >= u64::from(max_bytes) && !places.is_empty() {
                    return places;
                }
                next = end_offset;
                bytes += u64::from(batch.size);
                places.push(Place { object: run.object, position, size: batch.size, base_offset, end_offset });
            }
        }
        places
    }

    /// Requests a search and fetch of the batches from `offset` on for `client`, and returns at once. The partition's
    /// waiters are woken when this is done.
    ///
    /// If the client's requests that are under way contain `offset`, or if there are too many of them, this request is
    /// dropped. When one of them ends, the waiter is woken and makes its request again.
    pub fn request(&self, partition: &Arc<PartitionView>, offset: i64, client: u64) {
        let Some(number) = partition.number() else { return };
        if self.shared.is_under_way(number, client, offset)
            || !self.shared.under_way.lock().begin(number, client, offset)
        {
            return;
        }
        let read = ReadFor { reader: ReaderId::Client(client), partition: number, offset };
        let (shared, partition) = (Arc::clone(&self.shared), Arc::clone(partition));
        task::spawn(async move {
            if let Err(why) = shared.read_ahead(read, &partition).await {
                partition.failed(why);
            }
            shared.under_way.lock().end(number, client, offset);
            partition.wake();
        });
    }

    /// Returns the finder of extents.
    pub(super) fn finder(&self) -> &RunFinder {
        &self.shared.finder
    }
}

impl ReaderShared {
    fn partition(&self, number: DisklessPartitionId) -> Option<Arc<PartitionView>> {
        self.partitions.read().get(&number)?.upgrade()
    }

    /// Returns the partitions for which a refresh was requested since the last call. If there are none, returns `None`,
    /// and the refresh task ends.
    fn next_to_refresh(&self) -> Option<Vec<Arc<PartitionView>>> {
        let mut requested = self.to_refresh.lock();
        requested.is_under_way = !requested.partitions.is_empty();
        requested.is_under_way.then(|| std::mem::take(&mut requested.partitions).into_values().collect())
    }

    async fn refresh(&self, partitions: &[Arc<PartitionView>]) -> Result<(), ReadError> {
        let requested = Instant::now();
        let of = |partition: &Arc<PartitionView>| Some((partition.number()?, Arc::clone(partition)));
        let partitions: HashMap<_, _> = partitions.iter().filter_map(of).collect();
        let found = self.finder.partitions(partitions.keys().copied().collect()).await;
        let found = found.map_err(|error| self.find_failed(&error))?;
        let found: HashMap<_, _> = found.into_iter().map(|row| (row.id, row)).collect();
        for (number, partition) in &partitions {
            match found.get(number) {
                Some(row) => {
                    partition.moved(row, Vec::new());
                    partition.refreshed(requested);
                    partition.wake();
                }
                // The partition is deleted, but the metadata image of this broker does not show this yet. Until it
                // does, this error prevents readers from requesting more refreshes.
                None => partition.failed(ReadError::Gone),
            }
        }
        Ok(())
    }

    /// Returns true if a window of `client` that contains `offset` is being fetched, so that no request is needed.
    fn is_under_way(&self, partition: DisklessPartitionId, client: u64, offset: i64) -> bool {
        let is_covered = self.under_way.lock().covers(partition, client, offset);
        // If another fetch has failed, all windows of the partition are gone and must be found again.
        is_covered && !self.windows.lock().runs_from(partition, offset).0.is_empty()
    }

    /// Finds and fetches the window that begins at the offset of `read`. Wakes the waiters each time that a part
    /// arrives. If the index has no extent with this offset, refreshes the partition instead.
    async fn read_ahead(self: &Arc<Self>, read: ReadFor, partition: &Arc<PartitionView>) -> Result<(), ReadError> {
        let Some((ahead, _room)) = self.find_ahead(read, partition).await? else {
            return self.refresh(std::slice::from_ref(partition)).await;
        };
        let mut fetches = JoinSet::new();
        for part in ahead {
            let read = ReadFor { offset: part.run.base_offset, ..read };
            let (shared, partition) = (Arc::clone(self), Arc::clone(partition));
            fetches.spawn(task::boxed(async move {
                let fetched = shared.fetch_part(read, &partition, &part).await;
                fetched.map_err(|error| shared.run_failed(&partition, &part.run, &error))
            }));
        }
        let (mut lost, mut failed) = (BTreeMap::new(), None);
        while let Some(fetched) = fetches.join_next().await {
            match fetched {
                Ok(Ok(())) => partition.wake(),
                Ok(Err(ReadError::Lost { from, next })) => drop(lost.insert(from, next)),
                Ok(Err(why)) => failed = Some(why),
                Err(_) => failed = failed.or(Some(ReadError::Storage)),
            }
        }
        // If the record at `offset` is lost, report the loss before any other failure. If a later record is lost, the
        // loss is reported when the records before it have been read.
        match lost_at(read.offset, &lost).or(failed) {
            Some(why) => {
                // The positions of the records may have changed, so look them up again after a failure.
                self.windows.lock().forget(read.partition);
                Err(why)
            }
            None => Ok(()),
        }
    }

    /// Finds the window that begins at the offset of `read`, and adds it to the windows. Returns `None` if the index
    /// has no extent with this offset.
    ///
    /// Waits while the windows that are found but not fetched have `FOUND_BATCHES_MAX` batches. Does not wait for a
    /// slot for a GET, because this window may need no GET. Its bytes may be in memory, or another partition may be
    /// fetching them.
    async fn find_ahead(
        &self,
        read: ReadFor,
        partition: &Arc<PartitionView>,
    ) -> Result<Option<(Vec<PartAhead>, FairPermit<'_>)>, ReadError> {
        let ReadFor { partition: number, offset, .. } = read;
        let _turn = self.finds.acquire(read, 1, 1).await;
        let readers = self.windows.lock().readers(number);
        // Each reader has two windows: one is read while the other is fetched.
        let share = self.cache.lock().fetched_room() / BLOCK as usize / 2 / readers;
        let mut runs = partition.runs_from(offset);
        if runs.is_empty() {
            let found = self.finder.runs_from(number, offset, share.clamp(1, AHEAD_BLOCKS)).await;
            let found = found.map_err(|error| self.find_failed(&error))?;
            runs = found.into_iter().map(Arc::new).collect();
        }
        // If records were deleted after the request, no extent contains `offset`. The caller then refreshes the
        // partition, which returns the new log start.
        let is_there = runs.first().is_some_and(|first| first.base_offset <= offset);
        let ahead = if is_there { ahead(offset, &runs, share.clamp(1, AHEAD_BLOCKS)) } else { Vec::new() };
        let Some(end) = ahead.last().map(|part| part.end_offset) else { return Ok(None) };
        let batches = ahead.iter().map(|part| part.run.batches.len() + RUN_COST).sum::<usize>().min(FOUND_BATCHES_MAX);
        let room = self.found.acquire(read, batches, batches).await;
        let window = Window::new(offset..end, ahead.iter().map(|part| Arc::clone(&part.run)).collect(), share > 0);
        self.windows.lock().insert(number, window);
        if let ReaderId::Client(client) = read.reader {
            self.under_way.lock().found(number, client, offset, end);
        }
        Ok(Some((ahead, room)))
    }

    /// Returns the bytes of one batch, with its base offset set. Fetches them if they are not in memory.
    async fn batch(&self, partition: &PartitionView, place: Place) -> Result<Bytes, ReadError> {
        let range = place.range();
        for _ in 0..WRONG_MAX {
            let found = self.cache.lock().find(place.object, place.position, place.size);
            match found {
                Some(found) if found.is_uploaded || is_intact(&found.parts, place.object) => {
                    let mut assembly = Assembly::new(partition.leader_epoch());
                    assembly.add(place.base_offset, found.parts, true);
                    return Ok(assembly.finish_whole());
                }
                Some(_) => {
                    self.is_wrong(partition, place);
                }
                None => {
                    let number = partition.number().unwrap_or_default();
                    let reader = ReaderId::LookUp(number);
                    let read = ReadFor { reader, partition: number, offset: place.base_offset };
                    let fetched = self.fetcher.fetch(read, place.object, range.clone(), range.end).await;
                    fetched.map_err(|error| self.fetch_failed(&error))?
                }
            }
        }
        Err(ReadError::Storage)
    }
}

#[cfg(test)]
mod tests;
