//! The state that all partitions of a data directory (Kafka's `log.dir`) share: the checkpoints, and the threads that
//! flush and open logs.
//!
//! The partitions themselves are in [`crate::partitions::registry`].

pub mod carried_tails;
pub mod checkpoints;
pub mod cleanings;
pub mod cluster;
pub mod failures;
pub mod flusher;
mod leftovers;
pub mod opener;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use carried_tails::CarriedTails;
use checkpoints::Checkpoints;
use cleanings::Cleanings;
use cluster::ClusterView;
use failures::Failures;
use flusher::Flusher;
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_log::aside;
use fullbore_log::direct_io::DirectReads;
use fullbore_log::files;
use fullbore_rules::sequence::ProducerTails;
use fullbore_wire::Uuid;
use leftovers::Leftovers;
use opener::Opener;

/// A data directory, and the state that its partitions share.
#[derive(Debug)]
pub struct LogDir {
    pub path: Arc<Path>,
    pub checkpoints: Checkpoints,
    /// This broker and the other registered brokers.
    pub cluster: ClusterView,
    pub flusher: Arc<Flusher>,
    pub opener: Arc<Opener>,
    pub carried_tails: CarriedTails,
    pub cleanings: Cleanings,
    /// Files that recoveries after a power loss have set aside.
    pub aside: aside::SetAsideDirectories,
    /// Files and directories to be removed, each with the earliest time of its removal.
    pub pending_removal: Mutex<Vec<(Instant, PathBuf)>>,
    /// Deleted partitions whose directories could not be renamed yet.
    pub leftovers: Leftovers,
    /// Limits the rate of the log line about reads that fail for a passing reason, such as a lack of file descriptors.
    pub transient_read: LogRateLimit,
    /// Limits the rate of the log line about fetched records that could not be written to the disk.
    pub not_replicated: LogRateLimit,
    /// Reads that bypass the page cache.
    pub cold: Arc<DirectReads>,
    /// Counts the partitions whose appends or reads currently fail.
    pub failing: Failures,
    /// Counts the partitions whose appends or reads have failed for several seconds.
    pub unwritable: Failures,
    /// Tracks the free space of the disk and manages the disk reserve.
    pub space: Arc<DiskSpace>,
    /// The time before which retention and compaction must not delete records, in ms since 1970.
    pub keeps_records_until_ms: AtomicI64,
    /// True if the batches of a transaction are flushed before they are acknowledged (`fullbore.transaction.flush`,
    /// only in a cluster).
    pub flushes_transactions: bool,
    /// True if the marker of a commit is flushed before it counts as written (`fullbore.transaction.flush`).
    pub flushes_markers: bool,
}

impl LogDir {
    /// Finds deleted partitions of an earlier run whose directories were renamed but not removed. Their producers may
    /// begin with any sequence in a new partition with the same name. The reason is that other topics of that name may
    /// have been created and deleted while this broker was down.
    pub fn note_deleted_earlier(&self) {
        for (_, path) in self.pending_removal.lock().iter() {
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some(key) = name.and_then(files::retired_partition) {
                self.carried_tails.leave(key, Uuid::ZERO, ProducerTails::partial(), 0);
            }
        }
    }

    /// Returns true if retention and compaction must not delete records now. On a full disk they may always delete,
    /// because only deletions free space for new records.
    pub fn keeps_records(&self, now_ms: i64) -> bool {
        now_ms < self.keeps_records_until_ms.load(Ordering::Relaxed) && !self.space.is_full()
    }

    /// Schedules the removal of a file or directory after `delay`.
    pub fn remove_after(&self, delay: Duration, path: PathBuf) {
        let now = Instant::now();
        let due = now.checked_add(delay).unwrap_or(now + Duration::from_secs(u64::from(u32::MAX)));
        self.pending_removal.lock().push((due, path));
    }
}
