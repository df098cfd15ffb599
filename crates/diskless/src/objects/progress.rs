//! Tracks how many bytes of a request's body have moved. The bytes of a PUT count when the socket accepts them, those
//! of a GET when they arrive. A byte that the socket has accepted may still be in the system's send buffer.
//!
//! [`crate::tries`] decides when a request is too slow.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time after the start of a request in which moved bytes do not count as progress of the store. The bytes may only
/// have filled the system's send buffer.
const FILLS_BUFFER: Duration = Duration::from_secs(1);

/// Number of bytes that must move to count as progress. If bytes move only slowly, the request counts as silent until
/// it has moved this many.
const STEP: u64 = 32 << 10;

/// The progress of one request. The request updates it, and a watcher reads it.
#[derive(Clone, Debug)]
pub struct BodyProgress(Arc<BodyMoved>);

#[derive(Debug)]
struct BodyMoved {
    last: Mutex<LastMoved>,
    any: AnyProgress,
}

#[derive(Clone, Copy, Debug)]
struct LastMoved {
    /// When the request began. While the request waits for a permit of the pace, this is repeatedly set to the current
    /// time.
    began: Instant,
    /// When the first bytes moved.
    first_moved: Option<Instant>,
    /// When the last step of [`STEP`] bytes was complete. Equal to `began` until the first step is complete.
    at: Instant,
    /// How many bytes have moved since the start. `stepped` is this number at the end of the last complete step.
    bytes: u64,
    stepped: u64,
}

/// The last time at which any of several requests made progress or succeeded.
#[derive(Clone, Debug)]
pub struct AnyProgress(Arc<Mutex<Instant>>);

impl Default for AnyProgress {
    fn default() -> AnyProgress {
        AnyProgress(Arc::new(Mutex::new(Instant::now())))
    }
}

impl AnyProgress {
    /// Records that a request has made progress or has succeeded.
    pub fn moved(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Returns the last recorded time.
    pub fn last(&self) -> Instant {
        *self.0.lock()
    }
}

impl Default for BodyProgress {
    /// Creates the progress of a request that is not watched together with others.
    fn default() -> BodyProgress {
        BodyProgress::of(AnyProgress::default())
    }
}

impl BodyProgress {
    /// Creates the progress of a request that begins now. Also records its progress in `any`, which several requests
    /// share.
    pub fn of(any: AnyProgress) -> BodyProgress {
        let began = Instant::now();
        BodyProgress(Arc::new(BodyMoved {
            last: Mutex::new(LastMoved { began, first_moved: None, at: began, bytes: 0, stepped: 0 }),
            any,
        }))
    }

    /// Records that `bytes` bytes of the body have moved.
    pub fn moved(&self, bytes: usize) {
        let at = Instant::now();
        let mut last = self.0.last.lock();
        last.bytes += bytes as u64;
        last.first_moved.get_or_insert(at);
        if last.bytes - last.stepped < STEP {
            return;
        }
        (last.at, last.stepped) = (at, last.bytes);
        if at - last.began >= FILLS_BUFFER {
            self.0.any.moved();
        }
    }

    /// Returns the time at which the request began.
    pub fn began(&self) -> Instant {
        self.0.last.lock().began
    }

    /// Returns the time since the first bytes moved, or zero if none have moved.
    pub fn body_took(&self) -> Duration {
        self.0.last.lock().first_moved.map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Sets the start of the request to now. The pace calls this while the request waits for a permit and when it gets
    /// one, so that the wait does not count as a lack of progress.
    pub fn begins(&self) {
        let mut last = self.0.last.lock();
        last.began = Instant::now();
        last.at = last.began;
    }

    /// Returns the time at which the last step of [`STEP`] bytes was complete, or the start of the request if no step
    /// is complete. Also returns how many bytes have moved in total.
    pub fn last(&self) -> (Instant, u64) {
        let last = *self.0.last.lock();
        (last.at, last.bytes)
    }
}
