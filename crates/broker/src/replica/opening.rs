//! Opening of a partition's log: a state that callers wait for, and during which no thread holds the partition's lock.
//!
//! Not here: what is read or repaired
//! ([`fullbore_log::recovery`]), and the threads that open ([`super::data_dir::opener`]). Requests queue the opening
//! and wait asynchronously ([`Replica::opened`]). Background threads open logs themselves.
//!
//! Invariant: one thread at a time opens or creates a partition's log, and only that thread ends the phase
//! `Opening` or `Creating`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
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
use fullbore_log::files;
use fullbore_log::recovery::RecoveryHint;

/// Kind of work at a partition's directory.
#[derive(Clone, Copy)]
enum Step {
    /// Opening of the log, if its directory exists.
    Open,
    /// Creation of the log.
    Make,
}

impl Replica {
    /// Refuses a use of the log that would wait for a recovery.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER while the log is being opened, while its opening is queued, and once the broker stops;
    /// KAFKA_STORAGE_ERROR if no opening is queued.
    pub fn check_usable(&self) -> Result<(), ErrorCode> {
        if self.phase().is_usable() {
            return Ok(());
        }
        if self.asked.is_by_somebody() || self.log_dir.opener.is_stopping() {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        // Not queued: a thread may have taken the request off the queue. Such a thread changes the phase under the
        // lock.
        match self.lock().log.phase() {
            Phase::Unopened => Err(ErrorCode::KAFKA_STORAGE_ERROR),
            Phase::Opening => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
            Phase::Creating | Phase::Absent | Phase::Open | Phase::Refused | Phase::Gone => Ok(()),
        }
    }

    /// Queues the opening of the log. The end of the opening wakes the waiters.
    pub fn ask_to_open(self: &Arc<Self>) {
        if !self.phase().is_settled() {
            self.log_dir.opener.ask(self);
        }
    }

    /// Returns the error of the last opening if it failed at `time` or later; otherwise `None`. A caller that has
    /// waited since `time` returns this error instead of requesting another opening.
    pub fn open_failure_since(&self, time: Instant) -> Option<StorageError> {
        let state = self.lock();
        state.open_failure.as_deref().filter(|(at, _)| *at >= time).map(|(_, error)| error.clone())
    }

    /// Waits asynchronously until the log is open, absent, damaged or gone.
    ///
    /// # Errors
    /// Error of the failed opening; the next call requests another opening. [`StorageError::Gone`] once the broker
    /// stops.
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
            self.ask_to_open();
            tokio::select! {
                () = waiter.notified() => {}
                _ = stopping.wait_for(|stopping| *stopping) => return Err(StorageError::Gone),
            }
        }
    }

    /// Returns the log, opened or created if necessary. Blocks during that, with the lock released.
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

    /// Returns the log, opened if necessary, and the high watermark; `None` if nothing was ever written. Blocks during
    /// the opening, with the lock released.
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

    /// Requests the thread that opens or creates the log to end early, and waits until it has.
    pub(crate) fn interrupt_opening(&self, state: &mut MutexGuard<'_, ReplicaState>) {
        while let LogState::Opening(stop) | LogState::Creating(stop) = &state.log {
            stop.store(true, Relaxed);
            self.opening_ended.wait(state)
        }
    }

    /// Requests the thread that opens or creates the log to end early.
    pub(crate) fn hurry(&self) {
        if let LogState::Opening(stop) | LogState::Creating(stop) = &self.lock().log {
            stop.store(true, Relaxed);
        }
    }

    /// Replaces the state of the log, and with it the phase. Returns the previous state.
    ///
    /// # Panics
    /// If the previous phase may not become the new one.
    pub(crate) fn put(&self, state: &mut ReplicaState, log: LogState) -> LogState {
        self.phase.change(state.log.phase(), log.phase());
        std::mem::replace(&mut state.log, log)
    }

    /// Opens or creates the log without holding the lock. A damaged log stays refused. After any other error, such as a
    /// lack of descriptors, the next call repeats the work. Refuses a partition that is leaving, because its deletion
    /// waits for openings only once.
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
            let work = AssertUnwindSafe(|| match step {
                Step::Open => self.open_existing(known, &stop),
                Step::Make => self.make(&stop).map(Some),
            });
            catch_unwind(work).unwrap_or_else(|_| {
                Err(StorageError::io(self.dir().as_ref(), io::Error::other("opening the log has panicked")))
            })
        });
        let outcome = match done {
            Ok(log) => {
                if let Some(log) = &log {
                    // A created log is empty and keeps the role: a leader may already know its followers' positions.
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
            // The thread that set `stop` takes the log out of use, so the error is not logged.
            Err(_) if stop.load(Relaxed) => {
                self.put(state, before);
                Err(StorageError::Gone)
            }
            Err(error) => {
                // `check_failing` requests the opening of an unwritable partition each second, and the error is logged
                // already.
                if !state.is_unwritable() {
                    self.tell(&error);
                }
                if matches!(error, StorageError::Corrupt { .. } | StorageError::Gap { .. }) {
                    state.failed = Some(self.log_dir.flusher.refused.mark());
                    self.put(state, LogState::Refused(error.clone()));
                } else {
                    self.put(state, before);
                }
                // Only openings count: a creation fails if the data directory takes no files, which is not the
                // partition's failure.
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

    /// Logs why the log cannot be opened. A full disk is logged elsewhere; passing errors are rate-limited.
    fn tell(&self, error: &StorageError) {
        let left_out = match error {
            StorageError::Io { error, .. } if self.log_dir.space.note(error) => None,
            StorageError::Io { error, .. } if is_momentary(error) => self.log_dir.transient_read.due(),
            _ => Some(0),
        };
        if let Some(left_out) = left_out {
            tracing::error!(topic = %self.topic(), partition = self.index(), %error, left_out, "cannot open a partition: its records are neither read nor written until it opens");
        }
    }

    /// Opens the log in the partition's directory; `None` if there is no directory.
    fn open_existing(&self, known: RecoveryHint, stop: &AtomicBool) -> Result<Option<Log>, StorageError> {
        let dir = self.dir();
        self.clear_the_way(&dir)?;
        if !dir.try_exists().map_err(|error| StorageError::io(dir.as_ref(), error))? {
            self.check_end(&dir, 0)?;
            // Without a directory, checkpoints under this name belong to an older topic.
            self.log_dir.checkpoints.forget(self.key());
            return Ok(None);
        }
        let known = RecoveryHint { may_have_gaps: self.registered().replicas.len() > 1, ..known };
        let mut log = Log::open_unless(stop, &dir, known, now_ms(), &self.config())?;
        self.check_end(&dir, log.log_end())?;
        if log.is_blank() {
            // A kill right after the creation of the directory may have prevented the takeover of the tails.
            self.take_over_tails(&mut log);
        }
        // The checkpoints may be past the log end: after a kill right after a truncation, or if this opening has
        // truncated.
        self.log_dir.cleanings.cut_off(&self.key(), log.log_end());
        let lowered = self.log_dir.checkpoints.lower(&self.key(), log.log_end());
        lowered.map_err(|error| StorageError::io(dir.as_ref(), error))?;
        Ok(Some(log))
    }

    /// Returns true if the log lacked committed records at its end when it was opened, and no other replica had them.
    pub fn lacks_committed(&self) -> bool {
        self.lacks_committed.load(Relaxed)
    }

    /// Refuses a log that ends below the checkpointed high watermark, for example because an older copy of its
    /// directory was restored. Another replica in the ISR or ELR has the missing committed records. If this broker led,
    /// that replica would be truncated to this log. If there is no such replica, or this broker is in neither ISR nor
    /// ELR, the log is used as it is.
    fn check_end(&self, dir: &Path, log_end: i64) -> Result<(), StorageError> {
        let (key, own) = (self.key(), self.log_dir.cluster.node_id);
        let high_watermark = self.log_dir.checkpoints.high_watermark(&key);
        if log_end >= high_watermark {
            return Ok(());
        }
        let registered = self.registered();
        let mut whole = registered.isr.iter().chain(&registered.elr);
        let (is_whole, do_others_have_it) = (whole.clone().any(|id| *id == own), whole.any(|id| *id != own));
        if is_whole && do_others_have_it {
            return Err(StorageError::EndMissing { path: dir.to_owned(), log_end, high_watermark });
        }
        if is_whole {
            self.lacks_committed.store(true, Relaxed);
            tracing::error!(dir = %dir.display(), log_end, high_watermark, "committed records are missing at the end of a log; no other replica has them");
        }
        Ok(())
    }

    /// Creates the directory, and in it an empty log.
    fn make(&self, stop: &AtomicBool) -> Result<Log, StorageError> {
        let dir = self.dir();
        self.clear_the_way(&dir)?;
        let made = self.log_dir.checkpoints.purge(&self.key());
        let made = made.and_then(|()| self.log_dir.cleanings.purge(&self.key()));
        let made = made.and_then(|()| std::fs::create_dir_all(&dir));
        let made = made.and_then(|()| files::write_topic_id(&dir, self.topic_id()));
        made.map_err(|error| {
            // A directory without a topic id could not be read before a write completes it. `remove_dir` only removes
            // an empty directory.
            let _ = std::fs::remove_dir(&dir);
            StorageError::io(dir.as_ref(), error)
        })?;
        let mut log = Log::open_unless(stop, &dir, RecoveryHint::NOTHING, now_ms(), &self.config())?;
        self.take_over_tails(&mut log);
        Ok(log)
    }

    /// Carries the tails of the deleted partition of this name over to the log, so that its producers can continue.
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
                "cannot write the producer state of a deleted partition: a restart before the next snapshot forgets it"
            );
        }
    }

    /// Creates the log of a new partition if a deleted partition of its name has left tails. The tails are then in the
    /// directory before the first record. Returns false if the creation failed.
    fn keep_tails(&self) -> bool {
        self.retire_predecessors();
        if !self.log_dir.carried_tails.has(&self.key()) {
            return true;
        }
        let mut state = self.lock();
        match &state.log {
            LogState::Absent => self.step(&mut state, Step::Make).is_ok(),
            _ => true,
        }
    }

    /// Frees the name of the partition's directory: retires older partitions of the name, and sets any other topic's
    /// directory aside.
    fn clear_the_way(&self, dir: &Path) -> Result<(), StorageError> {
        self.retire_predecessors();
        self.log_dir.retire_leftover(&self.key()).map_err(|error| StorageError::io(dir, error))?;
        self.set_stray_aside(dir).map_err(|error| StorageError::io(dir, error))
    }

    /// Renames a directory that belongs to another topic of the same name, or has records and no topic id. The
    /// directory is kept, since its records may still be wanted.
    fn set_stray_aside(&self, dir: &Path) -> io::Result<()> {
        let unique = match files::read_topic_id(dir)? {
            Some(topic_id) if topic_id == self.topic_id() => return Ok(()),
            Some(topic_id) => u128::from_be_bytes(topic_id.0),
            None if !dir.try_exists()? => return Ok(()),
            // A crash during the creation of this partition leaves such a directory.
            None if !files::has_records(dir)? => return files::write_topic_id(dir, self.topic_id()),
            // The time distinguishes several directories without a topic id.
            None => u128::from(now_ms().unsigned_abs()),
        };
        let aside = files::retired_dir(&self.log_dir.path, self.topic(), self.index(), unique, "stray");
        std::fs::rename(dir, &aside)?;
        tracing::warn!(dir = %dir.display(), aside = %aside.display(), "set aside the directory of another topic");
        Ok(())
    }
}

impl Replica {
    /// Opens the log, unless it is open or another thread is opening it. Logs a failure and returns it to the waiters.
    /// Returns false if the log could not be opened, or not be created for the tails of a deleted partition.
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

    /// Opens the log, or waits for the thread that is opening it, so that the recovery is over on return. Returns false
    /// as [`Replica::open_now`] does.
    pub(super) fn recover_now(&self) -> bool {
        let mut state = self.lock();
        while matches!(state.log, LogState::Opening(_) | LogState::Creating(_)) {
            self.opening_ended.wait(&mut state);
        }
        drop(state);
        self.open_now()
    }
}
