//! buffer.memory: the buffers that batches are built in, in two sizes, used again and again.
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
    state: Mutex<State>,
    limit: usize,
    sizes: [usize; 2],
    freed: Notify,
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// Last in, first out, so that the next buffer is likely still in the cache.
    free: [Vec<BytesMut>; 2],
    /// Bytes of all buffers, free ones included.
    allocated: usize,
}

/// The right to a buffer of the pool. It counts against buffer.memory until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Arc<Pool>,
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
        })
    }

    pub(crate) fn size(&self, class: Class) -> usize {
        self.sizes[class as usize]
    }

    /// A buffer of at least this class, unless all memory is in use.
    pub(crate) fn take(self: &Arc<Self>, class: Class) -> Option<(BytesMut, Lease)> {
        let (buffer, class) = self.state.lock().take(class, self.limit, &self.sizes)?;
        Some((buffer, Lease { pool: self.clone(), class, buffer: None }))
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
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.waiting)
    }

    fn give_back(&self, class: Class, buffer: Option<BytesMut>) {
        let mut state = self.state.lock();
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
        state.allocated - (0..2).map(|i| state.free[i].len() * self.sizes[i]).sum::<usize>()
    }
}

impl State {
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
pub(crate) struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
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
        self.pool.give_back(self.class, self.buffer.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_memory_is_bounded() {
        let pool = Pool::new(100, 10, 40);
        let (mut first, lease) = pool.take(Class::Large).unwrap();
        first.extend_from_slice(b"x");
        let address = first.as_ptr();
        assert!(pool.take(Class::Large).is_some_and(|(_, lease)| lease.class() == Class::Large));
        assert_eq!(pool.in_use(), 40);
        lease.give_back(first);
        let again = pool.take(Class::Large).unwrap();
        assert_eq!(again.0.as_ptr(), address);
        let (b, c) = (pool.take(Class::Large).unwrap(), pool.take(Class::Small).unwrap());
        let d = pool.take(Class::Small).unwrap();
        assert!(pool.take(Class::Small).is_none());
        // A free large buffer serves as a small one.
        b.1.give_back(b.0);
        assert_eq!(pool.take(Class::Small).unwrap().1.class(), Class::Large);
        drop((again, c, d));
        assert_eq!(pool.in_use(), 0);
    }
}
