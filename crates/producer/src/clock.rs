//! The clock of the runtime, so that tests run in virtual time. Without tokio's `test-util` it is the system's clock.

use std::time::Instant;

/// Returns the present time.
#[inline]
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
