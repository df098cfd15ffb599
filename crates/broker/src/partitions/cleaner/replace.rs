//! Puts cleaned segments in the place of those they were made of, while others use the partition.
//!
//! Which names say how far it has come is told in [`fullbore_log::cleaner::swap`]. The partition is locked while the
//! list of segments changes, which is no I/O, and while the new files get their last names; not while the old ones, of
//! which there may be hundreds, are renamed. The log is not cut off meanwhile: it could go on in files of the old ones'
//! names.

use std::io;
use std::path::{Path, PathBuf};

use crate::replica::Replica;
use crate::replica::state::LogState;
use fullbore_host::files::is_momentary;
use fullbore_log::cleaner::error::CleanError;
use fullbore_log::files::sync_dir;
use fullbore_log::segment::{Segment, Stage};
use fullbore_log::steps::step;

/// Replaces the segments with these base offsets, neighbours, by `cleaned`, which are whole and on the disk, unless the
/// log has been cut off more than `cuts` times. The files to be removed after file.delete.delay.ms.
///
/// # Errors
/// [`CleanError::Changed`] if they are not there any more; nothing has happened then. With any other error the rest
/// is done at the next start.
pub fn replace(
    partition: &Replica,
    dir: &Path,
    mut cleaned: Vec<Segment>,
    sources: &[i64],
    cuts: u32,
) -> Result<Vec<PathBuf>, CleanError> {
    // The first comes last: as long as one is not renamed, a start takes none for whole.
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
        // The next flush of the partition does it.
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

/// Changes the list of segments; those that are out of it, or the new ones back if there is no such list.
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

/// Gives the new files their last names.
fn settle(partition: &Replica, bases: &[i64]) -> Result<(), CleanError> {
    let mut state = partition.lock();
    let LogState::Open(log) = &mut state.log else { return Err(CleanError::Changed) };
    log.settle(bases).map_err(CleanError::Unsettled)
}
