//! Detects a partition whose appends or reads fail for seconds, so that another replica can take over. The log is not
//! broken in this case, and the data directory is writable. There are three reasons: no file can be created in the
//! partition's directory, files of the log cannot be opened or read, or the log may lack committed records.
//!
//! [`super::data_dir::failures`] counts logs that a failed write or fsync has broken. [`fullbore_host::disk_space`]
//! detects that no file can be created in the data directory. Damaged batches are no failure here, because consumers
//! skip them. `replication/resign.rs` makes this broker resign from an unwritable partition.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_host::disk_space::make_file;
use fullbore_host::files::{is_full, is_momentary};
use fullbore_log::direct_io::FailedRead;
use fullbore_log::error::StorageError;
use fullbore_log::files;
use fullbore_log::lookup::is_gone;
use fullbore_log::partition::error::{AppendError, ReadError};

use fullbore_wire::FileSlice;

use super::Replica;
use super::data_dir::LogDir;
use super::data_dir::failures::Mark;
use super::state::{LogState, ReplicaState};

/// How long appends or reads may fail before the partition counts as unwritable.
const FAILING_MAX: Duration = Duration::from_secs(4);
/// Time after a failure during which the partition counts as failing, so that no probe is needed.
const QUIET: Duration = Duration::from_secs(2);
/// Maximum number of bytes that a probe reads from an unreadable range of a file.
const RANGE_READ_MAX: usize = 16 << 20;

/// A current failure of appends or reads. It begins with the first error, and ends with a successful append or probe
/// (`note_usable`).
#[derive(Debug)]
pub struct FailingLog {
    since: Instant,
    last: Instant,
    usage: FailingUse,
    /// Counts this partition as one that [`Replica::check_failing`] must check.
    _mark: Mark,
    /// Counts this partition as unwritable. `None` until it has failed for long enough.
    unwritable: Option<Mark>,
}

/// The operation that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailingUse {
    Append,
    /// The log cannot be opened because it may lack committed records. This failure does not end by itself.
    EndMissing,
    /// Reads from `offset` fail. Appends, and reads from other offsets, may succeed at the same time.
    Read {
        offset: i64,
        max_bytes: u32,
    },
    /// This range of a log file cannot be read. The thread whose read failed does not know the partition, because it
    /// only sends a response, for example.
    Range(FileRange),
}

/// A range of a segment's log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileRange {
    base_offset: i64,
    position: u64,
    len: usize,
}

impl FileRange {
    /// Returns true if a slice of the segment with this base offset overlaps the range.
    pub(super) fn overlaps(&self, base_offset: i64, slice: &FileSlice) -> bool {
        let (start, end) = (slice.position, slice.position + u64::from(slice.len));
        self.base_offset == base_offset && start < self.position + self.len as u64 && self.position < end
    }
}

impl ReplicaState {
    /// Records the outcome of an append or an opening. A success ends a failure of appends, but not a failure of reads.
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

    /// Records a failed read. If the partition is not failing yet, a failure begins at `offset`. Reads from the offset
    /// at which a failure began prolong that failure. Ignores errors because of damaged batches, or because of a lack
    /// of file descriptors or memory.
    pub(super) fn note_failed_read(&mut self, offset: i64, max_bytes: u32, error: &io::Error, log_dir: &LogDir) {
        if is_momentary(error) || error.kind() == io::ErrorKind::InvalidData {
            return;
        }
        let failing = self.failing(FailingUse::Read { offset, max_bytes }, log_dir);
        if matches!(failing.usage, FailingUse::Read { offset: failed, .. } if failed == offset) {
            failing.last = Instant::now();
        }
    }

    /// Returns the range of a log file that currently cannot be read, if there is one.
    pub(super) fn failing_range(&self) -> Option<FileRange> {
        match self.failing.as_ref()?.usage {
            FailingUse::Range(range) => Some(range),
            FailingUse::Append | FailingUse::EndMissing | FailingUse::Read { .. } => None,
        }
    }

    /// Returns the current failure. If there is none, starts one of the kind `usage`.
    fn failing(&mut self, usage: FailingUse, log_dir: &LogDir) -> &mut FailingLog {
        let now = Instant::now();
        let first = || FailingLog { since: now, last: now, usage, _mark: log_dir.failing.mark(), unwritable: None };
        self.failing.get_or_insert_with(|| Box::new(first()))
    }

    /// Returns true if appends or reads have failed long enough for the partition to count as unwritable.
    pub(super) fn is_unwritable(&self) -> bool {
        self.failing.as_ref().is_some_and(|failing| failing.unwritable.is_some())
    }

