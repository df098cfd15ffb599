//! The transaction coordinator of the model, and the markers that it sends to brokers.

use super::*;

impl World {
    /// Aborts a transaction that has reached its timeout. Its client takes a new epoch.
    pub(super) fn time_out(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let Some(transaction) = client.transaction.take() else { return };
        client.batches.clear();
        let of = &mut self.transactions[transaction];
        (of.decision, of.marker_epoch) = (Some(false), client.epoch + 1);
        client.epoch += if client.version == 2 { 1 } else { 2 };
        client.base_sequence = 0;
    }

    /// Sends the markers of decided transactions. With transaction version 2, a marker may be sent twice. With version
    /// 1, the coordinator first waits for the outcome of the previous marker.
    pub(super) fn send_markers(&mut self) {
        let epoch = self.coordinator_epoch;
        for at in 0..self.transactions.len() {
            let of = &self.transactions[at];
            let Some(is_commit) = of.decision else { continue };
            let is_again = self.clients[of.client].version == 2 && self.random.one_in(20);
            if (of.is_complete || of.under_way.contains(&epoch)) && !is_again {
                continue;
            }
            let (client, producer_epoch) = (of.client, of.marker_epoch);
            let marker = Marker { producer_id: client as i64, producer_epoch, coordinator_epoch: epoch, is_commit };
            let kind = BatchKind::marker(&marker, self.clients[client].version);
            let stamp = Stamp { producer_id: client as i64, producer_epoch, base_sequence: -1, record_count: 1 };
            let partition = self.clients[client].partition;
            let batch =
                ObjectBatch { partition, position: 0, size: 10, stamp, max_timestamp: 0, kind, confirmation: None };
            let (batch_number, broker) = (self.next_id() as BatchNumber, self.random.below(BROKERS));
            self.transactions[at].under_way.insert(epoch);
            self.brokers[broker].active.push(Admitted {
                batch_number,
                batch,
                entry: Entry::Marker { transaction: at },
            });
        }
    }

    /// Lets the coordinator process the outcome of a marker.
    pub(super) fn marked(&mut self, admitted: &Admitted, at: usize, verdict: CommitVerdict) -> Result<(), String> {
        let BatchKind::Marker { coordinator_epoch, .. } = admitted.batch.kind else { return Ok(()) };
        let of = &mut self.transactions[at];
        of.under_way.remove(&coordinator_epoch);
        match verdict {
            CommitVerdict::Refused(Refusal::Sequence(why)) => {
                let is_late = coordinator_epoch < self.coordinator_epoch || of.is_complete;
                let is_fenced =
                    why == SequenceRefusal::CoordinatorFenced || why == SequenceRefusal::InvalidProducerEpoch;
                if !is_late || !is_fenced {
                    return Err(format!("the marker of transaction {at} is refused: {why:?}"));
                }
            }
            CommitVerdict::Refused(_) => {}
            CommitVerdict::Appended { .. } | CommitVerdict::Duplicate { .. } => {
                of.is_complete |= coordinator_epoch == self.coordinator_epoch;
            }
        }
        Ok(())
    }
}
