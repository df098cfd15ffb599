//! This broker's copy of a partition: its log under a lock, its role, and its waiters.
//!
//! The role and the high watermark follow the metadata image (`role`); [`fullbore_rules::replica`] decides them. A
//! leader appends, reads, and serves its followers. A follower appends its leader's batches.
//!
//! - `append`: appends of a leader. `out_of_order`: batches that arrive out of order. `refused`: batches that follow a
//!   refused batch of their producer.
//! - `read`, `times`: reads by offset and by time. `follower_reads`: fetches of followers.
//! - [`fullbore_log::partition::dirty_partitions`]: notifies the followers' sessions when a partition changes.
//! - `following`: appends of a follower.
//! - `opening`: the threads of [`data_dir::opener`] open a log when it is first needed.
//! - `flushing`: the threads of [`data_dir::flusher`] flush the log.
//! - `retire`: the deletion of a topic retires its logs.
//!
//! All replicas of a data directory share one [`data_dir::LogDir`]. A replica that was not used takes a few hundred
//! bytes of memory. Its first use reads its directory, and its first write creates the directory and the files.
//!
//! Locks: `state` owns everything that changes; fetches read files without it. `renaming` is taken before `state`.
//!
//! Invariant: an acknowledged batch is whole in the log at its offset, and on the disk and on other replicas as far as
//! the response promises.

mod append;
pub(crate) mod data_dir;
mod failing;
mod flushing;
pub(crate) mod follower_reads;
pub(crate) mod following;
mod hung;
mod opening;
mod out_of_order;
pub(crate) mod phase;
pub(crate) mod read;
mod refused;
mod retire;
mod role;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod times;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use fullbore_rules::cluster::ResignedLog;
use fullbore_rules::replica::{self as rules, LocalLog, PartitionRegistration};
use fullbore_rules::sequence::{PastTopic, RefusedBatches};
use fullbore_wire::Uuid;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;

use data_dir::LogDir;
use data_dir::checkpoints::{Noted, TopicPartition};
use data_dir::opener::OpeningMarks;
use fullbore_config::TopicConfig;
use fullbore_log::aside::SetAside;
use fullbore_log::direct_io::DirectReads;
use fullbore_log::files::partition_dir;
use fullbore_log::partition::waiters::{Registration, Waiters};
use fullbore_log::recovery::RecoveryHint;
use phase::{PhaseCell, PhaseView};
use state::{Flushing, LogState, ReplicaState};

/// Replica of a partition. Calls may block on the disk, except for the async functions of `opening`. The first call may
/// block for as long as a recovery takes.
#[derive(Debug)]
pub struct Replica {
    topic: Arc<str>,
    topic_id: Uuid,
    index: i32,
    log_dir: Arc<LogDir>,
    /// Settings, outside of the state, so that a change need not wait for the state's lock.
    config: RwLock<Arc<TopicConfig>>,
    /// Registration in the metadata.
    registered: RwLock<Arc<PartitionRegistration>>,
    /// True until the state has taken over the registration and the settings.
    has_news: AtomicBool,
    state: Mutex<ReplicaState>,
    /// Held while files of the log are renamed without the state's lock. Also held during a truncation, because new
    /// files may then get the old names. Taken before `state`.
    renaming: Mutex<()>,
    /// Notified when an opening has ended.
    opening_ended: Condvar,
    /// Variant of [`LogState`] that the state has, and whether the partition is deleted.
    phase: PhaseCell,
    /// Flags that show which of the opener's queues contain this replica.
    asked: OpeningMarks,
    /// See [`Replica::lacks_committed`].
    lacks_committed: AtomicBool,
    /// Deleted partition whose directory may still have this partition's name.
    predecessor: Mutex<Option<Arc<Replica>>>,
    /// True if an earlier, deleted partition of this name had a log while this process ran, or has left producer tails.
    pub(crate) is_preceded: bool,
    /// Last deleted topic that had a partition of this name and number, if the metadata still lists the topic.
    past: Option<Box<PastTopic>>,
    /// Version of the image in which the partition was deleted; [`NOT_DELETED`] before that.
    deleted_at: AtomicU64,
    /// Exclusive upper bound of the producer ids that were allocated before the partition was created.
    producer_ids_below: i64,
    /// Outcome of the retirement: `None` before it; false if the directory kept its name. Locked while the directory is
    /// renamed.
    retired: Mutex<Option<bool>>,
    waiters: Arc<Waiters>,
    /// Refused batches of idempotent producers that will send them again.
    refused: Mutex<RefusedBatches>,
}

