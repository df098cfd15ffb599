//! The ISR of a leader, and the one change of it that is asked for (Kafka's `PartitionState`: committed, pending
//! expansion, pending shrinkage).
//!
//! Invariant: until it is known whether a change was carried out, both outcomes are allowed for: who joins already
//! counts for the high watermark, and who leaves still does.

use super::AlterPartition;

/// The in-sync replicas as far as a leader knows.
#[derive(Clone, Debug)]
pub(super) struct PartitionState {
    isr: Vec<i32>,
    pending: Option<PendingProposal>,
}

#[derive(Clone, Debug)]
struct PendingProposal {
    proposal: AlterPartition,
    joining: Option<i32>,
    /// Its outcome is not known and it is to be asked for again.
    has_failed: bool,
}

impl PartitionState {
    /// Returns the state without a change under way.
    pub fn committed(isr: &[i32]) -> PartitionState {
        PartitionState { isr: isr.to_vec(), pending: None }
    }

    /// The last ISR that is known.
    pub fn isr(&self) -> &[i32] {
        &self.isr
    }

    /// Returns true if the replica is in the ISR, or may be by now.
    pub fn may_be_in_sync(&self, broker_id: i32) -> bool {
        self.isr.contains(&broker_id) || self.joining() == Some(broker_id)
    }

    /// The size of the largest ISR that there may be by now (Kafka's `maximalIsr`).
    pub fn maximal_len(&self) -> usize {
        self.isr.len() + usize::from(self.joining().is_some())
    }

    fn joining(&self) -> Option<i32> {
        self.pending.as_ref()?.joining
    }

    /// Returns true if a change is asked for.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Asks for a change.
    pub fn propose(&mut self, proposal: AlterPartition, joining: Option<i32>) -> AlterPartition {
        debug_assert!(self.pending.is_none(), "one change at a time");
        self.pending = Some(PendingProposal { proposal: proposal.clone(), joining, has_failed: false });
        proposal
    }

    /// Returns true if this is what is asked for.
    pub fn is_asked(&self, proposal: &AlterPartition) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.proposal == *proposal)
    }

    /// The change was certainly not carried out, and will not be.
    pub fn withdraw(&mut self) {
        self.pending = None;
    }

    /// Nobody knows whether the change was carried out.
    pub fn failed(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.has_failed = true;
        }
    }

    /// The change to be asked for again.
    pub fn again(&mut self) -> Option<AlterPartition> {
        let pending = self.pending.as_mut().filter(|pending| pending.has_failed)?;
        pending.has_failed = false;
        Some(pending.proposal.clone())
    }
}
