//! Keeps a follower's log equal to its leader's: appends the leader's batches as they are, and cuts off batches that
//! the leader does not have.
//!
//! The offset of a cut is decided in [`fullbore_rules::replica::epochs`].
//!
//! Invariant: the epochs, producers and indexes always match the batches in the log. If a cut fails halfway, the next
//! opening of the log derives them from the batches.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use fullbore_rules::sequence::Producers;
use fullbore_wire::batch::BatchView;

use super::Log;
use super::page_cache::Written;
use super::scan::Header;
use super::segment::{Segment, WriteError};
use super::steps::step;
use super::transactions::{marker_of, remember, remember_control};
use crate::partition::error::AppendError;
use crate::partition::stamping::Stamping;
use crate::validation::InvalidBatch;
use fullbore_config::TopicConfig;

impl Log {
    /// Appends batches with the offsets, leader epochs and timestamps that their leader gave them. All appended batches
    /// must have the same leader epoch and fit into one segment, so a call may append only the first of them. Returns
    /// how many it has appended. `bytes` has all batches in a row, and the caller must have verified their checksums.
    ///
    /// # Errors
    /// Fails with [`InvalidBatch::Header`] if the first batch has an invalid header, an offset before the log end, or a
    /// leader epoch before the log's newest. Other errors are those of a leader's append. After an error, nothing was
    /// appended.
    pub fn append_as_they_are(
        &mut self,
        bytes: &[u8],
        batches: &[BatchView<'_>],
        now_ms: i64,
        config: &TopicConfig,
    ) -> Result<usize, AppendError> {
        if self.is_broken() {
            return Err(AppendError::Storage);
        }
        let invalid = AppendError::Invalid(InvalidBatch::Header);
        let (mut headers, mut next, mut epoch) = (Vec::new(), self.log_end, self.epochs.latest().unwrap_or(0));
        for batch in batches {
            let header = Header::parse(0, Stamping::as_is(batch).bytes()).ok();
            let follows = |header: &Header| header.base_offset >= next && header.leader_epoch >= epoch;
            // Stop at a batch that cannot be appended. The next call begins with it and refuses it.
            let Some(header) = header.filter(follows) else { break };
            (next, epoch) = (header.last_offset() + 1, header.leader_epoch);
            headers.push(header);
        }
        let first = headers.first().ok_or(invalid)?;
        headers.truncate(headers.iter().take_while(|header| header.leader_epoch == first.leader_epoch).count());
        let mut count = 0;
        self.guarded(|log| {
            count = log.write_run(&headers, bytes, now_ms, config)?;
            Ok(())
        })?;
        Ok(count)
    }

    /// Writes as many batches from `bytes` as fit into one segment, and returns their number. `headers` has the headers
    /// of all batches.
    fn write_run(&mut self, headers: &[Header], bytes: &[u8], now_ms: i64, config: &TopicConfig) -> io::Result<usize> {
        let first = &headers[0];
        if self.must_roll(u64::from(first.size), first.max_timestamp, first.last_offset(), now_ms, config)? {
            self.roll(now_ms)?;
        }
        self.epochs.assign(first.leader_epoch, first.base_offset, self.log_start..self.log_end)?;
        let window = config.producer_state_batches_to_retain;
        if headers.iter().any(|header| header.stamp.is_idempotent()) {
            self.granted.raise(&self.dir, window)?;
        }
        let count = self.room_for(headers, config)?;
        let headers = &headers[..count];
        let active = self.segments.back_mut().expect("a log has a segment");
        active.spill_indexes()?;
        let mut position = active.size;
        let bytes = &bytes[..headers.iter().map(|header| header.size as usize).sum()];
        let clock = self.written.clock(bytes.len());
        match active.write(&[], bytes) {
            Ok(file) => self.written.add(&file, active.size, bytes.len(), clock),
            Err(WriteError::Undone(error)) => return Err(error),
            Err(WriteError::Broken(error)) => {
                self.flushes.give_up();
                return Err(error);
            }
        }
        step();
        let mut rest = bytes;
        for header in headers {
            let (batch, later) = rest.split_at(header.size as usize);
            rest = later;
            if header.base_offset > self.log_end {
                // The log has a gap before this batch. The list of remembered positions must not have gaps, so begin a
                // new list.
                self.recent.clear();
            }
            active.account(&Header { position, ..*header }, config.index_interval_bytes);
            self.recent.push(header.base_offset, position);
            if !header.is_control {
                remember(&mut self.producers, header, now_ms, window);
            } else {
                let marker = BatchView::first(batch).ok().as_ref().and_then(marker_of);
                active.aborted.extend(remember_control(&mut self.producers, header, marker.as_ref(), now_ms));
            }
            position += u64::from(header.size);
            self.log_end = header.last_offset() + 1;
        }
        assert_eq!(active.size, position, "the segment grows by the batches");
        Ok(count)
    }

    /// Returns how many of the batches with these headers fit into the active segment. The first batch always counts as
    /// fitting.
    fn room_for(&mut self, headers: &[Header], config: &TopicConfig) -> io::Result<usize> {
        let active = self.segments.back_mut().expect("a log has a segment");
        let first_timestamp = active.first_timestamp()?.unwrap_or(headers[0].max_timestamp);
        let age_max = i64::try_from(config.roll_after_ms()).unwrap_or(i64::MAX);
        let entries_left = (config.segment_index_bytes / 12) as usize;
        let entries_left = entries_left.saturating_sub(active.offsets.len().max(active.times.len() + 1));
        let mut size = active.size;
        let others = headers.iter().skip(1).take(entries_left).take_while(|header| {
            size += u64::from(header.size);
            size + u64::from(headers[0].size) <= config.segment_bytes
                && header.max_timestamp.saturating_sub(first_timestamp) <= age_max
                && active.can_hold(header.last_offset())
        });
        Ok(1 + others.count())
    }

    /// Removes the batch that contains `offset`, and everything after it. If the log ends at or before `offset`, no
    /// records are removed. If the first segment begins at or after `offset`, removes all records, and the log starts
    /// at `offset`.
    ///
    /// # Errors
    /// Returns the system's error. The log may already be cut off, and must be opened again before it can be used.
    pub fn truncate_to(&mut self, offset: i64, now_ms: i64, config: &TopicConfig) -> io::Result<()> {
        if offset >= self.log_end {
            // A failed append may have recorded its leader epoch, although the log has no records of this epoch.
            return self.epochs.truncate_to(self.log_end);
        }
        if offset <= self.segments[0].base_offset {
            return self.truncate_fully_and_start_at(offset, now_ms);
        }
        let index = self.segment_of(offset);
        let base_offset = self.segments[index].base_offset;
        let cut = self.cut_within(index, offset, now_ms, config);
        if cut.is_err() {
            // The cut may have stopped halfway. Only the records before this segment are certain to be on the disk.
            self.flushes.lower(base_offset);
        }
        cut
    }

    /// Removes the batch that contains `offset` in segment `index`, and everything after it.
    fn cut_within(&mut self, index: usize, offset: i64, now_ms: i64, config: &TopicConfig) -> io::Result<()> {
        // Remove the last segment first, so that a kill leaves no gap.
        while self.segments.len() > index + 1
            && let Some(mut last) = self.segments.pop_back()
        {
            last.retire(true)?;
        }
        let segment = &mut self.segments[index];
        let end = segment.position_of(offset)?;
        let file = segment.file()?;
        file.set_len(end)?;
        file.sync_data()?;
        segment.size = end;
        let never = AtomicBool::new(false);
        segment.cut_aborted(offset)?;
        segment.rebuild_indexes(&never, config.index_interval_bytes)?;
        segment.resume()?;
        let last_offset = segment.last_offset().map_err(io::Error::from)?;
        let log_end = last_offset.map_or(segment.base_offset, |last| last + 1);
        assert!(log_end <= offset, "a cut at {offset} leaves records up to {log_end}");
        self.ends_at(log_end)?;
        if self.segments.iter().all(|segment| segment.size == 0) {
            // No records are left. The first epoch may begin before the cut, so it must be removed separately.
            self.epochs.truncate_to(i64::MIN)?;
        }
        self.load_producers(&never, now_ms, config)
    }

    /// Removes all records. The next record will get the offset `offset`.
    ///
    /// # Errors
    /// Returns the system's error. The log may be empty, and cannot be used until it is opened again.
    pub fn truncate_fully_and_start_at(&mut self, offset: i64, now_ms: i64) -> io::Result<()> {
        let first = self.segments[0].base_offset;
        let begun = self.replace_all_at(offset, now_ms);
        if begun.is_err() {
            self.flushes.lower(first);
        }
        begun
    }

    fn replace_all_at(&mut self, offset: i64, now_ms: i64) -> io::Result<()> {
        for segment in &mut self.segments {
            segment.retire(true)?;
        }
        // Replace the list only when there is a new segment, because the list must never be empty.
        self.segments = VecDeque::from([Segment::create(&self.dir, offset, now_ms)?]);
        self.log_start = offset;
        self.ends_at(offset)?;
        self.epochs.advance_to(offset)?;
        let mut producers = Producers::default();
        producers.succeed_again(&self.producers);
        self.producers = producers;
        super::snapshot::remove_past(&self.dir, i64::MIN)?;
        (self.snapshot_offset, self.snapshot_len) = (-1, 0);
        // Producers that were taken over from a deleted partition are in no batch, so a snapshot must keep them.
        if self.producers.has_predecessor() { self.take_snapshot() } else { Ok(()) }
    }

    /// Moves the log end back to `log_end`, and forgets everything about the removed part.
    fn ends_at(&mut self, log_end: i64) -> io::Result<()> {
        self.log_end = log_end;
        self.log_start = self.log_start.min(log_end);
        self.flushes.cut(log_end);
        self.recent.clear();
        self.written = Written::default();
        self.generation.fetch_add(1, Ordering::Release);
        self.epochs.truncate_to(log_end)?;
        let last = self.epochs.starts().last();
        assert!(last.is_none_or(|(_, start)| *start <= log_end), "no epoch begins past the end of the log");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::unix::fs::FileExt;
    use std::rc::Rc;
    use std::time::Duration;

    use bytes::BytesMut;
    use fullbore_rules::sequence::Verdict;
    use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};
    use tokio::time::timeout;

    use super::*;
    use crate::lookup::Slice;
    use crate::recovery::RecoveryHint;
    use crate::steps::watch;
    use crate::validation::ValidBatch;
    use fullbore_config::{BrokerConfig, Properties};
    use fullbore_host::disk_space::DiskSpace;

    fn of_one_record() -> BytesMut {
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(b"v"), &[]);
        builder.seal(Stamp::NONE).expect("sealed").0
    }

