//! The state of a broker that its task shares with other tasks: the grants, the load of the connections, and the
//! worklist.
//!
//! The task itself is in `sender`.

use crate::grant::Grants;
use crate::partition::Listing;
use crate::pipe::SharedPipe;
use crate::worklist::Worklist;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A broker that leads partitions.
pub(crate) struct Broker {
    pub(crate) id: i32,
    /// The partitions that have batches for this broker.
    pub(crate) work: Arc<Worklist<Listing>>,
    /// The limits that the broker has granted. The handlers of responses update them, and the task reads them.
    pub(crate) grants: Mutex<Grants>,
    /// The state of the open connections. Only [`Broker::status`] reads it.
    pub(crate) pipes: Mutex<Vec<SharedPipe>>,
    /// The number of passes that the task has made over its worklist.
    pub(crate) turns: AtomicU64,
    /// Totals of all responses to produce requests since the start.
    answered: Mutex<Answered>,
    /// Total time in which full batches waited only for the window. The task updates this value.
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

/// The present status of a broker.
#[derive(Clone, Debug)]
pub struct BrokerStatus {
    /// The broker's id.
    pub id: i32,
    /// How many batches the broker retains per producer and partition, unless the topic has its own value. 5 until the
    /// broker reports a value.
    pub batches_to_retain: usize,
    /// Maximum number of out-of-order batches per partition that the broker parks. 0 if the broker does not park
    /// batches.
    pub reorder_batches: usize,
    /// Open connections to the broker.
    pub lanes: Vec<LaneStatus>,
    /// The number of passes that the broker's task has made over its worklist.
    pub turns: u64,
    /// Totals of all responses since the start.
    pub answered: Answered,
    /// The largest window in force: how many unacknowledged batches a partition may have. Topics may have different
    /// windows. The value applies only to idempotent producers.
    pub window: usize,
    /// Total time in which full batches waited only for the window. Only counted on a long path.
    pub window_full: Duration,
}

/// Totals of all responses to produce requests, including errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// The number of requests that got a response.
    pub requests: u64,
    /// The number of batches in these requests.
    pub batches: u64,
    /// The size of these batches on the wire, in bytes.
    pub bytes: u64,
    /// The sum of the times from each request to its response.
    pub time: Duration,
}

/// The present status of a connection.
#[derive(Clone, Copy, Debug)]
pub struct LaneStatus {
    /// How many produce requests wait for a response.
    pub requests: usize,
    /// The size of the produce requests that wait for a response, in bytes.
    pub bytes: usize,
    /// How many bytes may be in flight, according to the estimate of the path's capacity.
    pub window_bytes: usize,
    /// The shortest recent round trip of a request.
    pub least: Option<Duration>,
    /// The throughput in bytes per second, as the maximum of the last rounds.
    pub bytes_per_second: f64,
}
