//! Handles a data directory that is newer than the metadata, because the metadata were restored from an older copy.
//!
//! Such a directory has partitions that the metadata lack. If such a partition is created again later, it must begin
//! empty, so its old directory must not become its log. The restored topic settings may be older too. So retention and
//! compaction delete no records for some time.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use fullbore_wire::Uuid;

use super::Partitions;
use fullbore_log::files::{self, list_partitions};

impl Partitions {
    /// Returns the sorted names of the directories that belong neither to a registered nor to a deleted partition.
    ///
    /// # Errors
    /// Fails with an I/O error if the data directory cannot be read.
    pub fn strays(&self) -> io::Result<Vec<String>> {
        let mut known: HashSet<_> = self.partitions().iter().map(|partition| partition.key()).collect();
        // Read the names before the directories are listed. Otherwise a directory that is renamed in between would be
        // listed under its old name, which `deletion` would no longer know.
        known.extend(self.deletion.names());
        let found = list_partitions(&self.log_dir.path)?;
        let strays = found.iter().filter(|key| !known.contains(*key));
        let mut names: Vec<String> = strays.map(|(topic, index)| format!("{topic}-{index}")).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Renames the directories of partitions whose numbers are too large for their topics. Returns the new names in
    /// order. `topic` returns the id and the number of partitions of the topic with the given name. Must be called
    /// before the partitions of the metadata are registered, because a registered partition may create its directory.
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

    /// Prevents retention and compaction from deleting records before the time `ms`, in ms since 1970.
    pub fn keep_records_until(&self, ms: i64) {
        self.log_dir.keeps_records_until_ms.store(ms, Ordering::Relaxed);
        if let Some(diskless) = self.diskless() {
            diskless.keep_records_until(ms);
        }
    }

    /// Renames the directory of a partition that the metadata lack, and returns the new name. Chooses another name if
    /// an earlier restore has already used the first one.
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
