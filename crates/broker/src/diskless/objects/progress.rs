//! Progress of the body of one request: bytes of a PUT count when the socket takes them, bytes of a GET when they
//! arrive.
//!
//! Not here: the time after which a request takes too long ([`crate::diskless::tries`]). Bytes that the socket took may
//! still be in the system's buffer.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time from the start of a request during which moved bytes do not show that the store takes them: they may only fill
/// the system's buffer.
const FILLS_BUFFER: Duration = Duration::from_secs(1);

/// Fewest moved bytes that count as progress. A request whose bytes only trickle counts as silent before it has moved
/// this number.
const STEP: u64 = 32 << 10;

/// Progress of one request, shared by the request and its watcher.
#[derive(Clone, Debug)]
pub struct BodyProgress(Arc<BodyMoved>);

#[derive(Debug)]
struct BodyMoved {
    last: Mutex<LastMoved>,
    any: AnyProgress,
}

#[derive(Clone, Copy, Debug)]
struct LastMoved {
    /// Start of the request; a wait for its permit moves the start.
    began: Instant,
    /// Time at which the last whole [`STEP`] had moved.
    at: Instant,
    /// Bytes moved since the start; `stepped` is their number at the last whole step.
    bytes: u64,
    stepped: u64,
}

/// Last time at which bytes of any of several requests moved.
#[derive(Clone, Debug)]
pub struct AnyProgress(Arc<Mutex<Instant>>);

impl Default for AnyProgress {
    fn default() -> AnyProgress {
        AnyProgress(Arc::new(Mutex::new(Instant::now())))
    }
}

impl AnyProgress {
    /// Notes that bytes moved, or that a request succeeded.
    pub fn moved(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Returns the last time that was noted.
    pub fn last(&self) -> Instant {
        *self.0.lock()
    }
}

impl Default for BodyProgress {
    /// Creates the progress of a request that is watched alone.
    fn default() -> BodyProgress {
        BodyProgress::of(AnyProgress::default())
    }
}

impl BodyProgress {
    /// Creates the progress of a request that begins now and shares `any` with other requests.
    pub fn of(any: AnyProgress) -> BodyProgress {
        let began = Instant::now();
        BodyProgress(Arc::new(BodyMoved {
            last: Mutex::new(LastMoved { began, at: began, bytes: 0, stepped: 0 }),
            any,
        }))
    }

    /// Notes that `bytes` of the body moved.
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

    /// Returns the start of the request.
    pub fn began(&self) -> Instant {
        self.0.last.lock().began
    }

    /// Notes that the request begins now, after or during a wait for its permit.
    pub fn begins(&self) {
        let mut last = self.0.last.lock();
        last.began = Instant::now();
        last.at = last.began;
    }

    /// Returns the time at which the last [`STEP`] bytes had moved, or the start of the request if fewer have moved.
    /// Also returns the number of bytes moved since the start.
    pub fn last(&self) -> (Instant, u64) {
        let last = *self.0.last.lock();
        (last.at, last.bytes)
    }
}
