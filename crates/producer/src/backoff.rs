//! Computes how long a client pauses before it retries.

use std::time::Duration;

/// Returns a pause that doubles with each failure. A fifth of the pause is random, so that clients do not all retry at
/// the same moment.
pub(crate) fn backoff(first: Duration, max: Duration, failures: u32) -> Duration {
    let full = first.saturating_mul(1 << failures.min(20)).min(max);
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), failures) % 401;
    full * (800 + random as u32) / 1000
}
