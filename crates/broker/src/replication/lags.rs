//! Tracks for metrics how many records each followed partition lags behind its leader.

use fullbore_wire::Uuid;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// The lags of all followed partitions.
#[derive(Debug, Default)]
pub struct Lags {
    of: Mutex<HashMap<(Uuid, i32), Arc<AtomicI64>>>,
}

/// The lag of one partition.
#[derive(Debug)]
pub struct Lag(Arc<AtomicI64>);

impl Lags {
    /// Adds a partition that this broker now follows. Its lag is 0 at first.
    pub fn add(&self, partition: (Uuid, i32)) -> Lag {
        let lag = Arc::<AtomicI64>::default();
        self.of.lock().insert(partition, Arc::clone(&lag));
        Lag(lag)
    }

    /// Removes a partition that is no longer followed. Does nothing if another fetcher follows it now.
    pub fn remove(&self, partition: (Uuid, i32), lag: &Lag) {
        let mut of = self.of.lock();
        if of.get(&partition).is_some_and(|known| Arc::ptr_eq(known, &lag.0)) {
            of.remove(&partition);
        }
    }

    /// Returns the largest lag, in records.
    pub fn max(&self) -> u64 {
        let largest = self.of.lock().values().map(|lag| lag.load(Relaxed)).max();
        largest.and_then(|lag| u64::try_from(lag).ok()).unwrap_or(0)
    }
}

impl Lag {
    /// Sets the number of records that the partition lags behind its leader.
    pub fn is(&self, records: i64) {
        self.0.store(records, Relaxed);
    }
}
