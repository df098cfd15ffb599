//! Fetches ranges of objects from the store into the cache, in whole blocks. If several readers need a block, it is
//! fetched once. The number of concurrent GETs is limited.
//!
//! [`FailedReads`] decides how long to pause before an object that could not be read is read again. [`Tries`] decides
//! when a slow GET gets a second try.
//!
//! Invariant: each block has at most one fetch under way.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use fullbore_rules::commit::ObjectId;
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio::time::{Instant, sleep};

use super::cache::{BLOCK, ObjectCache, blocks};
use super::failed::FailedReads;
use super::objects::counts::StoreCounts;
use super::objects::{ObjectError, Objects};
use super::tries::Tries;

/// Maximum number of attempts of a GET.
const ATTEMPTS: u32 = 3;
/// How long the fetcher waits after the first attempt. Each further wait is twice as long.
const BACKOFF: Duration = Duration::from_millis(20);

/// A handle of the fetcher. Clones share their state.
#[derive(Clone)]
pub struct RangeFetcher {
    shared: Arc<FetcherShared>,
}

type BlockLock = tokio::sync::Mutex<()>;

struct FetcherShared {
    objects: Objects,
    cache: Arc<Mutex<ObjectCache>>,
    slots: Semaphore,
    tries: Arc<Tries>,
    /// The locks of blocks. A fetch holds the locks of its blocks until these blocks are in the cache.
    locks: Mutex<HashMap<(ObjectId, u32), Weak<BlockLock>>>,
    failed: Mutex<FailedReads>,
    counts: Arc<StoreCounts>,
}

impl RangeFetcher {
    /// Creates a fetcher that runs at most `slots` GETs at a time.
    pub fn new(
        objects: Objects,
        cache: Arc<Mutex<ObjectCache>>,
        slots: usize,
        counts: Arc<StoreCounts>,
    ) -> RangeFetcher {
        let (slots, tries) = (Semaphore::new(slots), Arc::new(Tries::new("GET", 0)));
        let (locks, failed) = (Mutex::default(), Mutex::default());
        RangeFetcher { shared: Arc::new(FetcherShared { objects, cache, slots, tries, locks, failed, counts }) }
    }

    /// Returns the [`Tries`] of all GETs, which sends a second GET if the first one is slow.
    pub fn tries(&self) -> &Arc<Tries> {
        &self.shared.tries
    }

