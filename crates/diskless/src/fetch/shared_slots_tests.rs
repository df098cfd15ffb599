//! Tests that readers share the slots for GETs: on a narrow link, and while the GETs of some objects hang.

use std::sync::Arc;

use super::super::fair_permits::ReaderId;
use super::super::objects::double::StoreDouble;
use super::super::tries::SILENT_MAX;
use super::*;
use tokio::time::timeout;

const MS: fn(u64) -> Duration = Duration::from_millis;
/// Size of the objects, in blocks.
const LARGE: u32 = 4;

/// Creates a fetcher with 16 slots over a store with `large` large objects, whose ids are 1 to `large`, and with 10
/// small ones, whose ids begin at 1000.
async fn fetcher(store: &Arc<StoreDouble>, large: ObjectId) -> RangeFetcher {
    let objects = Objects::over(store.clone(), "one");
    let bytes = Bytes::from(vec![7; (LARGE * BLOCK) as usize]);
    for id in 1..=large {
        objects.put(id, vec![bytes.clone()], BodyProgress::default()).await.expect("put");
    }
    for id in 1000..1010 {
        objects.put(id, vec![bytes.slice(..100)], BodyProgress::default()).await.expect("put");
    }
    let cache = Arc::new(Mutex::new(ObjectCache::new(0, 1 << 30)));
    RangeFetcher::new(objects, cache, 16, Arc::default())
}

fn read_of(reader: i64, partition: i64, offset: i64) -> ReadFor {
    ReadFor { reader: ReaderId::Client(reader as u64), partition, offset }
}

async fn fetch(fetcher: &RangeFetcher, read: ReadFor, id: ObjectId, range: Range<u32>) -> Result<(), ObjectError> {
    fetcher.fetch(read, id, range.clone(), range.end).await
}

/// Lets `partition` read whole large objects ahead. Returns at once.
fn read_ahead(fetcher: &RangeFetcher, partition: i64, ids: Range<ObjectId>) {
    for id in ids {
        let fetcher = fetcher.clone();
        let read = read_of(partition, partition, id);
        tokio::spawn(async move { fetch(&fetcher, read, id, 0..LARGE * BLOCK).await });
    }
}

/// Reads a small object for another partition. Returns how long that took.
async fn small_read(fetcher: &RangeFetcher, id: ObjectId) -> Duration {
    let began = Instant::now();
    let read = read_of(id, id, 0);
    assert_eq!(fetch(fetcher, read, id, 0..100).await, Ok(()));
    began.elapsed()
}

/// Regression test: a small read waited until all readers that were far behind had their windows.
#[tokio::test(start_paused = true)]
async fn readers_are_far_behind_on_a_narrow_link_a_small_read_waits_for_one_get() {
    let store = StoreDouble::taking(MS(20));
    let fetcher = fetcher(&store, 24).await;
    store.narrow(1e6);
    (0..8).for_each(|reader| read_ahead(&fetcher, reader, 3 * reader + 1..3 * reader + 4));
    for id in 1000..1005 {
        sleep(MS(7000)).await;
        let took = small_read(&fetcher, id).await;
        assert!(took < MS(4000), "{took:?}");
    }
}

