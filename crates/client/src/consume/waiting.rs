//! The partitions that cannot be read at the moment, with the reasons. Fetchers and the run update this list, and any
//! thread may read it.
//!
//! Invariant: a partition is listed from its first refusal until a response proves that it can be read.

use crate::error::ClientError;
use fullbore_wire::Text;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The reason why a partition waits, and since when.
#[derive(Clone, Debug)]
struct Reason {
    since: Instant,
    error: Arc<ClientError>,
}

/// The waiting partitions with their reasons.
#[derive(Debug, Default)]
pub(super) struct UnreadPartitions {
    of: Mutex<BTreeMap<(Text, i32), Reason>>,
    /// True if any partition waits. Fetchers check this after each response, without taking the lock.
    any: AtomicBool,
}

impl UnreadPartitions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Text, i32), Reason>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a partition cannot be read. Returns the time since the partition was first refused, even if that was
    /// for another reason.
    pub(super) fn refuse(&self, partition: (Text, i32), error: Arc<ClientError>) -> Duration {
        let mut of = self.lock();
        self.any.store(true, Ordering::Relaxed);
        let since = of.get(&partition).map_or_else(Instant::now, |reason| reason.since);
        of.insert(partition, Reason { since, error });
        since.elapsed()
    }

    /// Notes that a partition is being read.
    pub(super) fn serve(&self, partition: &(Text, i32)) {
        if self.any.load(Ordering::Relaxed) {
            let mut of = self.lock();
            of.remove(partition);
            self.any.store(!of.is_empty(), Ordering::Relaxed);
        }
    }

    /// Returns true if any partition waits.
    pub(super) fn is_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Returns true if this partition waits.
    pub(super) fn has(&self, partition: &(Text, i32)) -> bool {
        self.is_any() && self.lock().contains_key(partition)
    }

    /// Removes the partitions of a topic that is no longer read.
    pub(super) fn forget(&self, of_topic: &Text) {
        let mut of = self.lock();
        of.retain(|(topic, _), _| topic != of_topic);
        self.any.store(!of.is_empty(), Ordering::Relaxed);
    }

    /// Returns the reason of a partition that has waited for at least `for_long`, and the number of such partitions.
    /// Returns `None` if there are none. With `by_answer`, ignores partitions whose reason is not a broker's error
    /// code.
    pub(super) fn first(&self, for_long: Duration, by_answer: bool) -> Option<(Arc<ClientError>, usize)> {
        let is_answer = |reason: &&Reason| !by_answer || matches!(*reason.error, ClientError::Kafka { .. });
        let of = self.lock();
        let mut waiting = of.values().filter(is_answer).filter(|reason| reason.since.elapsed() >= for_long);
        waiting.next().map(|first| (first.error.clone(), 1 + waiting.count()))
    }
}

/// Puts a reason and the number of waiting partitions into a sentence.
pub(super) fn sentence(error: &ClientError, partitions: usize) -> String {
    match partitions {
        0 | 1 => error.to_string(),
        _ => format!("{error}; in all, {partitions} partitions wait"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::ErrorCode;

    #[test]
    fn the_sentence_counts_partitions_only_if_several_wait() {
        let unread = UnreadPartitions::default();
        let mut reported = Vec::new();
        for partition in 0..2 {
            let error = ClientError::refused("cannot read", ErrorCode::KAFKA_STORAGE_ERROR);
            unread.refuse((Text::from("read"), partition), Arc::new(error));
            let (first, waiting) = unread.first(Duration::ZERO, true).expect("some wait");
            reported.push(sentence(&first, waiting));
        }
        assert_eq!(reported[1], format!("{}; in all, 2 partitions wait", reported[0]));
    }
}
