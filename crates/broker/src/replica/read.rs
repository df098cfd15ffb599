//! Reads records, offsets, producers and leader epochs from a replica's log.

use std::io;

use fullbore_rules::replica::epochs::{Divergence, EpochEnd as Divergent, Position, divergence};
use fullbore_rules::sequence::ProducerState;
use fullbore_wire::{ErrorCode, FileSlice, Records};

use super::Replica;
use super::failing::FileRange;
use super::state::LogState;
use fullbore_host::files::{is_momentary, now_ms};
use fullbore_log::committed::without_aborted;
use fullbore_log::direct_io::DirectReads;
use fullbore_log::files;
use fullbore_log::lookup::{OffsetLookup, Slice, is_gone};
use fullbore_log::partition::error::ReadError;
use fullbore_log::partition::read::{EpochEnd, Isolation, LogOffsets, Read, TimestampOffset};
use fullbore_log::txn_index::AbortedLookup;

/// Maximum number of plans for the same part of a read. A new plan is needed if retention or compaction removes a file
/// that the last plan used.
const PLANS_MAX: usize = 8;

/// Maximum size in bytes of a trial read after a failed read. If the first batch is larger, the trial reads the whole
/// batch, in steps of this size.
const TRIED_MAX: u32 = 1 << 20;

/// The kind of reader. It decides up to which offset a read may go, and whether the last batch must be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadMode {
    /// A consumer. The last batch may be incomplete.
    Consumer(Isolation),
    /// A consumer that gets only complete batches.
    ConsumerWhole(Isolation),
    /// A follower, which gets complete batches up to the log end. This broker must be the leader in the given epoch.
    LedIn(i32),
}

impl ReadMode {
    fn isolation(self) -> Isolation {
        match self {
            ReadMode::Consumer(isolation) | ReadMode::ConsumerWhole(isolation) => isolation,
            ReadMode::LedIn(_) => Isolation::ReadUncommitted,
        }
    }
}

/// A read that was planned under the lock, and that can be carried out without the lock.
struct ReadPlan {
    offsets: OffsetLookup,
    /// Finds the aborted transactions in the range of the read. `None` if the reader does not need them, or if there
    /// are none.
    aborted: Option<AbortedLookup>,
    /// The end offset for the reader, which may see only records before it.
    limit: i64,
    /// The range of a log file that currently cannot be read, if there is one.
    failing: Option<FileRange>,
    /// True if the last batch must be complete.
    is_whole: bool,
}

impl ReadPlan {
    /// Returns the records as a slice of a file. Stores in `read` the end of the slice and its aborted transactions.
    fn read(&self, max_bytes: u32, at_least_one: bool, cold: &DirectReads, read: &mut LeaderRead) -> io::Result<Slice> {
        let mut slice = self.offsets.read(max_bytes, at_least_one, cold)?;
        if let Slice::Of(slice) = &mut slice {
            read.read.is_cut = self.offsets.goes_on(slice, self.limit);
            if self.is_whole || self.aborted.is_some() {
                read.end_offset = self.offsets.whole(slice, cold)?;
                read.read.is_cut = read.end_offset < self.limit;
            }
            if let Some(aborted) = &self.aborted {
                read.read.aborted = Some(aborted.read(read.end_offset)?);
            }
        }
        Ok(slice)
    }

    /// Returns true if the slice overlaps the unreadable range of the file. If the broker sent such a slice, the send
    /// would fail, and would break the connection for the client's other partitions too.
    fn is_refused(&self, slice: &FileSlice) -> bool {
        self.failing.is_some_and(|range| range.overlaps(self.offsets.base_offset(), slice))
    }

    /// Returns the records of `slice`, which begins at offset `from`. Leaves out aborted batches, which the client
    /// would skip.
    fn records(&self, slice: FileSlice, from: i64, cold: &DirectReads, read: &LeaderRead) -> Records {
        let Some(aborted) = read.read.aborted.as_ref().filter(|aborted| !aborted.is_empty()) else {
            return Records::File(slice);
        };
        let mut ranges = without_aborted(slice, from..read.end_offset, aborted, cold);
        match ranges.len() {
            1 => ranges.pop().map_or_else(Records::default, Records::File),
            _ => Records::Ranges(ranges),
        }
    }
}

/// The result of a read.
#[derive(Debug)]
pub struct LeaderRead {
    /// The records and offsets that the reader gets.
    pub read: Read,
    /// The offset after the records.
    pub end_offset: i64,
    /// The end of the log.
    pub log_end: i64,
}

