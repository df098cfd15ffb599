//! Replication at one partition: what a follower does with its leader's answers, and what a leader answers to a follower.
//!
//! Not the requests between brokers. The rules are [`fullbore_rules::replica`]'s; here they are asked, and carried out on the
//! log, under one lock.
//!
//! Invariant: nothing of a leader's answer reaches the log once the role is that of another epoch.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use fullbore_rules::replica::epochs::{Divergence, EpochEnd, Position, divergence, truncation};
use fullbore_rules::replica::{AlterPartition, FollowerFetch};
use fullbore_wire::ErrorCode;
use fullbore_wire::batch::batches;

use super::Replica;
use super::state::LogState;
use crate::config::TopicConfig;
use crate::log::Log;
use crate::log::error::{AppendError, Read, ReadError, StorageError};
use crate::system::now_ms;

/// What a leader answered to a follower's fetch, and did not diverge.
#[derive(Debug, Clone, Copy)]
pub struct FromLeader<'a> {
    /// The epoch that the fetch was sent in.
    pub leader_epoch: i32,
    /// Whole batches, the last of which may be cut.
    pub records: &'a Bytes,
    /// The leader's high watermark.
    pub high_watermark: i64,
    /// The leader's log start.
    pub log_start: i64,
}

/// Why an answer of the leader's was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// The role is another one by now.
    #[error("{}", .0.message())]
    Role(ErrorCode),
    /// A batch that no leader sends: damaged, or not the next one.
    #[error("the leader's records cannot be used: {0}")]
    Records(String),
    /// The disk, or the partition is gone.
    #[error("{0}")]
    Append(#[from] AppendError),
}

/// What a leader answers to a follower.
#[derive(Debug)]
pub enum FollowerRead {
    /// The follower's log is no part of the leader's: their newest common epoch at most, and where it ends at the leader.
    Diverging(EpochEnd),
    /// Records up to the log end, and the change of the ISR that the fetch gives reason to ask for.
    Records(Read, Option<AlterPartition>),
}

impl Replica {
    /// As follower: where the log ends, which is where to fetch from. Blocks while the log is opened or made.
    ///
    /// # Errors
    /// The disk.
    pub fn position(&self) -> Result<Position, StorageError> {
        let mut state = self.lock();
        let log = self.log_to_write(&mut state)?;
        Ok(Position { offset: log.log_end(), last_epoch: log.epochs().latest() })
    }

    /// As follower: appends what the leader sent, as it is, and takes over its high watermark and log start.
    ///
    /// # Errors
    /// [`FollowError`]; batches before a bad one are in the log.
    pub fn append_from_leader(self: &Arc<Self>, from: FromLeader<'_>) -> Result<(), FollowError> {
        let mut state = self.lock();
        state.replica.check_following(from.leader_epoch).map_err(FollowError::Role)?;
        self.log_to_write(&mut state).map_err(AppendError::from)?;
        state.replica.check_following(from.leader_epoch).map_err(FollowError::Role)?;
        let (config, now_ms) = (self.config(), now_ms());
        let LogState::Open(log) = &mut state.log else { return Err(AppendError::Gone.into()) };
        log.note_use();
        let before = log.log_end();
        let appended = append_each(from.records, |batch| log.append_as_is(&batch, now_ms, &config).map(drop));
        let log_end = log.log_end();
        let start = from.log_start.min(log_end);
        let moved = if start > log.log_start() {
            log.delete_before(start, now_ms, &self.log_dir.flusher.space)
        } else {
            Ok(())
        };
        if log_end > before {
            self.ask_to_flush(&mut state, config.flush_messages.is_some());
        }
        state.mark_if_broken(&self.log_dir.flusher.failures);
        let effects =
            state.replica.replicated(from.leader_epoch, log_end, from.high_watermark).map_err(FollowError::Role)?;
        let started = state.replica.started_at(start);
        drop(state);
        if effects.high_watermark.or(started.high_watermark).is_some() {
            self.waiters.wake();
        }
        moved.map_err(|error| AppendError::from(StorageError::io(self.dir().as_ref(), error)))?;
        appended
    }

    /// As follower: the leader answered a fetch from `asked` that the logs part, the leader's epoch ending where it says. Cuts the
    /// own log off there, and says where it now ends; `None` if the log no longer ended at `asked`.
    ///
    /// # Errors
    /// [`FollowError`].
    pub fn truncate_by(
        &self,
        leader_epoch: i32,
        asked: Position,
        leader: EpochEnd,
    ) -> Result<Option<i64>, FollowError> {
        self.cut(leader_epoch, |log, now_ms, config| {
            let to = truncation(log.epochs().starts(), log.log_end(), asked, leader);
            to.map_or(Ok(None), |to| log.truncate_to(to, now_ms, config).map(|()| Some(log.log_end())))
        })
    }

