//! The values on a metrics page: the counters, and the gauges, which are read for each page.

use crate::node::Node;
use crate::partitions::{CleanerStatus, SetAside};
use crate::transactions::TransactionCounts;
use fullbore_control::Image;
use fullbore_db::calls::{PlaneCalls, PlaneSeen};
use fullbore_diskless::{Diskless, StoreUse};
use fullbore_host::metrics::{Counters, Metrics, Process};
use fullbore_rules::group::GroupState;
use fullbore_wire::api::ApiKey;
use std::sync::Arc;

/// Gauges that are read for each page.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// The APIs that the broker serves. Each has counters of its own.
    pub served: &'static [ApiKey],
    /// Id of the cluster.
    pub cluster_id: String,
    /// Id of the broker.
    pub node_id: i32,
    /// Number of topics in the cluster.
    pub topics: usize,
    /// Number of partitions of all topics.
    pub partitions: usize,
    /// Number of partitions that accept no records until the broker is restarted.
    pub partitions_failed: usize,
    /// Number of partitions whose directories accept no files.
    pub partitions_unwritable: usize,
    /// Number of partitions whose files are damaged.
    pub partitions_refused: usize,
    /// Number and size of the files that recoveries after a power loss have moved out of the logs and kept.
    pub set_aside: SetAside,
    /// True if the disk of the data directory is full.
    pub disk_full: bool,
    /// True if a write to the disk of the data directory hangs.
    pub disk_hung: bool,
    /// Size of the disk reserve in bytes.
    pub disk_reserve_bytes: u64,
    /// Counts of the work that the log cleaner has done so far.
    pub cleaner: CleanerStatus,
    /// Requests to the object store.
    pub store: StoreUse,
    /// Version of the metadata.
    pub metadata_epoch: u64,
    /// State of the cluster's database. `None` on a standalone broker.
    pub plane: Option<PlaneSeen>,
    /// Counts of calls to the cluster's database. `None` on a standalone broker.
    pub plane_calls: Option<Arc<PlaneCalls>>,
    /// Numbers of brokers in the cluster, and the state of this one.
    pub membership: MembershipGauges,
    /// Number of fetch sessions in the cache.
    pub fetch_sessions: usize,
    /// State of replication.
    pub replication: ReplicationGauges,
    /// Number of groups in each state, in the order of [`GroupState::ALL`].
    pub groups: [usize; GroupState::ALL.len()],
    /// Number of transactional ids that this broker coordinates, by state.
    pub transactions: TransactionCounts,
    /// The largest number of records between the last stable offset and the high watermark of a partition. Among
    /// classic partitions, only those that this broker leads count.
    pub stable_lag_max: u64,
    /// Number of committed offsets of all groups.
    pub offsets_held: usize,
    /// Bytes of metadata that clients have committed with their offsets.
    pub offset_metadata_bytes: usize,
    /// The resources that this process uses.
    pub process: Process,
}

/// The brokers of the cluster, according to the metadata.
#[derive(Clone, Copy, Debug, Default)]
pub struct MembershipGauges {
    /// Epoch in which this process is registered.
    pub broker_epoch: i64,
    /// True if this broker is fenced, or stands down because the others have fenced it.
    pub is_fenced: bool,
    /// True if this broker has handed over its leaderships because its disk is full.
    pub is_full: bool,
    /// Number of registered brokers.
    pub registered: usize,
    /// Number of fenced brokers.
    pub fenced: usize,
}

impl MembershipGauges {
    fn of(image: &Image, node_id: i32, broker_epoch: i64) -> Self {
        let nodes = image.nodes();
        let own = nodes.get(&node_id).map(|node| &node.registration);
        MembershipGauges {
            broker_epoch,
            is_fenced: image.stands_down() || own.is_some_and(|own| own.is_fenced),
            is_full: own.is_some_and(|own| own.is_full),
            registered: nodes.len(),
            fenced: nodes.values().filter(|node| node.registration.is_fenced).count(),
        }
    }
}

/// How well replication keeps up.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplicationGauges {
    /// Number of partitions that this broker leads and that have a replica out of sync.
    pub under_replicated: usize,
    /// Number of partitions that this broker leads and that have fewer in-sync replicas than `min.insync.replicas`.
    pub under_min_isr: usize,
    /// Number of partitions in the cluster that have no leader.
    pub offline: usize,
    /// The largest number of records by which a partition lags behind its leader, among the partitions that this broker
    /// follows.
    pub max_lag: u64,
}

