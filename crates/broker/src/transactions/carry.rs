//! Carrying out what a machine said: answers at once, records through the shard, markers through the partitions.
//!
//! Invariant: effects of one event are carried out in their order. A record's outcome is an event of its own.

use super::Transactions;
use super::entry::{Entry, EntryState};
use super::records;
use crate::coordinator::Records;
use crate::partitions::AppendError;
use fullbore_host::task;
use fullbore_rules::transaction::{Effect, Transaction, TransactionMetadata, Turn};
use fullbore_wire::ErrorCode;
use parking_lot::MutexGuard;
use std::collections::VecDeque;
use std::sync::Arc;

impl Transactions {
    /// Puts an event to an id that is in service, and carries out what follows.
    pub(super) fn happen(self: &Arc<Self>, entry: &Arc<Entry>, event: impl FnOnce(&mut Transaction, &mut Turn<'_>)) {
        let mut state = entry.lock();
        let effects = self.turn(&mut state, event);
        self.follow(entry, state, effects);
    }

    /// Sends the answers that come first, and leaves the rest to a task.
    pub(super) fn follow(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        mut state: MutexGuard<'_, EntryState>,
        effects: Vec<Effect>,
    ) {
        let mut effects = VecDeque::from(effects);
        while let Some(&Effect::Answer(ticket, answer)) = effects.front() {
            state.answer(ticket, answer);
            effects.pop_front();
        }
        self.arm(entry, &state);
        let is_vacant = effects.is_empty() && state.transaction.is_vacant() && !state.is_gone;
        state.is_gone |= is_vacant;
        drop(state);
        if is_vacant {
            self.forget(entry);
        } else if !effects.is_empty() {
            task::spawn(Arc::clone(self).carry_out(Arc::clone(entry), effects));
        }
    }

    /// Carries out effects, and those that follow from them, until there are none.
    async fn carry_out(self: Arc<Self>, entry: Arc<Entry>, mut effects: VecDeque<Effect>) {
        while let Some(effect) = effects.pop_front() {
            let more = match effect {
                Effect::Answer(ticket, answer) => {
                    entry.lock().answer(ticket, answer);
                    continue;
                }
                Effect::Persist(next) => {
                    let kept = self.keep(&entry, next.as_deref()).await;
                    self.event(&entry, |transaction, turn| transaction.persisted(kept, turn))
                }
                Effect::NeedProducerId => {
                    let id = self.control.init_producer_id().await.map_err(|refusal| refusal.code);
                    self.event(&entry, |transaction, turn| transaction.producer_id(id, turn))
                }
                Effect::WriteMarkers(markers) => {
                    let written = self.write_markers(&entry, &markers).await;
                    self.event(&entry, |transaction, turn| {
                        transaction.markers_written(markers.decision, &written, turn);
                    })
                }
            };
            effects.extend(more);
        }
        self.happen(&entry, |_, _| {});
    }

    fn event(&self, entry: &Entry, event: impl FnOnce(&mut Transaction, &mut Turn<'_>)) -> Vec<Effect> {
        self.turn(&mut entry.lock(), event)
    }

    /// Keeps a state, or the end of the id, and returns once it is on all replicas in sync.
    async fn keep(&self, entry: &Entry, next: Option<&TransactionMetadata>) -> Result<(), ErrorCode> {
        let version = self.config.rules.server_version;
        let record = records::encode(&entry.id, next, version).map_err(|_| ErrorCode::UNKNOWN_SERVER_ERROR)?;
        let kept = entry.shard.write(Records::Known(vec![record]), std::convert::identity).kept().await;
        kept.and_then(|kept| kept).map_err(|error| {
            if let Some(left_out) = self.unkept.due() {
                let id = &*entry.id;
                tracing::error!(id, %error, left_out, "cannot keep the state of a transaction: its client tries again");
            }
            match error {
                AppendError::Role(ErrorCode::FENCED_LEADER_EPOCH) => ErrorCode::NOT_LEADER_OR_FOLLOWER,
                error => error.code(),
            }
        })
    }
}
