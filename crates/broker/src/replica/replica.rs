//! One partition of a topic on its leader: the log under a lock, its settings, and who waits for it.
//!
//! What it is not: open. A partition costs a few hundred bytes until it is first used; then its folder
//! is read, and a folder and files are made when something is to be written.
//!
//! Lock: `state` owns everything that changes. Fetches read files without it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use fullbore_rules::replica::{self, LocalLog, Now, PartitionRegistration};
use fullbore_rules::sequence::{ProducerState, Refusal};
use fullbore_wire::batch::BatchView;
use fullbore_wire::{Records, Uuid};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;

use super::checkpoints::{Key, Noted};
use super::failures::{Failures, Mark};
use super::log_dir::LogDir;
use super::reorder::Parked;
use super::role::{Acks, Ticket};
use super::waiters::{Registration, Waiters};
use crate::config::{TimestampType, TopicConfig};
use crate::log::aside::SetAside;
use crate::log::error::{AppendError, Appended, EpochEnd, FlushTicket, Offsets, Read, ReadError, StorageError};
use crate::log::files::{self, partition_dir};
use crate::log::log::{Log, Outcome};
use crate::log::lookup::Slice;
use crate::log::recovery::Known;
use crate::system::is_momentary;

/// Times a read is planned anew when retention or compaction takes an index file away under it.
const PLANS_MAX: usize = 8;

