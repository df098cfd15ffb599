//! Budget of bytes in memory that are under way to clients: a client that does not read holds its answers, so that
//! answers get small once clients hold much.
//!
//! Invariant: bytes count from when they are given until the last reference to them is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// Bytes of an answer, beside the rest of a batch, while clients hold as much as they may.
const LEAST: u32 = 256 << 10;

/// Bytes that clients were given.
#[derive(Debug)]
pub struct ResponseBudget {
    bytes: AtomicU64,
    /// Bytes that clients hold together before answers get small.
    max: u64,
}

/// Some of them.
struct Given {
    bytes: Bytes,
    of: Arc<ResponseBudget>,
}

impl AsRef<[u8]> for Given {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

impl ResponseBudget {
    /// None yet, of so many.
    pub fn new(max: u64) -> Arc<ResponseBudget> {
        Arc::new(ResponseBudget { bytes: AtomicU64::new(0), max })
    }

    /// Returns how many of `wanted` bytes an answer may have; more if these are its first.
    pub fn share(&self, wanted: u32, are_first: bool) -> u32 {
        match self.bytes.load(Ordering::Relaxed) < self.max {
            true => wanted,
            false if are_first => wanted.min(LEAST),
            false => 0,
        }
    }

    /// Returns the bytes, which count from here on.
    pub fn give(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Bytes::from_owner(Given { bytes, of: Arc::clone(self) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_much_together_is_given_little_until_it_is_dropped() {
        let given = ResponseBudget::new(1000);
        let first = given.give(Bytes::from(vec![1; 999]));
        assert_eq!(given.share(u32::MAX, false), u32::MAX);
        let second = given.give(Bytes::from(vec![2; 1]));
        assert_eq!((given.share(u32::MAX, true), given.share(7, true), given.share(7, false)), (LEAST, 7, 0));
        let part = first.slice(1..2);
        drop(first);
        assert_eq!(given.share(u32::MAX, true), LEAST, "a part of it holds all of it");
        drop((part, second));
        assert_eq!(given.share(u32::MAX, false), u32::MAX);
    }
}
