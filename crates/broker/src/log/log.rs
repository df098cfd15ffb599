//! The log of one partition: its segments, its offsets, and the append.
//!
//! No lock and no threads; [`Partition`](super::Partition) has those. Reading is in [`super::lookup`],
//! opening in [`super::recovery`], forgetting in [`super::retention`], fsync in [`super::flush`].
//!
//! Invariant: there is always a segment, the last one is active, and each begins where the one before
//! ends. An append changes nothing here unless its bytes are whole in the file.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fullbore_rules::sequence::{Producers, Refusal, Stamp, Verdict};
use fullbore_wire::batch::BatchView;
use tokio::sync::watch;

use super::epochs::Epochs;
use super::error::{AppendError, Flushed};
use super::flush::Sealed;
use super::granted::Granted;
use super::page_cache::Written;
use super::recent::Recent;
use super::segment::{Segment, WriteError};
use super::snapshot;
use super::stamping::Stamping;
use super::steps::step;
use crate::config::{TimestampType, TopicConfig};
use crate::system::is_full;

/// Sealed segments that may wait for their flush; with more, the append that rolls flushes them itself.
pub const SEALED_MAX: usize = 16;

/// The log of one partition.
#[derive(Debug)]
pub struct Log {
    pub dir: Arc<Path>,
    pub segments: VecDeque<Segment>,
    pub log_start: i64,
    pub log_end: i64,
    /// Every record before it is on the disk.
    pub recovery_point: i64,
    /// Rolled segments that are not on the disk yet.
    pub sealed: Vec<Sealed>,
    /// Whether names were added to the folder since it was last synced.
    pub new_names: bool,
    pub producers: Producers,
    /// The largest window producers may still count on, as the disk knows it.
    pub granted: Granted,
    pub epochs: Epochs,
    /// As of this offset there is a producer snapshot.
    pub snapshot_offset: i64,
    pub recent: Recent,
    /// What the page cache is not told of yet.
    pub written: Written,
    /// Counts the times that segments were put in the place of others: names of files then stand for something else.
    pub generation: Arc<AtomicU64>,
    /// Told of every flush; made when someone first waits.
    pub flushed: Option<watch::Sender<Flushed>>,
    /// What is on the disk is not known any more: no append until the next start.
    pub broken: bool,
    /// Times that it was cut off: what a flush has begun before says nothing of what came after.
    pub cuts: u32,
    /// Rounds of housekeeping since the last use.
    pub idle_rounds: u32,
}

/// A batch that may be appended, on its way into the file.
pub struct Writing<'a> {
    pub batch: &'a BatchView<'a>,
    /// The header it will have.
    pub stamping: Stamping,
    pub stamp: Stamp,
    /// Whether it ends a transaction, and so has no sequence.
    pub is_control: bool,
    pub base_offset: i64,
    pub leader_epoch: i32,
    pub now_ms: i64,
    pub config: &'a TopicConfig,
}

