//! Loads transactional ids from a shard's log, and removes them when this broker leaves the shard. Each id begins in
//! the state of its last record.

use super::Transactions;
use super::entry::Entry;
use super::records::{self, IdRecord};
use crate::coordinator::{Coordinator, CoordinatorTopic, InternalTopic, LogEntry, ReplayError, Shard, replay};
use fullbore_rules::transaction::{Transaction, TransactionMetadata, Turn};
use fullbore_wire::{ErrorCode, Text};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use tokio::runtime::Handle;

impl Coordinator for Transactions {
    const STATE: &'static str = "transactional ids";

    fn topic(&self) -> &CoordinatorTopic {
        &self.topic
    }

    fn install(self: &Arc<Self>, shard: &Arc<Shard>) -> Result<(), ReplayError> {
        let mut found: HashMap<Text, TransactionMetadata> = HashMap::new();
        replay(shard.partition(), |entry| {
            let LogEntry::Record { key, value, .. } = entry else { return Ok(()) };
            match records::decode(key, value)? {
                IdRecord::Id(id, Some(state)) => drop(found.insert(id, state)),
                IdRecord::Id(id, None) => drop(found.remove(&id)),
                IdRecord::Other => {}
            }
            Ok(())
        })?;
        self.flush_loaded(shard)?;
        if shard.partition().lacks_committed() && !self.unsettled.is_set() {
            self.unsettled.set();
        }
        self.topic.having(shard, |topic| {
            if shard.is_successor() {
                self.forget_shards(topic, std::slice::from_ref(shard));
            }
            for (id, state) in found {
                self.restore(shard, id, state);
            }
        });
        Ok(())
    }

    fn forget_shards(&self, _topic: &InternalTopic, shards: &[Arc<Shard>]) {
        let indices: HashSet<i32> = shards.iter().map(|shard| shard.partition().index()).collect();
        self.kill_all(|entry| indices.contains(&entry.shard.partition().index()));
    }

    fn clear(&self) {
        // The topic was deleted with all states, so no coordinator will end these transactions. They must be searched
        // for in the partitions and aborted.
        self.unsettled.set();
        self.kill_all(|_| true);
    }
}

impl Transactions {
    /// If commits are flushed, flushes the records that were read from a shard's log. One of them may be a decision
    /// that an earlier process has appended but not flushed, and its markers are written next.
    fn flush_loaded(&self, shard: &Shard) -> Result<(), ReplayError> {
        if !self.config.flushes {
            return Ok(());
        }
        match shard.partition().flush_all() {
            Some(ticket) => Ok(Handle::current().block_on(ticket.wait()).map_err(io::Error::other)?),
            None => Ok(()),
        }
    }

    /// Takes every id for which `is_meant` returns true out of service. Requests that wait for these ids get
    /// NOT_COORDINATOR.
    fn kill_all(&self, is_meant: impl Fn(&Entry) -> bool) {
        let left: Vec<_> = self.ids.lock().values().filter(|entry| is_meant(entry)).cloned().collect();
        left.iter().for_each(|entry| self.kill(entry, ErrorCode::NOT_COORDINATOR));
    }

    /// Restores an id from its last record. If the transaction was decided, carries out the decision.
    fn restore(self: &Arc<Self>, shard: &Arc<Shard>, id: Text, state: TransactionMetadata) {
        let (mut effects, state) = (Vec::new(), state.shifted(-self.clock.ahead_ms()));
        let turn = &mut Turn { settings: &self.settings(), now: self.now_ms(), effects: &mut effects };
        let transaction = match self.may_lack_its_end(shard) {
            true => Transaction::load_unsure(shard.leader_epoch(), state, turn),
            false => Transaction::load(shard.leader_epoch(), state, turn),
        };
        let entry = Entry::new(id.clone(), transaction, Arc::clone(shard), &self.room);
        self.ids.lock().insert(id, Arc::clone(&entry));
        self.follow(&entry, entry.lock(), effects);
    }
}
