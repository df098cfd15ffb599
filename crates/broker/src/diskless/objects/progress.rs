//! How far the body of one request has come: that of a PUT as the socket takes it, that of a GET as it arrives.
//!
//! Not here: what a request that makes none is answered with, which is [`crate::diskless::tries`]' matter. Bytes that the
//! socket took may wait in the system's buffer, up to 4 MiB.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Shared by the request and by whoever watches it.
#[derive(Clone, Debug)]
pub struct BodyProgress(Arc<Moved>);

#[derive(Debug)]
struct Moved {
    began: Instant,
    last: Mutex<Instant>,
}

impl Default for BodyProgress {
    /// A request that begins now.
    fn default() -> BodyProgress {
        let began = Instant::now();
        BodyProgress(Arc::new(Moved { began, last: Mutex::new(began) }))
    }
}

impl BodyProgress {
    /// Notes that some bytes of the body moved.
    pub fn moved(&self) {
        *self.0.last.lock() = Instant::now();
    }

    /// The start of the request.
    pub fn began(&self) -> Instant {
        self.0.began
    }

    /// The last time that bytes moved, or the start.
    pub fn last(&self) -> Instant {
        *self.0.last.lock()
    }
}
