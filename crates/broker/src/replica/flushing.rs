//! When a replica's log is flushed, and what becomes of it then.
//!
//! Not the threads that do it ([`super::data_dir::flusher`]), nor what a flush covers ([`fullbore_log::flush`]).

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

/// Between two tries of a flush that could not open what it needed.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Replica {
    /// Asks for a flush now: of sealed segments, and with `active` of everything.
    pub(crate) fn ask_to_flush(self: &Arc<Self>, state: &mut ReplicaState, active: bool) {
        let flush = &mut state.flush;
        flush.is_wanted = true;
        flush.of_active |= active;
        if !std::mem::replace(&mut flush.is_queued, true) {
            self.log_dir.flusher.push(self.clone());
        }
    }

    /// Requests the flushes that the topic's settings want, or with `flushes` one now. Returns a ticket if the answer
    /// must wait for one.
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

    /// Requests a flush of all that the log has by now. Returns `None` if that is on the disk, or the log is not open.
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
        self.ask_to_flush(state, true);
        Some(ticket)
    }

    /// Flushes as [`Replica::flush_after`] does, for a log that ends there. `rolled`: the last append sealed a segment;
    /// `is_new`: there is something to flush.
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
            self.ask_to_flush(state, ticket.is_some());
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
    /// Brings to the disk what was asked for since the last call.
    pub(super) fn flush(self: Arc<Self>) {
        let mut state = self.lock();
        state.flush.is_wanted = false;
        let active = std::mem::take(&mut state.flush.of_active);
        if let Err(FlushError::Unopened(error)) = flush_log(&mut state, active)
            && state.flush.again.is_none()
        {
            tracing::warn!(topic = self.topic(), partition = self.index(), %error, "not flushed yet, tried again");
            state.flush.again = self.log_dir.flusher.push_after(self.clone(), Reason::Again, AGAIN_AFTER);
        }
        state.mark_if_broken(&self.log_dir.flusher.failures);
        if state.flush.is_wanted {
            self.log_dir.flusher.push(self.clone());
        } else {
            state.flush.is_queued = false;
        }
    }

    /// The time has come for which a flush was asked.
    pub(super) fn fall_due(self: Arc<Self>, reason: Reason) {
        let mut state = self.lock();
        match reason {
            Reason::FlushMs => state.flush.timed = None,
            Reason::Again => state.flush.again = None,
        }
        self.ask_to_flush(&mut state, true);
    }
}

/// Flushes an open log; the lock is let go of meanwhile.
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

    use bytes::BytesMut;
    use fullbore_wire::Uuid;
    use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};
    use tempfile::TempDir;

    use super::*;
    use crate::partitions::{Acks, AppendStep, AppendTerms, Origin, Partitions, led_by};
    use fullbore_config::{BrokerConfig, Properties, TopicConfig};
    use fullbore_log::validation::ValidBatch;

    fn opened() -> (TempDir, Arc<Partitions>, TopicConfig) {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let folder = tempfile::tempdir().expect("temporary folder");
        let logs = Partitions::open(folder.path(), &broker).expect("opened");
        (folder, logs, broker.topics.defaults)
    }

    /// A batch of one record.
    fn sealed(value: &[u8]) -> BytesMut {
        let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
        builder.append(0, None, Some(value), &[]);
        builder.seal(Stamp::NONE).expect("sealed").0
    }

    fn partition_of(logs: &Partitions, topic: &str, id: Uuid, index: i32, config: TopicConfig) -> Arc<Replica> {
        logs.put_topic((topic, id), &led_by(1, index + 1), &Arc::new(config), Origin::New);
        logs.find(&id, index).expect("it has just been told of")
    }

    #[test]
    fn flush_ms_flushes_without_being_asked_again_and_a_rolled_segment_is_flushed_without_being_asked_at_all() {
        let (_folder, logs, defaults) = opened();
        let bytes = sealed(&[1; 700]);
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
    fn a_deleted_partition_is_not_kept_until_the_time_of_its_flush() {
        let (_folder, logs, defaults) = opened();
        let bytes = sealed(b"v");
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
    fn a_partition_whose_flush_failed_is_counted_once_until_it_is_deleted() {
        let (_folder, logs, defaults) = opened();
        let bytes = sealed(b"v");
        let terms = AppendTerms::in_turn(Acks::Leader, 0);
        let append = |partition: &Arc<Replica>| partition.append(&ValidBatch::unchecked(&bytes), terms).map(drop);
        let id = Uuid([1; 16]);
        for (index, failed) in [(0, 1), (1, 2)] {
            let partition = partition_of(&logs, "t", id, index, defaults.clone());
            append(&partition).expect("appended");
            // Its files are written, but there is no folder to sync their names in.
            std::fs::remove_dir_all(partition.dir()).expect("removed");
            partition.ask_to_flush(&mut partition.lock(), true);
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