    /// Returns a log with three batches of one record each.
    fn of_three(directory: &tempfile::TempDir) -> (Log, TopicConfig) {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = broker.topics.defaults;
        let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
        let bytes = of_one_record();
        let batch = ValidBatch::unchecked(&bytes);
        for _ in 0..3 {
            log.append(&batch, 0, 0, &config).expect("appended");
        }
        (log, config)
    }

    #[test]
    fn a_log_that_is_cut_off_before_its_start_begins_where_it_ends() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (mut log, config) = of_three(&directory);
        log.delete_before(2, 0, &DiskSpace::open(directory.path(), 0)).expect("deleted");
        log.truncate_to(1, 0, &config).expect("cut off");
        assert_eq!((log.log_start, log.log_end), (1, 1));
    }

    #[test]
    fn log_whose_directory_was_replaced_leaves_the_copy_as_it_is() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let [at, moved] = ["log", "moved"].map(|name| parent.path().join(name));
        std::fs::create_dir(&at).expect("created");
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = broker.topics.defaults;
        let mut log = Log::open(&at.clone().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
        let bytes = of_one_record();
        log.append(&ValidBatch::unchecked(&bytes), 0, 0, &config).expect("appended");
        std::fs::rename(&at, &moved).expect("moved");
        std::fs::create_dir(&at).expect("created");
        let names = |directory: &std::path::Path| {
            let entries = std::fs::read_dir(directory).expect("readable");
            let mut names: Vec<_> = entries.map(|entry| entry.expect("readable").file_name()).collect();
            names.sort();
            names
        };
        for name in names(&moved) {
            std::fs::copy(moved.join(&name), at.join(&name)).expect("copied");
        }
        let copied = names(&at);
        log.roll(0).expect_err("refused");
        assert_eq!(names(&at), copied);
        std::fs::remove_dir_all(&at).expect("removed");
        std::fs::rename(&moved, &at).expect("moved back");
        log.roll(0).expect("rolled");
        assert!(names(&at).len() > copied.len());
    }

    /// A producer of a deleted partition is idle. If a kill or a cut lost its state, the producer would be refused once
    /// this replica leads.
    #[test]
    fn producer_state_of_a_deleted_partition_survives_a_kill_and_every_cut() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = TopicConfig { segment_bytes: 150, ..broker.topics.defaults };
        let killed = RecoveryHint { clean: false, ..RecoveryHint::NOTHING };
        let opened = || Log::open(&directory.path().into(), killed, 0, &config).expect("opened");
        let stopped =
            fullbore_rules::sequence::Stamp { producer_id: 7, producer_epoch: 0, base_sequence: 0, record_count: 5 };
        let mut before = Producers::default();
        before.append(&stopped, 0, 0, 0, 5);
        opened().succeed(before.tails(), 0).expect("written");
        let goes_on = |log: &Log| {
            let next = fullbore_rules::sequence::Stamp { base_sequence: 5, ..stopped };
            let overtook = fullbore_rules::sequence::Stamp { base_sequence: 10, ..stopped };
            [next, overtook].map(|stamp| log.producers.check(&stamp, log.log_end) == Verdict::Append)
        };
        assert_eq!(goes_on(&opened()), [true, false], "without a record");
        let (mut log, bytes) = (opened(), of_one_record());
        for _ in 0..12 {
            log.append(&ValidBatch::unchecked(&bytes), 0, 0, &config).expect("appended");
        }
        drop(log);
        let mut log = opened();
        assert_eq!(goes_on(&log), [true, false], "beside records");
        for offset in [11, 5, 1, 0] {
            log.truncate_to(offset, 0, &config).expect("cut off");
            assert_eq!((log.log_end, goes_on(&log)), (offset, [true, false]));
        }
    }

    #[test]
    fn a_kill_at_any_step_of_a_cut_leaves_no_hole() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = TopicConfig { segment_bytes: 150, ..broker.topics.defaults };
        let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
        let bytes = of_one_record();
        for _ in 0..12 {
            log.append(&ValidBatch::unchecked(&bytes), 0, 0, &config).expect("appended");
        }
        assert!(log.segments.len() > 3);
        let (from, left) = (directory.path().to_owned(), Rc::new(RefCell::new(Vec::new())));
        let into = Rc::clone(&left);
        let look = move || {
            let copy = tempfile::tempdir().expect("temporary directory");
            for entry in std::fs::read_dir(&from).expect("listed") {
                let entry = entry.expect("listed");
                std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copied");
            }
            into.borrow_mut().push(copy);
        };
        watch(look, || log.truncate_to(1, 0, &config).expect("cut off"));
        assert!(left.borrow().len() > 5);
        for copy in left.borrow().iter() {
            let killed = RecoveryHint { clean: false, ..RecoveryHint::NOTHING };
            let found = Log::open(&copy.path().into(), killed, 0, &config).expect("opened");
            assert_eq!(found.size(), bytes.len() as u64 * found.log_end.unsigned_abs(), "up to {}", found.log_end);
        }
    }

    #[test]
    fn a_follower_has_gaps_where_its_leader_has_and_opens_with_them_after_a_kill() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = broker.topics.defaults;
        let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
        for offset in [0, 1, 10, 20] {
            let mut bytes = of_one_record();
            bytes[..8].copy_from_slice(&i64::to_be_bytes(offset));
            // Set the leader epoch to 0.
            bytes[12..16].fill(0);
            let batch = BatchView::first(&bytes).expect("a batch");
            assert_eq!(log.append_as_they_are(&bytes, &[batch], 0, &config), Ok(1));
        }
        let cold = crate::direct_io::DirectReads::default();
        for (from, expected) in [(1, 1), (2, 10), (9, 10), (11, 20)] {
            let slice = log.plan_read(from, 1, 21).expect("planned").read(1, true, &cold).expect("read");
            let Slice::Of(slice) = slice else { panic!("a batch at or after {from}") };
            let mut base_offset = [0; 8];
            slice.file.read_exact_at(&mut base_offset, slice.position).expect("read");
            assert_eq!(i64::from_be_bytes(base_offset), expected, "from {from}");
        }
        drop(log);
        let killed = RecoveryHint { clean: false, ..RecoveryHint::NOTHING };
        for rebooted in [false, true] {
            let known = RecoveryHint { may_have_gaps: true, rebooted, ..killed };
            let found = Log::open(&directory.path().into(), known, 0, &config).expect("opened");
            assert_eq!(found.log_end, 21);
        }
        // A leader's log cannot have gaps, so a leader must refuse the same log.
        Log::open(&directory.path().into(), killed, 0, &config).expect_err("refused");
    }

    /// The first batch can be after the log start: on a follower that began again in a compacted topic, or on a leader
    /// after a power loss. If a restart moved the log start to that batch, groups with an earlier committed offset
    /// would be reset. If the batch's epoch began at the log start, consumers in an earlier epoch would go back there.
    #[test]
    fn first_batch_is_behind_the_log_start_a_kill_moves_neither() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = broker.topics.defaults;
        let killed = RecoveryHint { clean: false, may_have_gaps: true, ..RecoveryHint::NOTHING };
        let mut log = Log::open(&directory.path().into(), killed, 0, &config).expect("opened");
        let append = |log: &mut Log, offset: i64, leader_epoch: i32| {
            let mut bytes = of_one_record();
            bytes[..8].copy_from_slice(&offset.to_be_bytes());
            bytes[12..16].copy_from_slice(&leader_epoch.to_be_bytes());
            let batch = BatchView::first(&bytes).expect("a batch");
            assert_eq!(log.append_as_they_are(&bytes, &[batch], 0, &config), Ok(1));
        };
        append(&mut log, 10, 3);
        append(&mut log, 20, 4);
        drop(log);
        let found = Log::open(&directory.path().into(), killed, 0, &config).expect("opened");
        assert_eq!((found.log_start, found.epochs.starts()), (0, &[(3, 0), (3, 10), (4, 20)][..]));
        assert_eq!(found.epochs.first_batches(), [(3, 10), (4, 20)]);
        drop(found);
        std::fs::remove_file(directory.path().join("leader-epoch-checkpoint")).expect("removed");
        let mut found = Log::open(&directory.path().into(), killed, 0, &config).expect("opened");
        assert_eq!((found.log_start, found.epochs.starts()), (0, &[(3, 0), (3, 10), (4, 20)][..]));
        assert_eq!(found.epochs.first_batches(), [(3, 10), (4, 20)]);
        found.truncate_to(10, 0, &config).expect("cut off");
        assert_eq!((found.log_end, found.epochs.latest()), (0, None), "no epoch without a record");
        append(&mut found, 5, 2);
        assert_eq!(found.epochs.starts(), [(2, 0), (2, 5)]);
        // The leader's log begins later now, in the same epoch, and has no batch at its start.
        found.truncate_fully_and_start_at(30, 0).expect("begun again");
        append(&mut found, 40, 2);
        assert_eq!((found.log_start, found.epochs.starts()), (30, &[(2, 30), (2, 40)][..]));
        found.delete_before(35, 0, &DiskSpace::open(directory.path(), 0)).expect("deleted");
        assert_eq!((found.log_start, found.epochs.starts()), (35, &[(2, 35), (2, 40)][..]));
    }

    /// The follower was killed after it had removed its log to begin again, so the recovery point still belongs to the
    /// old log. If the new log began at this point, the follower would join the ISR without the records before it.
    #[test]
    fn a_follower_killed_while_it_begins_again_begins_at_its_log_start() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let killed = RecoveryHint { clean: false, recovery_point: 3, log_start: Some(1), ..RecoveryHint::NOTHING };
        for (may_have_gaps, log_end) in [(true, 1), (false, 3)] {
            let directory = directory.path().join(log_end.to_string());
            std::fs::create_dir(&directory).expect("made");
            let known = RecoveryHint { may_have_gaps, ..killed };
            let found = Log::open(&directory.into(), known, 0, &broker.topics.defaults).expect("opened");
            assert_eq!((found.log_start, found.log_end), (log_end, log_end));
        }
    }

    #[tokio::test]
    async fn a_waiter_for_the_flush_of_cut_records_is_resolved() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (mut log, config) = of_three(&directory);
        let waiting = log.flush_ticket(3);
        let plan = log.plan_flush(true).expect("planned");
        log.truncate_to(1, 0, &config).expect("cut off");
        log.flushed(&plan, &plan.run());
        let answer = timeout(Duration::from_secs(60), waiting.wait()).await.expect("answered");
        assert_eq!(answer, Err(AppendError::Storage));
        // The truncation keeps offset 0. A caller that waits for this record must get the result of the next flush.
        let waiting = log.flush_ticket(1);
        let plan = log.plan_flush(true).expect("planned");
        log.flushed(&plan, &plan.run());
        assert_eq!(waiting.wait().await, Ok(()));
    }

    #[test]
    fn a_log_that_cannot_begin_again_still_takes_calls() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (mut log, config) = of_three(&directory);
        // Creating the next segment fails now, as it would on a full disk.
        std::fs::create_dir(directory.path().join("00000000000000000007.log")).expect("made");
        log.truncate_fully_and_start_at(7, 0).expect_err("its first segment cannot be made");
        log.give_up();
        let _ = log.plan_flush(true);
        let _ = log.plan_read(0, 1000, 3);
        log.retire_old(0, 3, &config, false);
    }
}
