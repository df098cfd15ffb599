//! The log of one partition on the disk, as Kafka keeps it: segments with their indexes, producers' state and leader epochs.
//!
//! It knows neither leader nor followers, has no lock, and starts no thread but that of the page cache;
//! the broker's `replica` has those. All calls block on the disk.
//!
//! An append goes through here, `partition::stamping`, `segment` and `index`; a read is planned by `lookup` and done without the log; a log
//! is opened by `recovery`, forgets its oldest by `retention`, and is cut off by `truncate`. Each of those files is a part of
//! [`Log`]; those that they use (`segment`, `index`, `flush`, `epochs`, `snapshot`, ...) do not know it.
//!
//! Invariant: there is always a segment, the last one is active, and each begins where the one before ends. An append changes
//! nothing here unless its bytes are whole in the file. Offsets are never used twice, and dense but for what compaction takes out.

pub mod aside;
pub mod boot;
pub mod cleaner;
pub mod cold;
mod epochs;
pub mod error;
pub mod files;
pub mod flush;
mod granted;
mod index;
pub mod lookup;
pub mod page_cache;
pub mod partition;
mod recent;
pub mod recovery;
pub mod retention;
mod scan;
pub mod segment;
mod snapshot;
pub mod steps;
pub mod times;
mod truncate;
pub mod validation;

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fullbore_rules::sequence::{Producers, Stamp, Stops, Verdict};
use fullbore_wire::batch::BatchView;

use self::epochs::Epochs;
use self::flush::{FlushError, FlushPlan, Flushes, Sealed};
use self::granted::Granted;
use self::page_cache::{PageCache, Written};
use self::partition::error::AppendError;
use self::recent::Recent;
use self::scan::Header;
use self::segment::{Segment, WriteError};
use self::steps::step;
use crate::partition::flushed::FlushTicket;
use crate::partition::stamping::Stamping;
use crate::validation::ValidBatch;
use fullbore_config::TopicConfig;
use fullbore_host::files::is_full;

/// The log of one partition.
#[derive(Debug)]
pub struct Log {
    dir: Arc<Path>,
    segments: VecDeque<Segment>,
    log_start: i64,
    log_end: i64,
    flushes: Flushes,
    producers: Producers,
    /// The largest window producers may still count on, as the disk knows it.
    granted: Granted,
    epochs: Epochs,
    /// As of this offset there is a producer snapshot.
    snapshot_offset: i64,
    recent: Recent,
    /// What the page cache is not told of yet.
    written: Written,
    /// Counts the times that segments were put in the place of others: names of files then stand for something else.
    generation: Arc<AtomicU64>,
    /// Rounds of housekeeping since the last use.
    idle_rounds: u32,
}

/// A batch that may be appended, on its way into the file.
struct Writing<'a> {
    pub batch: &'a BatchView<'a>,
    /// The header it will have.
    pub stamping: Stamping,
    pub stamp: Stamp,
    pub base_offset: i64,
    pub leader_epoch: i32,
    pub now_ms: i64,
    pub config: &'a TopicConfig,
}

/// What an append did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogAppendInfo {
    pub base_offset: i64,
    /// The offset after its last record.
    pub end_offset: i64,
    /// The batch's largest timestamp, as it is in the log.
    pub timestamp: i64,
    /// Whether it was there already.
    pub is_duplicate: bool,
    /// Whether a segment was sealed, which is to be flushed.
    pub rolled: bool,
}