/// Value of [`Replica::deleted_at`] for a partition that is not deleted.
const NOT_DELETED: u64 = u64::MAX;

/// Deleted partitions that had the name and number of a new partition.
#[derive(Debug, Default)]
pub struct Before {
    /// Deleted partition whose directory may still have the name.
    pub replica: Option<Arc<Replica>>,
    /// Last deleted topic that had a partition of that name and number, if the metadata still lists the topic.
    pub topic: Option<PastTopic>,
}

impl Replica {
    /// Creates a replica without reading its directory.
    pub(crate) fn new(
        (topic, topic_id, index): (Arc<str>, Uuid, i32),
        log_dir: Arc<LogDir>,
        (config, registered): (Arc<TopicConfig>, Arc<PartitionRegistration>),
        known: Option<RecoveryHint>,
        Before { replica: predecessor, topic: past }: Before,
    ) -> Replica {
        let key = (topic.to_string(), index);
        // Without a hint the partition is new and has no directory. Checkpoints under its name are those of a deleted
        // partition.
        let log = if known.is_some() { LogState::Unopened } else { LogState::Absent };
        if known.is_none() {
            log_dir.checkpoints.forget(key.clone());
        }
        let had_log = |before: &Arc<Replica>| before.is_preceded || !before.phase().is_absent();
        let is_preceded = predecessor.as_ref().is_some_and(had_log) || log_dir.carried_tails.has(&key);
        // The first lock of the state takes over the settings and the registration.
        let settings = rules::ReplicaSettings { min_insync_replicas: 1, replica_lag_time_max_ms: i64::MAX };
        let phase = PhaseCell::new(log.phase());
        let state = ReplicaState {
            known: known.unwrap_or(RecoveryHint::NOTHING),
            log,
            has_cut_to_checkpoint: false,
            parked: None,
            role: rules::Partition::new(log_dir.cluster.node_id, LocalLog::default(), settings),
            flush: Flushing::default(),
            failed: None,
            failing: None,
            open_failure: None,
        };
        Replica {
            topic,
            topic_id,
            index,
            is_preceded,
            past: past.map(Box::new),
            deleted_at: AtomicU64::new(NOT_DELETED),
            producer_ids_below: log_dir.carried_tails.producer_ids_below(),
            log_dir,
            config: RwLock::new(config),
            registered: RwLock::new(registered),
            has_news: AtomicBool::new(true),
            phase,
            state: Mutex::new(state),
            renaming: Mutex::default(),
            opening_ended: Condvar::new(),
            asked: OpeningMarks::default(),
            lacks_committed: AtomicBool::new(false),
            predecessor: Mutex::new(predecessor),
            retired: Mutex::new(None),
            waiters: Arc::default(),
            refused: Mutex::default(),
        }
    }

