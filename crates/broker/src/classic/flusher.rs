//! The few threads that fsync, whatever the number of partitions.
//!
//! What a flush covers is [`super::flush`]'s matter. A partition stands in the queue once, so the queue is
//! bounded by the number of partitions; what is asked for while it is flushed makes one more flush.
//!
//! Locks: a partition's state, then the queue; never the other way round.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::partition::{LogState, Partition, State};

/// Two, so that one slow disk request does not hold up every partition.
const THREADS: usize = 2;

/// Partitions to be flushed.
#[derive(Debug, Default)]
pub struct Flusher {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    ready: VecDeque<Arc<Partition>>,
    /// By due time, and a number to tell equal times apart.
    timed: BTreeMap<(Instant, u64), Arc<Partition>>,
    numbers: u64,
    stopping: bool,
}

impl Queue {
    fn take_due(&mut self) -> Option<Arc<Partition>> {
        let entry = self.timed.first_entry()?;
        (entry.key().0 <= Instant::now()).then(|| entry.remove())
    }
}

impl Flusher {
    /// Starts the threads; they end after [`Flusher::stop`].
    pub fn start(self: &Arc<Self>) -> std::io::Result<Vec<JoinHandle<()>>> {
        (0..THREADS)
            .map(|number| {
                let flusher = self.clone();
                std::thread::Builder::new().name(format!("flush-{number}")).spawn(move || flusher.run())
            })
            .collect()
    }

    /// Makes the threads end once the queue is empty.
    pub fn stop(&self) {
        self.queue.lock().stopping = true;
        self.changed.notify_all();
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
        let Some(due) = Instant::now().checked_add(delay) else {
            return;
        };
        let mut queue = self.queue.lock();
        queue.numbers += 1;
        let number = queue.numbers;
        queue.timed.insert((due, number), partition.clone());
        self.changed.notify_one();
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(partition) = queue.take_due() {
                parking_lot::MutexGuard::unlocked(&mut queue, || self.fall_due(&partition));
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

    fn fall_due(&self, partition: &Arc<Partition>) {
        let mut state = partition.state.lock();
        state.flush_timed = false;
        self.enqueue(partition, &mut state, true);
    }

    fn flush(&self, partition: &Arc<Partition>) {
        let mut state = partition.state.lock();
        state.flush_wanted = false;
        let active = std::mem::take(&mut state.flush_active);
        if let LogState::Open(log) = &mut state.log {
            match log.plan_flush(active) {
                Ok(plan) => {
                    let result = parking_lot::MutexGuard::unlocked(&mut state, || plan.run());
                    if let LogState::Open(log) = &mut state.log {
                        log.flushed(&plan, result);
                    }
                }
                Err(error) => log.flush_failed(&error),
            }
        }
        if state.flush_wanted {
            self.queue.lock().ready.push_back(partition.clone());
            self.changed.notify_one();
        } else {
            state.flush_queued = false;
        }
    }
}
