//! One partition of a topic on its leader: the log under a lock, its settings, and who waits for it.
//!
//! What it is not: open. A partition costs a few hundred bytes until it is first used; then its folder
//! is read, and a folder and files are made when something is to be written.
//!
//! Lock: `state` owns everything that changes. Fetches read files without it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fullbore_rules::sequence::ProducerState;
use fullbore_wire::batch::BatchView;
use fullbore_wire::{Records, Uuid};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::answer::{AppendError, Appended, EpochEnd, FlushTicket, Offsets, Read, ReadError, StorageError};
use super::failures::{Failures, Mark};
use super::files::{self, partition_dir};
use super::flusher::Flusher;
use super::log::{Log, Outcome};
use super::lookup::Slice;
use super::parking::Parked;
use super::recovery::Known;
use super::waiters::{Registration, Waiters};
use crate::config::{TimestampType, TopicConfig};

/// Times a read is planned anew when retention or compaction takes an index file away under it.
const PLANS_MAX: usize = 8;

/// One partition. All calls may block on the disk, the first one for as long as a recovery takes.
#[derive(Debug)]
pub struct Partition {
    topic: Arc<str>,
    topic_id: Uuid,
    index: i32,
    data_dir: Arc<Path>,
    pub(super) flusher: Arc<Flusher>,
    pub(super) state: Mutex<State>,
    waiters: Arc<Waiters>,
}

/// What the lock protects.
#[derive(Debug)]
pub(super) struct State {
    pub config: Arc<TopicConfig>,
    /// What is known of the log without opening it.
    pub known: Known,
    pub log: LogState,
    /// Batches that came before their turn, if there are any.
    pub parked: Option<Box<Parked>>,
    leader_epoch: i32,
    /// Whether the partition stands in the flusher's queue or is being flushed.
    pub flush_queued: bool,
    /// Whether a flush was asked for that has not begun, and whether of the active segment, too.
    pub flush_wanted: bool,
    pub flush_active: bool,
    /// Whether the flusher will look at it when flush.ms has passed.
    pub flush_timed: bool,
    /// Whether it will, because a flush could not open what it needed.
    pub flush_again: bool,
    /// Counts a broken or refused log among the partitions out of service.
    failed: Option<Mark>,
}

impl State {
    /// To be called after what may have broken the log.
    pub fn mark_if_broken(&mut self, failures: &Failures) {
        let is_broken = matches!(&self.log, LogState::Open(log) if log.broken);
        if is_broken && self.failed.is_none() {
            self.failed = Some(failures.mark());
        }
    }
}

/// How far the log is there.
#[derive(Debug)]
pub(super) enum LogState {
    /// Not looked at since the start.
    Unopened,
    /// Nothing was ever written.
    Absent,
    Open(Box<Log>),
    /// Its files cannot be used until someone repairs them.
    Refused(StorageError),
    /// Deleted, or the broker is stopping.
    Gone,
}

impl Partition {
    pub(super) fn new(
        topic: Arc<str>,
        topic_id: Uuid,
        index: i32,
        data_dir: Arc<Path>,
        flusher: Arc<Flusher>,
        config: Arc<TopicConfig>,
        known: Known,
    ) -> Partition {
        let state = State {
            config,
            known,
            log: LogState::Unopened,
            parked: None,
            leader_epoch: 0,
            flush_queued: false,
            flush_wanted: false,
            flush_active: false,
            flush_timed: false,
            flush_again: false,
            failed: None,
        };
        Partition { topic, topic_id, index, data_dir, flusher, state: Mutex::new(state), waiters: Arc::default() }
    }

