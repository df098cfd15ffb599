//! Commands of a broker on partitions. Each is answered with the partitions as they are registered now, in the order
//! asked.

use std::sync::Arc;

use fullbore_rules::replica::epochs::Position;
use fullbore_rules::replica::{AlterPartition, PartitionRegistration};
use fullbore_wire::Uuid;

use super::Control;
use super::command::{AlterIsr, ChangeCommand, ElectLeaders, PartitionsCommand, Refusal, Resigned, Urgent};

impl Control {
    /// Proposes ISRs of partitions that this broker leads. Unknown outcomes are
    /// [`fullbore_wire::ErrorCode::REQUEST_TIMED_OUT`].
    pub async fn alter_isr(
        &self,
        partitions: Vec<(Uuid, i32, AlterPartition)>,
    ) -> Vec<Result<Arc<PartitionRegistration>, Refusal>> {
        self.submit(PartitionsCommand::AlterIsr(AlterIsr { from: self.broker_state(), partitions })).await
    }

    /// Elects other leaders.
    pub async fn elect_leaders(&self, asked: ElectLeaders) -> Vec<Result<Arc<PartitionRegistration>, Refusal>> {
        self.submit(PartitionsCommand::ElectLeaders(asked)).await
    }

    /// Elects leaders that are there, and takes brokers that have gone out of ISRs. Returns once nothing is left to
    /// settle.
    ///
    /// # Errors
    /// The store's. The pieces before are in force.
    pub async fn settle_partitions(&self, urgent: Urgent) -> Result<(), Refusal> {
        self.submit(ChangeCommand::Settle(urgent)).await
    }

    /// Reports the ends of logs of this broker that have lost records: partitions by topic id and number.
    ///
    /// # Errors
    /// STALE_BROKER_EPOCH where another process has its place; the store.
    pub async fn tell_log_ends(&self, ends: Vec<(Uuid, i32, Position)>) -> Result<(), Refusal> {
        self.submit(ChangeCommand::ReportLogEnds(self.broker_state(), ends)).await
    }

    /// Resigns from partitions that this broker is in sync with and cannot write any more. Others lead them, where they
    /// may.
    ///
    /// # Errors
    /// STALE_BROKER_EPOCH where another process has its place; the store.
    pub async fn resign(&self, partitions: Resigned) -> Result<(), Refusal> {
        self.submit(ChangeCommand::Resign(self.broker_state(), partitions)).await
    }
}
