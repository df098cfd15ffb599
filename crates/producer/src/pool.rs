//! buffer.memory: the buffers that batches are built in, in two sizes, used again and again.
//!
//! Where there are several partitions, one may have at most four times what is left free (dynamic thresholds: Choudhury
//! and Hahne, 1998). One that nobody can reach so leaves a fifth of the memory, two leave a ninth, and a partition that has
//! nothing may take the last. Where all get through, as many as there are share all but a little.
//!
//! Invariant: the bytes of all buffers, in use and free, never exceed buffer.memory but by what compression and
//! renumbering of a few batches take for a moment; in steady state nothing is allocated and no fresh page touched.

use bytes::BytesMut;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// The sizes of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// batch.size.
    Small,
    /// max.request.size.
    Large,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<PooledBuffers>,
    limit: usize,
    sizes: [usize; 2],
    freed: Notify,
    waiting: AtomicUsize,
    shares: AtomicUsize,
}

/// What one partition has of the memory.
#[derive(Debug)]
pub(crate) struct PartitionShare {
    pool: Arc<Pool>,
    /// Changed under the pool's lock.
    bytes: AtomicUsize,
}

/// A partition may have so many times as much as is left free.
const TIMES_FREE: usize = 4;

/// Why there is no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Memory is in use.
    Memory,
    /// The partition has its share of it.
    Share,
}

#[derive(Debug, Default)]
struct PooledBuffers {
    /// Last in, first out, so that the next buffer is likely still in the cache.
    free: [Vec<BytesMut>; 2],
    /// Bytes of all buffers, free ones included.
    allocated: usize,
    /// Bytes of those in use.
    used: usize,
}

/// The right to a buffer of the pool. It counts against buffer.memory until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    share: Arc<PartitionShare>,
    class: Class,
    /// Set when the buffer can be used again.
    buffer: Option<BytesMut>,
}

impl Pool {
    pub(crate) fn new(limit: usize, small: usize, large: usize) -> Arc<Self> {
        Arc::new(Pool {
            state: Mutex::default(),
            limit,
            sizes: [small, large],
            freed: Notify::new(),
            waiting: AtomicUsize::new(0),
            shares: AtomicUsize::new(0),
        })
    }

    /// A further partition's share, which has nothing yet.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<PartitionShare> {
        self.shares.fetch_add(1, Ordering::Relaxed);
        Arc::new(PartitionShare { pool: self.clone(), bytes: AtomicUsize::new(0) })
    }

    pub(crate) fn size(&self, class: Class) -> usize {
        self.sizes[class as usize]
    }

    /// Resolves when memory is given back after the call.
    pub(crate) fn freed(&self) -> tokio::sync::futures::Notified<'_> {
        self.freed.notified()
    }

    /// Whether someone waits for memory, so that batches should leave as they are.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Counts a caller as waiting until the guard is dropped.
    pub(crate) fn wait(&self) -> MemoryWait<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        MemoryWait(&self.waiting)
    }

    fn give_back(&self, share: &PartitionShare, class: Class, buffer: Option<BytesMut>) {
        let mut state = self.state.lock();
        share.bytes.fetch_sub(self.size(class), Ordering::Relaxed);
        state.used -= self.size(class);
        match buffer.filter(|b| b.capacity() >= self.size(class)) {
            Some(buffer) => state.free[class as usize].push(buffer),
            None => state.allocated -= self.size(class),
        }
        drop(state);
        if self.is_wanted() {
            self.freed.notify_waiters();
        }
    }

    /// Bytes of buffers in use.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        let state = self.state.lock();
        let free = (0..2).map(|i| state.free[i].len() * self.sizes[i]).sum::<usize>();
        assert_eq!(state.used, state.allocated - free);
        state.used
    }
}

