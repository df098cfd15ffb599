//! Checks of the state in force, of the records, and of the responses.

use super::*;

impl World {
    /// Checks the state in force. The epoch must not fall, and a new producer id must not have been in force before.
    pub(super) fn check_in_force(&mut self) -> Result<(), String> {
        let Ok(state) = self.transaction.describe() else { return Ok(()) };
        let (now, before) = (state.producer(), self.in_force.replace(state.producer()));
        let is_same = before.is_some_and(|before| before.id == now.id);
        let has_fallen = is_same && before > Some(now);
        if has_fallen || !self.seen.insert(now.id) && !is_same {
            return Err(format!("{now:?} is in force after {before:?}"));
        }
        Ok(())
    }

    /// Checks a record before it is appended. A transaction may be complete only if each partition has its marker.
    pub(super) fn check_record(&self, record: Option<&TransactionMetadata>) -> Result<(), String> {
        if !record.is_some_and(|record| record.state.is_complete()) {
            return Ok(());
        }
        let decided = self.last_decision().or_else(|| self.log.iter().nth_back(1)?.as_ref());
        let Some(decided) = decided else { return Err(format!("{record:?} has no decision")) };
        let left: Vec<_> =
            decided.partitions.iter().filter(|partition| !self.marked.contains(&partition.partition)).collect();
        if !left.is_empty() { Err(format!("complete without markers in {left:?}")) } else { Ok(()) }
    }

    /// Checks that a producer is given to only one process, and that no zombie gets one. A client that sends no
    /// producer of its own is new, so it cannot be a zombie.
    pub(super) fn check_owner(&mut self, packet: &Packet, answer: TransactionAnswer) -> Result<(), String> {
        let given = match answer {
            TransactionAnswer::InitProducerId(Ok(producer)) => producer,
            TransactionAnswer::EndTxn(Ok(Some(producer))) => producer,
            _ => return Ok(()),
        };
        let is_again = matches!(packet.call, Call::End(producer, _) if producer == given);
        let owner = *self.owners.entry(given).or_insert(packet.incarnation);
        if owner != packet.incarnation || is_again {
            return Err(format!("{given:?} of process {owner} is given to {packet:?}"));
        }
        let last_owner = self.last_owner.replace(packet.incarnation);
        // When an id has expired, there is no state that could fence a client.
        let is_zombie = packet.call != Call::Init(None) && given.epoch > 0 && last_owner != Some(owner);
        if is_zombie {
            return Err(format!("{given:?} is given to the zombie {packet:?} of process {last_owner:?}"));
        }
        Ok(())
    }

    /// Checks that the outcome in a response is written, and is the same as in any earlier response.
    pub(super) fn check_decision(
        &mut self,
        packet: &Packet,
        who: ProducerIdAndEpoch,
        is_commit: bool,
    ) -> Result<(), String> {
        let is_v2 = packet.version.supports_epoch_bump();
        let is_decision = |record: &&TransactionMetadata| {
            // The coordinator may have fenced a client of TV1 with a higher epoch, and then refuses the client's
            // EndTxn.
            let epoch = if is_v2 { who.epoch + 1 } else { who.epoch };
            record.state.is_prepared() && record.producer_id == who.id && record.producer_epoch == epoch
        };
        let decided = self.log.iter().flatten().rfind(is_decision);
        if decided.is_none_or(|record| (record.state == TransactionState::PrepareCommit) != is_commit) {
            return Err(format!("{packet:?} is answered, with {decided:?} on record"));
        }
        let Some(transaction) = packet.transaction else { return Ok(()) };
        let truth = &mut self.transactions[transaction];
        let answered = *truth.answered.get_or_insert(is_commit);
        match answered != is_commit || truth.outcome.is_some_and(|outcome| outcome != is_commit) {
            true => Err(format!("{packet:?} is answered commit {is_commit}: {truth:?}")),
            false => Ok(()),
        }
    }
}
