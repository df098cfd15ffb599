//! A broker as it is to be seen from outside: what it granted, and what its lanes carry; and the work it has.
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

/// A broker that leads partitions.
pub(crate) struct Broker {
    pub(crate) id: i32,
    /// The broker as the partitions it leads see it.
    pub(crate) work: Arc<Worklist<Listing>>,
    /// What it said of windows; written by the answers, read by the task.
    pub(crate) grants: Mutex<Grants>,
    /// Those of the lanes that are open; for [`Broker::status`] only.
    pub(crate) pipes: Mutex<Vec<SharedPipe>>,
    /// How often the task has looked for work.
    pub(crate) turns: AtomicU64,
    /// Responses to produce requests so far.
    answered: Mutex<Answered>,
    /// Time for which the window alone kept full batches waiting; written by the task.
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

    /// Counts the response to a request of `batches` and `bytes`, which took `time`.
    pub(crate) fn count(&self, batches: usize, bytes: usize, time: Duration) {
        let mut answered = self.answered.lock();
        answered.requests += 1;
        answered.batches += batches as u64;
        answered.bytes += bytes as u64;
        answered.time += time;
    }

    /// What is to be seen of it from outside.
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

/// A broker as this producer sees it now.
#[derive(Clone, Debug)]
pub struct BrokerStatus {
    /// The broker's id.
    pub id: i32,
    /// Batches it says it remembers per producer and partition, where a topic has no value of its own; 5 until it has
    /// said.
    pub batches_to_retain: usize,
    /// The most batches per partition that it puts back in order; 0 if it does not.
    pub reorder_batches: usize,
    /// The connections open to it.
    pub lanes: Vec<LaneStatus>,
    /// How often its task has looked for work.
    pub turns: u64,
    /// Its responses so far.
    pub answered: Answered,
    /// Batches of a partition that may be unacknowledged, where the producer is idempotent; the largest of its topics'.
    pub window: usize,
    /// Time for which full batches have waited for that window alone, on a long path.
    pub window_full: Duration,
}

/// Responses to produce requests, errors included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Requests that were answered.
    pub requests: u64,
    /// Their batches.
    pub batches: u64,
    /// The bytes of these on the wire.
    pub bytes: u64,
    /// The sum of the times from request to response.
    pub time: Duration,
}

/// One connection as this producer sees it now.
#[derive(Clone, Copy, Debug)]
pub struct LaneStatus {
    /// Produce requests without a response.
    pub requests: usize,
    /// Bytes of the produce requests without a response.
    pub bytes: usize,
    /// Bytes that may be in flight by the estimate of what the path holds.
    pub window_bytes: usize,
    /// The least time a request took in a while.
    pub least: Option<Duration>,
    /// Bytes a second: the most of the last rounds.
    pub bytes_per_second: f64,
}
