//! This broker's copy of a partition: its log under a lock, its role, and who waits for it.
//!
//! The role, and the high watermark with it, is what the image of the metadata says
//! (`role`), decided by [`fullbore_rules::replica`]. A leader appends
//! (`append`, batches that come before their turn in `out_of_order`, behind refused ones in
//! `refused`) and reads (`read`, `times`), and serves its followers (`follower_reads`), whose sessions are notified by
//! [`fullbore_log::partition::dirty_partitions`]; a follower has its leader's batches (`following`). A log is opened
//! when it is first needed (`opening`, by the threads of [`data_dir::opener`]), flushed by those of
//! [`data_dir::flusher`], and goes with its topic (`retire`). [`data_dir::LogDir`] is what all replicas of a data
//! folder share.
//!
//! What a replica is not: open. It costs a few hundred bytes until it is first used; then its folder is read, and a
//! folder and files are made when something is to be written.
//!
//! Lock: `state` owns everything that changes. Fetches read files without it. `renaming` comes before it.
//!
//! Invariant: a batch is answered only when it is whole in the log at its offset, and as far as the answer promises on
//! the disk and on other replicas.

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

/// Replica of a partition. All calls may block on the disk, the first one for as long as a recovery takes, but for
/// those of `opening` that do not block.
#[derive(Debug)]
pub struct Replica {
    topic: Arc<str>,
    topic_id: Uuid,
    index: i32,
    log_dir: Arc<LogDir>,
    /// Outside of the state, so that who puts new settings in force waits for nobody.
    config: RwLock<Arc<TopicConfig>>,
    /// Registration in the metadata.
    registered: RwLock<Arc<PartitionRegistration>>,
    /// True if the registration or the settings are not taken over yet.
    has_news: AtomicBool,
    state: Mutex<ReplicaState>,
    /// Held, from before the state, while files of the log get other names without the state's lock, and while the log
    /// is cut off: what it has after that may be in files of the same names.
    renaming: Mutex<()>,
    /// Told when the state is not that of opening any more.
    opening_ended: Condvar,
    /// Which variant of [`LogState`] the state has, and whether the partition is deleted.
    phase: PhaseCell,
    /// Marks of the opener's queues.
    asked: OpeningMarks,
    /// See [`Replica::lacks_committed`].
    lacks_committed: AtomicBool,
    /// A deleted partition whose folder may still have this one's name.
    predecessor: Mutex<Option<Arc<Replica>>>,
    /// True if a deleted partition of this name had a log in this run, or has left stops.
    pub(crate) is_preceded: bool,
    /// The deleted topic that had a partition of this name and number last, as far as the metadata remembers.
    past: Option<Box<PastTopic>>,
    /// Version of the image in which the partition was deleted; [`NOT_DELETED`] before that.
    deleted_at: AtomicU64,
    /// Producers whose id was given out before the partition was made have lesser ones.
    producer_ids_below: i64,
    /// Once it is deleted, whether its folder is out of the way; held while that is done.
    retired: Mutex<Option<bool>>,
    waiters: Arc<Waiters>,
    /// Batches of idempotent producers that were refused, and are sent again.
    refused: Mutex<RefusedBatches>,
}

/// [`Replica::deleted_at`] of a partition that is not deleted.
const NOT_DELETED: u64 = u64::MAX;

/// Predecessors of a new partition of their name and number.
#[derive(Debug, Default)]
pub struct Before {
    /// A deleted partition whose folder may still have the name.
    pub replica: Option<Arc<Replica>>,
    /// The deleted topic that had such a partition last, as far as the metadata remembers.
    pub topic: Option<PastTopic>,
}

impl Replica {
    /// Creates a replica whose directory is not looked at yet.
    pub(crate) fn new(
        (topic, topic_id, index): (Arc<str>, Uuid, i32),
        log_dir: Arc<LogDir>,
        (config, registered): (Arc<TopicConfig>, Arc<PartitionRegistration>),
        known: Option<RecoveryHint>,
        Before { replica: predecessor, topic: past }: Before,
    ) -> Replica {
        let key = (topic.to_string(), index);
        // Without anything known it is new: there is nothing to look at, and the checkpoints are those of a deleted
        // partition.
        let log = if known.is_some() { LogState::Unopened } else { LogState::Absent };
        if known.is_none() {
            log_dir.checkpoints.forget(key.clone());
        }
        let had_log = |before: &Arc<Replica>| before.is_preceded || !before.phase().is_absent();
        let is_preceded = predecessor.as_ref().is_some_and(had_log) || log_dir.succession.has(&key);
        // What is set and told is taken over by who locks the state first.
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
            producer_ids_below: log_dir.succession.producer_ids_below(),
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

    /// The topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn topic_name(&self) -> Arc<str> {
        self.topic.clone()
    }

