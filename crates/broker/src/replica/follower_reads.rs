//! Fetches of followers at a leader's partition: notes how far each has come, and reads for it.
//!
//! Not here: the requests between brokers, nor what a follower does with the answers
//! (`following`). The rules are [`fullbore_rules::replica`]'s.
//!
//! Invariant: a follower's position counts only in the leader epoch in which its log was found to be a beginning of the
//! leader's.

use std::sync::Arc;

use fullbore_rules::replica::epochs::{Divergence, EpochEnd, Position, divergence};
use fullbore_rules::replica::{AlterPartition, FollowerFetch, PartitionRegistration};
use fullbore_wire::ErrorCode;
use tokio::sync::Notify;

use super::Replica;
use super::read::{ReadMode, ReadOn};
use fullbore_log::error::StorageError;
use fullbore_log::partition::dirty_partitions::DirtyPartitions;
use fullbore_log::partition::error::ReadError;
use fullbore_log::partition::waiters::Registration;

/// Place of a follower's log in its leader's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowerPlace {
    /// Diverged: their newest common epoch at most, and its end at the leader.
    Diverging(EpochEnd),
    /// The follower's end is before the leader's log start, or past its end.
    OutOfRange {
        /// Start of the leader's log.
        log_start: i64,
        /// End of the leader's log.
        log_end: i64,
    },
    /// A beginning of the leader's log, which is noted; with the change of the ISR to ask for, if there is one.
    Noted(Option<AlterPartition>),
}

impl Replica {
    /// As leader: notes the end of a follower's log. Blocks while the own log is opened.
    ///
    /// # Errors
    /// Errors of [`fullbore_rules::replica::Partition::fetched`], or of the disk.
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

    /// As leader: notes the start of a follower's log, and wakes those who wait for it.
    pub fn follower_begins_at(&self, fetch: &FollowerFetch, log_start: i64) {
        let mut state = self.lock();
        if state.check_leads_in(fetch.leader_epoch).is_ok() {
            state.role.begins_at(fetch.broker_id, log_start);
            drop(state);
            self.waiters.wake_of_high_watermark();
        }
    }

    /// As leader: waits until no replica in sync has records before this offset.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER, where another broker leads by now, the partition is gone, or this broker stops.
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

    /// As leader of this epoch: reads whole batches from an offset on, for a follower that has all records before it.
    ///
    /// # Errors
    /// The role, the offset or the disk.
    pub fn read_on(
        &self,
        leader_epoch: i32,
        from: i64,
        max_bytes: u32,
        at_least_one: bool,
    ) -> Result<ReadOn, ErrorCode> {
        self.read_as(ReadMode::LedIn(leader_epoch), from, max_bytes, at_least_one).map_err(|error| error.code())
    }

    /// Marks a place each time the log grows, the high watermark moves, or the partition's role changes, until the
    /// registration is dropped.
    pub fn mark(&self, marks: &Arc<DirtyPartitions>, place: u32) -> Registration {
        Registration::marking(&self.waiters, marks, place)
    }

    /// As leader, each half of `replica.lag.time.max.ms`: returns the change of the ISR to ask for.
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

    /// As leader: takes over the outcome of a change of the ISR that was asked for.
    pub fn altered(&self, proposal: &AlterPartition, answer: Result<&PartitionRegistration, ErrorCode>) {
        let mut state = self.lock();
        let effects = state.with_now(&self.log_dir.cluster, |replica, now| replica.altered(proposal, answer, now));
        drop(state);
        // Who waits for acks=all looks whether there are enough in sync.
        let _ = effects;
        self.waiters.wake();
    }
}
