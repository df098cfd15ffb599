//! The leader's side of replication in one partition. The leader records up to which offset each follower has copied
//! the log, and reads the next records for it.
//!
//! The requests between brokers are in `replication`, and the follower's side is in `following`.
//! [`fullbore_rules::replica`] makes the decisions.
//!
//! Invariant: the leader uses a follower's position only in the leader epoch in which it found that the follower's log
//! is a prefix of its own log.

use std::sync::Arc;

use fullbore_rules::replica::epochs::{Divergence, EpochEnd, Position, divergence};
use fullbore_rules::replica::{AlterPartition, FollowerFetch, PartitionRegistration};
use fullbore_wire::ErrorCode;
use tokio::sync::Notify;

use super::Replica;
use super::read::{LeaderRead, ReadMode};
use fullbore_log::error::StorageError;
use fullbore_log::partition::dirty_partitions::DirtyPartitions;
use fullbore_log::partition::error::ReadError;
use fullbore_log::partition::waiters::Registration;

/// The position of a follower's log end relative to its leader's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowerPlace {
    /// The logs diverge. Contains the newest epoch that both logs may share, and its end offset in the leader's log.
    Diverging(EpochEnd),
    /// The follower's log end is below the start of the leader's log, or above its end.
    OutOfRange {
        /// The start of the leader's log.
        log_start: i64,
        /// The end of the leader's log.
        log_end: i64,
    },
    /// The follower's log is a prefix of the leader's, and the leader has recorded its end. Contains the ISR change
    /// that the caller must request, if any.
    Noted(Option<AlterPartition>),
}

impl Replica {
    /// Compares a follower's log end with this leader's log. Records the follower's position if its log is a prefix of
    /// the leader's. Blocks while the leader's log is opened.
    ///
    /// # Errors
    /// Returns the error code of [`fullbore_rules::replica::Partition::fetched`] if the role refuses the fetch. Returns
    /// the code of a [`ReadError`] if the log cannot be opened.
    pub fn followed_from(
        &self,
        fetch: &FollowerFetch,
        last_fetched_epoch: Option<i32>,
    ) -> Result<FollowerPlace, ErrorCode> {
        let code = |error: StorageError| ReadError::from(error).code();
        let mut state = self.lock();
        state.check_leads_in(fetch.leader_epoch)?;
        let position = Position { offset: fetch.offset, last_epoch: last_fetched_epoch };
        let (place, log_start, log_end) = match self.log_to_read(&mut state).map_err(code)? {
            Some((log, _)) => {
                let (start, end) = (log.log_start(), log.log_end());
                // The first epoch of this list begins at the log start, even if the first batch is later. So a follower
                // that has only older epochs begins again at the log start. It has none of the leader's records, and
                // compaction has removed those that could be compared with its own.
                (divergence(log.epochs().starts(), end, position), start, end)
            }
            None => (divergence(&[], 0, position), 0, 0),
        };
        match place {
            Divergence::At(end) => return Ok(FollowerPlace::Diverging(end)),
            Divergence::None if fetch.offset >= log_start => {}
            Divergence::None | Divergence::OutOfRange => return Ok(FollowerPlace::OutOfRange { log_start, log_end }),
        }
        let effects = state.with_now(&self.log_dir.cluster, |replica, now| replica.fetched(fetch, now))?;
        drop(state);
        if effects.high_watermark.is_some() {
            self.waiters.wake_of_high_watermark();
        }
        Ok(FollowerPlace::Noted(effects.propose))
    }

    /// Records the start of a follower's log, and wakes the waiters, such as those of [`Replica::deleted_before`].
    pub fn follower_begins_at(&self, fetch: &FollowerFetch, log_start: i64) {
        let mut state = self.lock();
        if state.check_leads_in(fetch.leader_epoch).is_ok() {
            state.role.begins_at(fetch.broker_id, log_start);
            drop(state);
            self.waiters.wake_of_high_watermark();
        }
    }

    /// Waits until the log of each replica in the ISR begins at `offset` or later. The leader can then confirm to the
    /// client that the records before `offset` are deleted.
    ///
    /// # Errors
    /// Returns NOT_LEADER_OR_FOLLOWER if another broker becomes leader, the partition is deleted, or this broker stops.
    pub async fn deleted_before(&self, offset: i64) -> Result<(), ErrorCode> {
        let waiter = Arc::new(Notify::new());
        let registered = self.register(&waiter);
        loop {
            if registered.is_over() || self.log_dir.opener.is_stopping() {
                return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
            }
            if self.lock().role.is_deleted_before(offset)? {
                return Ok(());
            }
            waiter.notified().await;
        }
    }

    /// Reads complete batches, beginning at offset `from`, for a follower that has all earlier records. This broker
    /// must lead in `leader_epoch`.
    ///
    /// # Errors
    /// Returns the code of a [`ReadError`] if this broker does not lead in `leader_epoch`, `from` is out of range, or
    /// the log cannot be read.
    pub fn read_on(
        &self,
        leader_epoch: i32,
        from: i64,
        max_bytes: u32,
        at_least_one: bool,
    ) -> Result<LeaderRead, ErrorCode> {
        self.read_as(ReadMode::LedIn(leader_epoch), from, max_bytes, at_least_one).map_err(|error| error.code())
    }

    /// Until the caller drops the returned registration, adds slot `place` to the dirty set `marks` each time the log
    /// grows, the high watermark moves, or the role changes.
    pub fn mark(&self, marks: &Arc<DirtyPartitions>, place: u32) -> Registration {
        Registration::marking(&self.waiters, marks, place)
    }

    /// Returns the ISR change that the leader should request, if there is one. The caller calls this function every
    /// half `replica.lag.time.max.ms`, and when the registered brokers change.
    pub fn tick(&self) -> Option<AlterPartition> {
        if self.registered().replicas.len() < 2 || self.leads_in().is_none() {
            return None;
        }
        let mut state = self.lock();
        let effects = state.with_now(&self.log_dir.cluster, |replica, now| replica.tick(now));
        drop(state);
        if effects.high_watermark.is_some() {
            self.waiters.wake_of_high_watermark();
        }
        effects.propose
    }

    /// Applies the outcome of an ISR change that this leader has requested.
    pub fn altered(&self, proposal: &AlterPartition, answer: Result<&PartitionRegistration, ErrorCode>) {
        let mut state = self.lock();
        let effects = state.with_now(&self.log_dir.cluster, |replica, now| replica.altered(proposal, answer, now));
        drop(state);
        // Wake all waiters, because requests with acks=all must check again whether enough replicas are in sync.
        let _ = effects;
        self.waiters.wake();
    }
}
