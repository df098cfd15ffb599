//! Markers of transactions in an internal topic whose coordinator applies or drops records when their transactions end.

use super::PendingWrite;
use crate::partitions::AppendError;
use fullbore_rules::sequence::Marker;
use fullbore_wire::ErrorCode;
use std::sync::Arc;

/// Outcome of the append of a marker.
pub type MarkerOutcome = Result<(), AppendError>;

/// Coordinator whose records may belong to transactions. It gets the ends of these transactions in the order of the
/// log.
pub trait MarkedCoordinator: Send + Sync {
    /// Queues a marker for `partition` of the coordinator's topic. The coordinator's state changes once the marker is
    /// on all replicas in sync, before the caller gets the outcome.
    ///
    /// # Errors
    /// COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE while the partition is not served here.
    fn write_marker(
        self: Arc<Self>,
        partition: i32,
        marker: Marker,
        transaction_version: i8,
    ) -> Result<PendingWrite<MarkerOutcome>, ErrorCode>;
}
