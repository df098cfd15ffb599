//! A data directory that is newer than the metadata, because the metadata were restored from an older copy.
//!
//! The directory then has partitions that the metadata lack. A partition that is added again later begins anew, so its
//! former directory must not become its log. The settings of topics may be older as well, so retention and compaction
//! delete no records for some time.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use fullbore_wire::Uuid;

use super::Partitions;
use fullbore_log::files::{self, list_partitions};

impl Partitions {
    /// Returns the sorted names of directories that belong to no registered or deleted partition.
    ///
    /// # Errors
    /// Fails with an I/O error if the data directory cannot be read.
    pub fn strays(&self) -> io::Result<Vec<String>> {
        let mut known: HashSet<_> = self.partitions().iter().map(|partition| partition.key()).collect();
        // The names are read before the directories are listed. Otherwise a directory that is renamed in between would
        // be listed, but its name would no longer be known.
        known.extend(self.deletion.names());
        let found = list_partitions(&self.log_dir.path)?;
        let strays = found.iter().filter(|key| !known.contains(*key));
        let mut names: Vec<String> = strays.map(|(topic, index)| format!("{topic}-{index}")).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Renames the directories of partitions whose numbers are too large for their topics. Returns the new names in
    /// order. `topic` returns the id of the topic with a name, and its number of partitions. Must be called before the
    /// partitions of the metadata are registered, because a registered partition may create its directory.
    ///
    /// # Errors
    /// Fails with an I/O error if the data directory cannot be read or a directory cannot be renamed.
    pub fn set_unknown_aside(&self, topic: impl Fn(&str) -> Option<(Uuid, i32)>) -> io::Result<Vec<String>> {
        let mut renamed = Vec::new();
        for key in list_partitions(&self.log_dir.path)? {
            let Some((id, _)) = topic(&key.0).filter(|(_, count)| key.1 >= *count) else { continue };
            let dir = files::partition_dir(&self.log_dir.path, &key.0, key.1);
            if files::read_topic_id(&dir)?.known() == Some(id) {
                self.log_dir.checkpoints.purge(&key)?;
                self.log_dir.cleanings.purge(&key)?;
                renamed.push(self.rename_as_stray(&dir, &key, id)?);
            }
        }
        if !renamed.is_empty() {
            files::sync_dir(&self.log_dir.path)?;
        }
        renamed.sort_unstable();
        Ok(renamed)
    }

    /// Lets retention and compaction delete no records before `ms`, in ms since 1970.
    pub fn keep_records_until(&self, ms: i64) {
        self.log_dir.keeps_records_until_ms.store(ms, Ordering::Relaxed);
        if let Some(diskless) = self.diskless() {
            diskless.keep_records_until(ms);
        }
    }

    /// Renames a partition's directory, and returns the new name. If an earlier restore has left a directory under that
    /// name, chooses another name.
    fn rename_as_stray(&self, dir: &Path, (topic, index): &(String, i32), id: Uuid) -> io::Result<String> {
        let retired = |unique| files::retired_dir(&self.log_dir.path, topic, *index, unique, "stray");
        let mut unique = u128::from_be_bytes(id.0);
        while retired(unique).try_exists()? {
            unique = unique.wrapping_add(1);
        }
        let aside = retired(unique);
        std::fs::rename(dir, &aside)?;
        Ok(aside.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }
}
