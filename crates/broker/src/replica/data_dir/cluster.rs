//! The data about the cluster that partitions need: this broker's id, the registered brokers, and a clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fullbore_rules::replica::{self, Brokers, Now, PartitionRegistration};
use parking_lot::RwLock;

#[derive(Debug)]
pub struct ClusterView {
    pub node_id: i32,
    pub replica_lag_time_max_ms: i64,
    /// The start of the clock, from which `Now` counts its milliseconds.
    began: Instant,
    brokers: RwLock<Arc<Brokers>>,
    /// True while this broker stands down (`membership/cut_off.rs`).
    stands_down: AtomicBool,
}

impl ClusterView {
    /// Creates a view without brokers, for the time before the first image.
    pub fn new(node_id: i32, lag_time_max: Duration) -> ClusterView {
        let replica_lag_time_max_ms = i64::try_from(lag_time_max.as_millis()).unwrap_or(i64::MAX);
        let (brokers, stands_down) = (RwLock::default(), AtomicBool::new(false));
        ClusterView { node_id, replica_lag_time_max_ms, began: Instant::now(), brokers, stands_down }
    }

    /// Applies the broker registrations of a new image.
    pub fn put_brokers(&self, brokers: &Arc<Brokers>) {
        *self.brokers.write() = Arc::clone(brokers);
    }

    /// Sets whether this broker stands down. Returns true if that has changed.
    pub fn set_stands_down(&self, stands_down: bool) -> bool {
        self.stands_down.swap(stands_down, Ordering::AcqRel) != stands_down
    }

    /// Returns true if this broker must not lead the partition now, because it stands down. It still leads a partition
    /// whose only replica it has, since no other broker can.
    pub fn stands_down(&self, registered: &PartitionRegistration) -> bool {
        self.stands_down.load(Ordering::Acquire) && registered.replicas.len() > 1
    }

    /// Returns the time since the broker started. The clock is monotonic.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Calls `what` with the current time and brokers.
    pub fn at_this_moment<T>(&self, what: impl FnOnce(&Now<'_>) -> T) -> T {
        let brokers = Arc::clone(&self.brokers.read());
        let broker_epoch = brokers.get(&self.node_id).map_or(replica::NO_BROKER_EPOCH, |own| own.epoch);
        let ms = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        what(&Now { ms, broker_epoch, brokers: &brokers })
    }
}

/// Returns the registrations for the partitions of a new topic. Broker `node_id` leads all of them and has the only
/// replica.
pub fn led_by(node_id: i32, partitions: i32) -> Vec<Arc<PartitionRegistration>> {
    let registered = PartitionRegistration {
        replicas: vec![node_id],
        isr: vec![node_id],
        leader: Some(node_id),
        ..PartitionRegistration::default()
    };
    // All partitions share one registration.
    let registered = Arc::new(registered);
    (0..partitions).map(|_| Arc::clone(&registered)).collect()
}
