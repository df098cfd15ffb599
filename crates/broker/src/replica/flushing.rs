//! Decides when to flush a replica's log, and handles the success or failure of the flush.
//!
//! The threads that flush are in [`super::data_dir::flusher`]. [`fullbore_log::flush`] chooses the files to flush.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::Replica;
use super::data_dir::flusher::Reason;
use super::state::{LogState, ReplicaState};
use fullbore_config::TopicConfig;
use fullbore_log::LogAppendInfo;
use fullbore_log::flush::FlushError;
use fullbore_log::partition::flushed::FlushTicket;

/// How long to wait before repeating a flush that could not open a file.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Replica {
    /// Requests a flush of the sealed segments, and with `active` also of the active segment.
    pub(crate) fn request_flush(self: &Arc<Self>, state: &mut ReplicaState, active: bool) {
        let flush = &mut state.flush;
        flush.is_wanted = true;
        flush.of_active |= active;
        if !std::mem::replace(&mut flush.is_queued, true) {
            self.log_dir.flusher.push(self.clone());
        }
    }

    /// Requests the flush that the topic's settings require after an append, or with `flushes` an immediate one.
    /// Returns a ticket if the response must wait for the flush.
    pub(super) fn flush_after(
        self: &Arc<Self>,
        state: &mut ReplicaState,
        outcome: &LogAppendInfo,
        flushes: bool,
        config: &TopicConfig,
    ) -> Option<FlushTicket> {
        if flushes {
            return self.flush_now(state, outcome.end_offset);
        }
        self.flush_up_to(state, outcome.end_offset, outcome.rolled, !outcome.is_duplicate, config)
    }

    /// Requests a flush of the whole log and returns its ticket. Returns `None` if the log is not open, or if all of it
    /// is on the disk already.
    pub fn flush_all(self: &Arc<Self>) -> Option<FlushTicket> {
        let mut state = self.lock();
        let end_offset = match &state.log {
            LogState::Open(log) => log.log_end(),
            _ => return None,
        };
        self.flush_now(&mut state, end_offset)
    }

    fn flush_now(self: &Arc<Self>, state: &mut ReplicaState, end_offset: i64) -> Option<FlushTicket> {
        let LogState::Open(log) = &mut state.log else { return None };
        let ticket = (end_offset > log.recovery_point()).then(|| log.flush_ticket(end_offset))?;
        self.request_flush(state, true);
        Some(ticket)
    }

    /// Requests a flush after an append, if the topic's settings require one or if the append sealed a segment.
    /// `end_offset` is the offset after the appended records. `rolled` is true if the append sealed a segment, and
    /// `is_new` if it wrote records. Returns a ticket if the response must wait for the flush.
    pub(super) fn flush_up_to(
        self: &Arc<Self>,
        state: &mut ReplicaState,
        end_offset: i64,
        rolled: bool,
        is_new: bool,
        config: &TopicConfig,
    ) -> Option<FlushTicket> {
        let LogState::Open(log) = &mut state.log else {
            return None;
        };
        let unflushed = (log.log_end() - log.recovery_point()).max(0) as u64;
        let due = config.flush_messages.is_some_and(|most| unflushed >= most) || config.flush_ms == Some(0);
        let ticket = (due && end_offset > log.recovery_point()).then(|| log.flush_ticket(end_offset));
        if ticket.is_some() || rolled {
            self.request_flush(state, ticket.is_some());
        }
        if let Some(flush_ms) = config.flush_ms.filter(|_| ticket.is_none() && is_new)
            && state.flush.timed.is_none()
        {
            let delay = Duration::from_millis(flush_ms);
            state.flush.timed = self.log_dir.flusher.push_after(self.clone(), Reason::FlushMs, delay);
        }
        ticket
    }
}

impl Replica {
    /// Flushes the log once for all requests since the last call.
    pub(super) fn flush(self: Arc<Self>) {
        let mut state = self.lock();
        state.flush.is_wanted = false;
        let active = std::mem::take(&mut state.flush.of_active);
        if let Err(FlushError::Unopened(error)) = flush_log(&mut state, active)
            && state.flush.again.is_none()
        {
            tracing::warn!(topic = self.topic(), partition = self.index(), %error, "cannot flush a partition: the broker retries each second");
            state.flush.again = self.log_dir.flusher.push_after(self.clone(), Reason::Again, AGAIN_AFTER);
        }
        state.mark_if_broken(&self.log_dir.flusher.failures);
        if state.flush.is_wanted {
            self.log_dir.flusher.push(self.clone());
        } else {
            state.flush.is_queued = false;
        }
    }

    /// Requests a flush because its timer has fired.
    pub(super) fn fall_due(self: Arc<Self>, reason: Reason) {
        let mut state = self.lock();
        match reason {
            Reason::FlushMs => state.flush.timed = None,
            Reason::Again => state.flush.again = None,
        }
        self.request_flush(&mut state, true);
    }
}

