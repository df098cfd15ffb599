//! How far the body of one request has come: that of a PUT as the socket takes it, that of a GET as it arrives.
//!
//! Not here: when a request takes too long, which [`crate::diskless::tries`] knows. Bytes that the socket took may wait
//! in the system's buffer.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The time for which moved bytes say nothing of the store: the system's buffer takes the first ones.
const FILLS_BUFFER: Duration = Duration::from_secs(1);

/// Bytes that are progress: less of them in the time after which a request is silent is none, as from a store that
/// trickles.
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
    /// The start of the request.
    began: Instant,
    /// The time of the last whole step.
    at: Instant,
    /// Bytes so far, and those of them that were there at the last whole step.
    bytes: u64,
    stepped: u64,
}

/// The last time that bytes of any of several requests moved.
#[derive(Clone, Debug)]
pub struct AnyProgress(Arc<Mutex<Instant>>);

impl Default for AnyProgress {
    fn default() -> AnyProgress {
        AnyProgress(Arc::new(Mutex::new(Instant::now())))
    }
}

impl AnyProgress {
    /// Notes that bytes moved, or that a request has ended well.
    pub fn moved(&self) {
        *self.0.lock() = Instant::now();
    }

    /// The last time of that.
    pub fn last(&self) -> Instant {
        *self.0.lock()
    }
}

impl Default for BodyProgress {
    /// A request that is watched by itself.
    fn default() -> BodyProgress {
        BodyProgress::of(AnyProgress::default())
    }
}

impl BodyProgress {
    /// A request that begins now, one of several.
    pub fn of(any: AnyProgress) -> BodyProgress {
        let began = Instant::now();
        BodyProgress(Arc::new(BodyMoved {
            last: Mutex::new(LastMoved { began, at: began, bytes: 0, stepped: 0 }),
            any,
        }))
    }

    /// Notes that this many bytes of the body moved.
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

    /// The start of the request.
    pub fn began(&self) -> Instant {
        self.0.last.lock().began
    }

    /// Notes that the request begins now: until then it has waited for its turn.
    pub fn begins(&self) {
        let mut last = self.0.last.lock();
        last.began = Instant::now();
        last.at = last.began;
    }

    /// The last time that [`STEP`] bytes had moved, or the start; and the bytes that have moved so far.
    pub fn last(&self) -> (Instant, u64) {
        let last = *self.0.last.lock();
        (last.at, last.bytes)
    }
}
