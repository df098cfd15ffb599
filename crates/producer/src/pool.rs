//! The memory of the producer (buffer.memory). Batches are built in chunks of one size, which are reused.
//!
//! Because all chunks have the same size, every batch can use every free chunk. With chunks of two sizes, a large batch
//! could not use the memory of free small chunks.
//!
//! If there are several partitions, one partition may have at most four times the memory that is still free (dynamic
//! thresholds: Choudhury and Hahne, 1998). One unreachable partition thus leaves a fifth of the memory to the others,
//! and two leave a ninth. A partition without any chunk may take the last free one. If all partitions are reachable,
//! they can use almost all of the memory.
//!
//! Invariant: the bytes of all chunks, in use and free, and of compressed batches never exceed buffer.memory, rounded
//! up to whole chunks. There is one exception: while a few batches are compressed, split or renumbered, they may exceed
//! it for a moment. Without a codec, a steady load only reuses chunks and allocates no memory.

use bytes::BytesMut;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// A pool of chunks.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<PooledChunks>,
    /// Maximum number of chunks in use.
    limit: usize,
    /// The size of a chunk in bytes.
    chunk: usize,
    freed: Notify,
    waiting: AtomicUsize,
    shares: AtomicUsize,
}

/// The memory that one partition uses.
#[derive(Debug)]
pub(crate) struct PartitionShare {
    pool: Arc<Pool>,
    /// How many chunks the partition uses. Changes only under the pool's lock.
    chunks: AtomicUsize,
}

/// The maximum memory of a partition, as a multiple of the free memory.
const TIMES_FREE: usize = 4;

/// The reason why no chunk is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// All memory is in use.
    Memory,
    /// The partition has used its share.
    Share,
}

#[derive(Debug, Default)]
struct PooledChunks {
    /// The free chunks. The last one returned is used first, since it is likely still in the cache.
    free: Vec<BytesMut>,
    /// How many chunks are in use.
    used: usize,
}

/// A batch's chunks from the pool. They count against buffer.memory until the lease is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    share: Arc<PartitionShare>,
    chunks: usize,
    /// The chunks that go back to the pool when the lease is dropped.
    returned: Vec<BytesMut>,
}

impl Pool {
    /// Creates a pool with `limit` bytes in chunks of `chunk` bytes. The number of chunks is rounded up, so that the
    /// pool has room for one request in any case.
    pub(crate) fn new(limit: usize, chunk: usize) -> Arc<Self> {
        Arc::new(Pool {
            state: Mutex::default(),
            limit: limit.div_ceil(chunk).max(1),
            chunk,
            freed: Notify::new(),
            waiting: AtomicUsize::new(0),
            shares: AtomicUsize::new(0),
        })
    }

    /// Returns the share of a new partition, which has no memory yet.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<PartitionShare> {
        self.shares.fetch_add(1, Ordering::Relaxed);
        Arc::new(PartitionShare { pool: self.clone(), chunks: AtomicUsize::new(0) })
    }

    /// Returns a future that resolves the next time that memory is returned.
    pub(crate) fn freed(&self) -> tokio::sync::futures::Notified<'_> {
        self.freed.notified()
    }

    /// Returns true if a caller waits for memory. Batches should then be sent without lingering.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Counts a caller as waiting until the guard is dropped.
    pub(crate) fn wait(&self) -> MemoryWait<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        MemoryWait(&self.waiting)
    }

    fn give_back(&self, share: &PartitionShare, chunks: usize, mut returned: Vec<BytesMut>) {
        let mut state = self.state.lock();
        share.chunks.fetch_sub(chunks, Ordering::Relaxed);
        state.used -= chunks;
        // A buffer of any other size is freed instead of reused.
        returned.retain(|chunk| (self.chunk..2 * self.chunk).contains(&chunk.capacity()));
        returned.truncate(chunks);
        state.free.append(&mut returned);
        drop(state);
        if self.is_wanted() {
            self.freed.notify_waiters();
        }
    }

    /// Returns the chunks in use.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.state.lock().used
    }
}

impl PartitionShare {
    /// Returns a lease without chunks.
    pub(crate) fn lease(self: &Arc<Self>) -> Lease {
        Lease { share: self.clone(), chunks: 0, returned: Vec::new() }
    }

    /// Returns how many chunks `bytes` bytes take.
    pub(crate) fn chunks_for(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.pool.chunk)
    }

    /// Takes `count` chunks and passes each to `put`. If not all are available, takes none.
    fn take(&self, count: usize, mut put: impl FnMut(BytesMut)) -> Result<(), Shortage> {
        let pool = &self.pool;
        let mut state = pool.state.lock();
        let held = self.chunks.load(Ordering::Relaxed);
        let left = pool.limit.checked_sub(state.used + count);
        // If there is only one partition, it may use all memory.
        let exceeds_share = |left: usize| held > 0 && held + count > TIMES_FREE * left;
        if pool.shares.load(Ordering::Relaxed) > 1 && exceeds_share(left.unwrap_or(0)) {
            return Err(Shortage::Share);
        }
        if left.is_none() {
            return Err(Shortage::Memory);
        }
        state.used += count;
        self.chunks.fetch_add(count, Ordering::Relaxed);
        for _ in 0..count {
            let chunk = state.free.pop();
            put(chunk.unwrap_or_else(|| BytesMut::with_capacity(pool.chunk)));
        }
        Ok(())
    }
}