/// Flushes the log if it is open. Releases the lock during the flush.
fn flush_log(state: &mut MutexGuard<'_, ReplicaState>, active: bool) -> Result<(), FlushError> {
    let LogState::Open(log) = &mut state.log else { return Ok(()) };
    let plan = log.plan_flush(active).map_err(|error| {
        let error = FlushError::of_open(error);
        if let FlushError::Failed(error) = &error {
            log.flush_failed(error);
        }
        error
    })?;
    let identity = log.identity();
    let result = MutexGuard::unlocked(state, || plan.run());
    if let LogState::Open(log) = &mut state.log
        && Arc::ptr_eq(&identity, &log.identity())
    {
        log.flushed(&plan, &result);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use fullbore_tests::Batch;
    use fullbore_wire::Uuid;
    use tempfile::TempDir;

    use super::*;
    use crate::partitions::{Acks, AppendStep, AppendTerms, Origin, Partitions, led_by};
    use fullbore_config::{BrokerConfig, Properties, TopicConfig};
    use fullbore_log::validation::ValidBatch;

    fn opened() -> (TempDir, Arc<Partitions>, TopicConfig) {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let directory = tempfile::tempdir().expect("temporary directory");
        let logs = Partitions::open(directory.path(), &broker).expect("opened");
        (directory, logs, broker.topics.defaults)
    }

    fn partition_of(logs: &Partitions, topic: &str, id: Uuid, index: i32, config: TopicConfig) -> Arc<Replica> {
        logs.put_topic(topic, id, &led_by(1, index + 1), &Arc::new(config), Origin::New);
        logs.find(&id, index).expect("it has just been told of")
    }

    #[test]
    fn flush_ms_and_a_rolled_segment_flush_without_further_requests() {
        let (_directory, logs, defaults) = opened();
        let bytes = Batch::sized(700).bytes();
        let wait_for = |partition: &Replica, recovery_point: i64| {
            let start = Instant::now();
            while !matches!(&partition.lock().log, LogState::Open(log) if log.recovery_point() == recovery_point) {
                assert!(start.elapsed() < Duration::from_secs(20), "never flushed up to {recovery_point}");
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        let append = |partition: &Arc<Replica>| {
            let terms = AppendTerms::in_turn(Acks::Leader, 0);
            let step = partition.append(&ValidBatch::unchecked(&bytes), terms).expect("appended");
            assert!(matches!(step, AppendStep::Done(_)));
        };

        let timed = TopicConfig { flush_ms: Some(10), ..defaults.clone() };
        let partition = partition_of(&logs, "timed", Uuid([1; 16]), 0, timed);
        for round in 1..=3 {
            append(&partition);
            wait_for(&partition, round);
        }
        let rolling = TopicConfig { segment_bytes: 1000, ..defaults.clone() };
        let partition = partition_of(&logs, "rolling", Uuid([2; 16]), 0, rolling);
        (0..5).for_each(|_| append(&partition));
        wait_for(&partition, 4);
        logs.close();
    }

    #[test]
    fn deleted_partition_is_dropped_before_its_timed_flush() {
        let (_directory, logs, defaults) = opened();
        let bytes = Batch::sized(1).bytes();
        let yearly = TopicConfig { flush_ms: Some(31_536_000_000), ..defaults.clone() };
        let id = Uuid([1; 16]);
        let partition = partition_of(&logs, "t", id, 0, yearly);
        let terms = AppendTerms::in_turn(Acks::Leader, 0);
        let _ = partition.append(&ValidBatch::unchecked(&bytes), terms).expect("appended");
        let left = Arc::downgrade(&partition);
        drop(partition);
        logs.delete_topic(id);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(logs.deleted(id));
        let start = Instant::now();
        while left.strong_count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "somebody keeps it");
            std::thread::sleep(Duration::from_millis(2));
        }
        logs.close();
    }

    #[test]
    fn partition_with_a_failed_flush_counts_once_until_its_deletion() {
        let (_directory, logs, defaults) = opened();
        let bytes = Batch::sized(1).bytes();
        let terms = AppendTerms::in_turn(Acks::Leader, 0);
        let append = |partition: &Arc<Replica>| partition.append(&ValidBatch::unchecked(&bytes), terms).map(drop);
        let id = Uuid([1; 16]);
        for (index, failed) in [(0, 1), (1, 2)] {
            let partition = partition_of(&logs, "t", id, index, defaults.clone());
            append(&partition).expect("appended");
            // The flush must sync the directory, which is now removed. So it fails although the records are written.
            std::fs::remove_dir_all(partition.dir()).expect("removed");
            partition.request_flush(&mut partition.lock(), true);
            let start = Instant::now();
            while logs.failed_partitions() != failed {
                assert!(start.elapsed() < Duration::from_secs(20), "never counted");
                std::thread::sleep(Duration::from_millis(2));
            }
            assert!(append(&partition).is_err());
            assert_eq!(logs.failed_partitions(), failed);
        }
        logs.partitions().iter().for_each(|partition| _ = partition.retire());
        assert_eq!(logs.failed_partitions(), 0);
        logs.close();
    }
}
