//! Fetches ranges of objects from the store into the cache, in whole blocks. If several readers need a block, it is
//! fetched once. The number of concurrent GETs is limited, and readers share their slots fairly.
//!
//! [`FairPermits`] decides whose GET is next, [`GetWindow`] how many GETs run and how long they are. [`FailedReads`]
//! decides how long to pause before an object that could not be read is read again. [`Tries`] decides when a slow GET
//! gets a second try.
//!
//! A batch is read as a whole, so its blocks must be in the cache at the same time. A batch that needs several GETs
//! therefore first takes room for all its blocks, and the cache keeps them until the last one is fetched. The room is
//! half of the cache. Batches of one GET need no room, so they do not wait behind large ones.
//!
//! A GET without progress leaves its slot to others, so that a part of the store that hangs does not stop the reads of
//! other objects. It also gives up its room. Such GETs have at most [`SILENT_BLOCKS_MAX`] blocks.
//!
//! Invariant: each block has at most one fetch under way.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use fullbore_rules::commit::ObjectId;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until};

use super::block_claims::{BlockClaims, ObjectClaims};
use super::cache::{BLOCK, ObjectCache, blocks};
use super::failed::FailedReads;
use super::fair_permits::{FairPermit, FairPermits, ReadFor};
use super::get_window::{EndedGet, GetWindow};
use super::objects::counts::StoreCounts;
use super::objects::{BodyProgress, ObjectError, Objects};
use super::tries::Tries;

/// Maximum number of attempts of a GET.
const ATTEMPTS: u32 = 3;
/// How long the fetcher waits after the first attempt. Each further wait is twice as long.
const BACKOFF: Duration = Duration::from_millis(20);
/// Number of blocks that one GET may always fetch if the reader needs them together. A small batch that crosses the
/// boundary of two blocks then needs one GET.
const TOGETHER: usize = 2;
/// Maximum number of blocks of all GETs that have left their slots because they make no progress.
const SILENT_BLOCKS_MAX: usize = 64;
/// How often a GET without progress checks if it may leave its slot, while other such GETs have all the blocks.
const SILENT_CHECK: Duration = Duration::from_secs(1);

/// A handle of the fetcher. Clones share their state.
#[derive(Clone)]
pub struct RangeFetcher {
    shared: Arc<FetcherShared>,
}

struct FetcherShared {
    objects: Objects,
    cache: Arc<Mutex<ObjectCache>>,
    /// A slot for each GET that may run now.
    slots: FairPermits,
    window: Mutex<GetWindow>,
    /// A permit for each block of a batch that needs several GETs.
    room: FairPermits,
    /// Permits for the blocks of GETs that have left their slots.
    silent: Semaphore,
    tries: Arc<Tries>,
    /// The blocks that are being fetched. A fetch claims its blocks until they are in the cache.
    claims: BlockClaims,
    failed: Mutex<FailedReads>,
    counts: Arc<StoreCounts>,
    began: Instant,
}

/// The room for a batch that needs several GETs. While it exists, the cache keeps the blocks of the batch.
struct BatchRoom<'f> {
    cache: &'f Mutex<ObjectCache>,
    id: ObjectId,
    range: Range<u32>,
    _permits: FairPermit<'f>,
}

impl Drop for BatchRoom<'_> {
    fn drop(&mut self) {
        self.cache.lock().release(self.id, &self.range);
    }
}

/// The progress of all tries of a GET.
#[derive(Default)]
struct GetProgress(Mutex<Vec<BodyProgress>>);

impl GetProgress {
    /// Returns when the last bytes arrived. If none have arrived, returns when the first try began.
    fn last(&self) -> Instant {
        let tries = self.0.lock();
        let moved = tries.iter().enumerate().map(|(nth, one)| (nth, one.last()));
        moved
            .filter(|(nth, (_, bytes))| *nth == 0 || *bytes > 0)
            .map(|(_, (at, _))| at)
            .max()
            .unwrap_or_else(Instant::now)
    }
}

impl RangeFetcher {
    /// Creates a fetcher that runs at most `slots` GETs at a time.
    pub fn new(
        objects: Objects,
        cache: Arc<Mutex<ObjectCache>>,
        slots: usize,
        counts: Arc<StoreCounts>,
    ) -> RangeFetcher {
        let window = GetWindow::new(slots);
        let shared = FetcherShared {
            objects,
            cache,
            slots: FairPermits::new(window.gets()),
            window: Mutex::new(window),
            room: FairPermits::new(0),
            silent: Semaphore::new(SILENT_BLOCKS_MAX),
            tries: Arc::new(Tries::new("GET", 0)),
            claims: BlockClaims::default(),
            failed: Mutex::default(),
            counts,
            began: Instant::now(),
        };
        RangeFetcher { shared: Arc::new(shared) }
    }

