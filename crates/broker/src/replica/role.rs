//! Role of this broker's replica by the metadata: whether it leads, which offsets readers may see, and when acks=all is
//! satisfied.
//!
//! Not here: the decisions ([`fullbore_rules::replica`]). The thread that applies an image leaves the new metadata
//! beside the state, and waits for no lock. The next thread that locks the state takes the metadata over first.
//!
//! Invariant: no append, read or response uses metadata older than the newest that arrived before it locked the state.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use fullbore_rules::replica::{self, Acknowledgement, LocalLog, PartitionRegistration};
use fullbore_wire::ErrorCode;
use parking_lot::MutexGuard;
use tokio::sync::Notify;

use super::Replica;
use super::state::{LogState, ReplicaState};
use fullbore_config::TopicConfig;
use fullbore_log::Log;
use fullbore_log::partition::durability::{Acknowledges, ReplicationTicket};
use fullbore_log::partition::error::{AppendError, ReadError};
use fullbore_log::partition::outcome::Acks;
use fullbore_log::partition::read::Isolation;
use fullbore_log::partition::waiters::Registration;

impl Replica {
    /// Takes over registration and settings from the metadata, without blocking.
    pub fn follow(&self, registered: &Arc<PartitionRegistration>, config: &Arc<TopicConfig>) {
        let is_same = Arc::ptr_eq(&self.registered.read(), registered) && Arc::ptr_eq(&self.config.read(), config);
        if !is_same {
            *self.config.write() = Arc::clone(config);
            *self.registered.write() = Arc::clone(registered);
            self.note_news();
        }
    }

    /// Returns the registration that this broker knows.
    pub fn registered(&self) -> Arc<PartitionRegistration> {
        Arc::clone(&self.registered.read())
    }

    /// Marks role and settings to be taken over at the next lock of the state.
    fn note_news(&self) {
        // Sequentially consistent, like the count of waiters. If a waiter registers before
        // `wake` reads that count, `wake` wakes it. If it registers later, it sees this flag.
        self.has_news.store(true, SeqCst);
        // If another thread holds the lock, the woken waiters check again and take the news over.
        if let Some(mut state) = self.state.try_lock() {
            self.catch_up(&mut state);
        }
        self.waiters.wake();
    }

