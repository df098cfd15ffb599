//! State of a replica, under the replica's lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use fullbore_rules::replica::{self, Brokers, Now};
use fullbore_wire::ErrorCode;

use super::data_dir::cluster::ClusterView;
use super::data_dir::failures::{Failures, Mark};
use super::data_dir::flusher::Due;
use super::failing::FailingLog;
use super::phase::Phase;
use fullbore_log::Log;
use fullbore_log::error::StorageError;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::Acks;
use fullbore_log::partition::reorder_buffer::OutOfOrderBatches;
use fullbore_log::recovery::RecoveryHint;
use fullbore_rules::sequence::Stamp;

/// Empty set of brokers, for the role of a leader without followers, which depends on no other broker.
const NO_BROKERS: &Brokers = &BTreeMap::new();

/// State of a replica, under the replica's lock.
#[derive(Debug)]
pub struct ReplicaState {
    /// Recovery hint of a log that is not open.
    pub known: RecoveryHint,
    pub log: LogState,
    /// True if the log was truncated, at either end, and the checkpoints may still claim more than is left.
    pub has_cut_to_checkpoint: bool,
    /// Parked batches out of order, if there are any.
    pub parked: Option<Box<OutOfOrderBatches>>,
    /// Role of the partition, by the newest metadata taken over, with its high watermark.
    pub role: replica::Partition,
    /// Flush requests.
    pub flush: Flushing,
    /// Mark in the count of broken logs or in that of refused logs; `None` for any other log.
    pub failed: Option<Mark>,
    /// Appends or reads that fail although the log is not broken. Boxed, because few of 100,000 partitions have a
    /// failure.
    pub failing: Option<Box<FailingLog>>,
    /// Time of the last failure to open the log, and its error.
    pub open_failure: Option<Box<(Instant, StorageError)>>,
}

/// Flush requests, and the flush under way.
#[derive(Debug, Default)]
pub struct Flushing {
    /// True if the partition is in the flusher's queue, or is being flushed.
    pub is_queued: bool,
    /// True if a requested flush has not begun.
    pub is_wanted: bool,
    /// True if the requested flush includes the active segment.
    pub of_active: bool,
    /// Flush that is due once flush.ms has passed.
    pub timed: Option<Due>,
    /// Next try of a flush that could not open a file.
    pub again: Option<Due>,
}

impl ReplicaState {
    /// Counts the log as broken, if it is. Called after each operation that may break the log.
    pub fn mark_if_broken(&mut self, failures: &Failures) {
        let is_broken = matches!(&self.log, LogState::Open(log) if log.is_broken());
        if is_broken && self.failed.is_none() {
            self.failed = Some(failures.mark());
        }
    }
}

/// State of a replica's log.
#[derive(Debug)]
pub enum LogState {
    /// Log that was not read since the broker's start.
    Unopened,
    /// Log that a thread opens; the thread ends early once the flag is set.
    Opening(Arc<AtomicBool>),
    /// Log that a thread creates; the thread ends early once the flag is set.
    Creating(Arc<AtomicBool>),
    /// Log that was never written.
    Absent,
    Open(Box<Log>),
    /// Log whose files cannot be used until they are repaired.
    Refused(StorageError),
    /// Log of a deleted partition, or closed by the stop of the broker.
    Gone,
}

impl LogState {
    /// Returns the phase of this state, for readers without the lock.
    pub fn phase(&self) -> Phase {
        match self {
            LogState::Unopened => Phase::Unopened,
            LogState::Opening(_) => Phase::Opening,
            LogState::Creating(_) => Phase::Creating,
            LogState::Absent => Phase::Absent,
            LogState::Open(_) => Phase::Open,
            LogState::Refused(_) => Phase::Refused,
            LogState::Gone => Phase::Gone,
        }
    }
}

impl ReplicaState {
    /// Calls `what` with the role, the time and the brokers. Without followers the role depends on neither time nor
    /// brokers.
    pub fn with_now<T>(
        &mut self,
        cluster: &ClusterView,
        what: impl FnOnce(&mut replica::Partition, &Now<'_>) -> T,
    ) -> T {
        if self.role.has_followers() {
            return cluster.at_this_moment(|now| what(&mut self.role, now));
        }
        what(&mut self.role, &Now { ms: 0, broker_epoch: replica::NO_BROKER_EPOCH, brokers: NO_BROKERS })
    }

    /// Checks that this broker leads in `epoch`.
    pub fn check_leads_in(&self, epoch: i32) -> Result<(), ErrorCode> {
        self.role.check_leader_epoch(epoch)?;
        if self.role.is_leader() { Ok(()) } else { Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) }
    }

    /// Returns true if the batch is out of order: earlier batches of its producer are missing.
    pub fn is_early(&self, stamp: &Stamp) -> bool {
        let LogState::Open(log) = &self.log else { return false };
        stamp.is_idempotent() && log.producers().ahead(stamp) > 0
    }

    /// Removes from memory the ends of transactions below the high watermark, which are replicated.
    pub fn forget_replicated_ends(&mut self) {
        let high_watermark = self.role.high_watermark();
        if let LogState::Open(log) = &mut self.log {
            log.forget_replicated_ends(high_watermark);
        }
    }

    /// Checks that a batch may be appended.
    pub fn check_append(&self, acks: Acks) -> Result<(), AppendError> {
        self.role.check_append(acks == Acks::All).map_err(AppendError::Role)
    }
}
