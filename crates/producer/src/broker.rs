//! State of a broker that is visible outside of its task: grants, load of connections, and worklist.
//!
//! Not its task (see `sender`).

use crate::grant::Grants;
use crate::partition::Listing;
use crate::pipe::SharedPipe;
use crate::worklist::Worklist;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Broker that leads partitions.
pub(crate) struct Broker {
    pub(crate) id: i32,
    /// Work that the partitions list for this broker.
    pub(crate) work: Arc<Worklist<Listing>>,
    /// Grants of windows, which responses write and the task reads.
    pub(crate) grants: Mutex<Grants>,
    /// State of the open connections, for [`Broker::status`] only.
    pub(crate) pipes: Mutex<Vec<SharedPipe>>,
    /// Number of passes of the task over its work.
    pub(crate) turns: AtomicU64,
    /// Sums over the responses to produce requests since the start.
    answered: Mutex<Answered>,
    /// Time for which only the window kept full batches waiting; the task writes it.
    pub(crate) window_full: Mutex<Duration>,
}

impl Broker {
    pub(crate) fn new(id: i32) -> Arc<Self> {
        Arc::new(Broker {
            id,
            work: Worklist::new(id),
            grants: Mutex::default(),
            pipes: Mutex::default(),
            turns: AtomicU64::new(0),
            answered: Mutex::default(),
            window_full: Mutex::default(),
        })
    }

    /// Counts the response to a request of `batches` batches and `bytes` bytes, which took `time`.
    pub(crate) fn count(&self, batches: usize, bytes: usize, time: Duration) {
        let mut answered = self.answered.lock();
        answered.requests += 1;
        answered.batches += batches as u64;
        answered.bytes += bytes as u64;
        answered.time += time;
    }

    /// Returns the status for the application.
    pub(crate) fn status(&self) -> BrokerStatus {
        let grants = self.grants.lock();
        let lane = |pipe: &SharedPipe| {
            let pipe = pipe.lock();
            LaneStatus {
                requests: pipe.requests(),
                bytes: pipe.bytes(),
                window_bytes: pipe.window(),
                least: pipe.min_rtt(),
                bytes_per_second: pipe.rate(),
            }
        };
        let lanes: Vec<LaneStatus> = self.pipes.lock().iter().map(lane).collect();
        BrokerStatus {
            id: self.id,
            batches_to_retain: grants.of_node(),
            reorder_batches: grants.reorder,
            turns: self.turns.load(Ordering::Relaxed),
            answered: *self.answered.lock(),
            window: grants.in_force(lanes.len() > 1),
            lanes,
            window_full: *self.window_full.lock(),
        }
    }
}

/// Status of a broker at present.
#[derive(Clone, Debug)]
pub struct BrokerStatus {
    /// The broker's id.
    pub id: i32,
    /// Batches that the broker retains per producer and partition, where a topic has no value of its own; 5 until the
    /// broker reports a value.
    pub batches_to_retain: usize,
    /// Most batches per partition that the broker puts back in order; 0 if it does not reorder.
    pub reorder_batches: usize,
    /// Open connections to the broker.
    pub lanes: Vec<LaneStatus>,
    /// Number of passes of the broker's task over its work.
    pub turns: u64,
    /// Sums over the responses since the start.
    pub answered: Answered,
    /// Largest number of unacknowledged batches that a partition of any topic may have, where the producer is
    /// idempotent.
    pub window: usize,
    /// Time for which, on a long path, only the window kept full batches waiting.
    pub window_full: Duration,
}

/// Sums over the responses to produce requests, errors included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Requests with a response.
    pub requests: u64,
    /// Batches of these requests.
    pub batches: u64,
    /// Bytes of these batches on the wire.
    pub bytes: u64,
    /// Sum of the times from request to response.
    pub time: Duration,
}

/// Status of a connection at present.
#[derive(Clone, Copy, Debug)]
pub struct LaneStatus {
    /// Produce requests without a response.
    pub requests: usize,
    /// Bytes of the produce requests without a response.
    pub bytes: usize,
    /// Bytes that may be in flight, by the estimate of the path's capacity.
    pub window_bytes: usize,
    /// Shortest round trip of a request in the recent past.
    pub least: Option<Duration>,
    /// Bytes per second: the maximum over the last rounds.
    pub bytes_per_second: f64,
}
