//! Deletes the logs of deleted topics. A thread *retires* each deleted partition: it closes the log and renames the
//! directory. A request only waits for the thread, because the client of the request may disconnect earlier.
//!
//! The control plane decides on deletions. Housekeeping removes the files file.delete.delay.ms later. A topic may be
//! recreated at once under the same name. A new partition may then need a directory name that a deleted partition still
//! uses. In that case the new partition retires the deleted one itself, or waits until the thread has retired it.
//!
//! Pending deletions use memory. When too many are pending, further deletions wait ([`Deletion::has_room`]).
//!
//! If the broker crashes before all deletions are complete, the control plane still lists the remaining ones after the
//! restart.
//!
//! Invariant: before a new partition uses the name of a directory, the old directory is renamed, and no thread writes
//! to it under the old name.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use fullbore_wire::Uuid;
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::replica::Replica;

/// Maximum number of deleted partitions in the queue. When it is reached, further deletions wait. A cluster may have
/// 200,000 partitions in use.
const WAITING_MAX: usize = 200_000;

/// Retires deleted partitions in a thread.
#[derive(Debug)]
pub struct Deletion {
    queue: Mutex<DeletionQueue>,
    wake: Condvar,
    /// A counter that wakes the waiters. It increases when all partitions of a topic are retired, and when the diskless
    /// index has no more rows of a topic.
    carried_out: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct DeletionQueue {
    partitions: VecDeque<Arc<Replica>>,
    /// The last deleted partition of each directory name.
    by_name: HashMap<(Arc<str>, i32), Arc<Replica>>,
    /// The unfinished work of each deleted topic.
    left: HashMap<Uuid, TopicRemains>,
    /// The topics whose deletion is complete, until [`Deletion::gone`] returns them.
    gone: Vec<Uuid>,
    is_stopping: bool,
}

/// The unfinished work of a deleted topic.
#[derive(Debug, Default)]
struct TopicRemains {
    partitions: usize,
    /// True if a directory could not be renamed.
    keeps_directory: bool,
    /// True if the index of diskless topics may have rows of the topic.
    is_in_index: bool,
}

impl DeletionQueue {
    /// Removes the entry of the topic if its deletion has no unfinished work. Reports the topic as gone, unless one of
    /// its directories could not be renamed.
    fn forget_if_gone(&mut self, topic_id: Uuid) {
        let is_over = |left: &&TopicRemains| left.partitions == 0 && !left.is_in_index;
        if let Some(left) = self.left.get(&topic_id).filter(is_over) {
            if !left.keeps_directory {
                self.gone.push(topic_id);
            }
            self.left.remove(&topic_id);
        }
    }
}

impl Default for Deletion {
    fn default() -> Self {
        Deletion { queue: Mutex::default(), wake: Condvar::new(), carried_out: watch::Sender::new(0) }
    }
}

impl Deletion {
    /// Starts the thread. After [`Deletion::stop`], the thread ends when its queue is empty.
    pub fn start(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let deletion = self.clone();
        std::thread::Builder::new().name("deletion".to_owned()).spawn(move || deletion.run())
    }

    /// Makes the thread end when its queue is empty.
    pub fn stop(&self) {
        self.queue.lock().is_stopping = true;
        self.wake.notify_all();
    }

    /// Queues the partitions of a deleted topic, for the thread to retire them. Does not block.
    pub fn add(&self, topic_id: Uuid, partitions: &[Arc<Replica>]) {
        if partitions.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        queue.left.entry(topic_id).or_default().partitions += partitions.len();
        for partition in partitions {
            // Now compaction and recovery of the partition end early, and its checkpoints are no longer written.
            partition.announce_leaving();
            queue.partitions.push_back(partition.clone());
            queue.by_name.insert((partition.topic_name(), partition.index()), partition.clone());
        }
        self.wake.notify_one();
    }

    /// Records that the index of diskless topics may have rows of the topic. [`Deletion::is_out_of_index`] clears this
    /// record.
    pub fn add_to_index(&self, topic_id: Uuid) {
        self.queue.lock().left.entry(topic_id).or_default().is_in_index = true;
    }

    /// Records that the index has no more rows of the topic.
    pub fn is_out_of_index(&self, topic_id: Uuid) {
        {
            let mut queue = self.queue.lock();
            if let Some(left) = queue.left.get_mut(&topic_id) {
                left.is_in_index = false;
            }
            queue.forget_if_gone(topic_id);
        }
        self.carried_out.send_modify(|count| *count += 1);
    }

    /// Returns the deleted partition that may still use the directory name of this topic and number. Returns `None` if
    /// there is none.
    pub fn name_holder_of(&self, topic: &Arc<str>, index: i32) -> Option<Arc<Replica>> {
        let queue = self.queue.lock();
        if queue.by_name.is_empty() { None } else { queue.by_name.get(&(topic.clone(), index)).cloned() }
    }

    /// Waits until all logs of a deleted topic are closed and their directories renamed. Their files may still exist.
    pub async fn carried_out(&self, topic_id: Uuid) {
        let mut carried_out = self.carried_out.subscribe();
        let has_no_log = || self.queue.lock().left.get(&topic_id).is_none_or(|left| left.partitions == 0);
        // `wait_for` checks the condition each time the counter increases.
        let _ = carried_out.wait_for(|_| has_no_log()).await;
    }

