//! Partition whose appends or reads fail for seconds, although its log is not broken and the data directory takes
//! files. There are three reasons: the partition's directory takes no files, files of the log cannot be opened or read,
//! or the log lacks committed records.
//!
//! Not here: logs broken by a failed write or fsync
//! ([`super::data_dir::failures`]), and data directories that take no files ([`fullbore_host::disk_space`]). Damaged
//! batches do not count, because consumers skip their offsets. This broker resigns from an unwritable partition, so
//! that another replica leads it (`replication/resign.rs`).

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_host::disk_space::make_file;
use fullbore_host::files::{is_full, is_momentary};
use fullbore_log::error::StorageError;
use fullbore_log::partition::error::{AppendError, ReadError};

use super::Replica;
use super::data_dir::LogDir;
use super::data_dir::failures::Mark;
use super::state::{LogState, ReplicaState};

/// Shortest time from the first failure after which the partition counts as unwritable.
const FAILING_MAX: Duration = Duration::from_secs(4);
/// Shortest time between the last failure and a probe. Until then, the use counts as failing.
const QUIET: Duration = Duration::from_secs(2);

/// Failing use of the log. Exists from the first failure until `note_usable`, after a successful append or probe.
#[derive(Debug)]
pub struct FailingLog {
    since: Instant,
    last: Instant,
    usage: FailingUse,
    /// Mark in the count of partitions that [`Replica::check_failing`] checks.
    _mark: Mark,
    /// Mark in the count of unwritable partitions; `None` while the partition is writable.
    unwritable: Option<Mark>,
}

/// Kind of use that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailingUse {
    Append,
    /// Opening of a log that lacks committed records, which always fails.
    EndMissing,
    /// Reads from `offset`. Reads from other offsets, and appends, may succeed at the same time.
    Read {
        offset: i64,
        max_bytes: u32,
    },
}

impl ReplicaState {
    /// Notes the outcome of an append or of an opening. A success ends a failure of appends, not one of reads.
    pub(super) fn note_append(&mut self, outcome: Result<(), AppendError>, log_dir: &LogDir) {
        match outcome {
            Ok(()) if self.failing.as_ref().is_none_or(|failing| failing.is_of_reads()) => {}
            Ok(()) => self.note_usable(),
            Err(AppendError::Storage) if !matches!(&self.log, LogState::Open(log) if log.is_broken()) => {
                self.failing(FailingUse::Append, log_dir).last = Instant::now();
            }
            Err(_) => {}
        }
    }

    /// Notes a failed read. Only another failed read from the first failed offset prolongs the failure. A shortage of
    /// descriptors or memory, and a damaged batch, do not count.
    pub(super) fn note_failed_read(&mut self, (offset, max_bytes): (i64, u32), error: &io::Error, log_dir: &LogDir) {
        if is_momentary(error) || error.kind() == io::ErrorKind::InvalidData {
            return;
        }
        let failing = self.failing(FailingUse::Read { offset, max_bytes }, log_dir);
        if matches!(failing.usage, FailingUse::Read { offset: failed, .. } if failed == offset) {
            failing.last = Instant::now();
        }
    }

    /// Returns the failure under way; begins one of `usage` if there is none.
    fn failing(&mut self, usage: FailingUse, log_dir: &LogDir) -> &mut FailingLog {
        let now = Instant::now();
        let first = || FailingLog { since: now, last: now, usage, _mark: log_dir.failing.mark(), unwritable: None };
        self.failing.get_or_insert_with(|| Box::new(first()))
    }

    /// Returns true if the partition counts as unwritable, because its appends or reads have failed for seconds.
    pub(super) fn is_unwritable(&self) -> bool {
        self.failing.as_ref().is_some_and(|failing| failing.unwritable.is_some())
    }

    /// Notes the outcome of an opening of the log. A shortage of descriptors or memory, and a full disk, do not count.
    pub(super) fn note_opening(&mut self, outcome: Result<(), &StorageError>, log_dir: &LogDir) {
        match outcome {
            Ok(()) => self.note_append(Ok(()), log_dir),
            Err(StorageError::Io { error, .. }) if !is_momentary(error) && !is_full(error) => {
                self.note_append(Err(AppendError::Storage), log_dir);
            }
            Err(StorageError::EndMissing { .. }) => {
                self.note_append(Err(AppendError::Storage), log_dir);
                if let Some(failing) = &mut self.failing {
                    failing.usage = FailingUse::EndMissing;
                }
            }
            Err(_) => {}
        }
    }

