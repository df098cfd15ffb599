//! What a follower's log does and a leader's never: it takes batches as the leader has them, and is cut off where it has what
//! the leader has not.
//!
//! Not the decision where to cut, which is [`fullbore_rules::replica::epochs`]'s, nor whether this broker follows.
//!
//! Invariant: epochs, producers and indexes are those of the batches that are left, also where a cut breaks off midway: the next
//! opening works them out from the batches.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use fullbore_wire::batch::BatchView;

use super::answer::AppendError;
use super::log::{Log, Outcome, Writing};
use super::page_cache::Written;
use super::scan::Header;
use super::segment::Segment;
use super::stamping::Stamping;
use crate::config::TopicConfig;

impl Log {
    /// Appends a batch with the offsets, the leader epoch and the timestamps that the leader gave it. Its checksum was checked.
    ///
    /// # Errors
    /// `InvalidRecord` for one that does not come after the log's end; what an append of a leader says otherwise.
    pub fn append_as_is(
        &mut self,
        batch: &BatchView<'_>,
        now_ms: i64,
        config: &TopicConfig,
    ) -> Result<Outcome, AppendError> {
        if self.broken {
            return Err(AppendError::Storage);
        }
        let stamping = Stamping::as_is(batch);
        let header = Header::parse(0, stamping.bytes()).map_err(|_| AppendError::InvalidRecord)?;
        if header.base_offset < self.log_end || header.leader_epoch < self.epochs.latest().unwrap_or(0) {
            return Err(AppendError::InvalidRecord);
        }
        self.append_checked(Writing {
            batch,
            stamping,
            stamp: header.stamp,
            is_control: header.is_control,
            base_offset: header.base_offset,
            leader_epoch: header.leader_epoch,
            now_ms,
            config,
        })
    }

    /// Cuts off the batch with `offset`, and all after it. Nothing happens where the log ends before that.
    ///
    /// # Errors
    /// What the system says. The log may be cut off, and be of no use until it is opened anew.
    pub fn truncate_to(&mut self, offset: i64, now_ms: i64, config: &TopicConfig) -> io::Result<()> {
        if offset >= self.log_end {
            return Ok(());
        }
        if offset <= self.segments[0].base_offset {
            return self.begin_anew_at(offset, now_ms);
        }
        let index = self.segment_of(offset);
        for mut later in self.segments.drain(index + 1..) {
            later.retire(true)?;
        }
        let segment = &mut self.segments[index];
        let end = segment.position_of(offset)?;
        let file = segment.file()?;
        file.set_len(end)?;
        file.sync_data()?;
        segment.size = end;
        let never = AtomicBool::new(false);
        segment.rebuild_indexes(&never, config.index_interval_bytes)?;
        segment.resume()?;
        let last_offset = segment.last_offset().map_err(io::Error::from)?;
        let log_end = last_offset.map_or(segment.base_offset, |last| last + 1);
        self.ends_at(log_end)?;
        self.load_producers(&never, now_ms, config)
    }

    /// Forgets everything, and goes on at this offset.
    ///
    /// # Errors
    /// What the system says. The log may be empty, and be of no use until it is opened anew.
    pub fn begin_anew_at(&mut self, offset: i64, now_ms: i64) -> io::Result<()> {
        for mut segment in self.segments.drain(..) {
            segment.retire(true)?;
        }
        self.segments.push_back(Segment::create(&self.dir, offset, now_ms)?);
        self.log_start = offset;
        self.ends_at(offset)?;
        self.epochs.advance_to(offset)?;
        self.producers = Default::default();
        super::snapshot::remove_past(&self.dir, i64::MIN)?;
        self.snapshot_offset = -1;
        Ok(())
    }

    /// The log now ends here, before where it did: what was remembered of what is gone is forgotten.
    fn ends_at(&mut self, log_end: i64) -> io::Result<()> {
        self.log_end = log_end;
        self.recovery_point = self.recovery_point.min(log_end);
        self.forget_sealed_past(log_end);
        self.cuts += 1;
        self.new_names = true;
        self.recent.clear();
        self.written = Written::default();
        self.generation.fetch_add(1, Ordering::Release);
        self.epochs.truncate_to(log_end)
    }
}