    /// Returns the [`Tries`] of all GETs, which sends a second GET if the first one is slow.
    pub fn tries(&self) -> &Arc<Tries> {
        &self.shared.tries
    }

    /// Fetches a range of an object into the cache, for the reader `read`, who needs its blocks together. If another
    /// fetch of a block is under way, waits for it. The last GET may go on up to `until`, which is at least
    /// `range.end`.
    ///
    /// # Errors
    /// Returns the [`ObjectError`] of the last attempt, or of an earlier GET whose pause is not over yet. Returns
    /// [`ObjectError::Short`] if the object ends before the bytes that the last GET was to return. The cache then has
    /// the bytes up to the end of the object.
    pub async fn fetch(&self, read: ReadFor, id: ObjectId, range: Range<u32>, until: u32) -> Result<(), ObjectError> {
        let shared = &*self.shared;
        let (object, mut at, mut room) = (shared.claims.of(id), range.start, None);
        let is_small = blocks(&range).len() <= TOGETHER;
        while let Some(next) = shared.missing(id, at..range.end, until) {
            if room.is_none() && shared.needs_room(&(next.start..range.end)) {
                let is_fetched = || shared.missing(id, at..range.end, until).is_none();
                room = tokio::select! {
                    biased;
                    () = object.until(next.start, |_| is_fetched()) => None,
                    room = shared.take_room(read, id, range.clone()) => Some(room),
                };
                continue;
            }
            object.until(next.start, |is_claimed| !is_claimed).await;
            let slot = tokio::select! {
                biased;
                () = shared.is_fetched_by_another(&object, id, at..range.end, next.start) => continue,
                slot = shared.slots.acquire(read, 1, next.len()) => slot,
            };
            let Some(next) = shared.missing(id, at..range.end, until) else { break };
            let Some(claim) = object.claim(&next) else { continue };
            // Another fetch may have added the blocks just before the claim. The last block of an object may be short,
            // so a block counts as cached if it has the bytes before `until`.
            let claimed = claim.range.start..claim.range.end.min(until);
            let Some(next) =
                shared.missing(id, claimed.clone(), claimed.end).filter(|still| still.start == claim.range.start)
            else {
                continue;
            };
            let wanted = next.start..next.end.min(until);
            let bytes = self.get(read, id, next.clone(), wanted.len(), (slot, &mut room)).await?;
            self.insert(id, &next, &bytes);
            if bytes.len() < wanted.len() {
                let short = ObjectError::Short { id, end: next.start + bytes.len() as u32 };
                shared.failed.lock().failed(id, &wanted, &short, Instant::now());
                return Err(short);
            }
            // Keeps the start of a large batch, so that its last two blocks do not count as a small one.
            at = if is_small { next.end } else { at };
        }
        Ok(())
    }

    /// Returns true if the cache lacks any block of a range.
    pub fn is_missing(&self, id: ObjectId, range: Range<u32>) -> bool {
        self.shared.cache.lock().missing(id, range, 1).is_some()
    }

    /// Adds those blocks of a range to the cache for which `bytes` has any bytes.
    fn insert(&self, id: ObjectId, range: &Range<u32>, bytes: &Bytes) {
        let mut cache = self.shared.cache.lock();
        for block in blocks(range) {
            let from = ((block * BLOCK - range.start) as usize).min(bytes.len());
            let to = (from + BLOCK as usize).min(bytes.len());
            // A slice would keep the bytes of all blocks of this GET in memory, so each block gets a copy.
            cache.insert_fetched(id, block, Bytes::copy_from_slice(&bytes[from..to]));
        }
    }

    /// Removes the blocks of a range from the cache, because its bytes differ from those that were put. Returns how
    /// many GETs in a row have returned wrong bytes.
    pub fn forget(&self, id: ObjectId, range: Range<u32>) -> u32 {
        let times = self.shared.failed.lock().wrong(id, &range, Instant::now());
        let mut cache = self.shared.cache.lock();
        blocks(&range).for_each(|block| cache.forget_fetched(id, block));
        times
    }

