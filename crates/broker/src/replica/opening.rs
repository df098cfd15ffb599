//! Opens and creates the logs of partitions. An opening may take seconds, and no thread holds the partition's lock for
//! that time. Instead, the log is in the phase `Opening`, and callers wait until that phase ends.
//!
//! [`fullbore_log::recovery`] recovers the log. The threads that open logs are in [`super::data_dir::opener`]. Requests
//! queue an opening and wait for it asynchronously ([`Replica::opened`]), while background threads open logs
//! themselves.
//!
//! Invariant: only one thread at a time opens or creates a partition's log, and only that thread ends the phase
//! `Opening` or `Creating`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use fullbore_wire::ErrorCode;
use parking_lot::MutexGuard;
use tokio::sync::Notify;

use super::Replica;
use super::phase::Phase;
use super::state::{LogState, ReplicaState};
use fullbore_host::files::is_momentary;
use fullbore_host::files::now_ms;
use fullbore_log::Log;
use fullbore_log::error::StorageError;
use fullbore_log::files::{self, StoredTopicId};
use fullbore_log::recovery::RecoveryHint;

/// The work that [`Replica::step`] does in a partition's directory.
#[derive(Clone, Copy)]
enum Step {
    /// Opens the log if its directory exists.
    Open,
    /// Creates the directory and an empty log.
    Make,
}

