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
}

impl Broker {
    pub(crate) fn new(id: i32) -> Arc<Self> {
        Arc::new(Broker {
            id,
            work: Worklist::new(id),
            grants: Mutex::default(),
            pipes: Mutex::default(),
            turns: AtomicU64::new(0),
        })
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
        BrokerStatus {
            id: self.id,
            batches_to_retain: grants.of_node(),
            reorder_batches: grants.reorder,
            lanes: self.pipes.lock().iter().map(lane).collect(),
            turns: self.turns.load(Ordering::Relaxed),
        }
    }
}

/// A broker as this producer sees it now.
#[derive(Clone, Debug)]
pub struct BrokerStatus {
    /// The broker's id.
    pub id: i32,
    /// Batches it says it remembers per producer and partition, where a topic has no value of its own; 5 until it has said.
    pub batches_to_retain: usize,
    /// The most batches per partition that it puts back in order; 0 if it does not.
    pub reorder_batches: usize,
    /// The connections open to it.
    pub lanes: Vec<LaneStatus>,
    /// How often its task has looked for work.
    pub turns: u64,
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
