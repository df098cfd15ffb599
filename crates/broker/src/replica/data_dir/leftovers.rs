//! Lists deleted partitions whose directories could not be renamed, and repeats the renaming later.
//!
//! Housekeeping removes the renamed directories. A restart loses the list, but repeats the deletions
//! (`follow_image::finish_deletions`).
//!
//! Invariant: a directory is renamed only under the lock, and only if it has the topic id of the deleted topic. A new
//! partition with the same name calls [`LogDir::retire_leftover`] before it creates its directory.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::Duration;

use fullbore_host::files::now_ms;
use fullbore_log::files::{self, partition_dir, retired_dir};
use fullbore_wire::Uuid;
use parking_lot::Mutex;

use super::LogDir;
use super::checkpoints::TopicPartition;

/// The deleted partitions whose directories still have their old names.
#[derive(Debug, Default)]
pub struct Leftovers(Mutex<HashMap<TopicPartition, Leftover>>);

#[derive(Debug, Clone, Copy)]
struct Leftover {
    topic_id: Uuid,
    /// The delay between the renaming of the directory and its removal.
    delay: Duration,
}

impl LogDir {
    /// Adds a deleted partition whose directory could not be renamed to the list.
    pub fn note_leftover(&self, key: TopicPartition, topic_id: Uuid, delay: Duration) {
        self.leftovers.0.lock().insert(key, Leftover { topic_id, delay });
    }

    /// Renames the directory of this name if it still belongs to a deleted partition, and schedules its removal.
    ///
    /// # Errors
    /// Fails with an I/O error if the directory cannot be renamed. The partition then stays in the list.
    pub fn retire_leftover(&self, key: &TopicPartition) -> io::Result<()> {
        let mut leftovers = self.leftovers.0.lock();
        if let Some(leftover) = leftovers.get(key) {
            self.rename_leftover(key, *leftover)?;
            leftovers.remove(key);
        }
        Ok(())
    }

    /// Tries again to rename the directory of each partition in the list. Does not log failures, because the deletion
    /// has logged them.
    pub fn retire_leftovers(&self) {
        self.leftovers.0.lock().retain(|key, leftover| self.rename_leftover(key, *leftover).is_err());
    }

    fn rename_leftover(&self, (topic, index): &TopicPartition, leftover: Leftover) -> io::Result<()> {
        let dir = partition_dir(&self.path, topic, *index);
        self.space.check_place()?;
        if files::read_topic_id(&dir)?.known() != Some(leftover.topic_id) {
            return Ok(());
        }
        let away = |unique| retired_dir(&self.path, topic, *index, unique, files::DELETED_DIR);
        let by_id = away(u128::from_be_bytes(leftover.topic_id.0));
        // If the name with the topic id is already used, use the name with the present time.
        let by_time = away(u128::from(now_ms().unsigned_abs()));
        let renamed = fs::rename(&dir, &by_id).map(|()| by_id);
        let renamed = renamed.or_else(|_| fs::rename(&dir, &by_time).map(|()| by_time))?;
        tracing::warn!(dir = %dir.display(), "renamed the directory of a deleted partition, after earlier attempts \
             had failed");
        self.remove_after(leftover.delay, renamed);
        Ok(())
    }
}