impl Replica {
    /// Checks that the caller can use the log without waiting for a recovery.
    ///
    /// # Errors
    /// Returns NOT_LEADER_OR_FOLLOWER while the log is being opened or its opening is queued, and when the broker
    /// stops. Returns KAFKA_STORAGE_ERROR if the log is not open and no opening is queued.
    pub fn check_usable(&self) -> Result<(), ErrorCode> {
        if self.phase().is_usable() {
            return Ok(());
        }
        if self.requested.is_by_somebody() || self.log_dir.opener.is_stopping() {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        // No opening is queued, but a thread may have just removed one from the queue. The phase, read under the lock,
        // shows whether that thread is opening the log.
        match self.lock().log.phase() {
            Phase::Unopened => Err(ErrorCode::KAFKA_STORAGE_ERROR),
            Phase::Opening => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
            Phase::Creating | Phase::Absent | Phase::Open | Phase::Refused | Phase::Gone => Ok(()),
        }
    }

    /// Queues the opening of the log. The end of the opening wakes the waiters.
    pub fn request_open(self: &Arc<Self>) {
        if !self.phase().is_settled() {
            self.log_dir.opener.request(self);
        }
    }

    /// Returns the error of the last opening if it failed at `time` or later. A caller that has waited since `time`
    /// passes on this error instead of trying again.
    pub fn open_failure_since(&self, time: Instant) -> Option<StorageError> {
        let state = self.lock();
        state.open_failure.as_deref().filter(|(at, _)| *at >= time).map(|(_, error)| error.clone())
    }

    /// Waits asynchronously until the log is open, absent, damaged or gone.
    ///
    /// # Errors
    /// Returns the error of the opening if it fails. The next call tries again. Returns [`StorageError::Gone`] if the
    /// broker stops.
    pub async fn opened(self: &Arc<Self>) -> Result<(), StorageError> {
        if self.phase().is_settled() {
            return Ok(());
        }
        let waiter = Arc::new(Notify::new());
        let _registered = self.register(&waiter);
        let mut stopping = self.log_dir.opener.stopping();
        let began = Instant::now();
        loop {
            if self.phase().is_settled() {
                return Ok(());
            }
            if let Some(error) = self.open_failure_since(began) {
                return Err(error);
            }
            self.request_open();
            tokio::select! {
                () = waiter.notified() => {}
                _ = stopping.wait_for(|stopping| *stopping) => return Err(StorageError::Gone),
            }
        }
    }

    /// Returns the log, and opens or creates it if necessary. Blocks during the opening, but releases the lock.
    pub(crate) fn log_to_write<'a>(
        &self,
        state: &'a mut MutexGuard<'_, ReplicaState>,
    ) -> Result<&'a mut Log, StorageError> {
        loop {
            match &state.log {
                LogState::Unopened => self.step(state, Step::Open)?,
                LogState::Absent => self.step(state, Step::Make)?,
                LogState::Opening(_) | LogState::Creating(_) => self.opening_ended.wait(state),
                LogState::Refused(error) => return Err(error.clone()),
                LogState::Gone => return Err(StorageError::Gone),
                LogState::Open(_) => break,
            }
        }
        self.catch_up(state);
        match &mut state.log {
            LogState::Open(log) => Ok(log),
            _ => Err(StorageError::Gone),
        }
    }

    /// Returns the log and the high watermark, and opens the log if necessary. Blocks during the opening, but releases
    /// the lock. Returns `None` if no record was ever written.
    pub(crate) fn log_to_read<'a>(
        &self,
        state: &'a mut MutexGuard<'_, ReplicaState>,
    ) -> Result<Option<(&'a mut Log, i64)>, StorageError> {
        loop {
            match &state.log {
                LogState::Unopened => self.step(state, Step::Open)?,
                LogState::Opening(_) | LogState::Creating(_) => self.opening_ended.wait(state),
                _ => break,
            }
        }
        self.catch_up(state);
        let high_watermark = state.role.high_watermark();
        match &mut state.log {
            LogState::Open(log) => Ok(Some((log, high_watermark))),
            LogState::Refused(error) => Err(error.clone()),
            LogState::Gone => Err(StorageError::Gone),
            LogState::Absent | LogState::Unopened | LogState::Opening(_) | LogState::Creating(_) => Ok(None),
        }
    }

    /// Stops the opening or creation of the log by another thread, and waits until that thread has ended it.
    pub(crate) fn interrupt_opening(&self, state: &mut MutexGuard<'_, ReplicaState>) {
        while let LogState::Opening(stop) | LogState::Creating(stop) = &state.log {
            stop.store(true, Relaxed);
            self.opening_ended.wait(state)
        }
    }

    /// Stops the opening or creation of the log early. Does not wait until it has ended.
    pub(crate) fn hurry(&self) {
        if let LogState::Opening(stop) | LogState::Creating(stop) = &self.lock().log {
            stop.store(true, Relaxed);
        }
    }

    /// Replaces the state of the log and its phase, and returns the previous state.
    ///
    /// # Panics
    /// Panics if the new phase must not follow the previous one.
    pub(crate) fn put(&self, state: &mut ReplicaState, log: LogState) -> LogState {
        self.phase.change(state.log.phase(), log.phase());
        std::mem::replace(&mut state.log, log)
    }

    /// Opens or creates the log without holding the lock. A damaged log stays refused. After any other error, for
    /// example a lack of file descriptors, the next call tries again. Fails if the partition is being deleted, because
    /// the deletion would not wait for an opening that begins now.
    fn step(&self, state: &mut MutexGuard<'_, ReplicaState>, step: Step) -> Result<(), StorageError> {
        if self.phase().is_leaving() || self.log_dir.opener.is_stopping() {
            return Err(StorageError::Gone);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let under_way = match step {
            Step::Open => LogState::Opening(stop.clone()),
            Step::Make => LogState::Creating(stop.clone()),
        };
        let before = self.put(state, under_way);
        let known = state.known;
        let done = MutexGuard::unlocked(state, || {
            let work = AssertUnwindSafe(|| self.do_in_place(step, known, &stop));
            catch_unwind(work).unwrap_or_else(|_| {
                Err(StorageError::io(self.dir().as_ref(), io::Error::other("opening the log has panicked")))
            })
        });
        let outcome = match done {
            Ok(log) => {
                if let Some(log) = &log {
                    // Replace the role only if the log was opened. After a creation, the role may already have the
                    // positions of followers, which stay valid because the log is empty.
                    if matches!(step, Step::Open) {
                        state.role = self.role_over(log);
                    }
                    self.log_dir.checkpoints.note_recovered(self.key());
                }
                if known.rebooted {
                    self.log_dir.aside.look(&self.dir());
                }
                self.put(state, log.map_or(LogState::Absent, |log| LogState::Open(Box::new(log))));
                if matches!(step, Step::Open) {
                    state.note_opening(Ok(()), &self.log_dir);
                }
                Ok(())
            }
            // The thread that set `stop` is about to close the log, so the error is not logged.
            Err(_) if stop.load(Relaxed) => {
                self.put(state, before);
                Err(StorageError::Gone)
            }
            Err(error) => {
                // `check_failing` tries to open an unwritable partition every second, and an earlier try has logged the
                // error.
                if !state.is_unwritable() {
                    self.log_failure(&error);
                }
                if error.is_damage() {
                    state.failed = Some(self.log_dir.flusher.refused.mark());
                    self.put(state, LogState::Refused(error.clone()));
                } else {
                    self.put(state, before);
                }
                // Count only failed openings as failures of the partition. A creation fails if no file can be created
                // in the whole data directory.
                if matches!(step, Step::Open) {
                    state.note_opening(Err(&error), &self.log_dir);
                }
                state.open_failure = Some(Box::new((Instant::now(), error.clone())));
                Err(error)
            }
        };
        self.opening_ended.notify_all();
        self.waiters.wake();
        outcome
    }

    /// Logs why the log cannot be opened. Does not log a full disk, and limits the rate of lines about passing errors.
    fn log_failure(&self, error: &StorageError) {
        let left_out = match error {
            StorageError::Io { error, .. } if self.log_dir.space.note(error) => None,
            StorageError::Io { error, .. } if is_momentary(error) || self.log_dir.space.is_unwritable() => {
                self.log_dir.transient_read.due()
            }
            // The log is opened again at each change of the partition, until this replica has resigned.
            StorageError::EndLost { .. } => self.log_dir.transient_read.due(),
            _ => Some(0),
        };
        if let Some(left_out) = left_out {
            tracing::error!(topic = %self.topic(), partition = self.index(), %error, left_out, "cannot open a partition: its records are neither read nor written until it opens");
        }
    }

    /// Opens or creates the log. Checks before and afterwards that the data directory is still at its path. Otherwise,
    /// for example after its disk was unmounted, the log would seem to be empty, and a newly created log would be lost.
    fn do_in_place(&self, step: Step, known: RecoveryHint, stop: &AtomicBool) -> Result<Option<Log>, StorageError> {
        let data_dir = &self.log_dir.path;
        let check = || self.log_dir.space.check_place().map_err(|error| StorageError::io(data_dir.as_ref(), error));
        check()?;
        let log = match step {
            Step::Open => self.open_existing(known, stop)?,
            Step::Make => Some(self.make(stop)?),
        };
        check().map(|()| log)
    }

    /// Opens the log in the partition's directory. Returns `None` if the directory does not exist.
    fn open_existing(&self, known: RecoveryHint, stop: &AtomicBool) -> Result<Option<Log>, StorageError> {
        let dir = self.dir();
        self.clear_the_way(&dir, known)?;
        if !dir.try_exists().map_err(|error| StorageError::io(dir.as_ref(), error))? {
            self.check_end(&dir, 0)?;
            // The directory does not exist, so the checkpoints of this name belong to an older topic.
            self.log_dir.checkpoints.forget(self.key());
            return Ok(None);
        }
        let (is_complete, others_are) = self.complete_replicas();
        let may_have_gaps = self.registered().replicas.len() > 1;
        let known = RecoveryHint { may_have_gaps, others_are_complete: is_complete && others_are, ..known };
        let mut log = Log::open_unless(stop, &dir, known, now_ms(), &self.config())?;
        self.check_end(&dir, log.log_end())?;
        if log.is_blank() {
            // The log is blank if the broker was killed right after it created the directory. Such a log still lacks
            // the last sequences of the deleted partition's producers (*tails*).
            self.take_over_tails(&mut log);
        }
        // The checkpoints may lie beyond the log end, because this opening has truncated the log, or because the broker
        // was killed right after a truncation.
        self.log_dir.cleanings.cut_off(&self.key(), log.log_end());
        let lowered = self.log_dir.checkpoints.lower(&self.key(), log.log_end());
        lowered.map_err(|error| StorageError::io(dir.as_ref(), error))?;
        Ok(Some(log))
    }

    /// Returns true if the log, when it was opened, lacked committed records at its end that no other replica had
    /// either.
    pub fn lacks_committed(&self) -> bool {
        self.lacks_committed.load(Relaxed)
    }

    /// Returns whether this replica is in the ISR or ELR, and so counts as complete, and whether any other replica is.
    fn complete_replicas(&self) -> (bool, bool) {
        let (registered, own) = (self.registered(), self.log_dir.cluster.node_id);
        let mut complete = registered.isr.iter().chain(&registered.elr);
        (complete.clone().any(|id| *id == own), complete.any(|id| *id != own))
    }

    /// Checks whether the log ends below the checkpointed high watermark, for example because an old copy of its
    /// directory was restored. If this broker led with such a log, the other replicas would truncate the records that
    /// it lacks. So the log is refused if another replica in the ISR or ELR has these records. The log is used as it is
    /// if there is no such replica, or if this broker is in neither the ISR nor the ELR.
    fn check_end(&self, dir: &Path, log_end: i64) -> Result<(), StorageError> {
        let high_watermark = self.log_dir.checkpoints.high_watermark(&self.key());
        if log_end >= high_watermark {
            return Ok(());
        }
        let (is_whole, do_others_have_it) = self.complete_replicas();
        if is_whole && do_others_have_it {
            return Err(StorageError::EndMissing { path: dir.to_owned(), log_end, high_watermark });
        }
        if is_whole {
            self.lacks_committed.store(true, Relaxed);
            tracing::error!(dir = %dir.display(), log_end, high_watermark, "committed records are missing at the end of a log; no other replica has them");
        }
        Ok(())
    }

    /// Creates the directory and an empty log in it.
    fn make(&self, stop: &AtomicBool) -> Result<Log, StorageError> {
        let dir = self.dir();
        self.clear_the_way(&dir, RecoveryHint::NOTHING)?;
        let made = self.log_dir.checkpoints.purge(&self.key());
        let made = made.and_then(|()| self.log_dir.cleanings.purge(&self.key()));
        let made = made.and_then(|()| make_dir(&dir));
        let made = made.and_then(|()| files::write_topic_id(&dir, self.topic_id()));
        made.map_err(|error| {
            // Do not leave a directory that has no topic id. `remove_dir` fails if the directory is not empty.
            let _ = std::fs::remove_dir(&dir);
            StorageError::io(dir.as_ref(), error)
        })?;
        let mut log = Log::open_unless(stop, &dir, RecoveryHint::NOTHING, now_ms(), &self.config())?;
        self.take_over_tails(&mut log);
        Ok(log)
    }

    /// Adds to the log the last sequences of the deleted predecessor's producers, so that these producers can continue.
    /// See [`fullbore_rules::sequence::ProducerTails`].
    fn take_over_tails(&self, log: &mut Log) {
        let tails = self
            .log_dir
            .carried_tails
            .take(&self.key(), self.past.as_deref().copied())
            .of_ids_below(self.producer_ids_below);
        if let Err(error) = log.succeed(tails, now_ms()) {
            tracing::warn!(
                dir = %self.dir().display(),
                %error,
                "cannot write the producer state of a deleted partition: a restart before the next snapshot forgets \
                 these producers"
            );
        }
    }

    /// Creates the log of a new partition at once if its deleted predecessor has left the last sequences of its
    /// producers (*tails*). The tails are then on the disk before the first record. Returns false if the log could not
    /// be created.
    fn keep_tails(&self) -> bool {
        self.retire_name_holders();
        if !self.log_dir.carried_tails.has(&self.key()) {
            return true;
        }
        let mut state = self.lock();
        match &state.log {
            LogState::Absent => self.step(&mut state, Step::Make).is_ok(),
            _ => true,
        }
    }

    /// Makes the directory's name available to this partition. Retires older partitions that used the name, and renames
    /// the directory of any other topic.
    fn clear_the_way(&self, dir: &Path, known: RecoveryHint) -> Result<(), StorageError> {
        self.retire_name_holders();
        self.log_dir.retire_leftover(&self.key()).map_err(|error| StorageError::io(dir, error))?;
        self.set_stray_aside(dir, known)
    }

    /// Renames the partition's directory if it belongs to another topic. Does not remove it, since its records may
    /// still be needed.
    ///
    /// # Errors
    /// Fails with [`StorageError::TopicUnknown`] if the directory has records but no topic id. After a power loss,
    /// renames such a directory instead if none of its records was flushed.
    fn set_stray_aside(&self, dir: &Path, known: RecoveryHint) -> Result<(), StorageError> {
        let failed = |error| StorageError::io(dir, error);
        let stored = files::read_topic_id(dir).map_err(failed)?;
        let why = match stored {
            StoredTopicId::Known(topic_id) if topic_id == self.topic_id() => return Ok(()),
            StoredTopicId::Known(topic_id) => {
                let aside = self.rename_as_stray(dir, u128::from_be_bytes(topic_id.0)).map_err(failed)?;
                tracing::warn!(dir = %dir.display(), aside = %aside.display(), "set aside the directory of another topic");
                return Ok(());
            }
            StoredTopicId::Missing => "the file is missing",
            StoredTopicId::Empty => "the file is empty",
            StoredTopicId::Garbage => "the file has no topic id",
        };
        if !dir.try_exists().map_err(failed)? {
            return Ok(());
        }
        if !files::had_records(dir).map_err(failed)? {
            // The directory has neither records nor a topic id, because the broker crashed while it created this
            // partition, for example.
            return files::write_topic_id(dir, self.topic_id()).map_err(failed);
        }
        // The topic id is written to the disk with the first flush, so a power loss before that flush may lose the id.
        if known.rebooted && known.recovery_point == 0 {
            let aside = self.rename_as_stray(dir, unique_now()).map_err(failed)?;
            tracing::warn!(
                dir = %dir.display(),
                aside = %aside.display(),
                "set aside a directory without a topic id: a power loss took the id before the partition's first flush"
            );
            return Ok(());
        }
        Err(StorageError::TopicUnknown { path: files::topic_id_path(dir), why, topic_id: self.topic_id() })
    }

    /// Renames the partition's directory, so that this partition does not use it, and returns the new path.
    pub(super) fn rename_as_stray(&self, dir: &Path, unique: u128) -> io::Result<PathBuf> {
        let aside = files::retired_dir(&self.log_dir.path, self.topic(), self.index(), unique, "stray");
        std::fs::rename(dir, &aside)?;
        Ok(aside)
    }
}