/// One partition. All calls may block on the disk, the first one for as long as a recovery takes, but for those that
/// [`opening`](super::opening) has for who must not.
#[derive(Debug)]
pub struct Partition {
    topic: Arc<str>,
    topic_id: Uuid,
    index: i32,
    pub(crate) log_dir: Arc<LogDir>,
    /// Outside of the state, so that who puts new settings in force waits for nobody.
    pub(crate) config: RwLock<Arc<TopicConfig>>,
    /// As the metadata has it, and whether that, or the settings, are not taken over yet.
    pub(crate) registered: RwLock<Arc<PartitionRegistration>>,
    pub(crate) has_news: AtomicBool,
    pub(crate) state: Mutex<State>,
    /// Told when the state is not that of opening any more.
    pub(crate) opening_ended: Condvar,
    /// As the state says, for who must not wait for its lock.
    pub(crate) settled: AtomicBool,
    pub(crate) is_open: AtomicBool,
    /// Its folder is being made: it has no records, and what it waits for is over soon.
    pub(crate) being_made: AtomicBool,
    /// Whether it stands in the opener's queue for somebody, and in that for nobody.
    pub(crate) asked_for: AtomicBool,
    pub(crate) asked_in_time: AtomicBool,
    /// A deleted partition whose folder may still have this one's name.
    pub(crate) predecessor: Mutex<Option<Arc<Partition>>>,
    /// It is deleted: what takes long gives up.
    pub(crate) leaving: AtomicBool,
    /// Once it is deleted, whether its folder is out of the way; held while that is done.
    pub(crate) retired: Mutex<Option<bool>>,
    pub(crate) waiters: Arc<Waiters>,
}

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct State {
    /// What is known of the log without opening it.
    pub known: Known,
    pub log: LogState,
    /// Batches that came before their turn, if there are any.
    pub parked: Option<Box<Parked>>,
    /// Its role, by the metadata last taken over, and the high watermark.
    pub replica: replica::Partition,
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
    pub failed: Option<Mark>,
    /// When the log could last not be opened, and why.
    pub open_failure: Option<(Instant, StorageError)>,
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
pub(crate) enum LogState {
    /// Not looked at since the start.
    Unopened,
    /// A thread is at the folder; ends early where it is told to.
    Opening(Arc<AtomicBool>),
    /// Nothing was ever written.
    Absent,
    Open(Box<Log>),
    /// Its files cannot be used until someone repairs them.
    Refused(StorageError),
    /// Deleted, or the broker is stopping.
    Gone,
}

impl Partition {
    /// One that nobody has looked at yet.
    pub(crate) fn new(
        (topic, topic_id, index): (Arc<str>, Uuid, i32),
        log_dir: Arc<LogDir>,
        (config, registered): (Arc<TopicConfig>, Arc<PartitionRegistration>),
        known: Option<Known>,
        predecessor: Option<Arc<Partition>>,
    ) -> Partition {
        // Without anything known it is new, and there is nothing to look at.
        let log = if known.is_some() { LogState::Unopened } else { LogState::Absent };
        // What is set and told is taken over by who locks the state first.
        let settings = replica::Settings { min_insync_replicas: 1, replica_lag_time_max_ms: i64::MAX };
        let state = State {
            known: known.unwrap_or(Known::NOTHING),
            log,
            parked: None,
            replica: replica::Partition::new(log_dir.cluster.node_id, LocalLog::default(), settings),
            flush_queued: false,
            flush_wanted: false,
            flush_active: false,
            flush_timed: false,
            flush_again: false,
            failed: None,
            open_failure: None,
        };
        Partition {
            topic,
            topic_id,
            index,
            log_dir,
            config: RwLock::new(config),
            registered: RwLock::new(registered),
            has_news: AtomicBool::new(true),
            settled: AtomicBool::new(known.is_none()),
            is_open: AtomicBool::new(false),
            being_made: AtomicBool::new(false),
            state: Mutex::new(state),
            opening_ended: Condvar::new(),
            asked_for: AtomicBool::new(false),
            asked_in_time: AtomicBool::new(false),
            predecessor: Mutex::new(predecessor),
            leaving: AtomicBool::new(false),
            retired: Mutex::new(None),
            waiters: Arc::default(),
        }
    }

    /// The topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn topic_name(&self) -> Arc<str> {
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
        self.config.read().clone()
    }

    /// Appends one batch, or finds it appended. The caller has checked the batch's checksum, and its
    /// records as far as it wants; sizes, counts, timestamps and the sequence are checked here.
    ///
    /// # Errors
    /// [`AppendError`]; the log is then as it was before.
    pub fn append(self: &Arc<Self>, batch: BatchView<'_>, acks: Acks, now_ms: i64) -> Result<Appended, AppendError> {
        let mut state = self.lock();
        state.check_append(acks)?;
        self.log_to_write(&mut state)?;
        self.append_locked(state, batch, acks, now_ms)
    }

    /// The same with acks=all, if this is the leader's epoch still.
    ///
    /// # Errors
    /// [`AppendError`]; the log is then as it was before.
    pub fn append_in_epoch(
        self: &Arc<Self>,
        batch: BatchView<'_>,
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<Appended, AppendError> {
        let mut state = self.lock();
        state.check_append(Acks::All)?;
        self.log_to_write(&mut state)?;
        state.replica.check_leader_epoch(leader_epoch).map_err(AppendError::Role)?;
        self.append_locked(state, batch, Acks::All, now_ms)
    }

    /// Appends one batch to the open log, and what is parked behind it.
    pub(crate) fn append_locked(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        batch: BatchView<'_>,
        acks: Acks,
        now_ms: i64,
    ) -> Result<Appended, AppendError> {
        let result = self.append_one(&mut state, &batch, acks, now_ms);
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
    pub(crate) fn append_one(
        self: &Arc<Self>,
        state: &mut State,
        batch: &BatchView<'_>,
        acks: Acks,
        now_ms: i64,
    ) -> Result<(Appended, bool), AppendError> {
        // The lock may have been let go of since the first look.
        state.check_append(acks)?;
        let leader_epoch = state.replica.leader_epoch();
        let config = self.config();
        let LogState::Open(log) = &mut state.log else { return Err(AppendError::Gone) };
        log.idle_rounds = 0;
        let space = &self.log_dir.space;
        let Some(_admission) = space.admit() else { return Err(AppendError::Full) };
        let outcome = match log.append(batch, leader_epoch, now_ms, &config) {
            Ok(outcome) => outcome,
            Err(error) => {
                if error == AppendError::Full {
                    space.note_full();
                }
                // What was sent behind a batch that found no room is early only because of that.
                let follows = error == AppendError::Sequence(Refusal::OutOfOrderSequence) && log.is_ahead(batch);
                let error = if follows && space.is_full() { AppendError::Full } else { error };
                state.mark_if_broken(&self.log_dir.flusher.failures);
                return Err(error);
            }
        };
        space.note_written();
        let log_start_offset = log.log_start;
        if log.written.is_ready() {
            self.log_dir.flusher.page_cache.take(&mut log.written);
        }
        if !outcome.is_duplicate {
            let appended = |replica: &mut replica::Partition, now: &Now<'_>| replica.appended(outcome.end_offset, now);
            // Who waits is woken for the records, too.
            let _ = state.with_now(&self.log_dir.cluster, appended);
        }
        let flushed = self.flush_after(state, &outcome, &config);
        let replicated = self.replication(state, acks, outcome.end_offset);
        let is_known = flushed.is_none() && replicated.is_none();
        let appended = Appended {
            base_offset: outcome.base_offset,
            log_append_time_ms: match config.message_timestamp_type {
                TimestampType::CreateTime => -1,
                TimestampType::LogAppendTime => outcome.timestamp,
            },
            log_start_offset,
            batches_retained: config.producer_state_batches_to_retain,
            ticket: (!is_known).then_some(Ticket { flushed, replicated }),
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
            self.log_dir.flusher.enqueue(self, state, ticket.is_some());
        }
        if let Some(flush_ms) = config.flush_ms.filter(|_| ticket.is_none() && !outcome.is_duplicate)
            && !std::mem::replace(&mut state.flush_timed, true)
        {
            self.log_dir.flusher.enqueue_after(self, Duration::from_millis(flush_ms));
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
        self.read_where(offset, max_bytes, at_least_one, |_, high_watermark| high_watermark)
    }

    /// The same up to the log end, for followers.
    pub(crate) fn read_up_to_the_end(
        &self,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
    ) -> Result<Read, ReadError> {
        self.read_where(offset, max_bytes, at_least_one, |log, _| log.log_end)
    }

    fn read_where(
        &self,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
        limit: impl Fn(&Log, i64) -> i64,
    ) -> Result<Read, ReadError> {
        let (mut plans, mut from) = (0, offset);
        loop {
            let mut state = self.lock();
            let (log, high_watermark) = match self.log_to_read(&mut state)? {
                Some(found) => found,
                None if offset == 0 => return Ok(empty_read()),
                None => return Err(ReadError::OffsetOutOfRange),
            };
            if offset < log.log_start || offset > log.log_end {
                return Err(ReadError::OffsetOutOfRange);
            }
            let mut read = Read {
                records: Records::default(),
                high_watermark,
                last_stable_offset: high_watermark,
                log_start_offset: log.log_start,
            };
            // Past a hole that compaction has left, the log may have gone on.
            from = from.max(log.log_start);
            let limit = limit(log, high_watermark);
            if from >= limit {
                return Ok(read);
            }
            log.idle_rounds = 0;
            let plan = log.plan_read(from, max_bytes, limit).map_err(|error| self.read_failed(&error))?;
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

    pub(crate) fn read_failed(&self, error: &io::Error) -> ReadError {
        // What will pass concerns every partition, and clients ask again at once.
        let left_out = if is_momentary(error) { self.log_dir.momentary.due() } else { Some(0) };
        if let Some(left_out) = left_out {
            tracing::error!(topic = %self.topic, partition = self.index, %error, left_out, "read failed");
        }
        ReadError::Storage
    }

    /// Log start, high watermark and log end.
    ///
    /// # Errors
    /// [`ReadError`], when the log has to be opened and cannot.
    pub fn offsets(&self) -> Result<Offsets, ReadError> {
        let mut state = self.lock();
        Ok(match self.log_to_read(&mut state)? {
            Some((log, high_watermark)) => Offsets { log_start: log.log_start, high_watermark, log_end: log.log_end },
            None => Offsets { log_start: 0, high_watermark: 0, log_end: 0 },
        })
    }

    /// Where the log of a leader epoch ends (KIP-101), or of the largest known one before it.
    ///
    /// # Errors
    /// [`ReadError`], when the log has to be opened and cannot.
    pub fn epoch_end_offset(&self, leader_epoch: i32) -> Result<EpochEnd, ReadError> {
        let mut state = self.lock();
        let current = state.replica.leader_epoch();
        Ok(match self.log_to_read(&mut state)? {
            Some((log, _)) => log.epochs.end_of(leader_epoch, current, log.log_end),
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
        let mut state = self.lock();
        let Some((log, high_watermark)) = self.log_to_read(&mut state)? else {
            return if matches!(offset, -1 | 0) { Ok(0) } else { Err(ReadError::OffsetOutOfRange) };
        };
        let offset = if offset == -1 { high_watermark } else { offset };
        if offset < 0 || offset > high_watermark {
            return Err(ReadError::OffsetOutOfRange);
        }
        let deleted = log.delete_before(offset, crate::system::now_ms(), &self.log_dir.flusher.space);
        deleted.map_err(|error| self.read_failed(&error))?;
        Ok(log.log_start)
    }

    /// What is known of each idempotent producer, the longest idle first.
    ///
    /// # Errors
    /// [`ReadError`], when the log has to be opened and cannot.
    pub fn producers(&self) -> Result<Vec<ProducerState>, ReadError> {
        let mut state = self.lock();
        Ok(self.log_to_read(&mut state)?.map_or_else(Vec::new, |(log, _)| log.producers.iter().collect()))
    }

    /// Bytes of its segments. A log that is not open stays so.
    ///
    /// # Errors
    /// What the system says of the folder.
    pub fn size(&self) -> io::Result<u64> {
        match &self.lock().log {
            LogState::Open(log) => Ok(log.segments.iter().map(|segment| segment.size).sum()),
            LogState::Absent | LogState::Gone => Ok(0),
            LogState::Unopened | LogState::Opening(_) | LogState::Refused(_) => files::segments_size(&self.dir()),
        }
    }

    /// What a power cut has left beside the log. Goes to the disk where it is known to have left something.
    pub fn set_aside(&self) -> SetAside {
        self.log_dir.aside.of(&self.dir())
    }

    /// Wakes `waiter` each time the high watermark moves, and when the partition goes, until the
    /// registration is dropped. Register, then look, then wait.
    pub fn register(&self, waiter: &Arc<Notify>) -> Registration {
        Registration::new(&self.waiters, waiter)
    }

    /// The partition's folder.
    pub(crate) fn dir(&self) -> Arc<Path> {
        partition_dir(&self.log_dir.path, &self.topic, self.index).into()
    }

    /// Its name and number, as the checkpoints have it.
    pub(crate) fn key(&self) -> Key {
        (self.topic.to_string(), self.index)
    }

    /// What the checkpoints have of an open log. Of partitions that nobody uses the role is not looked at: there may be many.
    pub(crate) fn noted(&self) -> Option<Noted> {
        let state = self.state.lock();
        match &state.log {
            LogState::Open(log) => Some(Noted {
                recovery_point: log.recovery_point,
                log_start: log.log_start,
                high_watermark: state.replica.high_watermark(),
            }),
            _ => None,
        }
    }

    /// Whether it is deleted, or about to be.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Acquire)
    }

    /// Takes the partition out of service and gives back the log, if it was open. `why` is what parked batches are
    /// answered with.
    pub(crate) fn leave(&self, why: AppendError) -> Option<Box<Log>> {
        let mut state = self.lock();
        self.interrupt_opening(&mut state);
        let left = self.put(&mut state, LogState::Gone);
        state.failed = None;
        let parked = state.parked.take();
        drop(state);
        if let Some(parked) = parked {
            parked.refuse(why);
        }
        self.waiters.end();
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