    /// Fetches a range of an object into the cache. If another fetch of the same block is under way, waits for it.
    ///
    /// # Errors
    /// Returns the [`ObjectError`] of the last attempt, or of an earlier GET whose pause is not over yet. Returns
    /// [`ObjectError::Short`] if the object ends before `range.end`. The cache then has the bytes up to the end of the
    /// object.
    pub async fn fetch(&self, id: ObjectId, range: Range<u32>) -> Result<(), ObjectError> {
        let end = range.end;
        let missing = self.shared.cache.lock().missing(id, range);
        for range in missing {
            let _locks = self.lock(id, &range).await;
            // While this fetch waited for the locks, another fetch may have added the blocks. The last block of an
            // object may be short, so a block counts as cached if it has the bytes before `end`, the end of the
            // requested range.
            let still = self.shared.cache.lock().missing(id, range.start..range.end.min(end));
            for range in still {
                let wanted = range.start..range.end.min(end);
                let bytes = self.get(id, range.clone(), wanted.len()).await?;
                self.insert(id, &range, &bytes);
                if bytes.len() < wanted.len() {
                    let short = ObjectError::Short { id, end: range.start + bytes.len() as u32 };
                    self.shared.failed.lock().failed(id, &wanted, &short, Instant::now());
                    return Err(short);
                }
            }
        }
        Ok(())
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

    /// Locks all blocks of a range. All callers lock in ascending order, so there is no deadlock.
    async fn lock(&self, id: ObjectId, range: &Range<u32>) -> Vec<OwnedMutexGuard<()>> {
        let mut guards = Vec::new();
        for block in blocks(range) {
            let lock = {
                let mut locks = self.shared.locks.lock();
                match locks.get(&(id, block)).and_then(Weak::upgrade) {
                    Some(lock) => lock,
                    None => {
                        locks.retain(|_, lock| lock.strong_count() > 0);
                        let lock = Arc::default();
                        locks.insert((id, block), Arc::downgrade(&lock));
                        lock
                    }
                }
            };
            guards.push(lock.lock_owned().await);
        }
        guards
    }

    /// Sends a GET, and repeats it if it fails or returns fewer than `wanted` bytes. If even the last attempt returns
    /// fewer bytes, returns these.
    async fn get(&self, id: ObjectId, range: Range<u32>, wanted: usize) -> Result<Bytes, ObjectError> {
        let shared = &self.shared;
        let mut slot = shared.slots.acquire().await;
        let has_failed = shared.failed.lock().check(id, &range, Instant::now())?;
        let attempts = if has_failed { 1 } else { ATTEMPTS };
        let mut backoff = BACKOFF;
        for attempt in 1.. {
            let get = |progress| {
                let (objects, range) = (shared.objects.clone(), range.clone());
                async move { objects.get(id, range, progress).await }
            };
            match shared.tries.run(range.len() as u64, get, || ()).await {
                Ok(bytes) if bytes.len() < wanted && attempt < attempts => {}
                Ok(bytes) => {
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
            // Releases the slot during the pause, so that other GETs can use it.
            drop(slot);
            sleep(backoff).await;
            backoff *= 2;
            slot = shared.slots.acquire().await;
        }
        unreachable!("it is tried until there is an outcome")
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::BodyProgress;
    use super::super::objects::double::StoreDouble;
    use super::*;
    use tokio::time::timeout;

    const MS: fn(u64) -> Duration = Duration::from_millis;

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
        let wants = [0..10, 5..BLOCK + 1, 0..3 * BLOCK, 2 * BLOCK..2 * BLOCK + 5].map(|range| fetcher.fetch(1, range));
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
        let wants = (0..5).map(|run| fetcher.fetch(1, run * 100_000..(run + 1) * 100_000));
        let done = futures_util::future::join_all(wants).await;
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        assert_eq!(store.gets(), 1);
        assert!(cache.lock().find(1, 0, 500_000).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn fetching_reader_is_gone_another_goes_on() {
        let store = StoreDouble::taking(MS(50));
        let (fetcher, cache) = fetcher(&store, 10).await;
        assert!(timeout(MS(10), fetcher.fetch(1, 0..10)).await.is_err());
        assert_eq!(fetcher.fetch(1, 0..10).await, Ok(()));
        assert!(cache.lock().find(1, 0, 10).is_some());
        assert!(cache.lock().find(1, 0, 11).is_none(), "it ends there");
    }

    #[tokio::test(start_paused = true)]
    async fn get_fails_it_is_repeated_and_a_missing_object_is_an_error() {
        let store = StoreDouble::taking(MS(50));
        let (fetcher, cache) = fetcher(&store, 10).await;
        store.fail_next(2);
        assert_eq!(fetcher.fetch(1, 0..10).await, Ok(()));
        store.hang_next(1);
        fetcher.forget(1, 0..10);
        assert_eq!(fetcher.fetch(1, 0..10).await, Ok(()));
        let before = store.gets();
        assert_eq!(fetcher.fetch(2, 0..10).await, Err(ObjectError::NotFound(2)));
        assert_eq!(store.gets() - before, ATTEMPTS as usize);
        assert_eq!(fetcher.fetch(2, BLOCK..BLOCK + 1).await, Err(ObjectError::NotFound(2)));
        assert_eq!(store.gets() - before, ATTEMPTS as usize, "it is not asked for again so soon");
        let short = fetcher.fetch(1, 0..11).await.expect_err("it has ten bytes");
        assert_eq!(short, ObjectError::Short { id: 1, end: 10 });
        assert!(cache.lock().find(1, 0, 10).is_some(), "what there is of it");
        let short = fetcher.fetch(1, BLOCK..BLOCK + 1).await.expect_err("it has ten bytes");
        assert_eq!(short, ObjectError::Short { id: 1, end: BLOCK });
    }
    #[tokio::test(start_paused = true)]
    async fn object_is_gone_its_readers_in_a_loop_cost_a_get_a_second() {
        let store = StoreDouble::taking(MS(50));
        let (fetcher, _) = fetcher(&store, 10).await;
        let (began, before) = (Instant::now(), store.gets());
        while began.elapsed() < MS(10_000) {
            let wants = (0..8).map(|block| fetcher.fetch(2, block * BLOCK..block * BLOCK + 1));
            let done = futures_util::future::join_all(wants).await;
            assert!(done.iter().all(|done| *done == Err(ObjectError::NotFound(2))));
            sleep(MS(10)).await;
        }
        let gets = store.gets() - before;
        assert!(gets <= 8 * ATTEMPTS as usize + 10, "{gets} GETs in 10 s");
        assert!(gets >= 10, "{gets} GETs: it is looked at again");
    }
}
