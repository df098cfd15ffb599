//! Limits the size of a topic's batches. The limit is max.request.size, until a broker refuses a batch as too large
//! (max.message.bytes).
//!
//! A broker's refusal does not contain the limit, but the topic's configuration does. Until the configuration is known,
//! the limit is found by bisection between the largest accepted batch and the smallest refused one. At first the limit
//! applies to sizes on the wire. If a refused batch is no larger than an accepted one, the broker stores batches with
//! another codec. From then on, the limit applies to sizes before compression.
//!
//! Invariant: a refusal lowers the limit below the refused batch. A refused batch above the limit changes nothing,
//! because it was sent before an earlier refusal lowered the limit.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The maximum batch size of a topic, which all its partitions share.
#[derive(Debug)]
pub(crate) struct BatchLimit {
    /// max.request.size, the upper bound of the limit.
    most: usize,
    bytes: AtomicUsize,
    /// True if the limit applies to sizes before compression.
    is_opened: AtomicBool,
    /// The largest batch that a broker accepted, by the size that the limit applies to.
    taken: AtomicUsize,
    /// The smallest batch that a broker refused, by the size that the limit applies to.
    refused: Mutex<Option<usize>>,
    /// True once a refusal has been handled: the topic's limit was requested and the user notified.
    is_reported: AtomicBool,
}

impl BatchLimit {
    pub(crate) fn new(most: usize) -> Self {
        BatchLimit {
            most,
            bytes: AtomicUsize::new(most),
            is_opened: AtomicBool::new(false),
            taken: AtomicUsize::new(0),
            refused: Mutex::new(None),
            is_reported: AtomicBool::new(false),
        }
    }

    /// Returns true only at the first call for a topic, so that its limit is requested and reported once.
    pub(crate) fn is_first_refusal(&self) -> bool {
        !self.is_reported.swap(true, Ordering::Relaxed)
    }

    /// Resets the limit to max.request.size, because the topic was recreated.
    pub(crate) fn reset(&self) {
        let mut refused = self.refused.lock();
        *refused = None;
        self.taken.store(0, Ordering::Relaxed);
        self.is_opened.store(false, Ordering::Relaxed);
        self.bytes.store(self.most, Ordering::Relaxed);
    }

    /// Returns the maximum size of a batch, in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns true if the limit applies to sizes before compression. The compression ratio of batches must then be
    /// ignored.
    #[inline]
    pub(crate) fn is_opened(&self) -> bool {
        self.is_opened.load(Ordering::Relaxed)
    }

    /// Returns true if a broker may accept a batch of `before` bytes that was compressed to `after`. Also allows a
    /// batch that exceeds the limit only because the codec made it larger. The broker then decides.
    pub(crate) fn allows(&self, before: usize, after: usize) -> bool {
        self.counted(before, after).min(before) <= self.bytes()
    }

    /// Returns the maximum size of the parts of a refused batch, in bytes before compression. The batch had `before`
    /// bytes and was compressed to `after`. The result is at most half of `before`.
    pub(crate) fn part(&self, before: usize, after: usize) -> usize {
        let bytes = self.bytes();
        let part = match self.counted(before, after) {
            // The factor of 8/9 is a margin, because the parts do not all compress alike.
            counted if counted != before => (before as f64 * bytes as f64 / counted.max(1) as f64 * 8.0 / 9.0) as usize,
            _ => bytes,
        };
        part.min(before.div_ceil(2))
    }

    /// Notes that a broker accepted a batch of this size.
    #[inline]
    pub(crate) fn taken(&self, before: usize, after: usize) {
        let counted = self.counted(before, after);
        if counted > self.taken.load(Ordering::Relaxed) {
            self.grow(counted);
        }
    }