    /// Returns the topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn topic_name(&self) -> Arc<str> {
        self.topic.clone()
    }

    /// Returns the topic's id.
    pub fn topic_id(&self) -> Uuid {
        self.topic_id
    }

    /// Returns the partition's number.
    pub fn index(&self) -> i32 {
        self.index
    }

    /// Returns the settings in force.
    pub fn config(&self) -> Arc<TopicConfig> {
        self.config.read().clone()
    }

    /// Returns the phase of the log, and whether the partition is deleted. Takes no lock.
    pub fn phase(&self) -> PhaseView {
        self.phase.load()
    }

    /// Returns the state of direct reads, which go around the page cache.
    pub(crate) fn cold(&self) -> &DirectReads {
        &self.log_dir.cold
    }

    /// Returns the files that a power loss has left beside the log. Reads the disk if there are such files.
    pub fn set_aside(&self) -> SetAside {
        self.log_dir.aside.of(&self.dir())
    }

    /// Returns true if the log's files are damaged. A damaged log is neither read nor written until it is repaired.
    pub fn is_refused(&self) -> bool {
        matches!(self.lock().log, LogState::Refused(_))
    }

    /// Returns true if the replica must leave every ISR, and takes no records as a follower. The reason is a failed
    /// write or fsync, a damaged log, a directory that takes no files, or records that cannot be read.
    pub fn takes_no_records(&self) -> bool {
        let state = self.lock();
        state.failed.is_some() || state.is_unwritable()
    }

    /// Returns how complete the log is, if it cannot be appended to or read; otherwise
    /// `None`. A log that is broken or not open may lack its end, and is `Unsure`. This broker must then also leave the
    /// ELR, because a replica in the ELR may become leader.
    pub(crate) fn resigned_log(&self) -> Option<ResignedLog> {
        let state = self.lock();
        let is_whole = state.failed.is_none() && matches!(state.log, LogState::Open(_));
        let log = if is_whole { ResignedLog::Whole } else { ResignedLog::Unsure };
        (state.failed.is_some() || state.is_unwritable()).then_some(log)
    }

    /// Breaks the log, as a failed write does.
    #[cfg(test)]
    pub(crate) fn break_down(&self) {
        let mut state = self.lock();
        if let LogState::Open(log) = &mut state.log {
            log.give_up();
        }
        state.mark_if_broken(&self.log_dir.flusher.failures);
    }

    /// Wakes `waiter` each time the high watermark moves, and when the partition is deleted, until the registration is
    /// dropped. Register first, then check, then wait, so that no change is missed.
    pub fn register(&self, waiter: &Arc<Notify>) -> Registration {
        Registration::new(&self.waiters, waiter)
    }

    /// Returns the partition's directory.
    pub(crate) fn dir(&self) -> Arc<Path> {
        partition_dir(&self.log_dir.path, &self.topic, self.index).into()
    }
}

impl Replica {
    /// Locks the state without taking over the metadata, for callers that do not use the role.
    pub(crate) fn lock_as_it_is(&self) -> MutexGuard<'_, ReplicaState> {
        self.state.lock()
    }

    /// Locks the state like [`Replica::lock_as_it_is`]; `None` if another thread has the lock.
    pub(crate) fn try_lock_as_it_is(&self) -> Option<MutexGuard<'_, ReplicaState>> {
        self.state.try_lock()
    }

    /// Returns true if the log was written or read in the last `rounds` rounds of housekeeping, or another thread has
    /// its lock.
    pub(crate) fn is_in_use(&self, rounds: u32) -> bool {
        self.try_lock_as_it_is()
            .is_none_or(|state| matches!(&state.log, LogState::Open(log) if log.idle_rounds() < rounds))
    }
}

impl Replica {
    /// Returns the number of records between last stable offset and high watermark. `None` if this broker does not
    /// lead, the log is not open, or another thread has its lock.
    pub(crate) fn stable_lag(&self) -> Option<u64> {
        self.leads_in()?;
        let mut state = self.try_lock_as_it_is()?;
        let high_watermark = state.role.high_watermark();
        let LogState::Open(log) = &mut state.log else { return None };
        u64::try_from(high_watermark - log.last_stable_offset(high_watermark)).ok()
    }
}

/// Key and offsets for the checkpoints.
impl Replica {
    /// Returns the topic's name and the partition's number.
    pub(crate) fn key(&self) -> TopicPartition {
        (self.topic.to_string(), self.index)
    }

    /// Returns the offsets of an open log; `None` if the log is not open.
    pub(crate) fn noted(&self) -> Option<Noted> {
        let state = self.state.lock();
        match &state.log {
            LogState::Open(log) => Some(Noted {
                recovery_point: log.recovery_point(),
                log_start: log.log_start(),
                high_watermark: state.role.high_watermark(),
            }),
            _ => None,
        }
    }
}
