//! The ISR that a leader knows, and the change of the ISR that it has requested (Kafka's `PartitionState`: committed,
//! pending expansion, pending shrinkage). At most one change is requested at a time.
//!
//! Invariant: while the outcome of a change is unknown, the leader waits for the replicas of both outcomes. A replica
//! that joins already counts for the high watermark, and one that leaves still counts.

use super::AlterPartition;

/// The ISR and the requested change.
#[derive(Clone, Debug)]
pub(super) struct PartitionState {
    isr: Vec<i32>,
    pending: Option<PendingProposal>,
}

#[derive(Clone, Debug)]
struct PendingProposal {
    proposal: AlterPartition,
    joining: Option<i32>,
    /// True if the outcome is unknown, so the change must be requested again.
    has_failed: bool,
}

impl PartitionState {
    /// Creates the state without a requested change.
    pub fn committed(isr: &[i32]) -> PartitionState {
        PartitionState { isr: isr.to_vec(), pending: None }
    }

    /// Returns the last known ISR.
    pub fn isr(&self) -> &[i32] {
        &self.isr
    }

    /// Returns true if the replica is in the ISR, or may have been added to it by the requested change.
    pub fn may_be_in_sync(&self, broker_id: i32) -> bool {
        self.isr.contains(&broker_id) || self.joining() == Some(broker_id)
    }

    /// Returns the size that the ISR has if the requested change adds its replica (Kafka's `maximalIsr`).
    pub fn maximal_len(&self) -> usize {
        self.isr.len() + usize::from(self.joining().is_some())
    }

    fn joining(&self) -> Option<i32> {
        self.pending.as_ref()?.joining
    }

    /// Returns true if a change is requested.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Notes a requested change, and returns it.
    pub fn propose(&mut self, proposal: AlterPartition, joining: Option<i32>) -> AlterPartition {
        debug_assert!(self.pending.is_none(), "one change at a time");
        self.pending = Some(PendingProposal { proposal: proposal.clone(), joining, has_failed: false });
        proposal
    }

    /// Returns true if this is the change that is requested now.
    pub fn is_requested(&self, proposal: &AlterPartition) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.proposal == *proposal)
    }

    /// Drops the requested change, because it was not made and never will be.
    pub fn withdraw(&mut self) {
        self.pending = None;
    }

    /// Notes that the outcome of the requested change is unknown.
    pub fn failed(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.has_failed = true;
        }
    }

    /// Returns the change that must be requested again, if there is one.
    pub fn again(&mut self) -> Option<AlterPartition> {
        let pending = self.pending.as_mut().filter(|pending| pending.has_failed)?;
        pending.has_failed = false;
        Some(pending.proposal.clone())
    }
}
