//! The memory budget for responses. If clients do not read their responses, the bytes stay in memory. When too many
//! bytes are outstanding, further responses therefore become small.
//!
//! A response may keep more memory than its own bytes, such as the rest of a block. This memory is not counted.
//!
//! Invariant: bytes count from [`ResponseBudget::give`] until the last reference to them is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// Maximum size of a response while the budget is used up, in bytes. Only the first batch may be larger.
const LEAST: u32 = 256 << 10;

/// The number of outstanding response bytes, and the budget.
#[derive(Debug)]
pub struct ResponseBudget {
    bytes: AtomicU64,
    /// Number of outstanding bytes from which on responses become small.
    max: u64,
}

/// Bytes that count as outstanding until they are dropped.
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
    /// Creates a budget of `max` bytes.
    pub fn new(max: u64) -> Arc<ResponseBudget> {
        Arc::new(ResponseBudget { bytes: AtomicU64::new(0), max })
    }

    /// Returns how many of the `wanted` bytes a response may have. While the budget is used up, only the first records
    /// of a response (`are_first`) get any bytes, at most `LEAST`.
    pub fn share(&self, wanted: u32, are_first: bool) -> u32 {
        match self.bytes.load(Ordering::Relaxed) < self.max {
            true => wanted,
            false if are_first => wanted.min(LEAST),
            false => 0,
        }
    }

    /// Returns `bytes`, which count as outstanding until the last reference to them is dropped.
    pub fn give(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Bytes::from_owner(Given { bytes, of: Arc::clone(self) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_used_up_responses_are_small_until_bytes_are_dropped() {
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