impl Replica {
    /// Reads about `max_bytes` of batches, from the batch that contains `offset` up to the high watermark. The last
    /// batch may be incomplete. With `at_least_one`, the first batch is returned complete even if it is larger than
    /// `max_bytes`. Without `at_least_one`, or at the log end, the result may be empty.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if `offset` is out of range, or if the log cannot be opened or read.
    pub fn read(&self, offset: i64, max_bytes: u32, at_least_one: bool) -> Result<Read, ReadError> {
        self.read_at(Isolation::ReadUncommitted, offset, max_bytes, at_least_one)
    }

    /// Reads like [`Replica::read`]. At the isolation level read_committed, reads only up to the last stable offset.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if `offset` is out of range, or if the log cannot be opened or read.
    pub fn read_at(
        &self,
        isolation: Isolation,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
    ) -> Result<Read, ReadError> {
        self.read_as(ReadMode::Consumer(isolation), offset, max_bytes, at_least_one).map(|read| read.read)
    }

    /// Reads like [`Replica::read_at`], but returns only complete batches, together with the offset after them.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if `offset` is out of range, or if the log cannot be opened or read.
    pub fn read_whole(
        &self,
        isolation: Isolation,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
    ) -> Result<Read, ReadError> {
        let LeaderRead { mut read, end_offset, .. } =
            self.read_as(ReadMode::ConsumerWhole(isolation), offset, max_bytes, at_least_one)?;
        read.end_offset = Some(end_offset);
        Ok(read)
    }

    pub(super) fn read_as(
        &self,
        mode: ReadMode,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
    ) -> Result<LeaderRead, ReadError> {
        let (mut plans, mut from) = (0, offset);
        loop {
            let mut state = self.lock();
            if let ReadMode::LedIn(epoch) = mode {
                // Open the log before the check, because the opening replaces the role.
                self.log_to_read(&mut state)?;
                state.check_leads_in(epoch).map_err(ReadError::Role)?;
            }
            let (log, high_watermark) = match self.log_to_read(&mut state)? {
                Some(found) => found,
                None if offset == 0 => {
                    return Ok(LeaderRead { read: empty_read(mode.isolation()), end_offset: 0, log_end: 0 });
                }
                None => return Err(ReadError::OffsetOutOfRange),
            };
            if offset < log.log_start() || offset > log.log_end() {
                return Err(ReadError::OffsetOutOfRange);
            }
            let last_stable_offset = log.last_stable_offset(high_watermark);
            let marks = Read { high_watermark, last_stable_offset, ..empty_read(mode.isolation()) };
            let read = Read { log_start_offset: log.log_start(), ..marks };
            let mut read = LeaderRead { read, end_offset: offset, log_end: log.log_end() };
            // The log start may have moved during a read that skipped offsets which compaction has removed.
            from = from.max(log.log_start());
            let limit = match mode {
                ReadMode::LedIn(_) => read.log_end,
                ReadMode::Consumer(isolation) | ReadMode::ConsumerWhole(isolation) => {
                    log.readable_end(isolation, high_watermark)
                }
            };
            if from >= limit {
                return Ok(read);
            }
            log.note_use();
            let planned = log.plan_read(from, max_bytes, limit);
            let aborted = read.read.aborted.is_some().then(|| log.plan_aborted(from));
            let failing = state.failing_range();
            drop(state);
            let offsets = planned.map_err(|error| self.read_failed_at(from, max_bytes, &error))?;
            let aborted = aborted.filter(|lookup| !lookup.segments.is_empty());
            let plan = ReadPlan { offsets, aborted, limit, failing, is_whole: !matches!(mode, ReadMode::Consumer(_)) };
            plans += 1;
            let found = plan.read(max_bytes, at_least_one, &self.log_dir.cold, &mut read);
            if plan.offsets.is_stale() && plans < PLANS_MAX {
                continue;
            }
            match found {
                Ok(Slice::Of(slice)) if plan.is_refused(&slice) => return Err(ReadError::Storage),
                Ok(Slice::Of(slice)) => {
                    read.read.records = plan.records(slice, from, &self.log_dir.cold, &read);
                    return Ok(read);
                }
                Ok(Slice::TooLarge) => {
                    read.read.is_cut = true;
                    return Ok(read);
                }
                Ok(Slice::Hole) => (plans, from) = (0, plan.offsets.end_offset),
                Err(error) if is_gone(&error) && plans < PLANS_MAX => {}
                Err(error) => return Err(self.read_failed_at(from, max_bytes, &error)),
            }
        }
    }

