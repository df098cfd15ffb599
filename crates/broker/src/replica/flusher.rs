//! The few threads that bring to the disk what was written, whatever the number of partitions: those that fsync, and the
//! one of the page cache.
//!
//! What a flush covers is [`crate::log::flush`]'s matter. A partition stands in the queue once, so the queue is
//! bounded by the number of partitions; what is asked for while it is flushed makes one more flush.
//!
//! Locks: a partition's state, then the queue; never the other way round.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::failures::Failures;
use super::replica::{LogState, Partition, State};
use crate::log::flush::FlushError;
use crate::log::page_cache::PageCache;
use crate::space::Space;

/// Two, so that one slow disk request does not hold up every partition.
const THREADS: usize = 2;

/// Between two tries of a flush that could not open what it needed.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Partitions to be flushed.
#[derive(Debug)]
pub struct Flusher {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Partitions whose log is broken.
    pub failures: Failures,
    /// Partitions whose files cannot be used.
    pub refused: Failures,
    /// What was written and need not be flushed.
    pub page_cache: Arc<PageCache>,
    /// Room for all of it.
    pub space: Arc<Space>,
}

#[derive(Debug, Default)]
struct Queue {
    ready: VecDeque<Arc<Partition>>,
    /// By due time, and a number to tell equal times apart.
    timed: BTreeMap<(Instant, u64), (Arc<Partition>, Reason)>,
    numbers: u64,
    stopping: bool,
}

/// Why a partition is to be flushed at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// flush.ms.
    Asked,
    /// A flush could not open what it needed.
    Again,
}

impl Queue {
    fn take_due(&mut self) -> Option<(Arc<Partition>, Reason)> {
        let entry = self.timed.first_entry()?;
        (entry.key().0 <= Instant::now()).then(|| entry.remove())
    }
}

impl Flusher {
    /// With nothing to flush, for a page cache of which so much stays.
    pub fn new(page_cache_kept: Option<u64>, space: Arc<Space>) -> Flusher {
        Flusher {
            queue: Mutex::default(),
            changed: Condvar::new(),
            failures: Failures::default(),
            refused: Failures::default(),
            page_cache: Arc::new(PageCache::new(page_cache_kept)),
            space,
        }
    }

    /// Starts the threads; they end after [`Flusher::stop`].
    pub fn start(self: &Arc<Self>) -> std::io::Result<Vec<JoinHandle<()>>> {
        let flushing = (0..THREADS).map(|number| {
            let flusher = self.clone();
            std::thread::Builder::new().name(format!("flush-{number}")).spawn(move || flusher.run())
        });
        flushing.chain([self.page_cache.start()]).collect()
    }

    /// Makes the threads end once the queue is empty.
    pub fn stop(&self) {
        self.queue.lock().stopping = true;
        self.changed.notify_all();
        self.page_cache.stop();
    }

    /// Asks for a flush now: of sealed segments, and with `active` of everything.
    pub fn enqueue(&self, partition: &Arc<Partition>, state: &mut State, active: bool) {
        state.flush_wanted = true;
        state.flush_active |= active;
        if !std::mem::replace(&mut state.flush_queued, true) {
            self.queue.lock().ready.push_back(partition.clone());
            self.changed.notify_one();
        }
    }

    /// Asks for a flush of everything after a while. The caller sees to it that a partition asks once.
    pub fn enqueue_after(&self, partition: &Arc<Partition>, delay: Duration) {
        self.enqueue_for(Reason::Asked, partition, delay);
    }