/// What an append did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
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
        batch: &BatchView<'_>,
        leader_epoch: i32,
        now_ms: i64,
        config: &TopicConfig,
    ) -> Result<Outcome, AppendError> {
        let stamp = self.check(batch, now_ms, config)?;
        match self.producers.check(&stamp, self.log_end) {
            Verdict::Append => {}
            Verdict::Duplicate { base_offset, timestamp } => return Ok(duplicate(&stamp, base_offset, timestamp)),
            Verdict::Refuse(refusal) => return Err(AppendError::Sequence(refusal)),
        }
        let stamping = Stamping::new(batch, config.message_timestamp_type, now_ms);
        let base_offset = self.log_end;
        let writing = Writing { batch, stamping, stamp, is_control: false, base_offset, leader_epoch, now_ms, config };
        self.append_checked(writing)
    }

    /// Appends what may be appended.
    pub fn append_checked(&mut self, writing: Writing<'_>) -> Result<Outcome, AppendError> {
        let before = self.segments.back().map(|active| (active.base_offset, active.size));
        let work = AssertUnwindSafe(|| self.write(writing));
        let written = catch_unwind(work).unwrap_or_else(|_| {
            self.give_up_midway(before);
            Err(io::Error::other("the append has panicked, no appends until the next start"))
        });
        written.map_err(|error| {
            if is_full(&error) && !self.broken {
                return AppendError::Full;
            }
            tracing::error!(dir = %self.dir.display(), %error, "append failed");
            AppendError::Storage
        })
    }

    /// Whether batches of its producer are to come before this one.
    pub fn is_ahead(&self, batch: &BatchView<'_>) -> bool {
        stamp_of(batch).is_ok_and(|stamp| self.producers.ahead(&stamp) > 0)
    }

    /// After a panic: what is in memory may not be what is in the files. The batch under way is not read; the next start finds
    /// it, if it is whole.
    fn give_up_midway(&mut self, before: Option<(i64, u64)>) {
        self.give_up();
        if let Some(active) = self.segments.back_mut() {
            active.size =
                before.filter(|(base_offset, _)| *base_offset == active.base_offset).map_or(0, |(_, size)| size);
        }
    }

    /// Everything that can be said of a batch without its sequence; its stamp.
    pub fn check(&self, batch: &BatchView<'_>, now_ms: i64, config: &TopicConfig) -> Result<Stamp, AppendError> {
        if self.broken {
            return Err(AppendError::Storage);
        }
        check_size(batch, config)?;
        check_timestamps(batch, now_ms, config)?;
        stamp_of(batch)
    }

    fn write(&mut self, writing: Writing<'_>) -> io::Result<Outcome> {
        let Writing { batch, mut stamping, stamp, is_control, base_offset, leader_epoch, now_ms, config } = writing;
        let end_offset = base_offset + i64::from(stamp.record_count);
        let rolled = self.must_roll(batch.size() as u64, stamping.max_timestamp, end_offset - 1, now_ms, config)?;
        if rolled {
            self.roll(now_ms)?;
        }
        self.epochs.assign(leader_epoch, base_offset)?;
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
                self.give_up();
                return Err(error);
            }
        }
        step();
        // The batch is in the log: nothing fails from here on.
        active.account(&stamping.header(position), config.index_interval_bytes);
        self.recent.push(base_offset, position);
        if !is_control {
            self.producers.append(&stamp, base_offset, stamping.max_timestamp, now_ms, window);
        }
        self.log_end = end_offset;
        Ok(Outcome { base_offset, end_offset, timestamp: stamping.max_timestamp, is_duplicate: false, rolled })
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
        if self.sealed.len() >= SEALED_MAX {
            self.flush_sealed()?;
        }
        self.take_snapshot()?;
        let active = self.segments.back_mut().expect("a log has a segment");
        active.finish_indexes()?;
        let sealed = Sealed::new(active, self.log_end)?;
        let next = Segment::create(&self.dir, self.log_end, now_ms)?;
        self.sealed.push(sealed);
        self.segments.push_back(next);
        self.recent.clear();
        self.new_names = true;
        Ok(())
    }

    /// Writes a producer snapshot as of the log end, unless there is one.
    pub fn take_snapshot(&mut self) -> io::Result<()> {
        if self.snapshot_offset == self.log_end {
            return Ok(());
        }
        snapshot::write(&self.dir, self.log_end, self.producers.snapshot())?;
        self.snapshot_offset = self.log_end;
        self.new_names = true;
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
}

fn duplicate(stamp: &Stamp, base_offset: i64, timestamp: i64) -> Outcome {
    Outcome {
        base_offset,
        end_offset: base_offset + i64::from(stamp.record_count),
        timestamp,
        is_duplicate: true,
        rolled: false,
    }
}

fn check_size(batch: &BatchView<'_>, config: &TopicConfig) -> Result<(), AppendError> {
    if batch.size() > config.max_message_bytes {
        return Err(AppendError::TooLarge);
    }
    if batch.size() as u64 > config.segment_bytes {
        return Err(AppendError::LargerThanSegment);
    }
    Ok(())
}