    /// Repeats a failed read to find out whether it succeeds now, and drops the records. Also reads if this broker does
    /// not lead. Returns `Ok` if the log is not open, or no longer contains that offset.
    ///
    /// # Errors
    /// Fails with an I/O error if the records still cannot be read.
    pub(super) fn try_read(&self, offset: i64, max_bytes: u32) -> io::Result<()> {
        let mut plans = 0;
        loop {
            plans += 1;
            match self.try_read_once(offset, max_bytes) {
                Err(error) if is_gone(&error) && plans < PLANS_MAX => {}
                tried => return tried,
            }
        }
    }

    fn try_read_once(&self, offset: i64, max_bytes: u32) -> io::Result<()> {
        let mut state = self.state.lock();
        let LogState::Open(log) = &mut state.log else { return Ok(()) };
        let log_end = log.log_end();
        if offset < log.log_start() || offset >= log_end {
            return Ok(());
        }
        let planned = log.plan_read(offset, max_bytes, log_end);
        drop(state);
        let plan = planned?;
        let Slice::Of(slice) = plan.read(max_bytes.min(TRIED_MAX), true, &self.log_dir.cold)? else { return Ok(()) };
        let end = slice.position + u64::from(slice.len);
        let mut bytes = vec![0; slice.len.min(TRIED_MAX) as usize];
        let mut position = slice.position;
        while position < end {
            let count = bytes.len().min(usize::try_from(end - position).unwrap_or(usize::MAX));
            self.log_dir.cold.try_read_exact(&slice.file, position, &mut bytes[..count])?;
            position += count as u64;
        }
        Ok(())
    }

    pub(crate) fn read_failed(&self, error: &io::Error) -> ReadError {
        // Limit the rate of this log line for a passing error, which affects all partitions, and after which clients
        // retry at once.
        let left_out = if is_momentary(error) { self.log_dir.transient_read.due() } else { Some(0) };
        if let Some(left_out) = left_out {
            tracing::error!(topic = %self.topic, partition = self.index, %error, left_out, "cannot read a partition: clients get KAFKA_STORAGE_ERROR and retry; check the disk and the files' permissions");
        }
        ReadError::Storage
    }

    /// Returns the log start, the high watermark and the log end.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if the log cannot be opened.
    pub fn offsets(&self) -> Result<LogOffsets, ReadError> {
        let mut state = self.lock();
        Ok(match self.log_to_read(&mut state)? {
            Some((log, high_watermark)) => {
                LogOffsets { log_start: log.log_start(), high_watermark, log_end: log.log_end() }
            }
            None => LogOffsets { log_start: 0, high_watermark: 0, log_end: 0 },
        })
    }

    /// Returns the log start and the leader epoch of the first record. The epoch is -1 if it is unknown. If the log has
    /// no records, returns the current leader epoch. As in Kafka, the timestamp in the result is always -1.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if the log cannot be opened.
    pub fn earliest(&self) -> Result<TimestampOffset, ReadError> {
        let mut state = self.lock();
        let current = state.role.leader_epoch();
        let (offset, leader_epoch) = match self.log_to_read(&mut state)? {
            Some((log, _)) if log.log_start() < log.log_end() => {
                (log.log_start(), log.epochs().at(log.log_start()).unwrap_or(-1))
            }
            Some((log, _)) => (log.log_start(), current),
            None => (0, current),
        };
        Ok(TimestampOffset { offset, timestamp: -1, leader_epoch })
    }

    /// Returns the offset at which a leader epoch ends (KIP-101). If the log has no records of that epoch, returns the
    /// largest earlier epoch and its end. An epoch before the log's first one ends at the log's first batch.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if the log cannot be opened.
    pub fn epoch_end_offset(&self, leader_epoch: i32) -> Result<EpochEnd, ReadError> {
        let mut state = self.lock();
        let current = state.role.leader_epoch();
        Ok(match self.log_to_read(&mut state)? {
            Some((log, _)) => log.epochs().end_of(leader_epoch, current, log.log_end()),
            None if leader_epoch == current => EpochEnd { leader_epoch, end_offset: 0 },
            None => EpochEnd { leader_epoch: -1, end_offset: -1 },
        })
    }

