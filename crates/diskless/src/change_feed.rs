//! Learns of commits by other brokers. A task polls the index for changes and applies them to the partitions. It wakes
//! the consumers that wait for records of these partitions.
//!
//! A reader can also request the newest state of a partition; these refreshes are in [`super::reader`].
//!
//! Invariant: while the index answers, this broker learns of another broker's change within [`INTERVAL`] plus the
//! duration of two polls.

use fullbore_host::task;
use std::sync::Weak;
use std::time::Duration;

use super::housekeeping::DisklessTopics;
use super::index::IndexChanges;
use super::reader::Reader;
use fullbore_host::log_rate_limit::LogRateLimit;

/// How long the task waits between two polls.
const INTERVAL: Duration = Duration::from_millis(40);
/// How long the task waits after a failed poll.
const VAIN_INTERVAL: Duration = Duration::from_millis(500);

/// Spawns the task, which polls until the topics are dropped. Must be called within a tokio runtime.
pub fn start(topics: Weak<DisklessTopics>, changes: IndexChanges, reader: Reader) {
    task::spawn(receive(topics, changes, reader));
}

async fn receive(topics: Weak<DisklessTopics>, changes: IndexChanges, reader: Reader) {
    let failures = LogRateLimit::default();
    let mut interval = INTERVAL;
    loop {
        tokio::time::sleep(interval).await;
        let Some(topics) = topics.upgrade() else { return };
        if topics.read().is_empty() {
            continue;
        }
        drop(topics);
        match changes.changed().await {
            Ok(rows) => {
                rows.iter().for_each(|row| reader.apply_change(row));
                interval = INTERVAL;
            }
            Err(error) => {
                if let Some(left_out) = failures.due() {
                    tracing::warn!(%error, left_out, "cannot poll the index for commits of other brokers: consumers of this broker get the records of those commits late; check the database");
                }
                interval = VAIN_INTERVAL;
            }
        }
    }
}