impl Log {
    /// Appends one batch as the leader of `leader_epoch`, or finds it appended.
    pub fn append(
        &mut self,
        batch: &ValidBatch<'_>,
        leader_epoch: i32,
        now_ms: i64,
        config: &TopicConfig,
    ) -> Result<LogAppendInfo, AppendError> {
        if self.is_broken() {
            return Err(AppendError::Storage);
        }
        let (stamp, batch) = (batch.stamp(), &batch.view());
        match self.producers.check(&stamp, self.log_end) {
            Verdict::Append => {}
            Verdict::Duplicate { base_offset, timestamp } => return Ok(duplicate(&stamp, base_offset, timestamp)),
            Verdict::Refuse(refusal) => return Err(AppendError::Sequence(refusal)),
        }
        let stamping = Stamping::new(batch, config.message_timestamp_type, now_ms);
        let base_offset = self.log_end;
        let writing = Writing { batch, stamping, stamp, base_offset, leader_epoch, now_ms, config };
        self.append_checked(writing)
    }

    /// Appends what may be appended.
    fn append_checked(&mut self, writing: Writing<'_>) -> Result<LogAppendInfo, AppendError> {
        self.guarded(|log| log.write(writing))
    }

    /// Has something written, whose failure may end appends.
    fn guarded<T>(&mut self, write: impl FnOnce(&mut Log) -> io::Result<T>) -> Result<T, AppendError> {
        let before = self.segments.back().map(|active| (active.base_offset, active.size));
        let work = AssertUnwindSafe(|| write(self));
        let written = catch_unwind(work).unwrap_or_else(|_| {
            self.give_up_midway(before);
            Err(io::Error::other("the append has panicked, no appends until the next start"))
        });
        written.map_err(|error| {
            if is_full(&error) && !self.flushes.is_broken() {
                return AppendError::Full;
            }
            tracing::error!(dir = %self.dir.display(), %error, "append failed");
            AppendError::Storage
        })
    }

    /// After a panic: what is in memory may not be what is in the files. The batch under way is not read; the next start finds
    /// it, if it is whole.
    fn give_up_midway(&mut self, before: Option<(i64, u64)>) {
        self.flushes.give_up();
        if let Some(active) = self.segments.back_mut() {
            active.size =
                before.filter(|(base_offset, _)| *base_offset == active.base_offset).map_or(0, |(_, size)| size);
        }
    }

    /// Offset from which on the leader epoch of the next batch counts. The first one begins at the log start, which no batch need have: compaction
    /// leaves gaps, and a start believes the first epoch to begin there.
    fn epoch_start(&self, base_offset: i64) -> i64 {
        if self.epochs.starts().is_empty() { self.log_start } else { base_offset }
    }

    fn write(&mut self, writing: Writing<'_>) -> io::Result<LogAppendInfo> {
        let Writing { batch, mut stamping, stamp, base_offset, leader_epoch, now_ms, config } = writing;
        let end_offset = base_offset + i64::from(stamp.record_count);
        let rolled = self.must_roll(batch.size() as u64, stamping.max_timestamp, end_offset - 1, now_ms, config)?;
        if rolled {
            self.roll(now_ms)?;
        }
        self.epochs.assign(leader_epoch, self.epoch_start(base_offset))?;
        let window = config.producer_state_batches_to_retain;
        if stamp.is_idempotent() {
            self.granted.raise(&self.dir, window)?;
        }
        let active = self.segments.back_mut().expect("a log has a segment");
        active.spill_indexes()?;
        let position = active.size;
        let clock = self.written.clock(batch.size());
        match active.write(stamping.at(base_offset, leader_epoch), batch.payload()) {
            Ok(file) => self.written.add(&file, active.size, batch.size(), clock),
            Err(WriteError::Undone(error)) => return Err(error),
            Err(WriteError::Broken(error)) => {
                self.flushes.give_up();
                return Err(error);
            }
        }
        step();
        // The batch is in the log: nothing fails from here on.
        active.account(&Header::of(&stamping, position), config.index_interval_bytes);
        self.recent.push(base_offset, position);
        self.producers.append(&stamp, base_offset, stamping.max_timestamp, now_ms, window);
        self.log_end = end_offset;
        Ok(LogAppendInfo { base_offset, end_offset, timestamp: stamping.max_timestamp, is_duplicate: false, rolled })
    }