/// Regression test: GETs that hung had all slots for 40 seconds.
#[tokio::test(start_paused = true)]
async fn gets_of_some_objects_hang_other_objects_are_read() {
    let store = StoreDouble::taking(MS(20));
    let fetcher = fetcher(&store, 48).await;
    let healthy =
        (0..24).map(|partition| fetch(&fetcher, read_of(partition, partition, 0), 25 + partition, 0..LARGE * BLOCK));
    assert!(futures_util::future::join_all(healthy).await.iter().all(Result::is_ok));
    store.hang_gets_of(1..=24);
    (0..24).for_each(|reader| read_ahead(&fetcher, reader, reader + 1..reader + 2));
    sleep(MS(100)).await;
    for id in 1000..1010 {
        let took = small_read(&fetcher, id).await;
        assert!(took <= SILENT_MAX + MS(100), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn silent_gets_have_all_their_blocks_further_ones_keep_their_slots() {
    let store = StoreDouble::taking(MS(20));
    let fetcher = fetcher(&store, 0).await;
    // Small reads open the window.
    futures_util::future::join_all((1000..1010).map(|id| small_read(&fetcher, id))).await;
    store.hang_gets_of(1..=200);
    (0..200).for_each(|reader| read_ahead(&fetcher, reader, reader + 1..reader + 2));
    sleep(MS(39_000)).await;
    assert!(fetcher.tries().under_way() <= 16 + SILENT_BLOCKS_MAX, "{}", fetcher.tries().under_way());
    sleep(MS(3_600_000)).await;
    assert_eq!(fetcher.shared.silent.available_permits(), SILENT_BLOCKS_MAX);
}

/// A reader that is far behind waits for its turn. It must not claim blocks before.
#[tokio::test(start_paused = true)]
async fn block_is_requested_by_a_reader_far_behind_another_reader_gets_it_in_its_own_turn() {
    let store = StoreDouble::taking(MS(20));
    let fetcher = fetcher(&store, 20).await;
    store.narrow(1e6);
    read_ahead(&fetcher, 1, 1..21);
    sleep(MS(5000)).await;
    let began = Instant::now();
    let read = read_of(2, 2, 0);
    assert_eq!(fetch(&fetcher, read, 20, 3 * BLOCK..3 * BLOCK + 10).await, Ok(()));
    assert!(began.elapsed() < MS(6000), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn store_is_wide_a_reader_uses_all_slots() {
    let store = StoreDouble::taking(MS(50));
    let fetcher = fetcher(&store, 48).await;
    let read_all = async |ids: Range<ObjectId>| {
        let began = Instant::now();
        let read = |id| read_of(1, 1, id);
        let reads = ids.map(|id| fetch(&fetcher, read(id), id, 0..LARGE * BLOCK));
        let done = futures_util::future::join_all(reads).await;
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        began.elapsed()
    };
    let (first, second) = (read_all(1..25).await, read_all(25..49).await);
    assert!(first <= MS(300), "{first:?}");
    assert!(second <= MS(110), "{second:?}: 16 and 8 GETs of 50 ms");
}

/// Regression test: a reader at the end of a partition waited until the readers behind it had all their windows.
#[tokio::test(start_paused = true)]
async fn readers_are_behind_in_a_partition_a_reader_near_its_end_waits_for_one_get() {
    let store = StoreDouble::taking(MS(20));
    let fetcher = fetcher(&store, 24).await;
    store.narrow(1e6);
    for reader in 1..5 {
        for id in 6 * reader - 5..6 * reader + 1 {
            let fetcher = fetcher.clone();
            tokio::spawn(async move { fetch(&fetcher, read_of(reader, 1, id), id, 0..LARGE * BLOCK).await });
        }
    }
    for (at, id) in (1000..1005).enumerate() {
        sleep(MS(7000)).await;
        let began = Instant::now();
        assert_eq!(fetch(&fetcher, read_of(90 + at as i64, 1, id), id, 0..100).await, Ok(()));
        assert!(began.elapsed() < MS(4000), "{:?}", began.elapsed());
    }
}

/// Creates a fetcher with a cache of 16 blocks, over a store with objects of `sizes` blocks. Their ids count from 1.
async fn small_cache(store: &Arc<StoreDouble>, sizes: &[usize]) -> RangeFetcher {
    let objects = Objects::over(store.clone(), "one");
    let bytes = Bytes::from(vec![7; 20 * BLOCK as usize]);
    for (id, size) in (1..).zip(sizes) {
        let object = bytes.slice(..size * BLOCK as usize);
        objects.put(id, vec![object], BodyProgress::default()).await.expect("put");
    }
    let cache = Arc::new(Mutex::new(ObjectCache::new(0, 16 * BLOCK as usize)));
    RangeFetcher::new(objects, cache, 16, Arc::default())
}

/// Reads an object of `size` blocks as one batch, as often as it takes until all of it is in the cache.
async fn read_whole(fetcher: RangeFetcher, reader: i64, id: ObjectId, size: usize) {
    let end = size as u32 * BLOCK;
    while fetcher.shared.cache.lock().find(id, 0, end).is_none() {
        assert_eq!(fetch(&fetcher, read_of(reader, id, 0), id, 0..end).await, Ok(()));
    }
}

/// Regression test: blocks of many large batches were evicted before any batch was whole, for ever.
#[tokio::test(start_paused = true)]
async fn batches_have_more_blocks_than_the_cache_each_is_read() {
    for same_reader in [false, true] {
        let store = StoreDouble::taking(MS(20));
        let sizes = [5; 12];
        let fetcher = small_cache(&store, &sizes).await;
        store.narrow(5e6);
        let reads = (1..).zip(sizes).map(|(id, size)| {
            let reader = if same_reader { 0 } else { id };
            tokio::spawn(read_whole(fetcher.clone(), reader, id, size))
        });
        let done = timeout(MS(120_000), futures_util::future::join_all(reads.collect::<Vec<_>>())).await;
        assert!(done.is_ok_and(|done| done.iter().all(Result::is_ok)), "{} GETs", store.gets());
        assert!(store.gets() <= 70, "{} GETs for 60 blocks", store.gets());
        assert_eq!(fetcher.shared.room.used(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn batch_is_larger_than_the_cache_it_is_read_beside_others() {
    let store = StoreDouble::taking(MS(20));
    let sizes = [5, 20, 5, 20, 1, 2];
    let fetcher = small_cache(&store, &sizes).await;
    store.narrow(5e6);
    let reads = (1..).zip(sizes).map(|(id, size)| tokio::spawn(read_whole(fetcher.clone(), id, id, size)));
    let done = timeout(MS(120_000), futures_util::future::join_all(reads.collect::<Vec<_>>())).await;
    assert!(done.is_ok_and(|done| done.iter().all(Result::is_ok)), "{} GETs", store.gets());
}

#[tokio::test(start_paused = true)]
async fn large_batches_wait_for_room_a_small_read_waits_for_one_get() {
    let store = StoreDouble::taking(MS(20));
    let sizes = [5, 5, 5, 5, 5, 5, 1, 2, 1];
    let fetcher = small_cache(&store, &sizes).await;
    store.narrow(1e6);
    for (id, size) in (1..).zip(sizes).take(6) {
        tokio::spawn(read_whole(fetcher.clone(), id, id, size));
    }
    for id in [7, 8, 9] {
        sleep(MS(5000)).await;
        let began = Instant::now();
        read_whole(fetcher.clone(), id, id, sizes[id as usize - 1]).await;
        assert!(began.elapsed() < MS(6000), "{:?}", began.elapsed());
    }
}

/// GETs that hang must not keep the room of other batches.
#[tokio::test(start_paused = true)]
async fn gets_of_large_batches_hang_other_large_batches_are_read() {
    let store = StoreDouble::taking(MS(20));
    let fetcher = small_cache(&store, &[5; 6]).await;
    store.narrow(20e6);
    read_whole(fetcher.clone(), 1, 1, 5).await;
    store.hang_gets_of(2..=5);
    for id in 2..=5 {
        tokio::spawn(read_whole(fetcher.clone(), id, id, 5));
    }
    sleep(MS(100)).await;
    let began = Instant::now();
    read_whole(fetcher.clone(), 6, 6, 5).await;
    assert!(began.elapsed() <= 5 * SILENT_MAX, "{:?}", began.elapsed());
}
