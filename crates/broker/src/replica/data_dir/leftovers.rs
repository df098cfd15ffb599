//! Directories of deleted partitions that have kept their names because the operating system refused to rename them.
//!
//! Not here: the removal of the files. If this process has not followed the deletion of a topic, the topic's
//! directories stay, because their records may still be wanted.
//!
//! Invariant: a directory is renamed under the lock, and only if its topic id is that of the deleted topic. A new
//! partition of the name creates its directory after [`LogDir::retire_leftover`].

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

/// Deleted partitions whose directories have kept their names.
#[derive(Debug, Default)]
pub struct Leftovers(Mutex<HashMap<TopicPartition, Leftover>>);

#[derive(Debug, Clone, Copy)]
struct Leftover {
    topic_id: Uuid,
    /// Time between the renaming and the removal.
    delay: Duration,
}

impl LogDir {
    /// Notes that the directory of a deleted partition still has its name.
    pub fn note_leftover(&self, key: TopicPartition, topic_id: Uuid, delay: Duration) {
        self.leftovers.0.lock().insert(key, Leftover { topic_id, delay });
    }

    /// Renames the directory with the partition's name if it belongs to a deleted partition, and schedules its removal.
    ///
    /// # Errors
    /// [`io::Error`] if the renaming fails. The directory then stays noted.
    pub fn retire_leftover(&self, key: &TopicPartition) -> io::Result<()> {
        let mut leftovers = self.leftovers.0.lock();
        if let Some(leftover) = leftovers.get(key) {
            self.rename_leftover(key, *leftover)?;
            leftovers.remove(key);
        }
        Ok(())
    }

    /// Retries the renaming of every leftover directory. The failed deletion has logged the cause.
    pub fn retire_leftovers(&self) {
        self.leftovers.0.lock().retain(|key, leftover| self.rename_leftover(key, *leftover).is_err());
    }

    fn rename_leftover(&self, (topic, index): &TopicPartition, leftover: Leftover) -> io::Result<()> {
        let dir = partition_dir(&self.path, topic, *index);
        if files::read_topic_id(&dir)? != Some(leftover.topic_id) {
            return Ok(());
        }
        let away = |unique| retired_dir(&self.path, topic, *index, unique, files::DELETED_DIR);
        let by_id = away(u128::from_be_bytes(leftover.topic_id.0));
        // A directory with the first name may exist already.
        let by_time = away(u128::from(now_ms().unsigned_abs()));
        let renamed = fs::rename(&dir, &by_id).map(|()| by_id);
        let renamed = renamed.or_else(|_| fs::rename(&dir, &by_time).map(|()| by_time))?;
        tracing::warn!(dir = %dir.display(), "renamed the directory of a deleted partition after a failure");
        self.remove_after(leftover.delay, renamed);
        Ok(())
    }
}
