//! Tracks which blocks of objects are being fetched, so that each block is fetched once for all its readers.
//!
//! A fetch claims blocks only when it has a slot for its GET. So a reader that waits for its turn does not delay others
//! that need the same block and whose turns come earlier.
//!
//! Invariant: a block has at most one claim. The number of tracked objects is limited by the number of fetches.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Weak};

use fullbore_rules::commit::ObjectId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::cache::{BLOCK, blocks};

/// The claims of all objects.
#[derive(Debug, Default)]
pub struct BlockClaims(Mutex<HashMap<ObjectId, Weak<ObjectClaims>>>);

/// The claims of one object.
#[derive(Debug, Default)]
pub struct ObjectClaims {
    claimed: Mutex<BTreeSet<u32>>,
    /// Notified when a claim begins or ends.
    changed: Notify,
}

/// A claim of adjacent blocks, until it is dropped.
#[derive(Debug)]
pub struct BlockClaim<'c> {
    of: &'c ObjectClaims,
    /// The claimed range, which consists of whole blocks.
    pub range: Range<u32>,
}

impl BlockClaims {
    /// Returns the claims of an object.
    pub fn of(&self, id: ObjectId) -> Arc<ObjectClaims> {
        let mut objects = self.0.lock();
        if let Some(claims) = objects.get(&id).and_then(Weak::upgrade) {
            return claims;
        }
        objects.retain(|_, claims| claims.strong_count() > 0);
        let claims = Arc::default();
        objects.insert(id, Arc::downgrade(&claims));
        claims
    }
}

impl ObjectClaims {
    /// Claims the blocks of `range` up to the first one that has a claim. Returns `None` if the first block of `range`
    /// has one.
    pub fn claim(&self, range: &Range<u32>) -> Option<BlockClaim<'_>> {
        let mut claimed = self.claimed.lock();
        let free = blocks(range).take_while(|block| claimed.insert(*block)).count() as u32;
        if free == 0 {
            return None;
        }
        drop(claimed);
        self.changed.notify_waiters();
        let end = range.start.saturating_add(free.saturating_mul(BLOCK));
        Some(BlockClaim { of: self, range: range.start..end })
    }

    /// Waits until `is_so` returns true. Its argument is true if the block at `position` has a claim. Checks again each
    /// time that a claim begins or ends.
    pub async fn until(&self, position: u32, is_so: impl Fn(bool) -> bool) {
        loop {
            let changed = self.changed.notified();
            let is_claimed = self.claimed.lock().contains(&(position / BLOCK));
            if is_so(is_claimed) {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for BlockClaim<'_> {
    fn drop(&mut self) {
        let mut claimed = self.of.claimed.lock();
        for block in blocks(&self.range) {
            claimed.remove(&block);
        }
        drop(claimed);
        self.of.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_a_range_is_claimed_the_blocks_before_it_can_be_claimed() {
        let claims = BlockClaims::default();
        let object = claims.of(1);
        let middle = object.claim(&(2 * BLOCK..4 * BLOCK)).expect("free");
        let first = object.claim(&(0..8 * BLOCK)).expect("free");
        assert_eq!((&middle.range, &first.range), (&(2 * BLOCK..4 * BLOCK), &(0..2 * BLOCK)));
        assert!(object.claim(&(3 * BLOCK..5 * BLOCK)).is_none() && claims.of(2).claim(&(0..BLOCK)).is_some());
        drop(middle);
        assert_eq!(object.claim(&(2 * BLOCK..5 * BLOCK)).expect("free again").range, 2 * BLOCK..5 * BLOCK);
        drop(first);
        drop(object);
        (2..100).for_each(|id| drop(claims.of(id)));
        assert!(claims.0.lock().len() <= 1);
    }
}
