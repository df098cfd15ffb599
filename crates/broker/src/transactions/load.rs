//! Content of the shards that transactional ids are in: each id as its last record has it, and its end with the shard.

use super::Transactions;
use super::entry::Entry;
use super::records::{self, IdRecord};
use crate::coordinator::{Coordinator, CoordinatorTopic, InternalTopic, LogEntry, ReplayError, Shard, replay};
use fullbore_control::TRANSACTION_STATE;
use fullbore_host::files::now_ms;
use fullbore_rules::transaction::{Transaction, TransactionMetadata, Turn};
use fullbore_wire::{ErrorCode, Text};
use std::collections::HashMap;
use std::sync::Arc;

impl Coordinator for Transactions {
    const STATE: &'static str = "transactional ids";

    fn topic(&self) -> &CoordinatorTopic {
        &self.topic
    }

    fn install(self: &Arc<Self>, shard: &Arc<Shard>) -> Result<(), ReplayError> {
        let mut found: HashMap<Text, TransactionMetadata> = HashMap::new();
        let mut unread = None;
        replay(shard.partition(), |entry| {
            let LogEntry::Record { key, value, .. } = entry else { return };
            match records::decode(key, value) {
                Ok(IdRecord::Id(id, Some(state))) => drop(found.insert(id, state)),
                Ok(IdRecord::Id(id, None)) => drop(found.remove(&id)),
                Ok(IdRecord::Other) => {}
                Err(error) => unread = Some((unread.as_ref().map_or(1_u64, |(records, _)| records + 1), error)),
            }
        })?;
        if let Some((records, error)) = unread {
            let partition = shard.partition().index();
            tracing::warn!(partition, records, %error, "cannot read records of {TRANSACTION_STATE}: they are passed over");
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
        let is_of_them = |entry: &&Arc<Entry>| {
            shards.iter().any(|shard| shard.partition().index() == entry.shard.partition().index())
        };
        let left: Vec<_> = self.ids.lock().values().filter(is_of_them).cloned().collect();
        left.iter().for_each(|entry| self.kill(entry, ErrorCode::NOT_COORDINATOR));
    }

    fn clear(&self) {
        let left: Vec<_> = self.ids.lock().values().cloned().collect();
        left.iter().for_each(|entry| self.kill(entry, ErrorCode::NOT_COORDINATOR));
    }
}

impl Transactions {
    /// Puts an id in service as its last record has it. What was decided goes on.
    fn restore(self: &Arc<Self>, shard: &Arc<Shard>, id: Text, state: TransactionMetadata) {
        let mut effects = Vec::new();
        let turn = &mut Turn { settings: &self.config.rules, now: now_ms(), effects: &mut effects };
        let transaction = Transaction::load(shard.leader_epoch(), state, turn);
        let entry = Entry::new(id.clone(), transaction, Arc::clone(shard), &self.room);
        self.ids.lock().insert(id, Arc::clone(&entry));
        self.follow(&entry, entry.lock(), effects);
    }
}