/// The first and the largest timestamp of the header. The records' own are for who opens them.
fn check_timestamps(batch: &BatchView<'_>, now_ms: i64, config: &TopicConfig) -> Result<(), AppendError> {
    if config.message_timestamp_type == TimestampType::LogAppendTime {
        return Ok(());
    }
    let is_allowed = |timestamp| config.allows_timestamp(timestamp, now_ms);
    if !is_allowed(batch.base_timestamp()) || !is_allowed(batch.max_timestamp()) {
        return Err(AppendError::Timestamp);
    }
    Ok(())
}

pub(crate) fn stamp_of(batch: &BatchView<'_>) -> Result<Stamp, AppendError> {
    Stamp::from_client(
        batch.producer_id(),
        batch.producer_epoch(),
        batch.base_sequence(),
        batch.record_count(),
        batch.last_offset_delta(),
    )
    .map_err(|refusal| match refusal {
        Refusal::InvalidRecord => AppendError::InvalidRecord,
        other => AppendError::Sequence(other),
    })
}

#[cfg(test)]
mod tests {
    use fullbore_wire::Uuid;
    use fullbore_wire::batch::{BatchBuilder, Compression};

    use super::*;
    use crate::config::{BrokerConfig, Properties};
    use crate::log::steps::watch;
    use crate::partitions::{Acks, Logs, Origin, ReadError, Settings, led_by};

    #[tokio::test]
    async fn an_append_that_panics_takes_its_partition_out_of_service_and_nobody_else() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let folder = tempfile::tempdir().expect("temporary folder");
        let logs = Logs::open(folder.path(), Settings::from(&broker)).expect("opened");
        let (id, config) = (Uuid([1; 16]), TopicConfig { flush_messages: Some(1), ..broker.topic_defaults.clone() });
        logs.put_topic(("t", id), &led_by(1, 2), &Arc::new(config), Origin::New);
        let [hit, other] = [0, 1].map(|index| logs.find(&id, index).expect("it has just been told of"));
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(b"v"), &[]);
        let (bytes, _) = builder.seal(fullbore_wire::batch::Stamp::NONE).expect("sealed");
        let batch = BatchView::first(&bytes).expect("a batch");
        let first = hit.append(batch, Acks::Leader, 0).expect("appended");
        // The second is in the file when its thread panics, and not in the log.
        let late = watch(|| panic!("as a test wants it"), || hit.append(batch, Acks::Leader, 0).err());
        assert_eq!(late, Some(AppendError::Storage));
        // Whether it was flushed before is a matter of luck, but it is told.
        let _ = first.ticket.expect("asked for").wait(tokio::time::Instant::now()).await;
        assert_eq!(hit.append(batch, Acks::Leader, 0).err(), Some(AppendError::Storage));
        assert_eq!(logs.failed_partitions(), 1);
        let read = hit.read(0, 1000, true).expect("read");
        assert_eq!((read.high_watermark, read.records.len()), (1, bytes.len()));
        assert_eq!(hit.read(2, 1000, true).err(), Some(ReadError::OffsetOutOfRange));
        for base_offset in 0..2 {
            assert_eq!(other.append(batch, Acks::Leader, 0).expect("appended").base_offset, base_offset);
        }
        logs.close();
        drop((hit, other, logs));
        let logs = Logs::open(folder.path(), Settings::from(&broker)).expect("opened");
        logs.put_topic(("t", id), &led_by(1, 2), &Arc::new(broker.topic_defaults.clone()), Origin::Kept);
        let hit = logs.find(&id, 0).expect("it has just been told of");
        let end = hit.append(batch, Acks::Leader, 0).expect("the next start has it in service again").base_offset;
        assert!(end == 1 || end == 2, "{end}: what was not answered may be there");
        logs.close();
    }
}