    /// Sends a GET in `slot`, and repeats it in another slot if it fails or returns fewer than `wanted` bytes. If even
    /// the last attempt returns fewer bytes, returns these. `room` is given up if the GET makes no progress.
    async fn get(
        &self,
        read: ReadFor,
        id: ObjectId,
        range: Range<u32>,
        wanted: usize,
        (slot, room): (FairPermit<'_>, &mut Option<BatchRoom<'_>>),
    ) -> Result<Bytes, ObjectError> {
        let shared = &self.shared;
        let has_failed = shared.failed.lock().check(id, &range, Instant::now())?;
        let attempts = if has_failed { 1 } else { ATTEMPTS };
        let (mut slot, mut backoff) = (slot, BACKOFF);
        for attempt in 1.. {
            // The slot is released during the pause, so that other GETs can use it.
            match shared.attempt(id, range.clone(), slot, room).await {
                Ok(bytes) if bytes.len() < wanted && attempt < attempts => {}
                Ok(bytes) => {
                    // Short bytes, or wrong ones for the second time, may be those of another store.
                    if (has_failed || bytes.len() < wanted)
                        && let Err(error) = shared.objects.is_still_ours().await
                    {
                        shared.counts.get_failed(&error);
                        shared.failed.lock().failed(id, &range, &error, Instant::now());
                        return Err(error);
                    }
                    shared.failed.lock().succeeded(id);
                    shared.counts.get_succeeded();
                    shared.counts.gets.fetch_add(1, Ordering::Relaxed);
                    shared.counts.get_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    return Ok(bytes);
                }
                Err(error) => {
                    shared.counts.get_failed(&error);
                    // A store may show a new object only after a while, so `NotFound` is retried as well.
                    let may_come = error.is_retriable() || matches!(error, ObjectError::NotFound(_));
                    if attempt >= attempts || !may_come {
                        shared.failed.lock().failed(id, &range, &error, Instant::now());
                        return Err(error);
                    }
                }
            }
            sleep(backoff).await;
            backoff *= 2;
            slot = shared.slots.acquire(read, 1, range.len()).await;
        }
        unreachable!("it is tried until there is an outcome")
    }
}

impl FetcherShared {
    /// Returns the first blocks that the cache lacks, as many as a GET may fetch now. The first one is in `range`, and
    /// the last one may be before `until`.
    fn missing(&self, id: ObjectId, range: Range<u32>, until: u32) -> Option<Range<u32>> {
        let (end, is_small) = (range.end, blocks(&range).len() <= TOGETHER);
        let first = self.cache.lock().missing(id, range, 1)?.start;
        let least = if is_small { blocks(&(first..end)).len() as u32 } else { 1 };
        let blocks_max = self.window.lock().blocks().max(least);
        self.cache.lock().missing(id, first..until, blocks_max)
    }

    /// Returns true if a reader that needs the blocks of `range` together needs several GETs for them.
    fn needs_room(&self, range: &Range<u32>) -> bool {
        blocks(range).len() > TOGETHER.max(self.window.lock().blocks() as usize)
    }

    /// Waits for room for all blocks of `range`. If they are more than half of the cache, waits until no other batch
    /// has room.
    async fn take_room(&self, read: ReadFor, id: ObjectId, range: Range<u32>) -> BatchRoom<'_> {
        let room = self.cache.lock().fetched_room() / BLOCK as usize / 2;
        self.room.set_limit(room);
        let permits = self.room.acquire(read, blocks(&range).len(), range.len()).await;
        self.cache.lock().keep(id, &range);
        BatchRoom { cache: &self.cache, id, range, _permits: permits }
    }

    /// Waits until the first missing block of `range`, which begins at `next`, is in the cache or is being fetched.
    async fn is_fetched_by_another(&self, object: &ObjectClaims, id: ObjectId, range: Range<u32>, next: u32) {
        let end = range.end;
        let is_missing = || self.missing(id, range.clone(), end).is_some_and(|missing| missing.start == next);
        object.until(next, |is_claimed| is_claimed || !is_missing()).await;
    }

    /// Sends a GET in `slot`, hedged by a second GET. If it makes no progress, releases the slot and the room before it
    /// ends.
    async fn attempt(
        &self,
        id: ObjectId,
        range: Range<u32>,
        slot: FairPermit<'_>,
        room: &mut Option<BatchRoom<'_>>,
    ) -> Result<Bytes, ObjectError> {
        let progress = GetProgress::default();
        let get = |of_try: BodyProgress| {
            progress.0.lock().push(of_try.clone());
            let (objects, range) = (self.objects.clone(), range.clone());
            async move {
                let bytes = objects.get(id, range, of_try.clone()).await?;
                let (took, body_took) = (of_try.began().elapsed(), of_try.body_took());
                Ok::<_, ObjectError>((EndedGet { took, body_took, bytes: bytes.len() as u64 }, bytes))
            }
        };
        let mut got = std::pin::pin!(self.tries.run(range.len() as u64, get, || ()));
        let done = tokio::select! {
            biased;
            done = &mut got => done,
            _silent = self.silent(&progress, &range) => {
                drop((slot, room.take()));
                got.await
            }
        };
        let (ended, bytes) = done?;
        let under_way = self.slots.used();
        let mut window = self.window.lock();
        window.note(self.began.elapsed(), ended, under_way);
        self.slots.set_limit(window.gets());
        Ok(bytes)
    }

    /// Waits until a GET of `range` makes no progress and may leave its slot.
    async fn silent(&self, progress: &GetProgress, range: &Range<u32>) -> SemaphorePermit<'_> {
        let count = blocks(range).len() as u32;
        loop {
            let due = progress.last() + self.tries.silence(range.len() as u64);
            if due > Instant::now() {
                sleep_until(due).await;
            } else if let Ok(permit) = self.silent.try_acquire_many(count) {
                return permit;
            } else {
                sleep(SILENT_CHECK).await;
            }
        }
    }
}

