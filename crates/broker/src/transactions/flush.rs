//! Flushes commits to the disk before they are answered (`fullbore.transaction.flush`).
//!
//! A commit flushes the records of its transaction in the partitions that this broker leads. One fsync of a file
//! flushes the records of all transactions that wait for it. Partitions that other brokers lead are flushed there,
//! before Produce is answered ([`crate::replica`]).
//!
//! The disk gets the records and offsets of a transaction before its commit decision, and the decision before any
//! marker. All markers are on the disk before the transaction is recorded as complete.

use super::{MARKERS_A_TURN, Transactions};
use crate::partitions::{AnyPartition, AppendError, FlushTicket, Replica};
use fullbore_rules::transaction::{TopicPartition, TransactionMetadata, TransactionState};
use fullbore_wire::ErrorCode;
use std::sync::Arc;

impl Transactions {
    /// Before the state `next` is stored, flushes the records of the transaction in the partitions that this broker
    /// leads. Does nothing if `next` is not the decision to commit, or if commits are not flushed.
    ///
    /// # Errors
    /// Fails with COORDINATOR_NOT_AVAILABLE if records of the transaction might not be on the disk.
    pub(super) async fn flush_before(&self, next: &TransactionMetadata) -> Result<(), ErrorCode> {
        if !self.config.flushes || next.state != TransactionState::PrepareCommit {
            return Ok(());
        }
        let flushed = self.flush_partitions(next).await;
        flushed.map_err(|error| {
            if let Some(left_out) = self.unkept.due() {
                tracing::error!(%error, left_out, "cannot flush the records of a transaction: the transaction is not committed");
            }
            ErrorCode::COORDINATOR_NOT_AVAILABLE
        })
    }

    async fn flush_partitions(&self, next: &TransactionMetadata) -> Result<(), AppendError> {
        let mut tickets: Vec<FlushTicket> = Vec::new();
        for (count, partition) in next.partitions.iter().enumerate() {
            if count % MARKERS_A_TURN == MARKERS_A_TURN - 1 {
                tokio::task::yield_now().await;
            }
            let Some(replica) = self.led_here(partition) else { continue };
            replica.opened().await?;
            tickets.extend(replica.flush_all());
        }
        for ticket in tickets {
            ticket.wait().await?;
        }
        Ok(())
    }

    /// Returns the replica of a classic partition if this broker leads it, and `None` otherwise.
    pub(super) fn led_here(&self, partition: &TopicPartition) -> Option<Arc<Replica>> {
        let id = self.control.image().topic(&partition.topic)?.id;
        match self.logs.find_any(&id, partition.partition)? {
            AnyPartition::Classic(replica) => replica.leads_in().map(|_| replica),
            AnyPartition::Diskless(_) => None,
        }
    }

    /// Flushes a stored state if commits are flushed and later steps rely on the state. They rely on the decision to
    /// commit and, with transaction version 1, also on the begin of a transaction.
    ///
    /// In version 1 the producer keeps its epoch. If a power loss removed the begin, the decision of the previous
    /// commit might be the last stored state. Its markers would be written again, and would commit records of the new
    /// transaction.
    ///
    /// # Errors
    /// Fails with [`AppendError::Storage`] if the flush fails.
    pub(super) async fn flush_after(&self, next: &TransactionMetadata, log: &Arc<Replica>) -> Result<(), AppendError> {
        let begins = next.state == TransactionState::Ongoing && next.start_ms == next.last_update_ms;
        let is_relied_on = match next.state {
            TransactionState::PrepareCommit => true,
            _ => begins && !next.client_version.supports_epoch_bump(),
        };
        if !self.config.flushes || !is_relied_on {
            return Ok(());
        }
        match log.flush_all() {
            Some(ticket) => ticket.wait().await,
            None => Ok(()),
        }
    }
}
