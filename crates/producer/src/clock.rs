//! The clock of the producer. It is tokio's clock, so that tests can run in virtual time. Without tokio's `test-util`
//! it is the system's clock.

use std::time::Instant;

/// Returns the present time.
#[inline]
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
