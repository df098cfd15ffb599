//! What is done to diskless partitions and objects from time to time: retention, and the cleaning of what nobody uses.
//!
//! Both end with the broker's runtime, and may be cut off anywhere: what is not done is found by the next look.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fullbore_wire::Uuid;
use parking_lot::RwLock;

use super::index::IndexOwner;
use super::objects::Objects;
use super::partition::DisklessPartition;
use crate::seldom::Seldom;
use crate::system::now_ms;

/// The partitions of each topic.
pub type DisklessTopics = RwLock<HashMap<Uuid, Vec<Arc<DisklessPartition>>>>;

/// Between two looks for objects that nobody uses.
const CLEANING_INTERVAL: Duration = Duration::from_secs(30);
/// Objects that are deleted in a look, before the next one comes at once.
const CLEANED_AT_ONCE: usize = 64;

/// Starts both; to be called in a tokio runtime.
pub fn start(topics: &Arc<DisklessTopics>, objects: Objects, index: IndexOwner, retention: Duration) {
    tokio::spawn(retain(Arc::downgrade(topics), retention));
    tokio::spawn(clean(Arc::downgrade(topics), objects, index));
}

async fn retain(topics: Weak<DisklessTopics>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(topics) = topics.upgrade() else { return };
        let partitions: Vec<_> = topics.read().values().flatten().cloned().collect();
        drop(topics);
        for partition in partitions.iter().filter(|partition| !partition.known.is_gone()) {
            partition.retain(now_ms()).await;
        }
    }
}

/// Deletes objects from the store that are out of the index. What cannot be deleted now is tried again a day later.
async fn clean(topics: Weak<DisklessTopics>, objects: Objects, index: IndexOwner) {
    let failures = Seldom::default();
    loop {
        tokio::time::sleep(CLEANING_INTERVAL).await;
        if topics.strong_count() == 0 {
            return;
        }
        // Why the index cannot be used is told by who needs it.
        while let Ok(unused) = index.unused(CLEANED_AT_ONCE).await {
            for id in &unused {
                if let Err(error) = objects.delete(*id).await
                    && let Some(left_out) = failures.due()
                {
                    tracing::warn!(%error, left_out, "an object that nobody uses is not deleted; it is tried again in a day");
                }
            }
            if unused.len() < CLEANED_AT_ONCE {
                break;
            }
        }
    }
}