    /// The topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    pub(super) fn topic_name(&self) -> Arc<str> {
        self.topic.clone()
    }

    /// The topic's id.
    pub fn topic_id(&self) -> Uuid {
        self.topic_id
    }

    /// The partition's number.
    pub fn index(&self) -> i32 {
        self.index
    }

    /// The settings in force.
    pub fn config(&self) -> Arc<TopicConfig> {
        self.state.lock().config.clone()
    }

    /// Puts new settings in force, from the next append on.
    pub fn set_config(&self, config: Arc<TopicConfig>) {
        self.state.lock().config = config;
    }

    /// The epoch stamped on batches; 0 at first.
    pub fn leader_epoch(&self) -> i32 {
        self.state.lock().leader_epoch
    }

    /// The epoch stamped on batches from now on.
    pub fn set_leader_epoch(&self, leader_epoch: i32) {
        self.state.lock().leader_epoch = leader_epoch;
    }

    /// Appends one batch, or finds it appended. The caller has checked the batch's checksum, and its
    /// records as far as it wants; sizes, counts, timestamps and the sequence are checked here.
    ///
    /// # Errors
    /// [`AppendError`]; the log is then as it was before.
    pub fn append(self: &Arc<Self>, batch: BatchView<'_>, now_ms: i64) -> Result<Appended, AppendError> {
        let mut state = self.state.lock();
        self.log_to_write(&mut state, now_ms)?;
        self.append_locked(state, batch, now_ms)
    }

    /// Appends one batch to the open log, and what is parked behind it.
    pub(super) fn append_locked(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        batch: BatchView<'_>,
        now_ms: i64,
    ) -> Result<Appended, AppendError> {
        let result = self.append_one(&mut state, &batch, now_ms);
        if state.parked.is_some() {
            self.settle_parked(&mut state, &batch, result.as_ref().err().copied(), now_ms);
        }
        drop(state);
        let (appended, is_duplicate) = result?;
        if !is_duplicate {
            self.waiters.wake();
        }
        Ok(appended)
    }

    /// Appends one batch to the open log, or finds it appended, which is then said.
    pub(super) fn append_one(
        self: &Arc<Self>,
        state: &mut State,
        batch: &BatchView<'_>,
        now_ms: i64,
    ) -> Result<(Appended, bool), AppendError> {
        let leader_epoch = state.leader_epoch;
        let config = state.config.clone();
        let LogState::Open(log) = &mut state.log else { return Err(AppendError::Gone) };
        log.idle_rounds = 0;
        let space = &self.flusher.space;
        let Some(_admission) = space.admit() else { return Err(AppendError::Full) };
        let outcome = match log.append(batch, leader_epoch, now_ms, &config) {
            Ok(outcome) => outcome,
            Err(error) => {
                if error == AppendError::Full {
                    space.note_full();
                }
                state.mark_if_broken(&self.flusher.failures);
                return Err(error);
            }
        };
        let log_start_offset = log.log_start;
        if log.written.is_ready() {
            self.flusher.page_cache.take(&mut log.written);
        }
        let durable = self.flush_after(state, &outcome, &config);
        let appended = Appended {
            base_offset: outcome.base_offset,
            log_append_time_ms: match config.message_timestamp_type {
                TimestampType::CreateTime => -1,
                TimestampType::LogAppendTime => outcome.timestamp,
            },
            log_start_offset,
            batches_retained: config.producer_state_batches_to_retain,
            durable,
        };
        Ok((appended, outcome.is_duplicate))
    }

    /// Asks for the flushes the topic wants; a ticket if the answer is to wait for one.
    fn flush_after(
        self: &Arc<Self>,
        state: &mut State,
        outcome: &Outcome,
        config: &TopicConfig,
    ) -> Option<FlushTicket> {
        let LogState::Open(log) = &mut state.log else {
            return None;
        };
        let unflushed = (log.log_end - log.recovery_point).max(0) as u64;
        let due = config.flush_messages.is_some_and(|most| unflushed >= most) || config.flush_ms == Some(0);
        let ticket = (due && outcome.end_offset > log.recovery_point)
            .then(|| FlushTicket { upto: outcome.end_offset, flushed: log.subscribe() });
        if ticket.is_some() || outcome.rolled {
            self.flusher.enqueue(self, state, ticket.is_some());
        }
        if let Some(flush_ms) = config.flush_ms.filter(|_| ticket.is_none() && !outcome.is_duplicate)
            && !std::mem::replace(&mut state.flush_timed, true)
        {
            self.flusher.enqueue_after(self, Duration::from_millis(flush_ms));
        }
        ticket
    }

    /// Batches from the one with `offset` on, up to the high watermark and about `max_bytes`. Over that, the
    /// last batch is cut; with `at_least_one` the first is whole whatever its size, without it there may be
    /// nothing. No records at the log end.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read(&self, offset: i64, max_bytes: u32, at_least_one: bool) -> Result<Read, ReadError> {
        let (mut plans, mut from) = (0, offset);
        loop {
            let mut state = self.state.lock();
            let log = match self.log_to_read(&mut state)? {
                Some(log) => log,
                None if offset == 0 => return Ok(empty_read()),
                None => return Err(ReadError::OffsetOutOfRange),
            };
            if offset < log.log_start || offset > log.log_end {
                return Err(ReadError::OffsetOutOfRange);
            }
            let mut read = Read {
                records: Records::default(),
                high_watermark: log.high_watermark,
                last_stable_offset: log.high_watermark,
                log_start_offset: log.log_start,
            };
            // Past a hole that compaction has left, the log may have gone on.
            from = from.max(log.log_start);
            if from >= log.high_watermark {
                return Ok(read);
            }
            log.idle_rounds = 0;
            let plan = log.plan_read(from, max_bytes).map_err(|error| self.read_failed(&error))?;
            drop(state);
            plans += 1;
            let slice = plan.read(max_bytes, at_least_one);
            if plan.is_stale() && plans < PLANS_MAX {
                continue;
            }
            match slice {
                Ok(Slice::Of(slice)) => {
                    read.records = Records::File(slice);
                    return Ok(read);
                }
                Ok(Slice::TooLarge) => return Ok(read),
                Ok(Slice::Hole) => (plans, from) = (0, plan.end_offset),
                Err(error) if error.kind() == io::ErrorKind::NotFound && plans < PLANS_MAX => {}
                Err(error) => return Err(self.read_failed(&error)),
            }
        }
    }

    pub(super) fn read_failed(&self, error: &io::Error) -> ReadError {
        tracing::error!(topic = %self.topic, partition = self.index, %error, "read failed");
        ReadError::Storage
    }

    /// Log start, high watermark and log end.
    ///
    /// # Errors
    /// [`ReadError`], when the log has to be opened and cannot.
    pub fn offsets(&self) -> Result<Offsets, ReadError> {
        let mut state = self.state.lock();
        Ok(match self.log_to_read(&mut state)? {
            Some(log) => Offsets { log_start: log.log_start, high_watermark: log.high_watermark, log_end: log.log_end },
            None => Offsets { log_start: 0, high_watermark: 0, log_end: 0 },
        })
    }

    /// Where the log of a leader epoch ends (KIP-101), or of the largest known one before it.
    ///
    /// # Errors
    /// [`ReadError`], when the log has to be opened and cannot.
    pub fn epoch_end_offset(&self, leader_epoch: i32) -> Result<EpochEnd, ReadError> {
        let mut state = self.state.lock();
        let current = state.leader_epoch;
        Ok(match self.log_to_read(&mut state)? {
            Some(log) => log.epochs.end_of(leader_epoch, current, log.log_end),
            None if leader_epoch == current => EpochEnd { leader_epoch, end_offset: 0 },
            None => EpochEnd { leader_epoch: -1, end_offset: -1 },
        })
    }

    /// Moves the log start to `offset`, or to the high watermark for -1; the log start then. Records before it
    /// are gone for readers at once, their segments with the next retention, or on a full disk before the rest is done. [`Logs::keep_log_starts`](super::Logs::keep_log_starts)
    /// has the log start on the disk.
    ///
    /// # Errors
    /// [`ReadError::OffsetOutOfRange`] past the high watermark.
    pub fn delete_records_before(&self, offset: i64) -> Result<i64, ReadError> {
        let mut state = self.state.lock();
        let Some(log) = self.log_to_read(&mut state)? else {
            return if offset <= 0 { Ok(0) } else { Err(ReadError::OffsetOutOfRange) };
        };
        let offset = if offset == -1 { log.high_watermark } else { offset };
        if offset < 0 || offset > log.high_watermark {
            return Err(ReadError::OffsetOutOfRange);
        }
        let deleted = log.delete_before(offset, super::now_ms(), &self.flusher.space);
        deleted.map_err(|error| self.read_failed(&error))?;
        Ok(log.log_start)
    }

    /// What is known of each idempotent producer, the longest idle first.
    ///
    /// # Errors
    /// [`ReadError`], when the log has to be opened and cannot.
    pub fn producers(&self) -> Result<Vec<ProducerState>, ReadError> {
        let mut state = self.state.lock();
        Ok(self.log_to_read(&mut state)?.map_or_else(Vec::new, |log| log.producers.iter().collect()))
    }

    /// Bytes of its segments. A log that is not open stays so.
    ///
    /// # Errors
    /// What the system says of the folder.
    pub fn size(&self) -> io::Result<u64> {
        match &self.state.lock().log {
            LogState::Open(log) => Ok(log.segments.iter().map(|segment| segment.size).sum()),
            LogState::Absent | LogState::Gone => Ok(0),
            LogState::Unopened | LogState::Refused(_) => files::segments_size(&self.dir()),
        }
    }

    /// Wakes `waiter` each time the high watermark moves, and when the partition goes, until the
    /// registration is dropped. Register, then look, then wait.
    pub fn register(&self, waiter: &Arc<Notify>) -> Registration {
        Registration::new(&self.waiters, waiter)
    }

    /// The partition's folder.
    pub(super) fn dir(&self) -> Arc<Path> {
        partition_dir(&self.data_dir, &self.topic, self.index).into()
    }

    /// The log, opened or made when it is not there.
    pub(super) fn log_to_write<'a>(
        &self,
        state: &'a mut MutexGuard<'_, State>,
        now_ms: i64,
    ) -> Result<&'a mut Log, StorageError> {
        if matches!(state.log, LogState::Unopened) {
            self.open(state)?;
        }
        if matches!(state.log, LogState::Absent) {
            let dir = self.dir();
            let made = std::fs::create_dir_all(&dir).and_then(|()| files::write_topic_id(&dir, self.topic_id));
            made.map_err(|error| {
                // Half made, it would have to be written to before it can be read. Only an empty one goes.
                let _ = std::fs::remove_dir(&dir);
                self.failed(StorageError::io(dir.as_ref(), error))
            })?;
            let log = Log::open(&dir, state.known, now_ms, &state.config).map_err(|error| self.failed(error))?;
            state.log = LogState::Open(Box::new(log));
        }
        match &mut state.log {
            LogState::Open(log) => Ok(log),
            LogState::Refused(error) => Err(error.clone()),
            _ => Err(StorageError::Gone),
        }
    }

    /// The log, opened when it is not; `None` if nothing was ever written.
    pub(super) fn log_to_read<'a>(
        &self,
        state: &'a mut MutexGuard<'_, State>,
    ) -> Result<Option<&'a mut Log>, StorageError> {
        if matches!(state.log, LogState::Unopened) {
            self.open(state)?;
        }
        match &mut state.log {
            LogState::Open(log) => Ok(Some(log)),
            LogState::Refused(error) => Err(error.clone()),
            LogState::Gone => Err(StorageError::Gone),
            LogState::Absent | LogState::Unopened => Ok(None),
        }
    }

    /// Opens what is on the disk. Corruption is remembered; what may pass, like a lack of descriptors, is
    /// tried again with the next call.
    pub(super) fn open(&self, state: &mut MutexGuard<'_, State>) -> Result<(), StorageError> {
        let dir = self.dir();
        self.set_stray_aside(&dir).map_err(|error| self.failed(StorageError::io(dir.as_ref(), error)))?;
        if !dir.is_dir() {
            // What the checkpoints say is then of an older topic with this name.
            state.known = Known::NOTHING;
            state.log = LogState::Absent;
            return Ok(());
        }
        match Log::open(&dir, state.known, super::now_ms(), &state.config) {
            Ok(log) => {
                state.log = LogState::Open(Box::new(log));
                Ok(())
            }
            Err(error) => {
                if matches!(error, StorageError::Corrupt { .. }) {
                    state.log = LogState::Refused(error.clone());
                    state.failed = Some(self.flusher.refused.mark());
                }
                Err(self.failed(error))
            }
        }
    }

    /// Moves a folder away that belongs to another topic of the same name, or has records and does not say whose. It
    /// is kept: whether its records are still wanted is not to be guessed.
    fn set_stray_aside(&self, dir: &Path) -> io::Result<()> {
        let unique = match files::read_topic_id(dir) {
            Some(topic_id) if topic_id == self.topic_id => return Ok(()),
            Some(topic_id) => u128::from_be_bytes(topic_id.0),
            None if !dir.is_dir() => return Ok(()),
            // What a crash leaves of a partition that was just being made.
            None if !files::has_records(dir)? => return files::write_topic_id(dir, self.topic_id),
            // Told apart by when it was set aside.
            None => u128::from(super::now_ms().unsigned_abs()),
        };
        let aside = files::retired_dir(&self.data_dir, &self.topic, self.index, unique, "stray");
        tracing::warn!(dir = %dir.display(), aside = %aside.display(), "folder of another topic set aside");
        std::fs::rename(dir, aside)
    }

    fn failed(&self, error: StorageError) -> StorageError {
        if matches!(&error, StorageError::Io { error, .. } if self.flusher.space.note(error)) {
            return error;
        }
        tracing::error!(topic = %self.topic, partition = self.index, %error, "partition cannot be opened");
        error
    }

    /// Takes the partition out of service and gives back the log, if it was open. `why` is what parked batches are
    /// answered with.
    pub(super) fn leave(&self, why: AppendError) -> Option<Box<Log>> {
        let mut state = self.state.lock();
        let left = std::mem::replace(&mut state.log, LogState::Gone);
        state.failed = None;
        let parked = state.parked.take();
        drop(state);
        if let Some(parked) = parked {
            parked.refuse(why);
        }
        self.waiters.wake();
        match left {
            LogState::Open(log) => Some(log),
            _ => None,
        }
    }
}

/// Of a partition that was never written.
fn empty_read() -> Read {
    Read { records: Records::default(), high_watermark: 0, last_stable_offset: 0, log_start_offset: 0 }
}

impl From<StorageError> for AppendError {
    fn from(error: StorageError) -> Self {
        AppendError::from(&error)
    }
}

impl From<StorageError> for ReadError {
    fn from(error: StorageError) -> Self {
        ReadError::from(&error)
    }
}
