//! Fetches of followers at a leader's partition: notes each follower's position, and reads for it.
//!
//! Not here: requests between brokers, and the follower's side (`following`). [`fullbore_rules::replica`] decides.
//!
//! Invariant: a follower's position counts only in the leader epoch in which its log was found to be a prefix of the
//! leader's.

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

/// Position of the end of a follower's log in its leader's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowerPlace {
    /// Divergence of the logs. Contains the newest epoch that both may have, and the end of that epoch at the leader.
    Diverging(EpochEnd),
    /// End of the follower's log before the start of the leader's log, or past the end of the leader's log.
    OutOfRange {
        /// Start of the leader's log.
        log_start: i64,
        /// End of the leader's log.
        log_end: i64,
    },
    /// The follower's log is a prefix of the leader's log, and the leader has noted its end. Contains the ISR change
    /// that the caller must request, if there is one.
    Noted(Option<AlterPartition>),
}

impl Replica {
    /// Compares the end of a follower's log with this leader's log. Notes the end if the follower's log is a prefix.
    /// Blocks while the leader's log is opened.
    ///
    /// # Errors
    /// The error code of
    /// [`fullbore_rules::replica::Partition::fetched`] if the role refuses the fetch; the code of a [`ReadError`] if
    /// the log cannot be read.
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

    /// Notes the start of a follower's log, as its leader, and wakes the waiters.
    pub fn follower_begins_at(&self, fetch: &FollowerFetch, log_start: i64) {
        let mut state = self.lock();
        if state.check_leads_in(fetch.leader_epoch).is_ok() {
            state.role.begins_at(fetch.broker_id, log_start);
            drop(state);
            self.waiters.wake_of_high_watermark();
        }
    }

    /// Waits, as leader, until no replica in sync has records before `offset`.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER if another broker has become leader, the partition is deleted, or this broker stops.
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

    /// Reads whole batches from `from` on, as leader of `leader_epoch`, for a follower that has all records before
    /// them.
    ///
    /// # Errors
    /// Code of the [`ReadError`] if this broker does not lead in `leader_epoch`, `from` is out of range, or the log
    /// cannot be read.
    pub fn read_on(
        &self,
        leader_epoch: i32,
        from: i64,
        max_bytes: u32,
        at_least_one: bool,
    ) -> Result<LeaderRead, ErrorCode> {
        self.read_as(ReadMode::LedIn(leader_epoch), from, max_bytes, at_least_one).map_err(|error| error.code())
    }

    /// Adds `place` to the dirty set `marks` each time the log grows, the high watermark moves, or the partition's role
    /// changes. Ends when the registration is dropped.
    pub fn mark(&self, marks: &Arc<DirtyPartitions>, place: u32) -> Registration {
        Registration::marking(&self.waiters, marks, place)
    }

    /// Returns the ISR change to request; `None` if there is none, or another broker leads. Called every half
    /// `replica.lag.time.max.ms`, and when brokers have come or gone.
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

    /// Applies the outcome of a requested ISR change, as leader.
    pub fn altered(&self, proposal: &AlterPartition, answer: Result<&PartitionRegistration, ErrorCode>) {
        let mut state = self.lock();
        let effects = state.with_now(&self.log_dir.cluster, |replica, now| replica.altered(proposal, answer, now));
        drop(state);
        // The waiters are woken in any case: those for acks=all check whether enough replicas are in sync.
        let _ = effects;
        self.waiters.wake();
    }
}