impl PartitionShare {
    /// A buffer of at least this class.
    pub(crate) fn take(self: &Arc<Self>, class: Class) -> Result<(BytesMut, Lease), Lack> {
        let pool = &self.pool;
        let mut state = pool.state.lock();
        let (held, size) = (self.bytes.load(Ordering::Relaxed), pool.size(class));
        let left = pool.limit.saturating_sub(state.used + size);
        // A partition alone need leave nothing to others.
        if held > 0 && held + size > TIMES_FREE * left && pool.shares.load(Ordering::Relaxed) > 1 {
            return Err(Lack::Share);
        }
        let (buffer, class) = state.take(class, pool.limit, &pool.sizes).ok_or(Lack::Memory)?;
        state.used += pool.size(class);
        self.bytes.fetch_add(pool.size(class), Ordering::Relaxed);
        drop(state);
        Ok((buffer, Lease { share: self.clone(), class, buffer: None }))
    }
}

impl PooledBuffers {
    fn take(&mut self, class: Class, limit: usize, sizes: &[usize; 2]) -> Option<(BytesMut, Class)> {
        if let Some(buffer) = self.free[class as usize].pop() {
            return Some((buffer, class));
        }
        let size = sizes[class as usize];
        // At the limit, a small buffer is not worth a large one's pages, nor are small ones worth keeping.
        if class == Class::Small && self.allocated + size > limit {
            return self.free[Class::Large as usize].pop().map(|buffer| (buffer, Class::Large));
        }
        let (free, each) = (&mut self.free[Class::Small as usize], sizes[Class::Small as usize]);
        let surplus = (self.allocated + size).saturating_sub(limit).div_ceil(each);
        if surplus > free.len() {
            return None;
        }
        free.truncate(free.len() - surplus);
        self.allocated -= surplus * each;
        self.allocated += size;
        Some((BytesMut::with_capacity(size), class))
    }
}

/// See [`Pool::wait`].
pub(crate) struct MemoryWait<'a>(&'a AtomicUsize);

impl Drop for MemoryWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lease {
    pub(crate) fn class(&self) -> Class {
        self.class
    }

    /// Ends the lease and hands the buffer over to be used again.
    pub(crate) fn give_back(mut self, buffer: BytesMut) {
        self.buffer = Some(buffer);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.share.pool.give_back(&self.share, self.class, self.buffer.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_memory_is_bounded() {
        let pool = Pool::new(100, 10, 40);
        let share = pool.share();
        let (mut first, lease) = share.take(Class::Large).unwrap();
        first.extend_from_slice(b"x");
        let address = first.as_ptr();
        assert!(share.take(Class::Large).is_ok_and(|(_, lease)| lease.class() == Class::Large));
        assert_eq!(pool.in_use(), 40);
        lease.give_back(first);
        let again = share.take(Class::Large).unwrap();
        assert_eq!(again.0.as_ptr(), address);
        let (b, c) = (share.take(Class::Large).unwrap(), share.take(Class::Small).unwrap());
        let d = share.take(Class::Small).unwrap();
        assert!(share.take(Class::Small).is_err());
        // A free large buffer serves as a small one.
        b.1.give_back(b.0);
        assert_eq!(share.take(Class::Small).unwrap().1.class(), Class::Large);
        drop((again, c, d));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn a_partition_leaves_memory_to_others_and_one_that_has_nothing_may_take_the_last() {
        let pool = Pool::new(1000, 10, 40);
        let alone = pool.share();
        let all: Vec<_> = (0..100).map(|_| alone.take(Class::Small).unwrap()).collect();
        assert_eq!(alone.take(Class::Small).unwrap_err(), Lack::Memory);
        drop(all);
        let (other, last) = (pool.share(), pool.share());
        let mut taken = Vec::new();
        for share in [&alone, &other] {
            loop {
                match share.take(Class::Small) {
                    Ok(buffer) => taken.push(buffer),
                    Err(lack) => break assert_eq!(lack, Lack::Share),
                }
            }
        }
        assert_eq!(alone.bytes.load(Ordering::Relaxed), 800, "four parts of five");
        assert_eq!(other.bytes.load(Ordering::Relaxed), 160, "and of what is left");
        taken.push(last.take(Class::Large).unwrap());
        assert_eq!(last.take(Class::Small).unwrap_err(), Lack::Share);
        assert_eq!(pool.share().take(Class::Small).unwrap_err(), Lack::Memory);
        drop(taken);
        assert_eq!(pool.in_use(), 0);
    }
}
