//! How groups take part in transactions: the partition of `__consumer_offsets` that a transaction needs for a group,
//! and the markers that end the transaction there.

use super::{Groups, not_kept};
use crate::coordinator::{MarkedCoordinator, MarkerOutcome, MarkersSeen, PendingWrite, Records};
use crate::partitions::VerificationTime;
use fullbore_host::fault_point::{self, FaultPoint};
use fullbore_rules::sequence::Marker;
use fullbore_wire::ErrorCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Groups {
    /// Returns the partition of `__consumer_offsets` that a group is in. `None` while the topic does not exist.
    pub fn partition_of(&self, id: &str) -> Option<i32> {
        let topic = self.topic.read();
        Some(topic.as_ref()?.shard(id)?.partition().index())
    }

    /// Returns the group's partition of `__consumer_offsets`, the number of its markers so far, and its state for the
    /// producer. The caller calls this before it verifies a commit. The commit is later checked against these values.
    ///
    /// # Errors
    /// Fails as `InternalTopic::serving` does.
    pub fn markers_seen(&self, id: &str, producer_id: i64) -> Result<(i32, MarkersSeen, VerificationTime), ErrorCode> {
        let shard = self.serving(id)?;
        Ok((shard.partition().index(), shard.markers_seen(), shard.verification_time(producer_id)))
    }

    /// Waits until each commit of a group that is in flight has become visible or was refused. The offsets of a commit
    /// in a transaction are then pending, so that they are reported as unstable.
    ///
    /// # Errors
    /// Fails with NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE if this broker has left the shard, or cannot write to
    /// it.
    pub async fn await_commits(&self, id: &str) -> Result<(), ErrorCode> {
        let Some(entry) = self.find(id).filter(|entry| entry.commits.load(Ordering::Acquire) > 0) else {
            return Ok(());
        };
        let behind = entry.shard.write(Records::Plain(Vec::new()), std::convert::identity);
        behind.kept().await.and_then(|kept| kept).map_err(not_kept)
    }
}

impl MarkedCoordinator for Groups {
    fn write_marker(
        self: Arc<Self>,
        partition: i32,
        marker: Marker,
        transaction_version: i8,
    ) -> Result<PendingWrite<MarkerOutcome>, ErrorCode> {
        let shard = {
            let topic = self.topic.read();
            let topic = topic.as_ref().ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?;
            Arc::clone(topic.serving_partition(partition)?)
        };
        let (groups, of) = (self, Arc::clone(&shard));
        Ok(shard.write(Records::Marker(marker, transaction_version), move |kept| {
            kept?;
            // A topic whose deletion has begun may still be in this image. Its deletion then removes the offsets later.
            let image = groups.control.image();
            let is_there = |offset: &super::CommitOffset| image.topic_by_id(offset.topic.id).is_some();
            groups.offsets.end_transaction(&of, marker.producer_id, marker.is_commit, is_there);
            fault_point::reached(FaultPoint::OffsetsEnded);
            Ok(())
        }))
    }
}
