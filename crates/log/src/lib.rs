//! The log of one partition, stored on disk in Kafka's format: segments with their indexes, the state of producers, and
//! the leader epochs.
//!
//! The log does not know about leaders, followers or locks, which are in the broker's `replica`. All calls block on the
//! disk. The only thread of this crate belongs to the page cache.
//!
//! An append goes through `append`, `partition::stamping`, `segment` and `index`. A read is planned by `lookup`, and
//! then carried out without the log. `recovery` opens a log, `retention` removes its oldest segments, `truncate` cuts
//! off its end, and `transactions` handles markers. All these files are parts of [`Log`]. The files that they build on
//! (`segment`, `index`, `flush`, `epochs`, `snapshot` and others) do not use `Log`.
//!
//! Invariant: there is always a segment. The last one is active, and each begins where the one before it ends. An
//! append changes nothing unless all its bytes are in the file. Offsets are never reused. They have gaps only where
//! compaction has removed records.

mod append;
pub mod aside;
pub mod boot;
pub mod cleaner;
pub mod committed;
pub mod direct_io;
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
mod transactions;
mod truncate;
pub mod txn_index;
pub mod validation;

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fullbore_rules::sequence::{ProducerTails, Producers};

use self::epochs::Epochs;
use self::flush::{FlushError, FlushPlan, Flushes, Sealed};
use self::granted::Granted;
use self::page_cache::{PageCache, Written};
use self::recent::Recent;
use self::segment::Segment;
use crate::partition::flushed::FlushTicket;

pub use append::{LogAppendInfo, Verification};
pub use transactions::marker_of;

/// Maximum size of a producer snapshot that is taken with every new segment, in bytes. A larger snapshot is taken only
/// if at least as many bytes of batches were appended since the last one.
const SNAPSHOT_SMALL: u64 = 64 << 10;

/// Error text for a log whose directory was replaced by another one while its files were open.
const REPLACED: &str = "another directory is at the path of this log; move the log's directory back";

/// The log of one partition.
#[derive(Debug)]
pub struct Log {
    dir: Arc<Path>,
    segments: VecDeque<Segment>,
    log_start: i64,
    log_end: i64,
    flushes: Flushes,
    producers: Producers,
    /// The largest window that producers may still rely on, as stored on disk.
    granted: Granted,
    epochs: Epochs,
    /// The offset of the newest producer snapshot.
    snapshot_offset: i64,
    /// The length of the newest producer snapshot, in bytes.
    snapshot_len: u64,
    /// How many bytes of batches were appended since the newest producer snapshot.
    after_snapshot: u64,
    recent: Recent,
    /// Written bytes that have not been handed over to the page cache yet.
    written: Written,
    /// Number of times that segments were replaced. After a replacement, a file name may belong to a different segment.
    generation: Arc<AtomicU64>,
    /// How many rounds of housekeeping have passed since the log was last used.
    idle_rounds: u32,
}