    fn note_usable(&mut self) {
        let failed = self.failing.take().filter(|failing| failing.unwritable.is_some());
        if let (Some(failing), LogState::Open(log)) = (failed, &self.log) {
            let dir = log.dir().display();
            match failing.usage {
                FailingUse::Read { offset, .. } => {
                    tracing::warn!(%dir, offset, "the partition's records can be read again")
                }
                FailingUse::Append | FailingUse::EndMissing => {
                    tracing::warn!(%dir, "the partition takes records again")
                }
            }
        }
    }
}

impl FailingLog {
    fn is_of_reads(&self) -> bool {
        matches!(self.usage, FailingUse::Read { .. })
    }
}

impl Replica {
    /// Notes a failed read from `offset`, and logs it unless the partition counts as unwritable. The caller must not
    /// hold the state's lock.
    pub(crate) fn read_failed_at(&self, offset: i64, max_bytes: u32, error: &io::Error) -> ReadError {
        let mut state = self.state.lock();
        state.note_failed_read((offset, max_bytes), error, &self.log_dir);
        let is_logged = state.is_unwritable();
        drop(state);
        if is_logged { ReadError::Storage } else { self.read_failed(error) }
    }

    /// Returns true while a failure of an append, an opening or a read has not ended.
    pub(crate) fn is_failing(&self) -> bool {
        self.state.lock().failing.is_some()
    }

    /// Counts the partition as unwritable once its appends or reads have failed for seconds, and as writable once a
    /// probe succeeds. The probe creates a file in the partition's directory, or repeats the failed read. Requests the
    /// opening of a log that is not open.
    pub(crate) fn check_failing(self: &Arc<Self>, now: Instant) {
        let due = |state: &ReplicaState| {
            let failing = state.failing.as_ref()?;
            let is_certain = failing.usage == FailingUse::EndMissing;
            let is_due = is_certain || now.saturating_duration_since(failing.since) >= FAILING_MAX;
            let still_fails = now.saturating_duration_since(failing.last) < QUIET;
            let is_unopened = matches!(state.log, LogState::Unopened | LogState::Opening(_));
            is_due.then_some((failing.usage, failing.last, still_fails, is_unopened))
        };
        let Some((usage, last, still_fails, is_unopened)) = due(&self.state.lock()) else { return };
        if is_unopened {
            self.ask_to_open();
            if !still_fails {
                return;
            }
        }
        let dir = self.dir();
        let tried = match usage {
            _ if still_fails => Err(None),
            FailingUse::Append | FailingUse::EndMissing => make_file(&dir).map_err(Some),
            FailingUse::Read { offset, max_bytes } => self.try_read(offset, max_bytes).map_err(Some),
        };
        let mut state = self.state.lock();
        let Some(failing) = &mut state.failing else { return };
        match tried {
            Ok(()) if failing.last == last => state.note_usable(),
            // The use has failed again during the probe, so the success of the probe does not count.
            Ok(()) => {}
            Err(Some(error)) if is_momentary(&error) => {}
            Err(error) => {
                if failing.is_of_reads() && error.is_some() {
                    failing.last = Instant::now();
                }
                if failing.unwritable.is_none() {
                    failing.unwritable = Some(self.log_dir.unwritable.mark());
                    failing.log_unwritable(&dir);
                }
            }
        }
    }
}

impl FailingLog {
    fn log_unwritable(&self, dir: &Path) {
        let dir = dir.display();
        match self.usage {
            // The failed opening has logged the cause; no repair of files helps, and another replica leads.
            FailingUse::EndMissing => {}
            FailingUse::Append => tracing::error!(
                %dir,
                "cannot append to a partition for seconds: another replica in sync takes over, if there is one; correct the permissions or \
                 file system of its directory (no restart is needed)"
            ),
            FailingUse::Read { offset, .. } => tracing::error!(
                %dir,
                offset,
                "cannot read records of a partition for seconds: another replica in sync takes over, if there is one; correct the permissions of \
                 its files, or replace the disk"
            ),
        }
    }
}