    /// Returns true if the log could not be opened because it may lack committed records at its end.
    pub(super) fn lacks_its_end(&self) -> bool {
        self.failing.as_ref().is_some_and(|failing| failing.usage == FailingUse::EndMissing)
    }

    /// Records the outcome of an opening of the log. Ignores errors because of a full disk, or because of a lack of
    /// file descriptors or memory.
    pub(super) fn note_opening(&mut self, outcome: Result<(), &StorageError>, log_dir: &LogDir) {
        match outcome {
            Ok(()) => self.note_append(Ok(()), log_dir),
            Err(StorageError::Io { error, .. }) if !is_momentary(error) && !is_full(error) => {
                self.note_append(Err(AppendError::Storage), log_dir);
            }
            Err(error) if error.lacks_end() => {
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
                FailingUse::Read { offset, .. } | FailingUse::Range(FileRange { base_offset: offset, .. }) => {
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
        matches!(self.usage, FailingUse::Read { .. } | FailingUse::Range(_))
    }
}

impl Replica {
    /// Records a failed read from `offset`, and logs it unless the partition already counts as unwritable. The caller
    /// must not hold the lock of the state.
    pub(crate) fn read_failed_at(&self, offset: i64, max_bytes: u32, error: &io::Error) -> ReadError {
        let mut state = self.state.lock();
        state.note_failed_read(offset, max_bytes, error, &self.log_dir);
        let is_logged = state.is_unwritable();
        drop(state);
        if is_logged { ReadError::Storage } else { self.read_failed(error) }
    }

    /// Records that a range of a log file could not be read from the disk. Logs the failure, unless the reader has
    /// logged it or the partition is already failing.
    pub(crate) fn note_failed_range(&self, failed: &FailedRead) {
        let name = failed.path.file_name().and_then(|name| name.to_str());
        let Some((base_offset, files::LOG)) = name.and_then(files::parse_offset_name) else { return };
        let usage = FailingUse::Range(FileRange { base_offset, position: failed.position, len: failed.len });
        let mut state = self.state.lock();
        let is_new = state.failing.is_none();
        let failing = state.failing(usage, &self.log_dir);
        if failing.usage == usage {
            failing.last = Instant::now();
        }
        drop(state);
        if is_new && !failed.is_logged {
            let _ = self.read_failed(&failed.error);
        }
    }

    /// Reads a range of a log file and drops the bytes. Also succeeds if the log no longer contains this range.
    fn try_read_range(&self, range: FileRange) -> io::Result<()> {
        let mut bytes = vec![0; range.len.min(RANGE_READ_MAX)];
        let read = File::open(files::offset_path(&self.dir(), range.base_offset, files::LOG))
            .and_then(|file| self.log_dir.cold.try_read_exact(&file, range.position, &mut bytes));
        read.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })
    }

    /// Returns true if an append, an opening or a read has failed, and no later success has ended that failure.
    pub(crate) fn is_failing(&self) -> bool {
        self.state.lock().failing.is_some()
    }

    /// Counts the partition as unwritable if its appends or reads have failed for seconds, or if its log may
    /// lack committed records. Counts it as writable again after a successful probe. A probe creates a file in the
    /// partition's directory, or repeats the failed read. If the log is not open, requests its opening, and leaves the
    /// probe to a later call.
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
            self.request_open();
            if !still_fails {
                return;
            }
        }
        let dir = self.dir();
        let tried = match usage {
            _ if still_fails => Err(None),
            FailingUse::Append | FailingUse::EndMissing => make_file(&dir).map_err(Some),
            FailingUse::Read { offset, max_bytes } => self.try_read(offset, max_bytes).map_err(Some),
            FailingUse::Range(range) => self.try_read_range(range).map_err(Some),
        };
        let mut state = self.state.lock();
        let Some(failing) = &mut state.failing else { return };
        match tried {
            Ok(()) if failing.last == last => state.note_usable(),
            // The partition has failed again during the probe, so ignore that the probe succeeded.
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
            // Log nothing here, because the failed opening has logged the cause, and no repair of the files helps. A
            // replica that has the missing records will lead once it has returned.
            FailingUse::EndMissing => {}
            FailingUse::Append => tracing::error!(
                %dir,
                "cannot append to a partition for seconds: another in-sync replica becomes leader, if there is one; correct the permissions or \
                 file system of its directory (no restart is needed)"
            ),
            FailingUse::Read { offset, .. } | FailingUse::Range(FileRange { base_offset: offset, .. }) => {
                tracing::error!(
                    %dir,
                    offset,
                    "cannot read records of a partition for seconds: another in-sync replica becomes leader, if there is one; correct the permissions of \
                     the partition's files, or replace the disk"
                )
            }
        }
    }
}
