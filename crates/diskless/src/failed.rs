//! Remembers objects that could not be read recently. Without this, a reader that retries in a loop would send a GET
//! each time.
//!
//! After a failed GET of an object, at most one GET per [`PAUSE`] is sent for this object, whichever range readers
//! request. Until the next GET, readers get the last error. If only some bytes are wrong or missing, the pause applies
//! only to the blocks with these bytes. Wrong bytes are fetched once more without a pause.
//!
//! The caller passes the time as an argument. Invariant: at most [`FAILED_MAX`] failures are remembered.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use fullbore_rules::commit::ObjectId;
use tokio::time::Instant;

use super::cache::blocks;
use super::objects::ObjectError;

/// The pause between a failed GET of an object and the next GET of this object.
pub const PAUSE: Duration = Duration::from_secs(1);
/// How long a failure is remembered after its pause has ended.
const KEPT: Duration = Duration::from_secs(10);
/// Maximum number of remembered failures. Objects with further failures are read again without a pause.
const FAILED_MAX: usize = 1024;

/// The failures by object and block. The block is `None` if a whole GET failed, and `Some` if the GET returned wrong or
/// too few bytes.
#[derive(Debug, Default)]
pub struct FailedReads(HashMap<(ObjectId, Option<u32>), FailedRead>);

#[derive(Debug)]
struct FailedRead {
    error: ObjectError,
    /// How many GETs in a row have failed.
    times: u32,
    /// When the next GET may be sent.
    next: Instant,
}

impl FailedReads {
    /// Checks whether a GET of `range` may be sent now. Returns `Ok(false)` if neither the object nor a block of
    /// `range` has failed recently. Returns `Ok(true)` if one of them has failed and its pause is over. The caller
    /// should then send a single GET. A new [`PAUSE`] begins, in which other readers get the last error.
    ///
    /// # Errors
    /// Returns the [`ObjectError`] of the last GET while its pause lasts.
    pub fn check(&mut self, id: ObjectId, range: &Range<u32>, now: Instant) -> Result<bool, ObjectError> {
        let keys = || std::iter::once(None).chain(blocks(range).map(Some)).map(|block| (id, block));
        let is_early = |failed: &&FailedRead| now < failed.next;
        if let Some(failed) = keys().filter_map(|key| self.0.get(&key)).find(is_early) {
            return Err(failed.error.clone());
        }
        let mut has_failed = false;
        for key in keys() {
            if let Some(failed) = self.0.get_mut(&key).filter(|failed| now < failed.next + KEPT) {
                failed.next = now + PAUSE;
                failed.times = failed.times.saturating_add(1);
                has_failed = true;
            }
        }
        Ok(has_failed)
    }

    /// Records that a GET of the object succeeded. Failures of single blocks are kept.
    pub fn succeeded(&mut self, id: ObjectId) {
        self.0.remove(&(id, None));
    }

    /// Records that a range of an object could not be read.
    pub fn failed(&mut self, id: ObjectId, range: &Range<u32>, error: &ObjectError, now: Instant) {
        match *error {
            ObjectError::Short { end, .. } => {
                let missing = end.max(range.start)..range.end;
                blocks(&missing).for_each(|block| self.keep((id, Some(block)), error, now + PAUSE, now));
            }
            _ => self.keep((id, None), error, now + PAUSE, now),
        }
    }

    /// Records that a GET of `range` returned bytes that differ from those that were put. Returns how many GETs in a
    /// row have returned wrong bytes.
    pub fn wrong(&mut self, id: ObjectId, range: &Range<u32>, now: Instant) -> u32 {
        let error =
            ObjectError::Unavailable(format!("the store returned other bytes of the object {id:016x} than were put"));
        for block in blocks(range) {
            let is_known = self.0.get(&(id, Some(block))).is_some_and(|failed| now < failed.next + KEPT);
            if !is_known {
                self.keep((id, Some(block)), &error, now, now);
            }
        }
        blocks(range).filter_map(|block| self.0.get(&(id, Some(block)))).map(|failed| failed.times).max().unwrap_or(1)
    }

    fn keep(&mut self, key: (ObjectId, Option<u32>), error: &ObjectError, next: Instant, now: Instant) {
        if self.0.len() >= FAILED_MAX {
            self.0.retain(|_, failed| now < failed.next + KEPT);
        }
        if self.0.len() < FAILED_MAX || self.0.contains_key(&key) {
            self.0.insert(key, FailedRead { error: error.clone(), times: 1, next });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cache::BLOCK;
    use super::*;

    const GONE: ObjectError = ObjectError::NotFound(1);

    #[test]
    fn object_has_failed_any_range_of_it_gets_one_get_a_pause() {
        let (mut failed, now) = (FailedReads::default(), Instant::now());
        assert_eq!(failed.check(1, &(0..5), now), Ok(false));
        failed.failed(1, &(0..5), &GONE, now);
        assert_eq!(failed.check(1, &(BLOCK..BLOCK + 1), now + PAUSE / 2), Err(GONE));
        assert_eq!(failed.check(2, &(0..5), now), Ok(false), "another one");
        assert_eq!(failed.check(1, &(0..5), now + PAUSE), Ok(true));
        assert_eq!(failed.check(1, &(0..5), now + PAUSE), Err(GONE), "one at a time");
        failed.succeeded(1);
        assert_eq!(failed.check(1, &(0..5), now + PAUSE), Ok(false));
        failed.failed(1, &(0..5), &GONE, now);
        assert_eq!(failed.check(1, &(0..5), now + PAUSE + KEPT), Ok(false), "that is long ago");
    }

    #[test]
    fn bytes_are_wrong_they_are_fetched_again_at_once_and_then_once_a_pause() {
        let (mut failed, now) = (FailedReads::default(), Instant::now());
        assert_eq!([failed.wrong(1, &(0..5), now), failed.wrong(1, &(0..5), now)], [1, 1], "of one GET");
        assert_eq!(failed.check(1, &(0..5), now), Ok(true));
        failed.succeeded(1);
        assert_eq!(failed.wrong(1, &(0..5), now), 2);
        assert!(failed.check(1, &(0..BLOCK + 1), now).is_err());
        assert_eq!(failed.check(1, &(BLOCK..BLOCK + 1), now), Ok(false), "other blocks are well");
        assert_eq!(failed.check(1, &(0..5), now + PAUSE), Ok(true));
        assert_eq!(failed.wrong(1, &(0..5), now + PAUSE), 3);
    }

    #[test]
    fn object_is_short_blocks_before_its_end_are_fetched() {
        let (mut failed, now) = (FailedReads::default(), Instant::now());
        let short = ObjectError::Short { id: 1, end: BLOCK };
        failed.failed(1, &(0..3 * BLOCK), &short, now);
        assert_eq!(failed.check(1, &(0..BLOCK), now), Ok(false));
        assert_eq!(failed.check(1, &(0..BLOCK + 1), now), Err(short.clone()));
        assert_eq!(failed.check(1, &(2 * BLOCK..2 * BLOCK + 1), now), Err(short));
    }

    #[test]
    fn very_many_objects_have_failed_few_are_kept() {
        let (mut failed, now) = (FailedReads::default(), Instant::now());
        (0..5000).for_each(|id| failed.failed(id, &(0..5), &GONE, now));
        assert_eq!(failed.0.len(), FAILED_MAX);
        failed.failed(9000, &(0..5), &GONE, now + KEPT + PAUSE);
        assert_eq!(failed.0.len(), 1, "the old ones are forgotten");
    }
}
