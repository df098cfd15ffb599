//! The follower's side of replication in one partition. As a leader's response requires, this module appends batches,
//! truncates the log, or moves the high watermark and the log start.
//!
//! The requests between brokers are in `replication`, and the leader's side is in `follower_reads`.
//! [`fullbore_rules::replica`] makes the decisions. This module carries them out on the log under one lock.
//!
//! Invariant: a response changes the log only if the follower is still in the leader epoch in which it sent the fetch.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use fullbore_rules::replica::epochs::{EpochEnd, Position, truncation};
use fullbore_wire::ErrorCode;
use fullbore_wire::batch::{BatchView, batches};
use parking_lot::MutexGuard;

use super::Replica;
use super::append::note_failure;
use super::state::{LogState, ReplicaState};
use fullbore_config::TopicConfig;
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::files::{is_full, is_momentary, now_ms};
use fullbore_log::Log;
use fullbore_log::error::StorageError;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::flushed::FlushTicket;
use fullbore_log::recovery::RecoveryHint;

/// A leader's response to a follower whose log has not diverged from the leader's.
#[derive(Debug, Clone, Copy)]
pub struct FromLeader<'a> {
    /// The leader epoch in which the follower sent the fetch.
    pub leader_epoch: i32,
    /// The offset at which the leader began to read.
    pub from: i64,
    /// The batches. The last one may be incomplete.
    pub records: &'a Bytes,
    /// The leader's high watermark.
    pub high_watermark: i64,
    /// The leader's log start.
    pub log_start: i64,
}

/// The reason why a follower cannot use a leader's response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// The replica no longer follows a leader in the leader epoch of the fetch.
    #[error("{}", .0.message())]
    Role(ErrorCode),
    /// The response does not begin at the end of the log. Contains the log end.
    #[error("the log ends at offset {0}, but the response begins at another offset")]
    NotNext(i64),
    /// The log is empty, and its start is within the response's first batch. Contains the base offset of that batch.
    #[error("the log start lies within the response's first batch, which begins at offset {0}")]
    BeginsWithin(i64),
    /// A batch in the response is damaged, has an epoch later than the leader's, or has the wrong offset.
    #[error("the leader's records cannot be used: {0}")]
    Records(String),
    /// The disk failed, or the partition is deleted.
    #[error("{0}")]
    Append(#[from] AppendError),
}

/// The state of the log after the batches of a leader's response were appended.
#[derive(Debug)]
pub struct Replicated {
    /// The end of the log after the append.
    pub log_end: i64,
    /// The start of the log.
    pub log_start: i64,
    /// The flush that must end before the follower reports `log_end` to the leader. `None` if the follower may report
    /// it at once.
    pub flushed: Option<FlushTicket>,
}

impl Replica {
    /// Returns the end of the log, from which the follower fetches. Blocks while the log is opened.
    ///
    /// # Errors
    /// Fails with [`StorageError`] if the log cannot be opened.
    pub fn position(&self) -> Result<Position, StorageError> {
        self.position_in(&mut self.lock())
    }

    fn position_in(&self, state: &mut MutexGuard<'_, ReplicaState>) -> Result<Position, StorageError> {
        let nothing = Position { offset: 0, last_epoch: None };
        let end = |log: &mut Log| Position { offset: log.log_end(), last_epoch: log.epochs().latest() };
        Ok(self.log_to_read(state)?.map_or(nothing, |(log, _)| end(log)))
    }

    /// Returns the end of a follower's log, from which the follower fetches. If the topic's settings require a flush of
    /// the log first, the inner result is an error that contains the flush.
    ///
    /// # Errors
    /// Fails with [`StorageError`] if the checkpoints cannot be written or the log cannot be opened.
    pub fn flushed_position(self: &Arc<Self>) -> Result<Result<Position, FlushTicket>, StorageError> {
        let mut state = self.lock_checkpointed()?;
        let position = self.position_in(&mut state)?;
        let ticket = match &state.log {
            LogState::Open(_) => self.flush_up_to(&mut state, position.offset, false, false, &self.config()),
            _ => None,
        };
        Ok(ticket.map_or(Ok(position), Err))
    }

