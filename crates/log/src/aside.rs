//! Sets aside the records that follow a hole left by a power loss. The files with these records stay next to the log so
//! that an operator can examine them. Their names are not those of segments, so a restarted broker ignores these files.
//!
//! [`super::recovery`] decides which records are set aside, and cuts them off the log. The broker removes the files
//! only together with their partition.
//!
//! Invariant: records are cut off the log only after they are on the disk under another name. If the broker crashes
//! halfway, the log is shorter but has the same hole, and the next start sets the rest aside.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::Log;
use super::files::{ASIDE, LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, offset_path, parse_offset_name, sync_dir};
use super::scan::find_last_batch;
use super::segment::Segment;
use super::steps::step;

mod found;
#[cfg(test)]
mod tests;

pub use found::{SetAside, SetAsideDirectories};

/// The files that were set aside.
#[derive(Debug)]
pub struct Aside {
    /// The path of the first file. The names of all files have the same suffix.
    pub first: PathBuf,
    pub files: usize,
    /// The offset after the last record that was found in the files.
    pub end_offset: i64,
}

impl Log {
    /// Copies the end of segment `index`, from byte `from` on, to another file. Renames the segments after it, and
    /// removes them from the log. The caller must then cut off segment `index` at `from`. `next_offset` is the offset
    /// that the batch at `from` should have.
    ///
    /// # Errors
    /// Returns the system's error. In that case either the log still has all its records, or the broker's next start
    /// finds the same damage again.
    pub fn set_aside(&mut self, stop: &AtomicBool, index: usize, from: u64, next_offset: i64) -> io::Result<Aside> {
        let suffix = format!("{LOG}.{ASIDE}{}", next_number(&self.dir)?);
        let end_offset = self.end_of_rest(stop, index, from, next_offset)?;
        let mut files = Vec::new();
        if from < self.segments[index].size {
            let path = offset_path(&self.dir, next_offset, &suffix);
            copy_rest(&mut self.segments[index], from, &path)?;
            files.push(path);
        }
        while self.segments.len() > index + 1 {
            step();
            let last = self.segments.back_mut().expect("there are more");
            files.extend(rename(last, &self.dir, &suffix)?);
            self.segments.pop_back();
        }
        step();
        sync_dir(&self.dir)?;
        let first = files.iter().min().cloned().expect("records follow");
        Ok(Aside { first, files: files.len(), end_offset })
    }

    /// Returns the offset after the last complete batch that follows `from`, or `next_offset` if there is none.
    fn end_of_rest(&mut self, stop: &AtomicBool, index: usize, from: u64, next_offset: i64) -> io::Result<i64> {
        for at in (index..self.segments.len()).rev() {
            let segment = &mut self.segments[at];
            let start = if at == index { from } else { 0 };
            let file = segment.file()?;
            if let Some(batch) = find_last_batch(stop, &file, start, segment.size, next_offset)? {
                return Ok(batch.last_offset() + 1);
            }
        }
        Ok(next_offset)
    }
}

/// Returns the number that the names of the next files end with. It is larger than the numbers of all earlier files.
fn next_number(dir: &Path) -> io::Result<u64> {
    let mut largest = 0;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let suffix = name.to_str().and_then(parse_offset_name).map_or("", |(_, suffix)| suffix);
        let number = suffix.rsplit_once(ASIDE).and_then(|(_, number)| number.parse().ok());
        largest = largest.max(number.unwrap_or(0));
    }
    Ok(largest + 1)
}

/// Copies everything in a segment from `from` on. The copy gets its name only when it is complete and on the disk.
fn copy_rest(segment: &mut Segment, from: u64, to: &Path) -> io::Result<()> {
    let beside = to.with_added_extension("tmp");
    let copied = (|| {
        // Open the file again, because copying moves the position of the open file.
        let mut source = File::open(segment.path(LOG))?;
        source.seek(SeekFrom::Start(from))?;
        let mut target = File::create(&beside)?;
        step();
        let expected = segment.size - from;
        let copied = io::copy(&mut source.take(expected), &mut target)?;
        if copied != expected {
            return Err(io::Error::other(format!("{copied} of {expected} bytes copied")));
        }
        target.sync_all()?;
        step();
        fs::rename(&beside, to)
    })();
    if copied.is_err() {
        // Free the space now. Otherwise the file would stay until the broker restarts and removes it.
        let _ = fs::remove_file(&beside);
    }
    copied
}

/// Renames a segment's log file and returns the new path. If the log file is empty, removes it and returns `None`. Also
/// removes the indexes, which can be rebuilt from the log file.
fn rename(segment: &mut Segment, dir: &Path, suffix: &str) -> io::Result<Option<PathBuf>> {
    segment.close_file();
    let to = offset_path(dir, segment.base_offset, suffix);
    let is_empty = segment.size == 0;
    if is_empty {
        fs::remove_file(segment.path(LOG))?;
    } else {
        fs::rename(segment.path(LOG), &to)?;
    }
    for index in [OFFSET_INDEX, TIME_INDEX, TXN_INDEX] {
        step();
        match fs::remove_file(segment.path(index)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok((!is_empty).then_some(to))
}
