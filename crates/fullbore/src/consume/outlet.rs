//! A bounded queue of printed chunks between the fetchers and standard output, and the thread that writes the chunks.
//!
//! Records are printed in `format`. Invariant: [`Outlet::written`] returns only positions of records that were written
//! and flushed. Queued chunks may be dropped, because their positions are not committed yet.

use crate::output;
use fullbore_client::group::{Position, TopicPartition};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many bytes may be queued before fetchers wait for standard output.
const QUEUE_BYTES_MAX: usize = 8 << 20;
/// The size at which a write is large enough, in bytes. A write has less only if less is queued.
const WRITE_BYTES: usize = 64 << 10;

/// The printed records of one partition.
#[derive(Debug)]
pub struct Chunk {
    /// The partition that the records were read from.
    pub place: Arc<TopicPartition>,
    /// The bytes to write. Empty if no records were printed and only the position has changed.
    pub bytes: Vec<u8>,
    /// The number of records in the chunk.
    pub records: u64,
    /// The position after the last record.
    pub next: Position,
}

#[derive(Default)]
struct OutletState {
    queue: VecDeque<Chunk>,
    queued_bytes: usize,
    is_writing: bool,
    /// True from `close` to `open`, while no chunk is accepted.
    closed: bool,
    written: HashMap<TopicPartition, Position>,
    records: u64,
}

/// The queue, which the fetchers, the writer and the committing thread share.
#[derive(Default)]
pub struct Outlet {
    state: Mutex<OutletState>,
    changed: Condvar,
}

impl Outlet {
    /// Starts the writer thread, which ends with the program.
    ///
    /// # Errors
    /// Returns the system's error if it refuses a thread.
    pub fn start() -> std::io::Result<Arc<Outlet>> {
        let outlet = Arc::new(Outlet::default());
        let writes = outlet.clone();
        std::thread::Builder::new().name("output".to_owned()).spawn(move || writes.write_on())?;
        Ok(outlet)
    }

    fn lock(&self) -> MutexGuard<'_, OutletState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, OutletState>) -> MutexGuard<'a, OutletState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a chunk. Waits while the queue is full, unless the chunk has no bytes. Returns false if the outlet is
    /// closed.
    pub fn push(&self, chunk: Chunk) -> bool {
        let mut state = self.lock();
        while state.queued_bytes >= QUEUE_BYTES_MAX && !chunk.bytes.is_empty() && !state.closed {
            state = self.wait(state);
        }
        if state.closed {
            return false;
        }
        state.queued_bytes += chunk.bytes.len();
        state.queue.push_back(chunk);
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Closes the outlet and drops queued chunks. If a write is running, its records still count as written.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        state.queued_bytes = 0;
        drop(state);
        self.changed.notify_all();
    }

    /// Accepts chunks again.
    pub fn open(&self) {
        self.lock().closed = false;
    }

    /// Waits until all queued chunks are written, for at most `patience` or until `unless` returns true. Returns true
    /// if all are written.
    pub fn drained(&self, patience: Duration, mut unless: impl FnMut() -> bool) -> bool {
        const TICK: Duration = Duration::from_millis(20);
        let started = Instant::now();
        let mut state = self.lock();
        while state.is_writing || !state.queue.is_empty() {
            if started.elapsed() >= patience || unless() {
                return false;
            }
            state = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Returns the position after the last written record of each partition. A partition is included until
    /// [`Outlet::retain`] removes it.
    pub fn written(&self) -> HashMap<TopicPartition, Position> {
        self.lock().written.clone()
    }

    /// Removes the positions of partitions for which `keep` returns false, because they are no longer read.
    pub fn retain(&self, keep: impl Fn(&TopicPartition) -> bool) {
        self.lock().written.retain(|place, _| keep(place));
    }

    /// Returns the number of written records.
    pub fn records(&self) -> u64 {
        self.lock().records
    }

    fn write_on(&self) {
        let mut gathered = Vec::with_capacity(2 * WRITE_BYTES);
        loop {
            let chunks = self.take();
            let is_written = match &chunks[..] {
                [one] => one.bytes.is_empty() || output::bytes(&one.bytes),
                several => {
                    gathered.clear();
                    several.iter().for_each(|chunk| gathered.extend_from_slice(&chunk.bytes));
                    gathered.is_empty() || output::bytes(&gathered)
                }
            };
            let mut state = self.lock();
            state.is_writing = false;
            if is_written {
                state.records += chunks.iter().map(|chunk| chunk.records).sum::<u64>();
                for chunk in &chunks {
                    match state.written.get_mut(&*chunk.place) {
                        Some(written) => *written = chunk.next,
                        None => drop(state.written.insert((*chunk.place).clone(), chunk.next)),
                    }
                }
            } else {
                // Standard output has no reader any more. The command checks this in `output` and ends.
                state.closed = true;
                state.queue.clear();
                state.queued_bytes = 0;
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for chunks. Returns one or more, with about [`WRITE_BYTES`] bytes if enough are queued.
    fn take(&self) -> Vec<Chunk> {
        let mut state = self.lock();
        while state.queue.is_empty() {
            state = self.wait(state);
        }
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        while bytes < WRITE_BYTES {
            let Some(chunk) = state.queue.pop_front() else { break };
            bytes += chunk.bytes.len();
            chunks.push(chunk);
        }
        state.queued_bytes -= bytes;
        state.is_writing = true;
        drop(state);
        self.changed.notify_all();
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(offset: i64) -> Position {
        Position { offset, ..Position::default() }
    }

    fn chunk(len: usize, next: i64) -> Chunk {
        Chunk { place: Arc::new(("t".into(), 0)), bytes: vec![b'x'; len], records: 1, next: position(next) }
    }

    #[test]
    fn queued_chunks_are_dropped_and_not_reported() {
        let outlet = Arc::new(Outlet::default());
        assert!(outlet.push(chunk(QUEUE_BYTES_MAX, 5)));
        let waits = outlet.clone();
        let waiting = std::thread::spawn(move || waits.push(chunk(1, 6)));
        assert!(!outlet.drained(Duration::from_millis(30), || false));
        outlet.close();
        assert!(!waiting.join().expect("no panic"), "who waits for room learns that nothing is wanted");
        assert!(outlet.written().is_empty() && outlet.records() == 0);
        assert!(outlet.drained(Duration::ZERO, || false), "nothing is left");
        assert!(!outlet.push(chunk(1, 7)));
        outlet.open();
        assert!(outlet.push(chunk(1, 7)));
    }

    #[test]
    fn written_positions_are_reported() {
        let outlet = Outlet::start().expect("a thread");
        assert!(outlet.push(chunk(0, 5)) && outlet.push(chunk(0, 9)));
        assert!(outlet.drained(Duration::from_secs(10), || false));
        assert_eq!((outlet.written().get(&("t".into(), 0)), outlet.records()), (Some(&position(9)), 2));
        outlet.retain(|_| false);
        assert!(outlet.written().is_empty());
    }
}