    /// Appends the leader's batches unchanged, and applies the leader's high watermark and log start. Creates the log
    /// if it is missing, which blocks. Creates no log if the leader's log begins at 0 and the response has no records.
    ///
    /// # Errors
    /// Fails with [`FollowError`] if the response cannot be used or written. Even then, the batches before a bad batch
    /// are in the log.
    pub fn append_from_leader(self: &Arc<Self>, from: FromLeader<'_>) -> Result<Replicated, FollowError> {
        self.check_disk()?;
        let mut state = self.lock_checkpointed().map_err(AppendError::from)?;
        let check = |state: &ReplicaState| state.role.check_following(from.leader_epoch).map_err(FollowError::Role);
        check(&state)?;
        if matches!(state.log, LogState::Absent) && from.records.is_empty() && from.log_start == 0 && from.from == 0 {
            let took = state.role.replicated(from.leader_epoch, 0, from.high_watermark);
            return took.map(|_| Replicated { log_end: 0, log_start: 0, flushed: None }).map_err(FollowError::Role);
        }
        self.log_to_write(&mut state).map_err(AppendError::from)?;
        check(&state)?;
        let (config, now_ms) = (self.config(), now_ms());
        let LogState::Open(log) = &mut state.log else { return Err(AppendError::Gone.into()) };
        let (before, before_start, active) = (log.log_end(), log.log_start(), log.active_base_offset());
        if before != from.from {
            return Err(FollowError::NotNext(before));
        }
        if before_start == before
            && let Some(base_offset) = begins_within(before, from.records)
        {
            return Err(FollowError::BeginsWithin(base_offset));
        }
        log.note_use();
        let space = &self.log_dir.space;
        let appended =
            append_in(space, &from, |bytes, batches| log.append_as_they_are(bytes, batches, now_ms, &config));
        let outcome = match &appended {
            Ok(()) => (!from.records.is_empty()).then_some(Ok(())),
            Err(FollowError::Append(error)) => Some(Err(*error)),
            Err(_) => None,
        };
        let log_end = log.log_end();
        let start = from.log_start.min(log_end);
        let moved = if start > log.log_start() { log.delete_before(start, now_ms, space) } else { Ok(()) };
        let log_start = log.log_start();
        // After a restart, a log start within a segment is lost unless the checkpoint contains it. The next fetch
        // reports the new log start, and the leader then confirms the deletion to its client. So the checkpoint must be
        // written before that fetch.
        let is_cut_off = log_start > before_start && log.first_base_offset() < log_start;
        log.hand_over_written(&self.log_dir.flusher.page_cache);
        let rolled = log.active_base_offset() != active;
        state.has_cut_to_checkpoint |= is_cut_off;
        let flushed =
            if log_end > before { self.flush_up_to(&mut state, log_end, rolled, true, &config) } else { None };
        if let Some(outcome) = outcome {
            state.note_append(outcome, &self.log_dir);
        }
        state.mark_if_broken(&self.log_dir.flusher.failures);
        let effects =
            state.role.replicated(from.leader_epoch, log_end, from.high_watermark).map_err(FollowError::Role)?;
        let started = state.role.started_at(start);
        state.forget_replicated_ends();
        let has_cut = moved.is_ok() && std::mem::take(&mut state.has_cut_to_checkpoint);
        drop(state);
        if effects.high_watermark.or(started.high_watermark).is_some() {
            self.waiters.wake();
        }
        moved.map_err(|error| AppendError::from(StorageError::io(self.dir().as_ref(), error)))?;
        if has_cut {
            self.checkpoint_cut().map_err(AppendError::from)?;
        }
        appended.map(|()| Replicated { log_end, log_start, flushed })
    }

    /// Limits the log lines about fetched records that could not be written to the disk. Returns `None` if the caller
    /// must not log a line now. Otherwise returns how many lines were suppressed since the last one.
    pub fn line_of_not_replicated(&self) -> Option<u64> {
        self.log_dir.not_replicated.due()
    }

    /// Truncates the log where it diverges from the leader's. `leader` is the newest epoch that both logs may share,
    /// with its end in the leader's log. The leader sent both in response to a fetch from `requested`. Returns the new
    /// end of the log. Returns `None` if the log no longer ends at `requested`.
    ///
    /// # Errors
    /// Fails with [`FollowError`] if the role has changed or the disk fails.
    pub fn truncate_by(
        &self,
        leader_epoch: i32,
        requested: Position,
        leader: EpochEnd,
    ) -> Result<Option<i64>, FollowError> {
        self.cut(leader_epoch, |log, now_ms, config| {
            let to = truncation(log.epochs().starts(), log.log_end(), requested, leader);
            to.map_or(Ok(None), |to| log.truncate_to(to, now_ms, config).map(|()| Some(log.log_end())))
        })
    }