#[cfg(test)]
mod shared_slots_tests;

#[cfg(test)]
mod tests {
    use super::super::failed::PAUSE;
    use super::super::fair_permits::ReaderId;
    use super::super::index::temp_index::TempIndex;
    use super::super::objects::BodyProgress;
    use super::super::objects::double::{StoreDouble, s3_storage};
    use super::*;
    use fullbore_tests::s3::S3;
    use tokio::time::timeout;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    const READ: ReadFor = ReadFor { reader: ReaderId::Client(1), partition: 1, offset: 0 };

    async fn fetch(fetcher: &RangeFetcher, id: ObjectId, range: Range<u32>) -> Result<(), ObjectError> {
        fetcher.fetch(READ, id, range.clone(), range.end).await
    }

    async fn fetcher(store: &Arc<StoreDouble>, len: usize) -> (RangeFetcher, Arc<Mutex<ObjectCache>>) {
        let objects = Objects::over(store.clone(), "one");
        objects.put(1, vec![Bytes::from(vec![7; len])], BodyProgress::default()).await.expect("put");
        let cache = Arc::new(Mutex::new(ObjectCache::new(0, 1 << 30)));
        (RangeFetcher::new(objects, cache.clone(), 2, Arc::default()), cache)
    }

    #[tokio::test(start_paused = true)]
    async fn several_readers_want_a_block_it_is_fetched_once() {
        let store = StoreDouble::taking(MS(50));
        let (fetcher, cache) = fetcher(&store, 3 << 20).await;
        let wants =
            [0..10, 5..BLOCK + 1, 0..3 * BLOCK, 2 * BLOCK..2 * BLOCK + 5].map(|range| fetch(&fetcher, 1, range));
        let [one, two, three, four] = wants;
        let done = tokio::join!(one, two, three, four);
        assert_eq!(done, (Ok(()), Ok(()), Ok(()), Ok(())));
        assert!(store.gets() <= 3, "{} GETs for 3 blocks", store.gets());
        let found = cache.lock().find(1, 0, 3 * BLOCK).expect("all of it");
        assert!(found.parts.concat() == vec![7; 3 << 20] && !found.is_uploaded);
        fetcher.forget(1, 0..1);
        assert!(cache.lock().find(1, 0, 1).is_none() && cache.lock().find(1, BLOCK, 1).is_some());
    }

