//! Estimates how well a partition's batches are compressed, so that they can grow to a request's size on the wire.
//!
//! Invariant: the estimate rises at once and falls slowly, so that few batches turn out too large and have to be split.

/// Maximum size of a batch before compression, in multiples of a request's size. A broker decompresses larger batches
/// one at a time.
const EXPANSION_MAX: f64 = 4.0;
/// A safety margin, by which the estimate exceeds the observed ratio.
const MARGIN: f64 = 1.1;
/// With each batch of a lower ratio, the estimate falls by this part of its difference from that ratio.
const FALL: f64 = 0.25;

/// An upper estimate of how many bytes on the wire one uncompressed byte takes.
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
    /// Notes that a batch of `before` bytes was compressed to `after`.
    pub(super) fn note(&mut self, before: usize, after: usize) {
        let seen = (after as f64 / before.max(1) as f64 * MARGIN).min(1.0);
        let fallen = self.estimate + (seen - self.estimate) * FALL;
        self.estimate = if seen > self.estimate { seen } else { fallen };
    }

    /// Returns how many uncompressed bytes will take at most `wire` bytes once compressed.
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
