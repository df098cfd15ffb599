//! Tracks how much of a request's body has moved. The bytes of a PUT count when the socket takes them, those of a GET
//! when they arrive. Bytes that the socket took may still be in a buffer of the system.
//!
//! The time after which a request is too slow is in [`crate::tries`].

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// In this time after the start of a request, moved bytes do not prove that the store takes them. The bytes may only
/// fill a buffer of the system.
const FILLS_BUFFER: Duration = Duration::from_secs(1);

/// How many bytes must move to count as progress. A request whose bytes only trickle counts as silent until it has
/// moved this many.
const STEP: u64 = 32 << 10;

/// The progress of one request, which the request shares with its watcher.
#[derive(Clone, Debug)]
pub struct BodyProgress(Arc<BodyMoved>);

#[derive(Debug)]
struct BodyMoved {
    last: Mutex<LastMoved>,
    any: AnyProgress,
}

#[derive(Clone, Copy, Debug)]
struct LastMoved {
    /// When the request began. While the request waits for a permit of the pace, this time is set again and again.
    began: Instant,
    /// When the last step of [`STEP`] bytes was complete. Equal to `began` before the first one.
    at: Instant,
    /// How many bytes have moved since the start. `stepped` is the value at the last complete step.
    bytes: u64,
    stepped: u64,
}

/// When one of several requests last made progress or succeeded.
#[derive(Clone, Debug)]
pub struct AnyProgress(Arc<Mutex<Instant>>);

impl Default for AnyProgress {
    fn default() -> AnyProgress {
        AnyProgress(Arc::new(Mutex::new(Instant::now())))
    }
}

impl AnyProgress {
    /// Records that bytes have moved or a request has succeeded.
    pub fn moved(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Returns the last time that was recorded.
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
    /// Creates the progress of a request that begins now. Its progress is also recorded in `any`, for several requests
    /// together.
    pub fn of(any: AnyProgress) -> BodyProgress {
        let began = Instant::now();
        BodyProgress(Arc::new(BodyMoved {
            last: Mutex::new(LastMoved { began, at: began, bytes: 0, stepped: 0 }),
            any,
        }))
    }

    /// Records that `bytes` bytes of the body have moved.
    pub fn moved(&self, bytes: usize) {
        let at = Instant::now();
        let mut last = self.0.last.lock();
        last.bytes += bytes as u64;
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

    /// Sets the start of the request to now. The caller does this while the request waits for a permit and when it gets
    /// the permit, so that the wait does not count as a lack of progress.
    pub fn begins(&self) {
        let mut last = self.0.last.lock();
        last.began = Instant::now();
        last.at = last.began;
    }

    /// Returns the time at which the last step of [`STEP`] bytes was complete, or the start of the request before the
    /// first one. Also returns how many bytes have moved in total.
    pub fn last(&self) -> (Instant, u64) {
        let last = *self.0.last.lock();
        (last.at, last.bytes)
    }
}
