//! What is on its way to clients out of memory: a client that does not read keeps what it was given, so that clients together are given little more
//! once they hold much.
//!
//! Invariant: bytes count from when they are given until the last reference to them is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// What an answer has at most, beside the rest of a batch, while clients hold as much as they may.
const LEAST: u32 = 256 << 10;

/// Bytes that clients were given.
#[derive(Debug)]
pub struct ResponseBudget {
    bytes: AtomicU64,
    /// What they hold together before they are given less.
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

    /// What an answer may have of `wanted` bytes, if these are its first ones or not.
    pub fn share(&self, wanted: u32, are_first: bool) -> u32 {
        match self.bytes.load(Ordering::Relaxed) < self.max {
            true => wanted,
            false if are_first => wanted.min(LEAST),
            false => 0,
        }
    }

    /// The same bytes, which count.
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
