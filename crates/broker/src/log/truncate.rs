//! What a follower's log does and a leader's never: it takes batches as the leader has them, and is cut off where it has what
//! the leader has not.
//!
//! Not the decision where to cut, which is [`fullbore_rules::replica::epochs`]'s, nor whether this broker follows.
//!
//! Invariant: epochs, producers and indexes are those of the batches that are left, also where a cut breaks off midway: the next
//! opening works them out from the batches.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use fullbore_wire::batch::BatchView;

use super::error::AppendError;
use super::page_cache::Written;
use super::scan::Header;
use super::segment::Segment;
use super::stamping::Stamping;
use super::{Log, LogAppendInfo, Writing};
use crate::config::TopicConfig;
use crate::validation::InvalidBatch;

impl Log {
    /// Appends a batch with the offsets, the leader epoch and the timestamps that the leader gave it. Its checksum was checked.
    ///
    /// # Errors
    /// [`InvalidBatch::Header`] for one that does not come after the log's end; what an append of a leader says otherwise.
    pub fn append_as_is(
        &mut self,
        batch: &BatchView<'_>,
        now_ms: i64,
        config: &TopicConfig,
    ) -> Result<LogAppendInfo, AppendError> {
        if self.is_broken() {
            return Err(AppendError::Storage);
        }
        let stamping = Stamping::as_is(batch);
        let header = Header::parse(0, stamping.bytes()).map_err(|_| AppendError::Invalid(InvalidBatch::Header))?;
        if header.base_offset < self.log_end || header.leader_epoch < self.epochs.latest().unwrap_or(0) {
            return Err(AppendError::Invalid(InvalidBatch::Header));
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
        for segment in &mut self.segments {
            segment.retire(true)?;
        }
        // Until there is another the old ones stay in the list, which is never empty.
        self.segments = VecDeque::from([Segment::create(&self.dir, offset, now_ms)?]);
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
        self.log_start = self.log_start.min(log_end);
        self.flushes.cut(log_end);
        self.recent.clear();
        self.written = Written::default();
        self.generation.fetch_add(1, Ordering::Release);
        self.epochs.truncate_to(log_end)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};
    use tokio::time::timeout;

    use super::*;
    use crate::config::{BrokerConfig, Properties};
    use crate::log::recovery::Known;
    use crate::space::Space;
    use crate::validation::ValidBatch;

    /// A log of three batches with a record each.
    fn of_three(folder: &tempfile::TempDir) -> (Log, TopicConfig) {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = broker.topic_defaults;
        let mut log = Log::open(&folder.path().into(), Known::NOTHING, 0, &config).expect("opened");
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(b"v"), &[]);
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        let batch = ValidBatch::unchecked(&bytes);
        for _ in 0..3 {
            log.append(&batch, 0, 0, &config).expect("appended");
        }
        (log, config)
    }

    #[test]
    fn a_log_that_is_cut_off_before_its_start_begins_where_it_ends() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (mut log, config) = of_three(&folder);
        log.delete_before(2, 0, &Space::open(folder.path(), 0)).expect("deleted");
        log.truncate_to(1, 0, &config).expect("cut off");
        assert_eq!((log.log_start, log.log_end), (1, 1));
    }

    #[tokio::test]
    async fn who_waits_for_the_flush_of_what_is_cut_off_does_not_wait_for_ever() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (mut log, config) = of_three(&folder);
        let waiting = log.flush_ticket(3);
        let plan = log.plan_flush(true).expect("planned");
        log.truncate_to(1, 0, &config).expect("cut off");
        log.flushed(&plan, &plan.run());
        let answer = timeout(Duration::from_secs(5), waiting.wait()).await.expect("answered");
        assert_eq!(answer, Err(AppendError::Storage));
        // What is in the log is flushed as ever.
        let waiting = log.flush_ticket(1);
        let plan = log.plan_flush(true).expect("planned");
        log.flushed(&plan, &plan.run());
        assert_eq!(waiting.wait().await, Ok(()));
    }

    #[test]
    fn a_log_that_cannot_begin_anew_can_still_be_asked() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (mut log, config) = of_three(&folder);
        // As on a full disk.
        std::fs::create_dir(folder.path().join("00000000000000000007.log")).expect("made");
        log.begin_anew_at(7, 0).expect_err("its first segment cannot be made");
        log.give_up();
        let _ = log.plan_flush(true);
        let _ = log.plan_read(0, 1000, 3);
        log.retire_old(0, 3, &config, false);
    }
}