/// Creates the directory of a partition, unless it exists. Does not create the data directory.
fn make_dir(dir: &Path) -> io::Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made,
    }
}

/// Returns the present time in ms, as a number that distinguishes renamed directories without a topic id.
pub(super) fn unique_now() -> u128 {
    u128::from(now_ms().unsigned_abs())
}

impl Replica {
    /// Opens the log, unless it is open or another thread is opening it. Logs a failure and reports it to the waiters.
    /// Returns false if the log could not be opened. Also returns false if the partition inherits the last sequences of
    /// producers, but its log could not be created.
    pub(super) fn open_now(&self) -> bool {
        let mut state = self.lock();
        if matches!(state.log, LogState::Unopened) && self.step(&mut state, Step::Open).is_err() {
            return false;
        }
        match &state.log {
            LogState::Refused(_) => false,
            LogState::Absent => {
                drop(state);
                self.keep_tails()
            }
            LogState::Unopened | LogState::Opening(_) | LogState::Creating(_) | LogState::Open(_) | LogState::Gone => {
                true
            }
        }
    }

    /// Opens the log, or waits until another thread has opened it. The recovery has ended when this function returns.
    /// Returns false in the same cases as [`Replica::open_now`].
    pub(super) fn recover_now(&self) -> bool {
        let mut state = self.lock();
        while matches!(state.log, LogState::Opening(_) | LogState::Creating(_)) {
            self.opening_ended.wait(&mut state);
        }
        drop(state);
        self.open_now()
    }
}
