//! Writes transaction markers into a partition of an internal topic, whose coordinator then applies or drops the
//! records of the transaction.

use super::PendingWrite;
use crate::partitions::AppendError;
use fullbore_rules::sequence::Marker;
use fullbore_wire::ErrorCode;
use std::sync::Arc;

/// The outcome of appending a marker.
pub type MarkerOutcome = Result<(), AppendError>;

/// A coordinator whose records may be part of transactions. It applies the ends of these transactions in the order of
/// the log.
pub trait MarkedCoordinator: Send + Sync {
    /// Queues a marker for `partition` of the coordinator's topic. Once all in-sync replicas have the marker, the
    /// coordinator changes its state, and then sends the outcome to the caller.
    ///
    /// # Errors
    /// Fails with COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE while this broker does not
    /// serve the partition.
    fn write_marker(
        self: Arc<Self>,
        partition: i32,
        marker: Marker,
        transaction_version: i8,
    ) -> Result<PendingWrite<MarkerOutcome>, ErrorCode>;
}
