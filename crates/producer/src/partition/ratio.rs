//! Estimates the compression ratio of a partition's batches (bytes on the wire per uncompressed byte), so that batches
//! can grow to a request's size on the wire.
//!
//! Invariant: the estimate rises at once if batches compress worse, and falls slowly if they compress better. As a
//! result, few batches turn out to be too large and must be split.

/// Maximum size of a batch before compression, as a multiple of a request's size. A broker would decompress larger
/// batches one at a time.
const EXPANSION_MAX: f64 = 4.0;
/// The factor by which the estimate exceeds the observed ratio, as a safety margin.
const MARGIN: f64 = 1.1;
/// The fraction of the difference by which the estimate approaches a lower observed ratio with each batch.
const FALL: f64 = 0.25;

/// A cautious estimate of the bytes on the wire per uncompressed byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompressionRatio {
    estimate: f64,
}

impl Default for CompressionRatio {
    fn default() -> Self {
        CompressionRatio { estimate: 1.0 }
    }
}

impl CompressionRatio {
    /// Notes that a batch of `before` bytes was compressed to `after` bytes.
    pub(super) fn note(&mut self, before: usize, after: usize) {
        let seen = (after as f64 / before.max(1) as f64 * MARGIN).min(1.0);
        let fallen = self.estimate + (seen - self.estimate) * FALL;
        self.estimate = if seen > self.estimate { seen } else { fallen };
    }

    /// Returns the number of uncompressed bytes that take `wire` bytes after compression, by the estimate.
    #[inline]
    pub(super) fn uncompressed(&self, wire: usize) -> usize {
        if self.estimate >= 1.0 {
            return wire;
        }
        (wire as f64 * (1.0 / self.estimate).min(EXPANSION_MAX)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_by_their_ratio_up_to_four_times_a_request() {
        let mut ratio = CompressionRatio::default();
        assert_eq!(ratio.uncompressed(1000), 1000);
        (0..100).for_each(|_| ratio.note(1000, 400));
        assert!((2200..=2300).contains(&ratio.uncompressed(1000)), "{ratio:?}");
        ratio.note(1000, 900);
        assert!((1000..=1011).contains(&ratio.uncompressed(1000)), "at once: {ratio:?}");
        (0..100).for_each(|_| ratio.note(1000, 10));
        assert_eq!(ratio.uncompressed(1000), 4000);
        ratio.note(0, 0);
        ratio.note(10, 20);
        assert_eq!(ratio.uncompressed(1000), 1000, "what grows is as large as it was");
    }
}
