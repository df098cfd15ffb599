//! Change feed of the index: polls the changes of other brokers, and notifies partitions, which wake their waiters.
//!
//! Not here: the refresh before a refusal.
//!
//! Invariant: a change of another broker is seen within [`INTERVAL`] and the time of an answer, as long as the index
//! answers.

use fullbore_host::task;
use std::sync::Weak;
use std::time::Duration;

use super::housekeeping::DisklessTopics;
use super::index::IndexChanges;
use super::reader::Reader;
use fullbore_host::log_rate_limit::LogRateLimit;

/// Between two questions.
const INTERVAL: Duration = Duration::from_millis(40);
/// Interval after a poll that was not answered.
const VAIN_INTERVAL: Duration = Duration::from_millis(500);

/// Starts to listen; to be called in a tokio runtime. Ends with the topics.
pub fn start(topics: Weak<DisklessTopics>, changes: IndexChanges, reader: Reader) {
    task::spawn(hear(topics, changes, reader));
}

async fn hear(topics: Weak<DisklessTopics>, changes: IndexChanges, reader: Reader) {
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
                rows.iter().for_each(|row| reader.heard(row));
                interval = INTERVAL;
            }
            Err(error) => {
                if let Some(left_out) = failures.due() {
                    tracing::warn!(%error, left_out, "it is not heard what other brokers write to diskless topics");
                }
                interval = VAIN_INTERVAL;
            }
        }
    }
}
