//! Commands of a broker on partitions.

use std::sync::Arc;

use fullbore_rules::replica::epochs::Position;
use fullbore_rules::replica::{AlterPartition, PartitionRegistration};
use fullbore_wire::Uuid;

use super::Control;
use super::command::{AlterIsr, ChangeCommand, ElectLeaders, PartitionsCommand, Refusal, Resigned, Urgent};

impl Control {
    /// Proposes ISRs of partitions that this broker leads. Returns the present registration of each, in the order of
    /// the request. An unknown outcome is refused as [`fullbore_wire::ErrorCode::REQUEST_TIMED_OUT`].
    pub async fn alter_isr(
        &self,
        partitions: Vec<(Uuid, i32, AlterPartition)>,
    ) -> Vec<Result<Arc<PartitionRegistration>, Refusal>> {
        self.submit(PartitionsCommand::AlterIsr(AlterIsr { from: self.broker_state(), partitions })).await
    }

    /// Elects other leaders. Returns the present registration of each partition, in the order of the request.
    pub async fn elect_leaders(&self, asked: ElectLeaders) -> Vec<Result<Arc<PartitionRegistration>, Refusal>> {
        self.submit(PartitionsCommand::ElectLeaders(asked)).await
    }

    /// Elects live leaders, and removes failed brokers from ISRs. Returns once all partitions are decided.
    ///
    /// # Errors
    /// Errors of the store, if it cannot be used. Pieces committed before the error stay in force.
    pub async fn settle_partitions(&self, urgent: Urgent) -> Result<(), Refusal> {
        self.submit(ChangeCommand::Settle(urgent)).await
    }

    /// Reports this broker's log ends of partitions without a leader, by topic id and partition number.
    ///
    /// # Errors
    /// STALE_BROKER_EPOCH if another process has replaced this one; errors of the store, if it cannot be used.
    pub async fn tell_log_ends(&self, ends: Vec<(Uuid, i32, Position)>) -> Result<(), Refusal> {
        self.submit(ChangeCommand::ReportLogEnds(self.broker_state(), ends)).await
    }

    /// Removes this broker from the ISRs of partitions that it can no longer write. A partition that no other replica
    /// can lead stays unchanged.
    ///
    /// # Errors
    /// STALE_BROKER_EPOCH if another process has replaced this one; errors of the store, if it cannot be used.
    pub async fn resign(&self, partitions: Resigned) -> Result<(), Refusal> {
        self.submit(ChangeCommand::Resign(self.broker_state(), partitions)).await
    }
}
