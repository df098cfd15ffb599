//! Handles the deadlines of transactional ids: the end of a wait, the timeout of a transaction, and the expiry of an
//! id.

use super::Transactions;
use super::entry::{Entry, EntryState};
use crate::coordinator::{CoordinatorTopic, Status};
use fullbore_control::TRANSACTION_STATE;
use fullbore_host::task::{self, Rounds};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

impl Transactions {
    /// Starts to load the transactional ids and spawns the coordinator's tasks, which run until the broker stops.
    pub fn start(self: &Arc<Self>, stop: &watch::Sender<bool>) {
        CoordinatorTopic::adopt(self);
        let (this, mut stopping) = (Arc::clone(self), stop.subscribe());
        task::spawn(async move {
            tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => {}
                () = CoordinatorTopic::follow(&this) => {}
            }
        });
        let is_there = self.control.image().topic(TRANSACTION_STATE).is_some();
        self.unsettled.note_topic(is_there, self.control.heartbeats().is_none());
        let (this, mut stopping) = (Arc::clone(self), stop.subscribe());
        task::spawn(async move {
            tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => {}
                () = this.resolve_forever() => {}
            }
        });
        let rounds = Rounds::every(self.config.abort_timed_out_interval_ms, stop.subscribe());
        task::spawn(Arc::clone(self).run(rounds, |this, entry| {
            this.happen(entry, |transaction, turn| transaction.time_out(turn));
        }));
        let rounds = Rounds::every(self.config.remove_expired_interval_ms, stop.subscribe());
        let expiration_ms = self.config.id_expiration_ms;
        task::spawn(Arc::clone(self).run(rounds, move |this, entry| {
            this.happen(entry, |transaction, turn| transaction.expire(expiration_ms, turn));
        }));
    }

    /// In each round, calls `each` for every id in service.
    async fn run(self: Arc<Self>, mut rounds: Rounds, each: impl Fn(&Arc<Self>, &Arc<Entry>) + Send) {
        while rounds.next().await {
            let entries: Vec<_> = self.ids.lock().values().cloned().collect();
            for entry in entries.iter().filter(|entry| entry.shard.status() == Status::Serving) {
                each(&self, entry);
                // Lets other requests run in between, because there may be very many ids.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Spawns a task for the id's next deadline, unless a task already waits for that deadline or an earlier one. The
    /// caller holds the id's lock.
    pub(super) fn arm(self: &Arc<Self>, entry: &Arc<Entry>, state: &EntryState) {
        let next = state.transaction.next_deadline().filter(|_| !state.is_gone);
        let Some(next) = next.filter(|next| *next < entry.alarm.load(Ordering::Relaxed)) else { return };
        entry.alarm.store(next, Ordering::Relaxed);
        let wait = Duration::from_millis(u64::try_from(next.saturating_sub(self.now_ms())).unwrap_or(0));
        let (this, entry) = (Arc::clone(self), Arc::clone(entry));
        task::spawn(async move {
            sleep(wait).await;
            // If the deadline has moved to a later time, `happen` sets an alarm for it.
            entry.alarm.store(i64::MAX, Ordering::Relaxed);
            this.happen(&entry, |transaction, turn| transaction.tick(turn));
        });
    }
}
