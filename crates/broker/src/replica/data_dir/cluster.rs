//! This broker and the others, as partitions need them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_rules::replica::{self, Brokers, Now, PartitionRegistration};
use parking_lot::RwLock;

/// This broker and the others, as partitions need them.
#[derive(Debug)]
pub struct ClusterView {
    pub node_id: i32,
    pub replica_lag_time_max_ms: i64,
    /// Zero of its milliseconds.
    began: Instant,
    brokers: RwLock<Arc<Brokers>>,
}

impl ClusterView {
    /// This broker, before it has heard of any.
    pub fn new(node_id: i32, lag_time_max: Duration) -> ClusterView {
        let replica_lag_time_max_ms = i64::try_from(lag_time_max.as_millis()).unwrap_or(i64::MAX);
        ClusterView { node_id, replica_lag_time_max_ms, began: Instant::now(), brokers: RwLock::default() }
    }

    /// Replaces the brokers that are known.
    pub fn put_brokers(&self, brokers: &Arc<Brokers>) {
        *self.brokers.write() = Arc::clone(brokers);
    }

    /// Returns the time since the broker's start, which no step of the clock changes.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Calls `what` with the time and the brokers of this moment.
    pub fn at_this_moment<T>(&self, what: impl FnOnce(&Now<'_>) -> T) -> T {
        let brokers = Arc::clone(&self.brokers.read());
        let broker_epoch = brokers.get(&self.node_id).map_or(replica::NO_BROKER_EPOCH, |own| own.epoch);
        let ms = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        what(&Now { ms, broker_epoch, brokers: &brokers })
    }
}

/// Partitions of a new topic, all on this broker and led by it.
pub fn led_by(node_id: i32, partitions: i32) -> Vec<Arc<PartitionRegistration>> {
    let registered = PartitionRegistration {
        replicas: vec![node_id],
        isr: vec![node_id],
        leader: Some(node_id),
        ..PartitionRegistration::default()
    };
    // They are alike, and share one.
    let registered = Arc::new(registered);
    (0..partitions).map(|_| Arc::clone(&registered)).collect()
}
