//! What other brokers change in the index, heard by asking every so often: partitions are told, and wake who waits for them.
//!
//! Not here: what a broker must know before it refuses something, for which it asks anew.
//!
//! Invariant: what others have changed is told within [`INTERVAL`] and the time of an answer, as long as the index answers.

use fullbore_host::task;
use std::sync::Weak;
use std::time::Duration;

use super::housekeeping::DisklessTopics;
use super::index::IndexChanges;
use super::reader::Reader;
use fullbore_host::log_rate_limit::LogRateLimit;

/// Between two questions.
const INTERVAL: Duration = Duration::from_millis(40);
/// The same after one that was not answered.
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