    fn enqueue_for(&self, reason: Reason, partition: &Arc<Partition>, delay: Duration) {
        let Some(due) = Instant::now().checked_add(delay) else {
            return;
        };
        let mut queue = self.queue.lock();
        queue.numbers += 1;
        let number = queue.numbers;
        queue.timed.insert((due, number), (partition.clone(), reason));
        self.changed.notify_one();
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some((partition, reason)) = queue.take_due() {
                parking_lot::MutexGuard::unlocked(&mut queue, || self.fall_due(&partition, reason));
            } else if let Some(partition) = queue.ready.pop_front() {
                parking_lot::MutexGuard::unlocked(&mut queue, || self.flush(&partition));
            } else if queue.stopping {
                return;
            } else if let Some((&(due, _), _)) = queue.timed.first_key_value() {
                self.changed.wait_until(&mut queue, due);
            } else {
                self.changed.wait(&mut queue);
            }
        }
    }

    fn fall_due(&self, partition: &Arc<Partition>, reason: Reason) {
        let mut state = partition.lock();
        match reason {
            Reason::Asked => state.flush_timed = false,
            Reason::Again => state.flush_again = false,
        }
        self.enqueue(partition, &mut state, true);
    }

    fn flush(&self, partition: &Arc<Partition>) {
        let mut state = partition.lock();
        state.flush_wanted = false;
        let active = std::mem::take(&mut state.flush_active);
        if let LogState::Open(log) = &mut state.log {
            let result = match log.plan_flush(active) {
                Ok(plan) => {
                    let result = parking_lot::MutexGuard::unlocked(&mut state, || plan.run());
                    if let LogState::Open(log) = &mut state.log {
                        log.flushed(&plan, &result);
                    }
                    result
                }
                Err(error) => {
                    let error = FlushError::of_open(error);
                    if let FlushError::Failed(error) = &error {
                        log.flush_failed(error);
                    }
                    Err(error)
                }
            };
            if let Err(FlushError::Unopened(error)) = result
                && !std::mem::replace(&mut state.flush_again, true)
            {
                tracing::warn!(topic = partition.topic(), partition = partition.index(), %error, "not flushed yet, tried again");
                self.enqueue_for(Reason::Again, partition, AGAIN_AFTER);
            }
        }
        state.mark_if_broken(&self.failures);
        if state.flush_wanted {
            self.queue.lock().ready.push_back(partition.clone());
            self.changed.notify_one();
        } else {
            state.flush_queued = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use fullbore_wire::Uuid;
    use fullbore_wire::batch::{BatchBuilder, BatchView, Compression, Stamp};

    use super::*;
    use crate::config::{BrokerConfig, Properties, TopicConfig};
    use crate::partitions::{Acks, Logs, Origin, Settings, led_by};

    fn partition_of(logs: &Logs, (topic, id, index): (&str, Uuid, i32), config: TopicConfig) -> Arc<Partition> {
        logs.put_topic((topic, id), &led_by(1, index + 1), &Arc::new(config), Origin::New);
        logs.find(&id, index).expect("it has just been told of")
    }

    #[test]
    fn flush_ms_flushes_without_being_asked_again_and_a_rolled_segment_is_flushed_without_being_asked_at_all() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let folder = tempfile::tempdir().expect("temporary folder");
        let logs = Logs::open(folder.path(), Settings::from(&broker)).expect("opened");
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(&[1; 700]), &[]);
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        let wait_for = |partition: &Partition, recovery_point: i64| {
            let start = Instant::now();
            while !matches!(&partition.lock().log, LogState::Open(log) if log.recovery_point == recovery_point) {
                assert!(start.elapsed() < Duration::from_secs(20), "never flushed up to {recovery_point}");
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        let append = |partition: &Arc<Partition>| {
            let appended =
                partition.append(BatchView::first(&bytes).expect("a batch"), Acks::Leader, 0).expect("appended");
            assert!(appended.ticket.is_none());
        };

        let timed = TopicConfig { flush_ms: Some(10), ..broker.topic_defaults.clone() };
        let partition = partition_of(&logs, ("timed", Uuid([1; 16]), 0), timed);
        for round in 1..=3 {
            append(&partition);
            wait_for(&partition, round);
        }
        let rolling = TopicConfig { segment_bytes: 1000, ..broker.topic_defaults.clone() };
        let partition = partition_of(&logs, ("rolling", Uuid([2; 16]), 0), rolling);
        (0..5).for_each(|_| append(&partition));
        wait_for(&partition, 4);
        logs.close();
    }

    #[test]
    fn a_partition_whose_flush_failed_is_counted_once_until_it_is_deleted() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let folder = tempfile::tempdir().expect("temporary folder");
        let logs = Logs::open(folder.path(), Settings::from(&broker)).expect("opened");
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(b"v"), &[]);
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        let append =
            |partition: &Arc<Partition>| partition.append(BatchView::first(&bytes).expect("a batch"), Acks::Leader, 0);
        let id = Uuid([1; 16]);
        for (index, failed) in [(0, 1), (1, 2)] {
            let partition = partition_of(&logs, ("t", id, index), broker.topic_defaults.clone());
            append(&partition).expect("appended");
            // Its files are written, but there is no folder to sync their names in.
            std::fs::remove_dir_all(partition.dir()).expect("removed");
            partition.log_dir.flusher.enqueue(&partition, &mut partition.lock(), true);
            let start = Instant::now();
            while logs.failed_partitions() != failed {
                assert!(start.elapsed() < Duration::from_secs(20), "never counted");
                std::thread::sleep(Duration::from_millis(2));
            }
            assert!(append(&partition).is_err());
            assert_eq!(logs.failed_partitions(), failed);
        }
        logs.partitions().iter().for_each(|partition| _ = partition.retire());
        assert_eq!(logs.failed_partitions(), 0);
        logs.close();
    }
}