    /// Regression test: the last block of nearly every object is short. Readers of extents in such a block waited for
    /// one another, and then each of them sent its own GET.
    #[tokio::test(start_paused = true)]
    async fn several_want_a_block_that_ends_with_its_object_it_is_fetched_once() {
        let store = StoreDouble::taking(MS(50));
        let (fetcher, cache) = fetcher(&store, 500_000).await;
        let wants = (0..5).map(|run| fetch(&fetcher, 1, run * 100_000..(run + 1) * 100_000));
        let done = futures_util::future::join_all(wants).await;
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        assert_eq!(store.gets(), 1);
        assert!(cache.lock().find(1, 0, 500_000).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn fetching_reader_is_gone_another_goes_on() {
        let store = StoreDouble::taking(MS(50));
        let (fetcher, cache) = fetcher(&store, 10).await;
        assert!(timeout(MS(10), fetch(&fetcher, 1, 0..10)).await.is_err());
        assert_eq!(fetch(&fetcher, 1, 0..10).await, Ok(()));
        assert!(cache.lock().find(1, 0, 10).is_some());
        assert!(cache.lock().find(1, 0, 11).is_none(), "it ends there");
    }

    #[tokio::test(start_paused = true)]
    async fn get_fails_it_is_repeated_and_a_missing_object_is_an_error() {
        let store = StoreDouble::taking(MS(50));
        let (fetcher, cache) = fetcher(&store, 10).await;
        store.fail_next(2);
        assert_eq!(fetch(&fetcher, 1, 0..10).await, Ok(()));
        store.hang_next(1);
        fetcher.forget(1, 0..10);
        assert_eq!(fetch(&fetcher, 1, 0..10).await, Ok(()));
        let before = store.gets();
        assert_eq!(fetch(&fetcher, 2, 0..10).await, Err(ObjectError::NotFound(2)));
        assert_eq!(store.gets() - before, ATTEMPTS as usize);
        assert_eq!(fetch(&fetcher, 2, BLOCK..BLOCK + 1).await, Err(ObjectError::NotFound(2)));
        assert_eq!(store.gets() - before, ATTEMPTS as usize, "it is not asked for again so soon");
        let short = fetch(&fetcher, 1, 0..11).await.expect_err("it has ten bytes");
        assert_eq!(short, ObjectError::Short { id: 1, end: 10 });
        assert!(cache.lock().find(1, 0, 10).is_some(), "what there is of it");
        let short = fetch(&fetcher, 1, BLOCK..BLOCK + 1).await.expect_err("it has ten bytes");
        assert_eq!(short, ObjectError::Short { id: 1, end: BLOCK });
    }
    #[tokio::test(start_paused = true)]
    async fn object_is_gone_its_readers_in_a_loop_cost_a_get_a_second() {
        let store = StoreDouble::taking(MS(50));
        let (fetcher, _) = fetcher(&store, 10).await;
        let (began, before) = (Instant::now(), store.gets());
        while began.elapsed() < MS(10_000) {
            let wants = (0..8).map(|block| fetch(&fetcher, 2, block * BLOCK..block * BLOCK + 1));
            let done = futures_util::future::join_all(wants).await;
            assert!(done.iter().all(|done| *done == Err(ObjectError::NotFound(2))));
            sleep(MS(10)).await;
        }
        let gets = store.gets() - before;
        assert!(gets <= 8 * ATTEMPTS as usize + 10, "{gets} GETs in 10 s");
        assert!(gets >= 10, "{gets} GETs: it is looked at again");
    }

    /// Regression test: the objects of another store counted as lost.
    #[tokio::test]
    async fn another_store_has_short_or_wrong_bytes_no_object_is_short_or_wrong() {
        let (s3, index) = (S3::start(), TempIndex::empty());
        let storage = fullbore_config::DisklessStorage::S3(s3_storage(&s3));
        let objects = Objects::open(&storage, "one", index.owner()).await.expect("opened");
        objects.put(1, vec![Bytes::from(vec![7; 10])], BodyProgress::default()).await.expect("put");
        let cache = Arc::new(Mutex::new(ObjectCache::new(0, 1 << 30)));
        let fetcher = RangeFetcher::new(objects, cache, 2, Arc::default());
        assert_eq!(fetch(&fetcher, 1, 0..10).await, Ok(()));
        let marker = s3.directory().join("some/where/cluster");
        let ours = std::fs::read_to_string(&marker).expect("the marker");
        std::fs::write(&marker, "other 012345678901234567890A").expect("written");
        fetcher.forget(1, 0..10);
        let failed = fetch(&fetcher, 1, 0..10).await.expect_err("wrong bytes a second time");
        assert!(matches!(failed, ObjectError::Unavailable(_)), "{failed:?}");
        sleep(PAUSE).await;
        let failed = fetch(&fetcher, 1, 0..11).await.expect_err("short bytes");
        assert!(matches!(failed, ObjectError::Unavailable(_)), "{failed:?}");
        std::fs::write(&marker, ours).expect("written");
        sleep(PAUSE).await;
        assert_eq!(fetch(&fetcher, 1, 0..11).await, Err(ObjectError::Short { id: 1, end: 10 }));
    }
}