    /// Removes all records of a follower's log. The empty log then begins at `offset`, the offset of the leader's next
    /// records.
    ///
    /// # Errors
    /// Fails with [`FollowError`] if the role has changed or the disk fails.
    pub fn truncate_fully_and_start_at(&self, leader_epoch: i32, offset: i64) -> Result<(), FollowError> {
        self.cut(leader_epoch, |log, now_ms, _| log.truncate_fully_and_start_at(offset, now_ms).map(|()| Some(offset)))
            .map(drop)
    }

    /// Truncates the log with `cut`, updates the role, and writes the checkpoints. Returns the result of `cut`, which
    /// is `None` if the log was not changed.
    fn cut(
        &self,
        leader_epoch: i32,
        cut: impl FnOnce(&mut Log, i64, &TopicConfig) -> io::Result<Option<i64>>,
    ) -> Result<Option<i64>, FollowError> {
        let failed = |error| FollowError::Append(AppendError::from(StorageError::io(self.dir().as_ref(), error)));
        self.check_disk()?;
        let _no_names_change = self.hold_names();
        let mut state = self.lock();
        self.log_to_write(&mut state).map_err(AppendError::from)?;
        state.role.check_following(leader_epoch).map_err(FollowError::Role)?;
        let config = self.config();
        let LogState::Open(log) = &mut state.log else { return Err(AppendError::Gone.into()) };
        let done = cut(log, now_ms(), &config);
        let log_end = if done.is_ok() {
            log.log_end()
        } else {
            // After the failed change, the files may differ from the state in memory. Only the records before the
            // recovery point are certain to be on the disk.
            log.give_up();
            log.recovery_point()
        };
        state.has_cut_to_checkpoint |= !matches!(done, Ok(None));
        state.mark_if_broken(&self.log_dir.flusher.failures);
        state.role.truncated(log_end);
        let is_to_checkpoint = done.is_ok() && std::mem::take(&mut state.has_cut_to_checkpoint);
        drop(state);
        self.log_dir.cleanings.cut_off(&self.key(), log_end);
        if done.as_ref().is_err_and(|error| is_full(error) || is_momentary(error)) {
            self.open_anew();
        }
        if is_to_checkpoint {
            self.checkpoint_cut().map_err(AppendError::from)?;
        }
        done.map_err(failed)
    }

    /// Closes the log after a truncation that failed midway for a passing reason. The next opening of the log finds out
    /// which records are on the disk. A log that is being cleaned stays broken until the broker restarts.
    pub(super) fn open_anew(&self) {
        // No cleaning can begin after this check, because the cleaner skips broken logs.
        if self.log_dir.cleanings.is_under_way(&self.key()) {
            return;
        }
        let mut state = self.lock();
        let LogState::Open(log) = &mut state.log else { return };
        let (recovery_point, log_start) = (log.recovery_point(), Some(log.log_start()));
        state.known = RecoveryHint { clean: false, rebooted: false, recovery_point, log_start, ..state.known };
        state.failed = None;
        self.put(&mut state, LogState::Unopened);
    }

    /// Prevents the cleaner from replacing segments while the caller holds the guard. To avoid a deadlock, a caller
    /// that also locks the state must take this guard first.
    pub(crate) fn hold_names(&self) -> MutexGuard<'_, ()> {
        self.renaming.lock()
    }

    /// Locks the state. If the checkpoints of a truncation are not written yet, writes them first. Otherwise the old
    /// checkpoints would count records as flushed that are appended after the truncation.
    ///
    /// # Errors
    /// Fails with [`StorageError`] if the checkpoints cannot be written.
    fn lock_checkpointed(&self) -> Result<MutexGuard<'_, ReplicaState>, StorageError> {
        loop {
            let mut state = self.lock();
            if !std::mem::take(&mut state.has_cut_to_checkpoint) {
                return Ok(state);
            }
            drop(state);
            self.checkpoint_cut()?;
        }
    }

    /// Writes the checkpoints after a truncation. The caller must have cleared `has_cut_to_checkpoint` and unlocked the
    /// state. Sets the flag again if the write fails.
    fn checkpoint_cut(&self) -> Result<(), StorageError> {
        let written = self.log_dir.checkpoints.write_of(self);
        if written.is_err() {
            self.lock().has_cut_to_checkpoint = true;
        }
        written.map_err(|error| StorageError::io(self.dir().as_ref(), error))
    }
}

