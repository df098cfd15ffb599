//! Commands on partitions. The broker itself sends them. Clients can also request elections.

use std::sync::Arc;
use std::time::Instant;

use fullbore_rules::replica::epochs::Position;
use fullbore_rules::replica::{AlterPartition, PartitionRegistration};
use fullbore_wire::{ErrorCode, Uuid};

use super::Control;
use super::command::{AlterIsr, ChangeCommand, ElectLeaders, PartitionsCommand, Refusal, Resigned, Urgent};
use super::pieces::Pieces;

impl Control {
    /// Requests new ISRs for partitions that this broker leads. Returns the current registration of each partition, in
    /// the order of the request. If the outcome is unknown, the refusal is
    /// [`fullbore_wire::ErrorCode::REQUEST_TIMED_OUT`].
    pub async fn alter_isr(
        &self,
        partitions: Vec<(Uuid, i32, AlterPartition)>,
    ) -> Vec<Result<Arc<PartitionRegistration>, Refusal>> {
        self.submit(PartitionsCommand::AlterIsr(AlterIsr { from: self.broker_state(), partitions })).await
    }

    /// Elects other leaders. Uses several transactions if there are many partitions. Returns the current registration
    /// of each partition, in the order of the request.
    ///
    /// If the store fails, the remaining elections are refused without another attempt. If the caller stops waiting,
    /// the remaining elections do not take place.
    pub async fn elect_leaders(&self, requested: ElectLeaders) -> Vec<Result<Arc<PartitionRegistration>, Refusal>> {
        let count = requested.partition_count();
        let (mut pieces, mut requested) = (Pieces::of_request(), requested.split());
        let mut outcomes = Vec::with_capacity(count);
        while let Some(piece) = requested.next(pieces.partitions()) {
            let (size, began) = (piece.partition_count(), Instant::now());
            let decided = self.submit(PartitionsCommand::ElectLeaders(piece)).await;
            let failure =
                decided.iter().find_map(|outcome| outcome.as_ref().err().filter(|refusal| is_of_store(refusal)));
            let failure = failure.cloned();
            outcomes.extend(decided);
            if let Some(failure) = failure {
                outcomes.resize(count, Err(failure));
                break;
            }
            if size == pieces.partitions() {
                pieces.took(began.elapsed());
            }
        }
        outcomes
    }

    /// Elects live leaders for all partitions that need one, and removes failed brokers from the ISRs. Returns once all
    /// partitions are decided.
    ///
    /// # Errors
    /// Returns the store's error if it cannot be used. Partitions that were committed before the error keep their
    /// changes.
    pub async fn settle_partitions(&self, urgent: Urgent) -> Result<(), Refusal> {
        self.submit(ChangeCommand::Settle(urgent)).await
    }

    /// Reports the ends of this broker's logs, for partitions without a leader. Each entry contains the topic id, the
    /// partition number and the log end.
    ///
    /// # Errors
    /// Fails with STALE_BROKER_EPOCH if another process has replaced this one, or with the store's error if it cannot
    /// be used.
    pub async fn report_log_ends(&self, ends: Vec<(Uuid, i32, Position)>) -> Result<(), Refusal> {
        self.submit(ChangeCommand::ReportLogEnds(self.broker_state(), ends)).await
    }

    /// Removes this broker from the ISRs of partitions that it can no longer write or read. A partition that no other
    /// replica can lead stays unchanged, unless this broker's log certainly lacks committed records.
    ///
    /// # Errors
    /// Fails with STALE_BROKER_EPOCH if another process has replaced this one, or with the store's error if it cannot
    /// be used.
    pub async fn resign(&self, partitions: Resigned) -> Result<(), Refusal> {
        self.submit(ChangeCommand::Resign(self.broker_state(), partitions)).await
    }
}

/// Returns true if the code means that the store could not be used. Refusals of elections for other reasons have other
/// codes.
fn is_of_store(refusal: &Refusal) -> bool {
    matches!(refusal.code, ErrorCode::REQUEST_TIMED_OUT | ErrorCode::KAFKA_STORAGE_ERROR)
}
