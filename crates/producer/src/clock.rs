//! The clock: the runtime's, so that tests run in virtual time. Without tokio's `test-util` it is the system's.

use std::time::Instant;

/// Returns the present time.
#[inline]
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