    /// Waits until fewer than [`WAITING_MAX`] partitions are queued.
    pub async fn has_room(&self) {
        let mut carried_out = self.carried_out.subscribe();
        let _ = carried_out.wait_for(|_| self.queue.lock().partitions.len() < WAITING_MAX).await;
    }

    /// Waits until the deletion of at least one topic is complete. Returns the ids of the topics whose deletions were
    /// completed since the last call.
    pub async fn gone(&self) -> Vec<Uuid> {
        let mut carried_out = self.carried_out.subscribe();
        let _ = carried_out.wait_for(|_| !self.queue.lock().gone.is_empty()).await;
        std::mem::take(&mut self.queue.lock().gone)
    }

    /// Returns the topic name and number of each deleted partition that may still use its directory name.
    pub fn names(&self) -> Vec<(String, i32)> {
        let queue = self.queue.lock();
        queue.by_name.keys().map(|(topic, index)| (topic.to_string(), *index)).collect()
    }

    fn run(&self) {
        while let Some(partition) = self.next() {
            let keeps_directory = !partition.retire();
            self.done(&partition, keeps_directory);
        }
    }

    fn next(&self) -> Option<Arc<Replica>> {
        let mut queue = self.queue.lock();
        loop {
            match queue.partitions.pop_front() {
                Some(partition) => return Some(partition),
                None if queue.is_stopping => return None,
                None => self.wake.wait(&mut queue),
            }
        }
    }

    fn done(&self, partition: &Arc<Replica>, keeps_directory: bool) {
        let mut guard = self.queue.lock();
        let queue = &mut *guard;
        let name = (partition.topic_name(), partition.index());
        if queue.by_name.get(&name).is_some_and(|last| Arc::ptr_eq(last, partition)) {
            queue.by_name.remove(&name);
        }
        let topic_id = partition.topic_id();
        let Some(left) = queue.left.get_mut(&topic_id) else { return };
        left.partitions -= 1;
        left.keeps_directory |= keeps_directory;
        if left.partitions == 0 {
            queue.forget_if_gone(topic_id);
            drop(guard);
            self.carried_out.send_modify(|count| *count += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::partitions::led_by;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use crate::partitions::{Origin, Partitions};
    use fullbore_config::{BrokerConfig, Properties, TopicConfig};
    use fullbore_diskless::Diskless;
    use fullbore_host::disk_space::DiskSpace;
    use fullbore_host::metrics::Metrics;

    #[test]
    fn further_deletions_wait_while_as_many_partitions_as_may_be_in_use_wait() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let directory = tempfile::tempdir().expect("temporary directory");
        let logs = Partitions::open(directory.path(), &broker).expect("opened");
        let (id, config) = (Uuid([1; 16]), Arc::new(broker.topics.defaults));
        let partitions = i32::try_from(WAITING_MAX + 1).expect("not that many");
        logs.put_topic("t", id, &led_by(1, partitions), &config, Origin::New);
        let first = logs.find(&id, 0).expect("it has just been told of");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(logs.deletions_have_room());
        let slow = first.held_in_its_place();
        logs.delete_topic(id);
        {
            let mut room = pin!(logs.deletions_have_room());
            let polled = poll_fn(|context| Poll::Ready(room.as_mut().poll(context).is_pending()));
            assert!(runtime.block_on(polled));
        }
        drop(slow);
        runtime.block_on(logs.deletions_have_room());
        runtime.block_on(logs.deleted(id));
        logs.close();
    }

    #[tokio::test]
    async fn topic_is_gone_once_the_diskless_index_has_no_row_of_it() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let set = format!("log.dirs={}", directory.path().display());
        let (broker, _) = BrokerConfig::from_properties(&Properties::parse(&set).expect("properties")).expect("valid");
        let logs = Partitions::open(directory.path(), &broker).expect("opened");
        let space = Arc::new(DiskSpace::open(directory.path(), 0));
        let (known, metrics) = (Arc::default(), Metrics::default());
        let diskless = Diskless::open(&broker, Uuid([9; 16]), known, space, metrics).await.expect("opened");
        logs.serve_diskless(diskless);
        let classic = Arc::new(broker.topics.defaults);
        let diskless = Arc::new(TopicConfig { diskless: true, ..TopicConfig::clone(&classic) });
        let soon = std::time::Duration::from_secs(30);
        for (number, config) in [(1, &classic), (2, &diskless), (3, &classic), (4, &diskless)] {
            let id = Uuid([number; 16]);
            logs.put_topic("t", id, &led_by(1, 2), config, Origin::New);
            // Delete topics 3 and 4 with the function for topics whose deletion an earlier process has begun.
            if number < 3 {
                logs.delete_topic(id)
            } else {
                logs.delete_topic_of_either_kind(id)
            }
            tokio::time::timeout(soon, logs.deleted(id)).await.expect("no log is left");
            assert_eq!(tokio::time::timeout(soon, logs.gone()).await, Ok(vec![id]), "{number}");
        }
        logs.close();
    }
}