/// The guard of [`Pool::wait`].
pub(crate) struct MemoryWait<'a>(&'a AtomicUsize);

impl Drop for MemoryWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lease {
    /// Takes `count` more chunks and passes each to `put`. If not all are available, takes none.
    pub(crate) fn take(&mut self, count: usize, put: impl FnMut(BytesMut)) -> Result<(), Shortage> {
        self.share.take(count, put)?;
        self.chunks += count;
        Ok(())
    }

    /// Returns how many chunks `bytes` bytes take.
    pub(crate) fn chunks_for(&self, bytes: usize) -> usize {
        self.share.chunks_for(bytes)
    }

    /// Ends the lease and returns its chunks to the pool.
    pub(crate) fn give_back(mut self, chunks: Vec<BytesMut>) {
        self.returned = chunks;
    }

    /// Returns some of the chunks to the pool.
    pub(crate) fn give_back_some(&mut self, chunks: Vec<BytesMut>) {
        if !chunks.is_empty() {
            self.chunks -= chunks.len();
            self.share.pool.give_back(&self.share, chunks.len(), chunks);
        }
    }

    /// Returns chunks to the pool, because the data is now in `bytes` bytes of other memory. The lease counts that
    /// memory, rounded up to whole chunks.
    pub(crate) fn exchange(&mut self, mut chunks: Vec<BytesMut>, bytes: usize) {
        let left = self.chunks_for(bytes).min(self.chunks);
        let over = self.chunks - left;
        chunks.truncate(over);
        self.share.pool.give_back(&self.share, over, chunks);
        self.chunks = left;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.chunks > 0 {
            self.share.pool.give_back(&self.share, self.chunks, std::mem::take(&mut self.returned));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(share: &Arc<PartitionShare>, count: usize) -> Result<(Lease, Vec<BytesMut>), Shortage> {
        let (mut lease, mut chunks) = (share.lease(), Vec::new());
        lease.take(count, |chunk| chunks.push(chunk))?;
        Ok((lease, chunks))
    }

    #[test]
    fn chunks_come_back_and_memory_is_bounded() {
        let pool = Pool::new(100, 10);
        let share = pool.share();
        let (lease, mut chunks) = take(&share, 4).unwrap();
        chunks[3].extend_from_slice(b"x");
        let address = chunks[3].as_ptr();
        assert_eq!(pool.in_use(), 4);
        lease.give_back(chunks);
        let (mut lease, mut chunks) = take(&share, 1).unwrap();
        assert_eq!(chunks[0].as_ptr(), address, "the last given back is the first taken");
        lease.take(8, |chunk| chunks.push(chunk)).unwrap();
        assert_eq!(take(&share, 2).unwrap_err(), Shortage::Memory);
        let last = take(&share, 1).unwrap();
        assert_eq!(take(&share, 1).unwrap_err(), Shortage::Memory);
        lease.give_back_some(chunks.split_off(5));
        assert_eq!(pool.in_use(), 6);
        drop((lease, last));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn memory_in_the_place_of_chunks_counts_until_it_is_given_back_and_is_never_a_chunk() {
        let pool = Pool::new(100, 10);
        let share = pool.share();
        let (mut lease, chunks) = take(&share, 8).unwrap();
        lease.exchange(chunks, 25);
        assert_eq!(pool.in_use(), 3);
        let (mut larger, chunks) = take(&share, 2).unwrap();
        larger.exchange(chunks, 300);
        assert_eq!(pool.in_use(), 5, "no more than it had");
        lease.give_back(vec![BytesMut::with_capacity(25)]);
        drop(larger);
        assert_eq!(pool.in_use(), 0);
        let (_lease, chunks) = take(&share, 10).unwrap();
        assert!(chunks.iter().all(|chunk| chunk.capacity() < 20));
    }

    #[test]
    fn a_partition_leaves_memory_to_others_and_one_that_has_nothing_may_take_the_last() {
        let pool = Pool::new(1000, 10);
        let alone = pool.share();
        let all: Vec<_> = (0..100).map(|_| take(&alone, 1).unwrap()).collect();
        assert_eq!(take(&alone, 1).unwrap_err(), Shortage::Memory);
        drop(all);
        let (other, last) = (pool.share(), pool.share());
        let mut taken = Vec::new();
        for share in [&alone, &other] {
            loop {
                match take(share, 1) {
                    Ok(chunk) => taken.push(chunk),
                    Err(shortage) => break assert_eq!(shortage, Shortage::Share),
                }
            }
        }
        assert_eq!(alone.chunks.load(Ordering::Relaxed), 80, "four parts of five");
        assert_eq!(other.chunks.load(Ordering::Relaxed), 16, "and of what is left");
        taken.push(take(&last, 4).unwrap());
        assert_eq!(take(&last, 1).unwrap_err(), Shortage::Share);
        assert_eq!(take(&pool.share(), 1).unwrap_err(), Shortage::Memory);
        drop(taken);
        assert_eq!(pool.in_use(), 0);
    }
}
