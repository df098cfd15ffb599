//! State of a data directory (Kafka's `log.dir`) that its partitions share: checkpoints, and the threads that flush and
//! open logs.
//!
//! Not here: the registry of partitions, which is [`crate::partitions::registry`].

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

/// Data directory, as its partitions share it.
#[derive(Debug)]
pub struct LogDir {
    pub path: Arc<Path>,
    pub checkpoints: Checkpoints,
    /// View of the cluster: this broker and the registered brokers.
    pub cluster: ClusterView,
    pub flusher: Arc<Flusher>,
    pub opener: Arc<Opener>,
    pub carried_tails: CarriedTails,
    pub cleanings: Cleanings,
    /// Files that power losses have left beside the logs.
    pub aside: aside::SetAsideFolders,
    /// Files and directories out of use, each with the time from which it may be removed.
    pub pending_removal: Mutex<Vec<(Instant, PathBuf)>>,
    /// Directories of deleted partitions that could not be renamed.
    pub leftovers: Leftovers,
    /// Rate limit of the log line for reads that fail for a passing cause, such as a lack of descriptors.
    pub transient_read: LogRateLimit,
    /// Rate limit of the log line for fetched records that the disk did not take.
    pub not_replicated: LogRateLimit,
    /// Direct reads, around the page cache.
    pub cold: Arc<DirectReads>,
    /// Number of partitions whose appends or reads fail at present.
    pub failing: Failures,
    /// Number of partitions whose appends or reads have failed for several seconds.
    pub unwritable: Failures,
    /// Space on the disk.
    pub space: Arc<DiskSpace>,
    /// True if batches of transactions are flushed before they are acknowledged (`fullbore.transaction.flush` in a
    /// cluster).
    pub flushes_transactions: bool,
    /// True if markers of commits are flushed before they count as written (`fullbore.transaction.flush`).
    pub flushes_markers: bool,
}

impl LogDir {
    /// Notes partial tails for each directory that an earlier run has renamed and not removed. Producers may then begin
    /// anywhere, because topics of the name may have been created and deleted while this broker was down.
    pub fn note_deleted_earlier(&self) {
        for (_, path) in self.pending_removal.lock().iter() {
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some(key) = name.and_then(files::retired_partition) {
                self.carried_tails.leave(key, Uuid::ZERO, ProducerTails::partial(), 0);
            }
        }
    }

    /// Removes a file or directory after `delay`.
    pub fn remove_after(&self, delay: Duration, path: PathBuf) {
        let now = Instant::now();
        let due = now.checked_add(delay).unwrap_or(now + Duration::from_secs(u64::from(u32::MAX)));
        self.pending_removal.lock().push((due, path));
    }
}