    /// Locks the state, after taking over the newest metadata.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ReplicaState> {
        let mut state = self.lock_state();
        self.catch_up(&mut state);
        state
    }

    /// Takes over the metadata that has arrived since the state was last locked.
    pub(crate) fn catch_up(&self, state: &mut ReplicaState) {
        if !self.has_news.load(SeqCst) {
            return;
        }
        // Cleared before the reads below, so that metadata that arrives during them is taken over at the next lock.
        self.has_news.swap(false, SeqCst);
        let (settings, registered) = (self.replica_settings(), self.registered());
        let has_moved = self.log_dir.cluster.at_this_moment(|now| {
            let configured = state.role.configure(settings, now);
            let applied = state.role.apply(&registered, now);
            configured.high_watermark.or(applied.high_watermark).is_some() || applied.role.is_some()
        });
        if !state.role.is_leader()
            && let Some(parked) = state.parked.take()
        {
            parked.refuse(AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        }
        if has_moved {
            self.waiters.wake();
        }
    }

    fn replica_settings(&self) -> replica::ReplicaSettings {
        replica::ReplicaSettings {
            min_insync_replicas: self.config().min_insync_replicas,
            replica_lag_time_max_ms: self.log_dir.cluster.replica_lag_time_max_ms,
        }
    }

    /// Returns this replica's role with a log that has just been opened.
    pub(crate) fn role_over(&self, log: &Log) -> replica::Partition {
        let high_watermark = self.log_dir.checkpoints.high_watermark(&self.key());
        let found = LocalLog { start_offset: log.log_start(), end_offset: log.log_end(), high_watermark };
        let mut replica = replica::Partition::new(self.log_dir.cluster.node_id, found, self.replica_settings());
        let registered = self.registered();
        // The effects need no handling here, because the end of the opening wakes the waiters.
        let _ = self.log_dir.cluster.at_this_moment(|now| replica.apply(&registered, now));
        replica
    }

    /// Checks the leader epoch that a client assumes (KIP-320; -1 for none), and that this broker leads.
    ///
    /// # Errors
    /// FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH if the client's epoch is older or newer; NOT_LEADER_OR_FOLLOWER if
    /// another broker leads.
    pub fn check_leads(&self, believed: i32) -> Result<(), ErrorCode> {
        let state = self.lock();
        state.role.check_leader_epoch(believed)?;
        if state.role.is_leader() { Ok(()) } else { Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) }
    }

    /// Returns, as leader, the latest offset that ListOffsets may show at the isolation level (KIP-207).
    ///
    /// # Errors
    /// OFFSET_NOT_AVAILABLE while an earlier leader may have returned a larger offset; NOT_LEADER_OR_FOLLOWER if
    /// another broker leads; errors of the disk.
    pub fn latest_offset(&self, isolation: Isolation) -> Result<i64, ErrorCode> {
        let mut state = self.lock();
        let opened = self.log_to_read(&mut state).map_err(|error| ReadError::from(error).code())?;
        let readable_end = opened.map(|(log, high_watermark)| log.readable_end(isolation, high_watermark));
        let latest = state.role.latest_offset()?;
        Ok(readable_end.map_or(latest, |end| end.min(latest)))
    }

    /// Returns the epoch in which this broker leads by the newest metadata; `None` if another broker leads.
    pub fn leads_in(&self) -> Option<i32> {
        let registered = self.registered.read();
        (registered.leader == Some(self.log_dir.cluster.node_id)).then_some(registered.leader_epoch)
    }

    /// Returns the leader epoch of new batches.
    pub fn leader_epoch(&self) -> i32 {
        self.lock().role.leader_epoch()
    }

    /// Waits until the high watermark reaches the present log end; returns at once without followers. The records are
    /// then committed, so the wait succeeds even if the ISR is smaller than `min.insync.replicas` by that time.
    ///
    /// # Errors
    /// [`AppendError::Role`] if another broker has become leader.
    pub async fn replicated(self: &Arc<Self>) -> Result<(), AppendError> {
        let ticket = {
            let state = self.lock();
            match &state.log {
                LogState::Open(log) => self.replication(&state, Acks::All, log.log_end()),
                _ => None,
            }
        };
        let Some(ticket) = ticket else { return Ok(()) };
        match ticket.wait().await {
            Err(AppendError::Role(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND)) => Ok(()),
            waited => waited,
        }
    }

    /// Wakes all waiters.
    pub(crate) fn wake_waiters(&self) {
        self.waiters.wake();
    }

    /// Returns the ticket that the response must wait for after an append up to `end_offset`; `None` if acks is not
    /// all, or the append is acknowledged already.
    pub(crate) fn replication(
        self: &Arc<Self>,
        state: &ReplicaState,
        acks: Acks,
        end_offset: i64,
    ) -> Option<ReplicationTicket> {
        let leader_epoch = state.role.leader_epoch();
        let is_done = || state.role.acknowledgement(leader_epoch, end_offset) == Acknowledgement::Done;
        let waits = acks == Acks::All && !is_done();
        waits.then(|| ReplicationTicket::new(self.clone(), leader_epoch, end_offset))
    }
}

impl Acknowledges for Replica {
    fn register(&self, waiter: &Arc<Notify>) -> Registration {
        Replica::register(self, waiter)
    }

    fn acknowledgement(&self, leader_epoch: i32, end_offset: i64) -> Acknowledgement {
        // Checked before the lock is taken: a hanging write may hold it, and thousands of waiters would block.
        if let Err(code) = self.check_answers() {
            return Acknowledgement::Refused(code);
        }
        self.lock().role.acknowledgement(leader_epoch, end_offset)
    }

    fn is_stopping(&self) -> bool {
        self.log_dir.opener.is_stopping()
    }
}