    #[cold]
    fn grow(&self, taken: usize) {
        let mut refused = self.refused.lock();
        self.taken.store(taken, Ordering::Relaxed);
        // If an accepted batch is at least as large as the smallest refused one, the topic's limit was raised. The
        // refusal is then forgotten.
        *refused = refused.filter(|refused| *refused > taken);
        if let Some(refused) = *refused
            && is_far(taken, refused)
            && taken >= self.bytes() / 4 * 3
        {
            self.bytes.fetch_max(taken.midpoint(refused), Ordering::Relaxed);
        }
    }

    /// Notes that a broker refused a batch of this size as too large.
    pub(crate) fn refused(&self, before: usize, after: usize) {
        let mut refused = self.refused.lock();
        let taken = self.taken.load(Ordering::Relaxed);
        if after < before && after <= taken && !self.is_opened() {
            self.is_opened.store(true, Ordering::Relaxed);
            self.taken.store(0, Ordering::Relaxed);
            self.bytes.store(self.most, Ordering::Relaxed);
            *refused = None;
        }
        let (counted, bytes) = (self.counted(before, after), self.bytes());
        let taken = match self.taken.load(Ordering::Relaxed) {
            // The topic's limit was lowered, so the accepted size is forgotten.
            taken if taken >= counted => 0,
            taken => taken,
        };
        self.taken.store(taken, Ordering::Relaxed);
        *refused = Some(refused.map_or(counted, |refused| refused.min(counted)));
        let refused = counted.min(before);
        if refused <= bytes {
            let lower = if is_far(taken, counted) { taken.midpoint(counted) } else { taken };
            let lower = if lower < refused { lower } else { refused / 8 * 7 };
            self.bytes.store(lower.max(1), Ordering::Relaxed);
        }
    }

    /// Applies the limit from the topic's configuration. Ignores a limit that is not below the refused size. The broker
    /// then stores batches with another codec, or the topic was recreated in the meantime.
    pub(crate) fn set(&self, limit: usize) {
        let mut refused = self.refused.lock();
        if refused.is_some_and(|refused| refused > limit) && !self.is_opened() {
            *refused = Some(limit + 1);
            self.bytes.store(limit.min(self.most), Ordering::Relaxed);
        }
    }

    fn counted(&self, before: usize, after: usize) -> usize {
        if self.is_opened() { before } else { after }
    }
}