    /// As follower: the leader's log begins here, past the own one's end or before its start, and the own one begins anew.
    ///
    /// # Errors
    /// [`FollowError`].
    pub fn begin_anew_at(&self, leader_epoch: i32, offset: i64) -> Result<(), FollowError> {
        self.cut(leader_epoch, |log, now_ms, _| log.begin_anew_at(offset, now_ms).map(|()| Some(offset))).map(drop)
    }

    /// Cuts the log off, has the role know where it ends, and the checkpoint say no more than that is on the disk.
    fn cut(
        &self,
        leader_epoch: i32,
        cut: impl FnOnce(&mut Log, i64, &TopicConfig) -> io::Result<Option<i64>>,
    ) -> Result<Option<i64>, FollowError> {
        let failed = |error| FollowError::Append(AppendError::from(StorageError::io(self.dir().as_ref(), error)));
        let mut state = self.lock();
        self.log_to_write(&mut state).map_err(AppendError::from)?;
        state.replica.check_following(leader_epoch).map_err(FollowError::Role)?;
        let config = self.config();
        let LogState::Open(log) = &mut state.log else { return Err(AppendError::Gone.into()) };
        let done = cut(log, now_ms(), &config);
        if done.is_err() {
            // Files and memory may not agree: the next start works it out.
            log.give_up();
        }
        let log_end = log.log_end();
        state.mark_if_broken(&self.log_dir.flusher.failures);
        state.replica.truncated(log_end);
        drop(state);
        let done = done.map_err(failed)?;
        if done.is_some() {
            self.log_dir.checkpoints.write_of(self).map_err(failed)?;
        }
        Ok(done)
    }

    /// As leader: answers a follower's fetch, and takes note of how far it has come.
    ///
    /// # Errors
    /// What [`fullbore_rules::replica::Partition::fetched`] refuses, OFFSET_OUT_OF_RANGE, or the disk.
    pub fn read_as_follower(
        self: &Arc<Self>,
        fetch: &FollowerFetch,
        last_fetched_epoch: Option<i32>,
        (max_bytes, at_least_one): (u32, bool),
    ) -> Result<FollowerRead, ErrorCode> {
        let code = |error: StorageError| ReadError::from(error).code();
        let mut state = self.lock();
        state.replica.check_leader_epoch(fetch.leader_epoch)?;
        if !state.replica.is_leader() {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        self.log_to_write(&mut state).map_err(code)?;
        let LogState::Open(log) = &mut state.log else { return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) };
        let position = Position { offset: fetch.offset, last_epoch: last_fetched_epoch };
        match divergence(log.epochs().starts(), log.log_end(), position) {
            Divergence::None => {}
            Divergence::At(end) => return Ok(FollowerRead::Diverging(end)),
            Divergence::OutOfRange => return Err(ErrorCode::OFFSET_OUT_OF_RANGE),
        }
        if fetch.offset < log.log_start() {
            return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
        }
        let effects = state.with_now(&self.log_dir.cluster, |replica, now| replica.fetched(fetch, now))?;
        drop(state);
        if effects.high_watermark.is_some() {
            self.waiters.wake();
        }
        let read = self.read_up_to_the_end(fetch.offset, max_bytes, at_least_one).map_err(|error| error.code())?;
        Ok(FollowerRead::Records(read, effects.propose))
    }
}

/// Gives every whole batch to `append`, its checksum compared.
fn append_each(
    records: &Bytes,
    mut append: impl FnMut(fullbore_wire::batch::BatchView<'_>) -> Result<(), AppendError>,
) -> Result<(), FollowError> {
    for (found, batch) in batches(records).enumerate() {
        let batch = match batch {
            Ok(batch) => batch,
            // The last one of an answer is cut where its byte limit fell.
            Err(_) if found > 0 => break,
            Err(error) => return Err(FollowError::Records(error.to_string())),
        };
        batch.check_crc().map_err(|error| FollowError::Records(error.to_string()))?;
        append(batch).map_err(|error| match error {
            AppendError::Invalid(_) => FollowError::Records(format!("offset {}", batch.base_offset())),
            error => FollowError::Append(error),
        })?;
    }
    Ok(())
}