    /// Compares the log with the position of a consumer, whose last record is of the epoch `last_epoch` (KIP-595).
    /// Returns the newest epoch that both may have, and its end in this log, if the log no longer has the consumer's
    /// records. A position before the log start does not count, because its records were deleted. A position in an
    /// epoch before the log's first one counts only after the first batch, because compaction may have removed earlier
    /// records.
    ///
    /// # Errors
    /// Fails with UNKNOWN_LEADER_EPOCH if `last_epoch` is later than this broker's, and with another [`ReadError`] if
    /// the log cannot be opened.
    pub fn divergence(&self, offset: i64, last_epoch: i32) -> Result<Option<Divergent>, ReadError> {
        let mut state = self.lock();
        let current = state.role.leader_epoch();
        let (epochs, log_start, log_end) = match self.log_to_read(&mut state)? {
            Some((log, _)) => (log.epochs().first_batches(), log.log_start(), log.log_end()),
            None => (&[][..], 0, 0),
        };
        if last_epoch > epochs.last().map_or(current, |(latest, _)| current.max(*latest)) {
            return Err(ReadError::Role(ErrorCode::UNKNOWN_LEADER_EPOCH));
        }
        let position = Position { offset, last_epoch: Some(last_epoch) };
        Ok(match divergence(epochs, log_end, position) {
            Divergence::At(end) if offset >= log_start => Some(end),
            _ => None,
        })
    }

    /// Moves the log start to `offset`, or to the high watermark if `offset` is -1, and returns the new log start.
    /// Earlier records can no longer be read. Their segments are removed by the next retention, or at once if the disk
    /// is full. To make the log start durable, call
    /// [`Partitions::keep_log_starts`](crate::partitions::Partitions::keep_log_starts).
    ///
    /// # Errors
    /// Fails with [`ReadError::OffsetOutOfRange`] if `offset` is above the high watermark or below -1. Fails with
    /// another [`ReadError`] if the log cannot be opened or changed.
    pub fn delete_records_before(&self, offset: i64) -> Result<i64, ReadError> {
        let mut state = self.lock();
        let Some((log, high_watermark)) = self.log_to_read(&mut state)? else {
            return if matches!(offset, -1 | 0) { Ok(0) } else { Err(ReadError::OffsetOutOfRange) };
        };
        let offset = if offset == -1 { high_watermark } else { offset };
        if offset < 0 || offset > high_watermark {
            return Err(ReadError::OffsetOutOfRange);
        }
        let deleted = log.delete_before(offset, now_ms(), &self.log_dir.flusher.space);
        deleted.map_err(|error| self.read_failed(&error))?;
        let log_start = log.log_start();
        drop(state);
        // Wake the followers' fetches that wait for records, because their responses report the new log start.
        self.waiters.wake();
        Ok(log_start)
    }

    /// Returns the state of each idempotent producer. Producers without an open transaction come first, and among them
    /// the one that was idle longest.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if the log cannot be opened.
    pub fn producers(&self) -> Result<Vec<ProducerState>, ReadError> {
        let mut state = self.lock();
        Ok(self.log_to_read(&mut state)?.map_or_else(Vec::new, |(log, _)| log.producers().iter().collect()))
    }

    /// Returns the number of idempotent producers that the log remembers, or 0 if the log is not open.
    pub fn producers_len(&self) -> usize {
        match &self.lock().log {
            LogState::Open(log) => log.producers().len(),
            _ => 0,
        }
    }

    /// Returns the size of the log's segments in bytes. Does not open the log.
    ///
    /// # Errors
    /// Fails with an I/O error if the directory cannot be read.
    pub fn size(&self) -> io::Result<u64> {
        match &self.lock().log {
            LogState::Open(log) => Ok(log.size()),
            LogState::Absent | LogState::Gone => Ok(0),
            LogState::Unopened | LogState::Opening(_) | LogState::Creating(_) | LogState::Refused(_) => {
                files::segments_size(&self.dir())
            }
        }
    }
}

/// Returns the result of a read of a partition without records.
fn empty_read(isolation: Isolation) -> Read {
    Read {
        records: Records::default(),
        high_watermark: 0,
        last_stable_offset: 0,
        log_start_offset: 0,
        aborted: (isolation == Isolation::ReadCommitted).then(Vec::new),
        end_offset: None,
        is_cut: false,
    }
}
