//! The role that the metadata gives this broker's replica: whether it leads, which offsets readers may see, and when
//! acks=all is satisfied.
//!
//! [`fullbore_rules::replica`] makes the decisions. The thread that applies an image does not wait for a lock: it
//! stores the new metadata outside of the state. The next thread that locks the state first applies that metadata.
//!
//! Invariant: an append, read or response uses the newest metadata that had arrived when it locked the state.

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
use fullbore_log::partition::error::{AppendError, ReadError};
use fullbore_log::partition::outcome::{Acknowledges, Acks, ReplicationTicket};
use fullbore_log::partition::read::Isolation;
use fullbore_log::partition::waiters::Registration;

impl Replica {
    /// Stores the registration and the settings of a new metadata image, without blocking.
    pub fn follow(&self, registered: &Arc<PartitionRegistration>, config: &Arc<TopicConfig>) {
        let is_same = Arc::ptr_eq(&self.registered.read(), registered) && Arc::ptr_eq(&self.config.read(), config);
        if !is_same {
            *self.config.write() = Arc::clone(config);
            *self.registered.write() = Arc::clone(registered);
            self.note_news();
        }
    }

    /// Returns the partition's registration in the newest image that this broker has applied.
    pub fn registered(&self) -> Arc<PartitionRegistration> {
        Arc::clone(&self.registered.read())
    }

    /// Records that there is new metadata, or that this broker stands down or no longer does. Applies that if the lock
    /// is free, and wakes the waiters.
    pub fn note_news(&self) {
        // The waiters are counted with sequentially consistent operations too. So a waiter either registers before
        // `wake` reads their number and is woken, or it sees this flag.
        self.has_news.store(true, SeqCst);
        // If another thread holds the lock, the woken waiters will lock the state and apply the metadata.
        if let Some(mut state) = self.state.try_lock() {
            self.catch_up(&mut state);
        }
        self.waiters.wake();
    }

    /// Locks the state and applies the newest metadata to it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ReplicaState> {
        let mut state = self.lock_state();
        self.catch_up(&mut state);
        state
    }

    /// Applies the metadata that has arrived since the state was last locked.
    pub(crate) fn catch_up(&self, state: &mut ReplicaState) {
        if !self.has_news.load(SeqCst) {
            return;
        }
        // Clear the flag before reading the metadata. If newer metadata arrives during the reads, the flag is set
        // again, and the next lock applies that metadata.
        self.has_news.swap(false, SeqCst);
        let (settings, registered) = (self.replica_settings(), self.registered());
        let has_moved = self.log_dir.cluster.at_this_moment(|now| {
            let configured = state.role.configure(settings, now);
            let applied = state.role.apply(&registered, now);
            configured.high_watermark.or(applied.high_watermark).is_some() || applied.role.is_some()
        });
        state.role.stand_down(self.log_dir.cluster.stands_down(&registered));
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

    /// Returns the role of this replica, based on the offsets of a log that was just opened.
    pub(crate) fn role_over(&self, log: &Log) -> replica::Partition {
        let high_watermark = self.log_dir.checkpoints.high_watermark(&self.key());
        let found = LocalLog { start_offset: log.log_start(), end_offset: log.log_end(), high_watermark };
        let mut replica = replica::Partition::new(self.log_dir.cluster.node_id, found, self.replica_settings());
        let registered = self.registered();
        // Ignore the effects, such as a new high watermark, because the end of the opening wakes the waiters anyway.
        let _ = self.log_dir.cluster.at_this_moment(|now| replica.apply(&registered, now));
        replica.stand_down(self.log_dir.cluster.stands_down(&registered));
        replica
    }

    /// Checks that this broker leads, and that its leader epoch equals `believed`, the epoch that the client knows
    /// (KIP-320). -1 means that the client knows no epoch. Returns the leader epoch.
    ///
    /// # Errors
    /// Returns FENCED_LEADER_EPOCH if the client's epoch is older, UNKNOWN_LEADER_EPOCH if it is newer, and
    /// NOT_LEADER_OR_FOLLOWER if another broker leads.
    pub fn check_leads(&self, believed: i32) -> Result<i32, ErrorCode> {
        let state = self.lock();
        state.role.check_leader_epoch(believed)?;
        if state.role.is_leader() { Ok(state.role.leader_epoch()) } else { Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) }
    }

    /// Returns the latest offset that the leader may show to ListOffsets at the isolation level (KIP-207).
    ///
    /// # Errors
    /// Returns OFFSET_NOT_AVAILABLE while an earlier leader may have returned a larger offset, and
    /// NOT_LEADER_OR_FOLLOWER if another broker leads. Fails with the code of the error if the log cannot be opened.
    pub fn latest_offset(&self, isolation: Isolation) -> Result<i64, ErrorCode> {
        let mut state = self.lock();
        let opened = self.log_to_read(&mut state).map_err(|error| ReadError::from(error).code())?;
        let readable_end = opened.map(|(log, high_watermark)| log.readable_end(isolation, high_watermark));
        let latest = state.role.latest_offset()?;
        Ok(readable_end.map_or(latest, |end| end.min(latest)))
    }

    /// Returns the leader epoch if this broker leads according to the newest metadata, and does not stand down.
    /// Otherwise returns `None`.
    pub fn leads_in(&self) -> Option<i32> {
        let registered = self.registered.read();
        let cluster = &self.log_dir.cluster;
        let leads = registered.leader == Some(cluster.node_id) && !cluster.stands_down(&registered);
        leads.then_some(registered.leader_epoch)
    }

    /// Returns the leader epoch that new batches get.
    pub fn leader_epoch(&self) -> i32 {
        self.lock().role.leader_epoch()
    }

    /// Waits until all records that are in the log now are committed. Returns at once if there are no followers.
    /// Succeeds even if the ISR becomes smaller than `min.insync.replicas` during the wait.
    ///
    /// # Errors
    /// Fails with [`AppendError::Role`] if another broker becomes leader.
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

    /// Returns the ticket that the response to an append must wait for. The append ends before `end_offset`. Returns
    /// `None` if acks is not all, or if enough replicas already have the records.
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
        // Check this before the lock is taken. A hanging write may hold the lock, which would block thousands of
        // waiters.
        if let Err(code) = self.check_answers() {
            return Acknowledgement::Refused(code);
        }
        self.lock().role.acknowledgement(leader_epoch, end_offset)
    }

    fn is_stopping(&self) -> bool {
        self.log_dir.opener.is_stopping()
    }
}
