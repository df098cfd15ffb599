//! Replaces segments by cleaned ones while the partition is in use.
//!
//! [`fullbore_log::cleaner::swap`] defines the names of the files in each stage. The partition is locked while the list
//! of segments changes, which needs no I/O, and while the new files get their final names. It is not locked while the
//! old files are renamed, because there may be hundreds of them. Truncations wait until the replacement is complete,
//! because they may create new files under the names of the old ones.

use std::io;
use std::path::{Path, PathBuf};

use crate::replica::Replica;
use crate::replica::state::LogState;
use fullbore_host::files::is_momentary;
use fullbore_log::cleaner::error::CleanError;
use fullbore_log::files::sync_dir;
use fullbore_log::segment::{Segment, Stage};
use fullbore_log::steps::step;

/// Replaces adjacent segments, whose base offsets are `sources`, by the segments `cleaned`. These new segments must be
/// complete and on the disk. `cuts` is the number of truncations of the log before the cleaning began. After a later
/// truncation, no segment is replaced. Returns the files to be removed after file.delete.delay.ms.
///
/// # Errors
/// Fails with [`CleanError::Changed`] if the log is closed, was truncated or lacks the segments, and with an I/O error
/// if the new segments cannot be renamed. An open log is unchanged after either error. Fails with
/// [`CleanError::Unsettled`] if a later step fails. The next start of the broker then completes the replacement.
pub fn replace(
    partition: &Replica,
    dir: &Path,
    mut cleaned: Vec<Segment>,
    sources: &[i64],
    cuts: u32,
) -> Result<Vec<PathBuf>, CleanError> {
    // Rename the first segment last. If the broker restarts before that, it considers the new segments incomplete.
    let renamed = cleaned.iter_mut().rev().try_for_each(|segment| segment.rename_to(Stage::Swap));
    if let Err(error) = renamed.and_then(|()| sync_dir(dir)) {
        cleaned.into_iter().rev().for_each(Segment::discard);
        return Err(error.into());
    }
    let _no_cut = partition.hold_names();
    let bases: Vec<i64> = cleaned.iter().map(|segment| segment.base_offset).collect();
    let old = match exchange(partition, cleaned, sources, cuts) {
        Ok(old) => old,
        Err(unused) => {
            unused.into_iter().rev().for_each(Segment::discard);
            return Err(CleanError::Changed);
        }
    };
    let retired = retire(old).map_err(CleanError::Unsettled)?;
    settle(partition, &bases)?;
    step();
    match sync_dir(dir) {
        // The system briefly lacks descriptors or memory. The next flush of the partition syncs the directory instead.
        Err(error) if is_momentary(&error) => note_new_names(partition),
        result => result.map_err(CleanError::Unsettled)?,
    }
    Ok(retired)
}

fn note_new_names(partition: &Replica) {
    if let LogState::Open(log) = &mut partition.lock().log {
        log.note_new_names();
    }
}

fn retire(old: Vec<Segment>) -> io::Result<Vec<PathBuf>> {
    let mut retired = Vec::new();
    for mut segment in old {
        retired.extend(segment.retire_aborted()?);
        retired.extend(segment.retire(false)?);
    }
    Ok(retired)
}

/// Replaces `sources` by `cleaned` in the list of segments, and returns the old segments. If the log is not open, lacks
/// `sources`, or was truncated more than `cuts` times, returns `cleaned` as the error.
fn exchange(
    partition: &Replica,
    cleaned: Vec<Segment>,
    sources: &[i64],
    cuts: u32,
) -> Result<Vec<Segment>, Vec<Segment>> {
    let mut state = partition.lock();
    let LogState::Open(log) = &mut state.log else { return Err(cleaned) };
    log.exchange(cleaned, sources, cuts)
}

/// Gives the new files their final names.
fn settle(partition: &Replica, bases: &[i64]) -> Result<(), CleanError> {
    let mut state = partition.lock();
    let LogState::Open(log) = &mut state.log else { return Err(CleanError::Changed) };
    log.settle(bases).map_err(CleanError::Unsettled)
}
