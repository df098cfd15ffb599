//! Watches this broker's disk, and reports to the control plane if the disk is full, hangs, or cannot create files.
//! Other in-sync replicas then become leaders of this broker's partitions, and no leader waits for this broker's
//! replicas. This broker reports again once the disk works and has space.
//!
//! [`fullbore_rules::cluster::room`] decides when to report. `disk_space` refuses the requests for which a full disk
//! has no space.

use std::time::Instant;

use fullbore_rules::cluster::room::{self, DiskRoom, RoomReport, RoomWatch};

use fullbore_control::{BrokerChange, Control, Image, Urgent};
use fullbore_host::log_rate_limit::LogRateLimit;

/// Returns the state of this broker's disk without blocking.
pub type OwnDisk = Box<dyn Fn() -> DiskRoom + Send + Sync>;

/// Closes the connections of this broker's clients, without blocking. Their requests may hang in a write to the disk,
/// although other brokers already lead the partitions.
pub type HangUp = Box<dyn Fn() + Send + Sync>;

/// Reports changes in the state of this broker's disk to the control plane.
pub struct DiskWatch {
    disk: OwnDisk,
    hang_up: HangUp,
    rule: RoomWatch,
    began: Instant,
    refused: LogRateLimit,
}

impl DiskWatch {
    /// Creates the state of a broker that has not reported anything about its disk yet.
    pub fn new(disk: OwnDisk, hang_up: HangUp) -> DiskWatch {
        DiskWatch { disk, hang_up, rule: RoomWatch::default(), began: Instant::now(), refused: LogRateLimit::default() }
    }

    /// Checks the disk. Reports to the control plane if the disk has become unusable, or is usable again. The
    /// partitions in `urgent` get new leaders first.
    pub async fn check(&mut self, control: &Control, image: &Image, urgent: impl FnOnce() -> Urgent) {
        let own = control.broker_state();
        let Some(node) = image.node(own.broker_id) else { return };
        let now_ms = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        let disk = (self.disk)();
        let report = self.rule.report(now_ms, disk, node.registration.is_full, || is_missed(image, own.broker_id));
        let Some(report) = report else { return };
        let change = match report {
            RoomReport::Full => BrokerChange::Full,
            RoomReport::Room => BrokerChange::Room,
        };
        match control.change_broker(own, change, urgent()).await {
            Ok(()) if report == RoomReport::Full && disk == DiskRoom::Hung => {
                (self.hang_up)();
                tracing::warn!(
                    "the disk hangs: other in-sync replicas take over this broker's partitions, and leaders do not \
                     wait for this broker's replicas; check whether the disk's volume responds"
                );
            }
            Ok(()) if report == RoomReport::Full && disk == DiskRoom::Unwritable => tracing::warn!(
                "cannot create files in the data directory: other in-sync replicas take over this broker's \
                 partitions, and leaders do not wait for this broker's replicas. Check the directory's permissions \
                 and file system"
            ),
            Ok(()) if report == RoomReport::Full => tracing::warn!(
                "the disk is full: other in-sync replicas take over this broker's partitions, and leaders do not wait \
                 for this broker's replicas; free space on the disk"
            ),
            Ok(()) => {
                tracing::warn!(
                    "the disk has had free space and has responded for a while: this broker joins ISRs again"
                )
            }
            Err(refusal) => {
                if let Some(left_out) = self.refused.due() {
                    tracing::warn!(
                        %refusal,
                        left_out,
                        "cannot report the state of the disk: other brokers rely on the last report; the next \
                         heartbeat retries"
                    );
                }
            }
        }
    }
}

/// Returns true if a partition refuses acks=all writes until this broker joins its ISR.
pub(super) fn is_missed(image: &Image, broker_id: i32) -> bool {
    let mut topics = image.topics().filter(|topic| !topic.config.diskless);
    topics.any(|topic| {
        let min_isr = topic.config.min_insync_replicas;
        topic.partitions.iter().any(|partition| room::is_missed(partition, broker_id, min_isr))
    })
}