impl ReplicationGauges {
    /// Counts the replicated partitions of an image. Diskless partitions are not replicated and do not count.
    fn of(image: &Image, node_id: i32) -> Self {
        let mut gauges = Self::default();
        for topic in image.topics().filter(|topic| !topic.config.diskless) {
            for partition in &topic.partitions {
                gauges.offline += usize::from(partition.leader.is_none());
                if partition.leader == Some(node_id) {
                    let (isr, replicas) = (partition.isr.len(), partition.replicas.len());
                    gauges.under_replicated += usize::from(isr < replicas);
                    gauges.under_min_isr += usize::from(isr < topic.config.min_insync_replicas.min(replicas));
                }
            }
        }
        gauges
    }
}

/// Gauges whose reading may hang, because it needs the disk, or locks that are held during writes.
#[derive(Clone, Debug, Default)]
pub struct SlowGauges {
    set_aside: SetAside,
    disk_reserve_bytes: u64,
    groups: [usize; GroupState::ALL.len()],
    stable_lag_max: u64,
}

impl SlowGauges {
    /// Reads these gauges. Blocks while the disk hangs.
    pub fn read(broker: &Node) -> Self {
        SlowGauges {
            set_aside: broker.partitions.set_aside(),
            disk_reserve_bytes: broker.space.reserved(),
            groups: broker.coordinators.groups.count_by_state(),
            stable_lag_max: broker.partitions.stable_lag_max(),
        }
    }
}

impl Gauges {
    /// Reads all gauges that are not in `slow`. Does not wait for the disk, but may take milliseconds
    /// ([`Process::read`]).
    pub fn read(broker: &Node, slow: SlowGauges) -> Self {
        let image = broker.metadata.control.image();
        Gauges {
            served: broker.metadata.served,
            cluster_id: broker.metadata.cluster_id.to_string(),
            node_id: broker.metadata.config.node.id,
            topics: image.topics().len(),
            partitions: image.partition_count(),
            partitions_failed: broker.partitions.failed_partitions(),
            partitions_unwritable: broker.partitions.unwritable_partitions(),
            partitions_refused: broker.partitions.refused_partitions(),
            set_aside: slow.set_aside,
            disk_full: broker.space.is_full(),
            disk_hung: broker.space.hangs(),
            disk_reserve_bytes: slow.disk_reserve_bytes,
            cleaner: broker.partitions.cleaner_status(),
            store: broker.partitions.diskless().map(Diskless::store_use).unwrap_or_default(),
            metadata_epoch: image.epoch(),
            plane: broker.metadata.control.plane_calls().and_then(|calls| calls.seen()),
            plane_calls: broker.metadata.control.plane_calls().cloned(),
            membership: MembershipGauges::of(
                &image,
                broker.metadata.config.node.id,
                broker.metadata.control.broker_epoch(),
            ),
            fetch_sessions: broker.fetch.sessions.count(),
            replication: ReplicationGauges {
                max_lag: broker.replication.max_lag(),
                ..ReplicationGauges::of(&image, broker.metadata.config.node.id)
            },
            groups: slow.groups,
            transactions: broker.coordinators.transactions.counts(),
            stable_lag_max: slow.stable_lag_max,
            offsets_held: broker.coordinators.groups.offsets().held(),
            offset_metadata_bytes: broker.coordinators.groups.offsets().metadata_bytes(),
            process: Process::read(),
        }
    }
}

/// The values from which the rows of the table write their samples.
#[derive(Debug)]
pub(super) struct Page {
    pub metrics: Metrics,
    pub gauges: Gauges,
}

impl Page {
    pub fn counters(&self) -> &Counters {
        &self.metrics.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_config::{BrokerConfig, Properties, TopicConfig};
    use fullbore_control::Topic;
    use fullbore_rules::replica::PartitionRegistration;
    use fullbore_wire::Uuid;
    use std::sync::Arc;

    #[test]
    fn diskless_partitions_do_not_count_as_offline_or_under_replicated() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let defaults = broker.topics.defaults;
        let led = PartitionRegistration { replicas: vec![1, 2], isr: vec![1], leader: Some(1), ..Default::default() };
        let lost = PartitionRegistration { leader: None, ..led.clone() };
        let gauges = |diskless| {
            let mut image = Image::default();
            image.put(Arc::new(Topic {
                name: "t".into(),
                id: Uuid([1; 16]),
                partitions: [led.clone(), lost.clone()].map(Arc::new).into_iter().collect(),
                overrides: Default::default(),
                config: Arc::new(TopicConfig { diskless, min_insync_replicas: 2, ..defaults.clone() }),
            }));
            let of = ReplicationGauges::of(&image, 1);
            [of.under_replicated, of.under_min_isr, of.offline]
        };
        assert_eq!((gauges(false), gauges(true)), ([1; 3], [0; 3]));
    }
}