    /// The topic's id.
    pub fn topic_id(&self) -> Uuid {
        self.topic_id
    }

    /// The partition's number.
    pub fn index(&self) -> i32 {
        self.index
    }

    /// The settings in force.
    pub fn config(&self) -> Arc<TopicConfig> {
        self.config.read().clone()
    }

    /// The phase of the log, and whether the partition is deleted. Takes no lock.
    pub fn phase(&self) -> PhaseView {
        self.phase.load()
    }

    /// Returns the reads around the page cache.
    pub(crate) fn cold(&self) -> &DirectReads {
        &self.log_dir.cold
    }

    /// Returns the files that a power cut has left beside the log. Reads the disk where there are some.
    pub fn set_aside(&self) -> SetAside {
        self.log_dir.aside.of(&self.dir())
    }

    /// Returns true if its files are damaged: it is neither read nor written until they are repaired.
    pub fn is_refused(&self) -> bool {
        matches!(self.lock().log, LogState::Refused(_))
    }

    /// Returns true if the replica is to be in no ISR: a write or an fsync has failed, the log is damaged, its
    /// directory takes no files, or its records cannot be read. As follower it takes no records then.
    pub fn takes_no_records(&self) -> bool {
        let state = self.lock();
        state.failed.is_some() || state.is_unwritable()
    }

    /// Returns what is known of the log of a partition to which no records can be appended, or whose records cannot be
    /// read. `None` if they can. A log that cannot be opened may lack its end, and cannot be read: a replica in the ELR
    /// leads as well.
    pub(crate) fn resigned_log(&self) -> Option<ResignedLog> {
        let state = self.lock();
        let is_whole = state.failed.is_none() && matches!(state.log, LogState::Open(_));
        let log = if is_whole { ResignedLog::Whole } else { ResignedLog::Unsure };
        (state.failed.is_some() || state.is_unwritable()).then_some(log)
    }

    /// Fails as after a failed write.
    #[cfg(test)]
    pub(crate) fn break_down(&self) {
        let mut state = self.lock();
        if let LogState::Open(log) = &mut state.log {
            log.give_up();
        }
        state.mark_if_broken(&self.log_dir.flusher.failures);
    }

    /// Wakes `waiter` each time the high watermark moves, and when the partition goes, until the
    /// registration is dropped. Register, then look, then wait.
    pub fn register(&self, waiter: &Arc<Notify>) -> Registration {
        Registration::new(&self.waiters, waiter)
    }

    /// The partition's folder.
    pub(crate) fn dir(&self) -> Arc<Path> {
        partition_dir(&self.log_dir.path, &self.topic, self.index).into()
    }
}

impl Replica {
    /// The state, whatever the role is by now: for what goes by none.
    pub(crate) fn lock_as_it_is(&self) -> MutexGuard<'_, ReplicaState> {
        self.state.lock()
    }

    /// Locks the state as it is, if it is not locked.
    pub(crate) fn try_lock_as_it_is(&self) -> Option<MutexGuard<'_, ReplicaState>> {
        self.state.try_lock()
    }

    /// Returns true if the log was written or read since this number of rounds of housekeeping, or another thread has
    /// its lock.
    pub(crate) fn is_in_use(&self, rounds: u32) -> bool {
        self.try_lock_as_it_is()
            .is_none_or(|state| matches!(&state.log, LogState::Open(log) if log.idle_rounds() < rounds))
    }
}

impl Replica {
    /// Returns the records between last stable offset and high watermark. `None` where this broker does not lead, the
    /// log is not open, or another thread has its lock.
    pub(crate) fn stable_lag(&self) -> Option<u64> {
        self.leads_in()?;
        let mut state = self.try_lock_as_it_is()?;
        let high_watermark = state.role.high_watermark();
        let LogState::Open(log) = &mut state.log else { return None };
        u64::try_from(high_watermark - log.last_stable_offset(high_watermark)).ok()
    }
}

/// A partition as its checkpoints need it.
impl Replica {
    /// The topic's name and the partition's number.
    pub(crate) fn key(&self) -> TopicPartition {
        (self.topic.to_string(), self.index)
    }

    /// The offsets of a log that is open.
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
