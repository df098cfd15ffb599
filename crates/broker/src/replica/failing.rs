//! A partition whose appends fail for seconds, while its log is whole and the data directory takes files: its own directory does not, or its files cannot
//! be opened.
//!
//! Not here: a log that a failed write or fsync has broken ([`super::data_dir::failures`]), a data directory that takes no files ([`fullbore_host::disk_space`]),
//! and the replica that leads then (`replication/resign.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_host::disk_space::make_file;
use fullbore_host::files::{is_full, is_momentary};
use fullbore_log::error::StorageError;
use fullbore_log::partition::error::AppendError;

use super::Replica;
use super::data_dir::LogDir;
use super::data_dir::failures::Mark;
use super::state::{LogState, ReplicaState};

/// Time for which appends may fail before the partition counts as unwritable.
const FAILING_MAX: Duration = Duration::from_secs(4);
/// Time without a failed append after which a file that can be made is believed.
const QUIET: Duration = Duration::from_secs(2);

/// Appends that fail, from the first one on since an append succeeded.
#[derive(Debug)]
pub struct FailingAppends {
    since: Instant,
    last: Instant,
    /// True if the cause is known, and does not pass.
    is_certain: bool,
    /// Counts the partition among those that [`Replica::check_failing_appends`] looks at.
    _mark: Mark,
    /// Counts an unwritable partition.
    unwritable: Option<Mark>,
}

impl ReplicaState {
    /// Notes the outcome of an append to a log that is open.
    pub(super) fn note_append(&mut self, outcome: Result<(), AppendError>, log_dir: &LogDir) {
        match outcome {
            Ok(()) if self.failing.is_none() => {}
            Ok(()) => self.note_writable(),
            Err(AppendError::Storage) if !matches!(&self.log, LogState::Open(log) if log.is_broken()) => {
                let now = Instant::now();
                let first = || {
                    Box::new(FailingAppends {
                        since: now,
                        last: now,
                        _mark: log_dir.failing.mark(),
                        is_certain: false,
                        unwritable: None,
                    })
                };
                self.failing.get_or_insert_with(first).last = now;
            }
            Err(_) => {}
        }
    }

    /// Returns true if appends have failed for seconds, and still do.
    pub(super) fn is_unwritable(&self) -> bool {
        self.failing.as_ref().is_some_and(|failing| failing.unwritable.is_some())
    }

    /// Notes the outcome of an opening of the log. A shortage of descriptors or memory, and a full disk, are not the partition's.
    pub(super) fn note_opening(&mut self, outcome: Result<(), &StorageError>, log_dir: &LogDir) {
        match outcome {
            Ok(()) => self.note_append(Ok(()), log_dir),
            Err(StorageError::Io { error, .. }) if !is_momentary(error) && !is_full(error) => {
                self.note_append(Err(AppendError::Storage), log_dir);
            }
            Err(StorageError::EndMissing { .. }) => {
                self.note_append(Err(AppendError::Storage), log_dir);
                if let Some(failing) = &mut self.failing {
                    failing.is_certain = true;
                }
            }
            Err(_) => {}
        }
    }

    fn note_writable(&mut self) {
        if self.is_unwritable()
            && let LogState::Open(log) = &self.log
        {
            tracing::warn!(dir = %log.dir().display(), "the partition takes records again");
        }
        self.failing = None;
    }
}

impl Replica {
    /// Counts the partition as unwritable once its appends have failed for seconds, and as writable once its log can be opened and its directory takes
    /// files. Makes a file there, or requests the opening.
    pub(crate) fn check_failing_appends(self: &Arc<Self>, now: Instant) {
        let due = |state: &ReplicaState| {
            let failing = state.failing.as_ref()?;
            let is_due = failing.is_certain || now.saturating_duration_since(failing.since) >= FAILING_MAX;
            let still_fail = now.saturating_duration_since(failing.last) < QUIET;
            let is_unopened = matches!(state.log, LogState::Unopened | LogState::Opening(_));
            is_due.then_some((failing.last, still_fail, is_unopened))
        };
        let Some((last, still_fail, is_unopened)) = due(&self.state.lock()) else { return };
        if is_unopened {
            self.ask_to_open();
            if !still_fail {
                return;
            }
        }
        let dir = self.dir();
        let is_writable = !still_fail && make_file(&dir).is_ok();
        let mut state = self.state.lock();
        if is_writable {
            // An append that has failed meanwhile is newer than the file.
            if state.failing.as_ref().is_some_and(|failing| failing.last == last) {
                state.note_writable();
            }
        } else if let Some(failing) = &mut state.failing
            && failing.unwritable.is_none()
        {
            failing.unwritable = Some(self.log_dir.unwritable.mark());
            if failing.is_certain {
                // The failed opening has logged the cause, and the metadata is the remedy.
                return;
            }
            tracing::error!(
                dir = %dir.display(),
                "cannot append to a partition for seconds: another replica in sync leads it; correct the permissions or the file system of \
                 its directory and files, no restart is needed"
            );
        }
    }
}