impl Log {
    /// Starts a new segment. If a step fails, the old segment stays active and the next append tries again.
    ///
    /// Also takes a producer snapshot, unless it would be much larger than the batches since the last one. Without that
    /// limit, a topic with large windows and tiny segments would write megabytes for each batch.
    ///
    /// # Errors
    /// Returns an error if the directory has been replaced by a copy, whose files must stay as they are.
    pub fn roll(&mut self, now_ms: i64) -> io::Result<()> {
        if self.segments.back().is_some_and(Segment::is_replaced) {
            return Err(io::Error::other(REPLACED));
        }
        if self.flushes.is_crowded() {
            self.flush_sealed()?;
        }
        if self.snapshot_len <= SNAPSHOT_SMALL || self.after_snapshot >= self.snapshot_len {
            self.take_snapshot()?;
        }
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

    /// Returns true if the log never had a record, and has no producers from a deleted partition either.
    pub fn is_blank(&self) -> bool {
        self.log_end == 0 && self.snapshot_offset == -1
    }

    /// Writes a producer snapshot for the current log end, unless there already is one.
    pub fn take_snapshot(&mut self) -> io::Result<()> {
        if self.snapshot_offset == self.log_end {
            return Ok(());
        }
        self.snapshot_len = snapshot::write(&self.dir, self.log_end, self.producers.snapshot())?;
        (self.snapshot_offset, self.after_snapshot) = (self.log_end, 0);
        self.flushes.note_new_names();
        self.granted.lower(&self.dir, self.producers.window())?;
        snapshot::remove_old(&self.dir, self.flushes.recovery_point())
    }

    /// Writes everything that is still in memory, so that a restarted broker has nothing to recover. The caller must
    /// flush the files afterwards.
    pub fn finish(&mut self) -> io::Result<()> {
        let active = self.segments.back_mut().expect("a log has a segment");
        active.finish_indexes()?;
        self.take_snapshot()
    }

    /// Closes the files of the sealed segments. If `all` is true, also closes the file of the active segment.
    pub fn close_files(&mut self, all: bool) {
        let count = self.segments.len() - usize::from(!all);
        self.segments.iter_mut().take(count).for_each(|segment| {
            segment.close_file();
        });
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Arc<Path> {
        &self.dir
    }

    /// Returns the log's first offset.
    pub fn log_start(&self) -> i64 {
        self.log_start
    }

    /// Returns the offset that the next record will get.
    pub fn log_end(&self) -> i64 {
        self.log_end
    }

    /// Returns the total size of the segments, in bytes.
    pub fn size(&self) -> u64 {
        self.segments.iter().map(|segment| segment.size).sum()
    }

    /// Returns the first offset of the active segment.
    pub fn active_base_offset(&self) -> i64 {
        self.segments.back().map_or(self.log_start, |active| active.base_offset)
    }

    /// Returns the first offset of the oldest segment. It may be before the log start.
    pub fn first_base_offset(&self) -> i64 {
        self.segments.front().map_or(0, |first| first.base_offset)
    }

    /// Returns the state of producers.
    pub fn producers(&self) -> &Producers {
        &self.producers
    }

    /// Forgets producers that have sent no batch for `expiration_ms`.
    pub fn expire_producers(&mut self, now_ms: i64, expiration_ms: i64) {
        self.producers.expire(now_ms, expiration_ms);
    }

    /// Forgets at most `count` producers that have sent no batch since `since_ms`, beginning with those idle for
    /// longest. Returns their number.
    pub fn forget_producers(&mut self, since_ms: i64, count: usize) -> usize {
        self.producers.forget_idle(since_ms, count)
    }

    /// Takes over the producers of a deleted partition with the same name. Writes a snapshot, so that these producers
    /// survive a restart even if no record follows.
    pub fn succeed(&mut self, tails: ProducerTails, now_ms: i64) -> io::Result<()> {
        if tails.is_empty() {
            return Ok(());
        }
        self.producers.succeed(tails.since(now_ms));
        self.take_snapshot()
    }

    /// Returns the leader epochs and the offsets at which they begin.
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Returns the recovery point. All records before this offset are on the disk.
    pub fn recovery_point(&self) -> i64 {
        self.flushes.recovery_point()
    }

    /// Returns true if the log accepts no appends until the broker's next start, because the state of the disk is
    /// unknown.
    pub fn is_broken(&self) -> bool {
        self.flushes.is_broken()
    }

    /// Returns an object that identifies this opened log, by its address. If the log is closed and opened again, it has
    /// another object.
    pub fn identity(&self) -> Arc<AtomicU64> {
        self.generation.clone()
    }

    /// Stops all appends, because the state of the disk is unknown.
    pub fn give_up(&mut self) {
        self.flushes.give_up();
    }

    /// Completes all waits for a flush, because the topic has been deleted.
    pub fn went_with_its_topic(&self) {
        self.flushes.went_with_its_topic(self.log_end);
    }

    /// Returns a ticket to wait for the flush of all records before `upto`. The wait also ends if these records can no
    /// longer reach the disk.
    pub fn flush_ticket(&mut self, upto: i64) -> FlushTicket {
        self.flushes.ticket(upto)
    }

    /// Makes the next flush also flush the directory, because files were created or renamed.
    pub fn note_new_names(&mut self) {
        self.flushes.note_new_names();
    }

    /// Plans a flush of the sealed segments, or of the whole log if `active` is true.
    pub fn plan_flush(&mut self, active: bool) -> io::Result<FlushPlan> {
        let last = self.segments.back_mut().expect("a log has a segment");
        let upto = if active { self.log_end } else { last.base_offset };
        let active = if active { Some(last.file()?) } else { None };
        Ok(self.flushes.plan(active, upto))
    }

    /// Records the result of a flush.
    pub fn flushed(&mut self, plan: &FlushPlan, result: &Result<(), FlushError>) {
        self.flushes.done(plan, result);
    }

    /// Records that a flush has failed.
    pub fn flush_failed(&mut self, error: &io::Error) {
        self.flushes.failed(error);
    }

    /// Flushes the sealed segments and waits for the disk. Called when too many of them wait for a flush.
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

    /// Reports written bytes to the page cache once enough of them have gathered.
    pub fn hand_over_written(&mut self, page_cache: &PageCache) {
        if self.written.is_ready() {
            page_cache.take(&mut self.written);
        }
    }

    /// Marks the log as used, so that its count of idle rounds begins again at zero.
    pub fn note_use(&mut self) {
        self.idle_rounds = 0;
    }

    /// Returns how many rounds of housekeeping have passed since the log was last used.
    pub fn idle_rounds(&self) -> u32 {
        self.idle_rounds
    }

    /// Counts a round of housekeeping in which the log was not used, and returns the count.
    pub fn note_idle_round(&mut self) -> u32 {
        self.idle_rounds = self.idle_rounds.saturating_add(1);
        self.idle_rounds
    }
}