/// Returns true if the accepted and the refused size are far enough apart to continue the bisection.
fn is_far(taken: usize, refused: usize) -> bool {
    refused - taken > taken / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends 100 batches as large as the limit allows, each compressed by `ratio`. The broker accepts a batch if
    /// `takes` returns true. Returns the number of refusals, and the size of the last batch before compression.
    fn sent(limit: &BatchLimit, ratio: f64, takes: impl Fn(usize, usize) -> bool) -> (usize, usize) {
        let (mut refusals, mut last) = (0, 0);
        for _ in 0..100 {
            let before = if limit.is_opened() { limit.bytes() } else { (limit.bytes() as f64 / ratio) as usize };
            let after = (before as f64 * ratio) as usize;
            assert!(limit.allows(before, after));
            match takes(before, after) {
                true => limit.taken(before, after),
                false => {
                    limit.refused(before, after);
                    assert!(!limit.allows(before, after), "{before} {after} {limit:?}");
                    assert!(limit.part(before, after) <= before.div_ceil(2));
                    refusals += 1;
                }
            }
            last = before;
        }
        (refusals, last)
    }

    #[test]
    fn a_topic_takes_less_than_a_request_has_and_its_limit_is_found_in_few_steps() {
        for most in [1_048_576, 1_100_000, 2_000_000, 10_485_760, 100_000_000] {
            for takes in [20_000, 100_000, 524_288, 1_048_588] {
                let limit = BatchLimit::new(most);
                let (refusals, last) = sent(&limit, 1.0, |_, size| size <= takes);
                let halvings = (most / takes.min(most)).ilog2() as usize + 1;
                assert!(refusals <= halvings + 2, "{refusals} of {most} to {takes}");
                assert!(last <= takes && last * 3 >= takes.min(most) * 2, "{last} of {takes}, from {most}");
            }
        }
    }

    #[test]
    fn batches_in_flight_are_refused_together_and_the_limit_falls_once() {
        let limit = BatchLimit::new(8_000_000);
        (0..5).for_each(|_| limit.refused(8_000_000, 8_000_000));
        assert_eq!(limit.bytes(), 4_000_000);
        limit.refused(9_000_000, 9_000_000);
        assert_eq!(limit.bytes(), 4_000_000, "a record larger than that changes nothing");
        assert_eq!(limit.part(8_000_000, 8_000_000), 4_000_000);
        assert_eq!(limit.part(4_100_000, 4_100_000), 2_050_000);
    }

    #[test]
    fn limit_falls_to_the_accepted_size() {
        let limit = BatchLimit::new(8_000_000);
        limit.taken(900_000, 900_000);
        limit.refused(1_000_000, 1_000_000);
        assert_eq!(limit.bytes(), 900_000);
        // The topic accepts less than before.
        limit.refused(800_000, 800_000);
        assert_eq!(limit.bytes(), 400_000);
        // The topic accepts more than before.
        limit.taken(2_000_000, 2_000_000);
        assert_eq!(limit.bytes(), 400_000);
    }

    #[test]
    fn a_broker_that_stores_with_another_codec_counts_bytes_before_compression() {
        for ratio in [0.25, 0.4, 0.9] {
            let limit = BatchLimit::new(1_048_576);
            let (refusals, last) = sent(&limit, ratio, |before, _| before <= 1_048_588);
            assert!(refusals <= 5 && last <= 1_048_588 && last > 600_000, "{ratio}: {refusals} {last}");
        }
        // Batches compress differently. A refused one may be smaller on the wire than an accepted one.
        let limit = BatchLimit::new(1_000_000);
        limit.taken(600_000, 500_000);
        limit.refused(1_200_000, 300_000);
        assert!(limit.is_opened());
        assert_eq!(limit.bytes(), 1_000_000, "which is as large as the broker is known to refuse");
        limit.refused(1_000_000, 100_000);
        assert_eq!(limit.bytes(), 500_000);
    }

    #[test]
    fn limit_known_after_a_refusal_batches_fill_it_and_none_is_refused() {
        for most in [1_048_576, 1_100_000, 10_485_760, 100_000_000] {
            for takes in [20_000, 100_000, 524_288, 1_000_012] {
                let limit = BatchLimit::new(most);
                limit.refused(most, most);
                limit.set(takes);
                assert_eq!(sent(&limit, 1.0, |_, size| size <= takes), (0, takes));
                // These refused batches were already in flight at the first refusal.
                limit.refused(most, most);
                limit.refused(takes + 1, takes + 1);
                assert_eq!(limit.bytes(), takes);
                // The topic now accepts less.
                let (refusals, last) = sent(&limit, 1.0, |_, size| size <= takes / 4);
                assert!((1..=4).contains(&refusals) && last <= takes / 4, "{refusals} {last}");
            }
        }
    }

    #[test]
    fn known_limit_explains_no_refusal_it_is_searched_for() {
        let limit = BatchLimit::new(8_000_000);
        limit.set(1_000_000);
        assert_eq!(limit.bytes(), 8_000_000, "nothing was refused");
        limit.refused(4_000_000, 900_000);
        limit.set(1_000_000);
        assert_eq!(limit.bytes(), 450_000, "the broker stores with another codec");
    }

    #[test]
    fn refused_batch_grew_by_its_codec_the_limit_falls() {
        let limit = BatchLimit::new(1_000_000);
        limit.taken(1_000_000, 1_000_100);
        limit.refused(1_000_000, 1_000_200);
        assert!(limit.bytes() < 1_000_000, "{limit:?}");
        assert!(!limit.allows(1_000_000, 1_000_200));
    }
}