/// Returns the base offset of the first batch if `offset` is within that batch, but after its base offset.
fn begins_within(offset: i64, records: &Bytes) -> Option<i64> {
    let first = batches(records).next()?.ok()?;
    (first.base_offset() < offset && offset <= first.last_offset()).then(|| first.base_offset())
}

/// Calls [`append_each`] with a permit to write to the disk. Drops the permit on return, because a caller that frees
/// space afterwards must not hold it.
fn append_in(
    space: &DiskSpace,
    from: &FromLeader<'_>,
    append: impl FnMut(&[u8], &[BatchView<'_>]) -> Result<usize, AppendError>,
) -> Result<(), FollowError> {
    if from.records.is_empty() {
        return Ok(());
    }
    let _permit = space.admit_append().ok_or(AppendError::Full)?;
    let appended = append_each(from, append);
    match &appended {
        Ok(()) => space.note_written(),
        Err(FollowError::Append(error)) => note_failure(space, *error),
        Err(_) => {}
    }
    appended
}

/// Verifies the complete batches of the response, and passes them to `append`, which appends a few of them per call.
/// Refuses a batch whose epoch is later than the leader's: a leader that is deposed while it reads may send records of
/// its successor.
fn append_each(
    from: &FromLeader<'_>,
    mut append: impl FnMut(&[u8], &[BatchView<'_>]) -> Result<usize, AppendError>,
) -> Result<(), FollowError> {
    let (mut whole, mut bad) = (Vec::new(), None);
    for batch in batches(from.records) {
        match batch.map_err(|error| error.to_string()).and_then(|batch| checked(batch, from.leader_epoch)) {
            Ok(batch) => whole.push(batch),
            Err(error) => {
                bad = Some(error);
                break;
            }
        }
    }
    let (mut left, mut bytes) = (&whole[..], from.records.as_ref());
    while let Some(first) = left.first() {
        let offset = first.base_offset();
        let taken = append(bytes, left).map_err(|error| match error {
            AppendError::Invalid(_) => FollowError::Records(format!("the batch at offset {offset} is not valid")),
            error => FollowError::Append(error),
        })?;
        let (done, rest) = left.split_at(taken);
        bytes = &bytes[done.iter().map(BatchView::size).sum()..];
        left = rest;
    }
    match bad {
        // If there are good batches before the bad one, the follower fetches again from their end.
        Some(error) if whole.is_empty() => Err(FollowError::Records(error)),
        _ => Ok(()),
    }
}

fn checked(batch: BatchView<'_>, leader_epoch: i32) -> Result<BatchView<'_>, String> {
    if batch.partition_leader_epoch() > leader_epoch {
        return Err(format!("a batch has leader epoch {}, later than the leader's", batch.partition_leader_epoch()));
    }
    batch.check_crc().map_err(|error| error.to_string())?;
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use fullbore_tests::Batch;

    use super::*;

    /// Only operations that free space may use the disk reserve, and a follower's append frees none.
    #[test]
    fn incomplete_reserve_of_the_disk_refuses_a_followers_batches() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let records = Batch::at(0, &["v"]).bytes();
        let from = FromLeader { leader_epoch: 0, from: 0, records: &records, high_watermark: 0, log_start: 0 };
        let space = DiskSpace::without_room(directory.path());
        let refused = append_in(&space, &from, |_, _| panic!("it is written all the same"));
        assert_eq!(refused, Err(FollowError::Append(AppendError::Full)));
        let space = DiskSpace::open(directory.path(), 1 << 20);
        assert_eq!(append_in(&space, &from, |_, batches| Ok(batches.len())), Ok(()));
        append_in(&space, &from, |_, _| Err(AppendError::Full)).expect_err("no room");
        assert!(space.is_full(), "who produces is told, too");
    }
}
