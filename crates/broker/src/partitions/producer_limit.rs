//! Limits the number of idempotent producers that all logs of this broker remember together (`fullbore.producers.max`).
//!
//! Each log has its own limit, but with many partitions the sum may be too large. Housekeeping counts the producers
//! once a second. If there are more than the limit, it forgets the producers that were idle longest, until a tenth of
//! the limit is free. A forgotten producer is treated like an expired one. Producers of diskless partitions do not
//! count, because the index stores them.
//!
//! Invariant: a producer is forgotten only if all remaining producers were last active at the same time or later.

use std::sync::Arc;

use crate::replica::Replica;
use crate::replica::state::LogState;
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_log::Log;

/// The limit that housekeeping applies.
#[derive(Debug)]
pub struct ProducerLimit {
    max: usize,
    passed: LogRateLimit,
}

impl ProducerLimit {
    /// Creates a limit of `max` producers for all logs together.
    pub fn new(max: usize) -> ProducerLimit {
        ProducerLimit { max, passed: LogRateLimit::default() }
    }

    /// Forgets the producers that were idle longest if the logs of `partitions` remember too many producers.
    pub fn apply(&self, partitions: &[Arc<Replica>]) {
        let count: usize = of_each(partitions, |log| log.producers().len()).sum();
        if count <= self.max {
            return;
        }
        let mut times: Vec<i64> =
            of_each(partitions, |log| log.producers().last_active().collect::<Vec<_>>()).flatten().collect();
        let mut excess = times.len().saturating_sub(self.max - self.max / 10);
        let Some(last) = excess.checked_sub(1) else { return };
        let (_, &mut since_ms, _) = times.select_nth_unstable(last);
        for partition in partitions {
            excess -= of_log(partition, |log| log.forget_producers(since_ms, excess)).unwrap_or(0);
        }
        if let Some(left_out) = self.passed.due() {
            tracing::warn!(
                producers = count,
                left_out,
                "cannot remember all idempotent producers: a late retry of a producer that was forgotten may be \
                 appended twice; raise fullbore.producers.max, or lower producer.id.expiration.ms"
            );
        }
    }
}

fn of_each<T>(partitions: &[Arc<Replica>], read: impl Fn(&mut Log) -> T) -> impl Iterator<Item = T> {
    partitions.iter().filter_map(move |partition| of_log(partition, &read))
}

fn of_log<T>(partition: &Replica, read: impl FnOnce(&mut Log) -> T) -> Option<T> {
    match &mut partition.lock_as_it_is().log {
        LogState::Open(log) => Some(read(log)),
        _ => None,
    }
}