    fn must_roll(
        &mut self,
        size: u64,
        timestamp: i64,
        last_offset: i64,
        now_ms: i64,
        config: &TopicConfig,
    ) -> io::Result<bool> {
        let active = self.segments.back_mut().expect("a log has a segment");
        if active.size == 0 {
            return Ok(false);
        }
        let index_entries = |len: u64| (config.segment_index_bytes / len).max(1) as usize;
        let age_ms = match active.first_timestamp()? {
            Some(first) if first >= 0 => timestamp.saturating_sub(first),
            _ => now_ms.saturating_sub(active.opened_ms),
        };
        Ok(active.size + size > config.segment_bytes
            || age_ms > i64::try_from(config.roll_after_ms()).unwrap_or(i64::MAX)
            || active.offsets.len() >= index_entries(8)
            || active.times.len() + 1 >= index_entries(12).max(2)
            || !active.can_hold(last_offset))
    }

    /// Begins a new segment. If a step fails, the old one stays active and the next append tries again.
    pub fn roll(&mut self, now_ms: i64) -> io::Result<()> {
        if self.flushes.is_crowded() {
            self.flush_sealed()?;
        }
        self.take_snapshot()?;
        let active = self.segments.back_mut().expect("a log has a segment");
        active.finish_indexes()?;
        let sealed = Sealed::new(active, self.log_end)?;
        let next = Segment::create(&self.dir, self.log_end, now_ms)?;
        self.flushes.seal(sealed);
        self.segments.push_back(next);
        self.recent.clear();
        self.flushes.note_new_names();
        Ok(())
    }

    /// Returns true if nothing was ever kept of producers: no record has come, nor stops of a deleted partition.
    pub fn is_blank(&self) -> bool {
        self.log_end == 0 && self.snapshot_offset == -1
    }

    /// Writes a producer snapshot as of the log end, unless there is one.
    pub fn take_snapshot(&mut self) -> io::Result<()> {
        if self.snapshot_offset == self.log_end {
            return Ok(());
        }
        snapshot::write(&self.dir, self.log_end, self.producers.snapshot())?;
        self.snapshot_offset = self.log_end;
        self.flushes.note_new_names();
        self.granted.lower(&self.dir, self.producers.window())?;
        snapshot::remove_old(&self.dir)
    }

    /// Leaves the files so that the next start has nothing to recover, but for the fsync.
    pub fn finish(&mut self) -> io::Result<()> {
        let active = self.segments.back_mut().expect("a log has a segment");
        active.finish_indexes()?;
        self.take_snapshot()
    }

    /// Gives descriptors back: those of sealed segments, and with `all` the active one's too.
    pub fn close_files(&mut self, all: bool) {
        let count = self.segments.len() - usize::from(!all);
        self.segments.iter_mut().take(count).for_each(|segment| {
            segment.close_file();
        });
    }

    /// The folder.
    pub fn dir(&self) -> &Arc<Path> {
        &self.dir
    }

    /// The first offset there is.
    pub fn log_start(&self) -> i64 {
        self.log_start
    }

    /// The offset the next record gets.
    pub fn log_end(&self) -> i64 {
        self.log_end
    }

    /// Bytes of its segments.
    pub fn size(&self) -> u64 {
        self.segments.iter().map(|segment| segment.size).sum()
    }

    /// The offset with which the active segment begins.
    pub fn active_base_offset(&self) -> i64 {
        self.segments.back().map_or(self.log_start, |active| active.base_offset)
    }

    /// The first offset of which there are records, also where they are before the log start.
    pub fn first_base_offset(&self) -> i64 {
        self.segments.front().map_or(0, |first| first.base_offset)
    }

    /// What is known of producers.
    pub fn producers(&self) -> &Producers {
        &self.producers
    }

    /// Forgets producers that were silent for so long.
    pub fn expire_producers(&mut self, now_ms: i64, expiration_ms: i64) {
        self.producers.expire(now_ms, expiration_ms);
    }

    /// Forgets producers silent since `since_ms` or longer, at most `count`, the longest idle first; returns how many.
    pub fn forget_producers(&mut self, since_ms: i64, count: usize) -> usize {
        self.producers.forget_idle(since_ms, count)
    }

    /// Takes over where producers stopped on an earlier partition of this name. They are in a snapshot when this returns, and so survive a
    /// restart before the first record.
    pub fn succeed(&mut self, stops: Stops, now_ms: i64) -> io::Result<()> {
        if stops.is_empty() {
            return Ok(());
        }
        self.producers.succeed(stops.since(now_ms));
        self.take_snapshot()
    }

    /// Which leader wrote from which offset on.
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Every record before it is on the disk.
    pub fn recovery_point(&self) -> i64 {
        self.flushes.recovery_point()
    }

    /// Whether it takes no appends until the next start, because what is on the disk is not known.
    pub fn is_broken(&self) -> bool {
        self.flushes.is_broken()
    }

    /// The same as long as it is this one, and not the partition's log as it was opened again.
    pub fn identity(&self) -> Arc<AtomicU64> {
        self.generation.clone()
    }

    /// No appends from now on: what is on the disk is not known any more.
    pub fn give_up(&mut self) {
        self.flushes.give_up();
    }

    /// Its topic is deleted: who waits for a flush has nothing to lose.
    pub fn went_with_its_topic(&self) {
        self.flushes.went_with_its_topic(self.log_end);
    }

    /// Resolves when everything before an offset is on the disk, or can never be.
    pub fn flush_ticket(&mut self, upto: i64) -> FlushTicket {
        self.flushes.ticket(upto)
    }

    /// The next flush syncs the folder.
    pub fn note_new_names(&mut self) {
        self.flushes.note_new_names();
    }

    /// What is to be flushed: sealed segments, and with `active` everything.
    pub fn plan_flush(&mut self, active: bool) -> io::Result<FlushPlan> {
        let last = self.segments.back_mut().expect("a log has a segment");
        let upto = if active { self.log_end } else { last.base_offset };
        let active = if active { Some(last.file()?) } else { None };
        Ok(self.flushes.plan(active, upto))
    }

    /// Takes note of a flush that has run.
    pub fn flushed(&mut self, plan: &FlushPlan, result: &Result<(), FlushError>) {
        self.flushes.done(plan, result);
    }

    /// Takes note of a flush that failed.
    pub fn flush_failed(&mut self, error: &io::Error) {
        self.flushes.failed(error);
    }

    /// Flushes the sealed segments at once: so many wait that the disk has to be waited for.
    fn flush_sealed(&mut self) -> io::Result<()> {
        let plan = self.plan_flush(false)?;
        let result = plan.run();
        self.flushed(&plan, &result);
        match result {
            Err(FlushError::Unopened(error)) => Err(error),
            _ if self.is_broken() => Err(io::Error::other("flush failed")),
            _ => Ok(()),
        }
    }

    /// Has the page cache know of what was written, if that is worth it.
    pub fn hand_over_written(&mut self, page_cache: &PageCache) {
        if self.written.is_ready() {
            page_cache.take(&mut self.written);
        }
    }

    /// It is in use.
    pub fn note_use(&mut self) {
        self.idle_rounds = 0;
    }

    /// Returns how many rounds of housekeeping there were since the last use.
    pub fn idle_rounds(&self) -> u32 {
        self.idle_rounds
    }

    /// One more round of housekeeping without use; how many those are.
    pub fn note_idle_round(&mut self) -> u32 {
        self.idle_rounds = self.idle_rounds.saturating_add(1);
        self.idle_rounds
    }
}

fn duplicate(stamp: &Stamp, base_offset: i64, timestamp: i64) -> LogAppendInfo {
    LogAppendInfo {
        base_offset,
        end_offset: base_offset + i64::from(stamp.record_count),
        timestamp,
        is_duplicate: true,
        rolled: false,
    }
}
