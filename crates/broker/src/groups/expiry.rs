//! Deletes committed offsets that have expired, and groups that have neither members nor offsets.
//!
//! `rules::group::expiry` decides when an offset expires. If the offset is committed again after this check, it is not
//! deleted.

use super::{DeleteOffset, Groups, OffsetAndMetadata, TopicName, not_kept};
use fullbore_control::Image;
use fullbore_host::files::now_ms;
use fullbore_host::task::Rounds;
use fullbore_rules::group::{Group, expiry};
use fullbore_wire::Text;
use std::sync::Arc;

impl Groups {
    /// In each round, deletes the expired offsets of all groups.
    pub async fn run_expiry(self: Arc<Self>, retention_ms: u64, mut rounds: Rounds) {
        let retention_ms = i64::try_from(retention_ms).unwrap_or(i64::MAX);
        while rounds.next().await {
            for id in self.ids() {
                self.expire(&id, retention_ms).await;
            }
        }
    }

    /// Deletes the expired offsets of one group. If the group then has no offsets and no members, deletes the group.
    pub(super) async fn expire(self: &Arc<Self>, id: &Text, retention_ms: i64) {
        let now = now_ms();
        let image = self.control.image();
        let due = |group: &Group| self.due(&image, id, group, retention_ms, now);
        if self.peek(id, |group| !due(group).is_empty()).unwrap_or(false) {
            // Checks again, now under the lock that orders the group's writes. Since the first check, a member that
            // reads the topic may have joined.
            let requested = self.touch(id, |group, shard, _| {
                let offsets = due(group);
                tracing::info!(group = %id, offsets = offsets.len(), "committed offsets have expired");
                self.forget_offsets(shard, id, offsets)
            });
            let Ok(Some(requested)) = requested else { return };
            if let Err(error) = requested.kept().await.map_err(not_kept).and_then(|forgotten| forgotten) {
                tracing::error!(group = %id, %error, "cannot delete expired offsets: the next round retries");
                return;
            }
        }
        let is_over = self.peek(id, |group| group.check_delete().is_ok()).unwrap_or(false) && !self.has_offsets(id);
        if is_over && self.delete(id, false).await.is_ok() {
            tracing::info!(group = %id, "removed a group that had no members and no offsets");
        }
    }

    fn due(&self, image: &Image, id: &str, group: &Group, retention_ms: i64, now: i64) -> Vec<DeleteOffset> {
        let since = expiry::since(group);
        let is_due = |committed: &OffsetAndMetadata| {
            expiry::is_expired(since, committed.committed_ms, committed.expires_ms, retention_ms, now)
        };
        self.offsets.view(id, |view| {
            let mut due = Vec::new();
            for (topic, of_topic) in view.committed.into_iter().flatten() {
                // Offsets of a deleted topic only exist if their deletion has failed, so they are deleted now.
                let name = image.topic_by_id(*topic).map(|topic| &topic.name);
                let is_over = |(partition, committed): &(&i32, &OffsetAndMetadata)| {
                    name.is_none() || is_due(committed) && !view.is_pending(*topic, **partition)
                };
                let mut partitions = of_topic.partitions.iter().filter(is_over).peekable();
                if partitions.peek().is_none() || name.is_some_and(|name| group.reads(name)) {
                    continue;
                }
                let topic = TopicName { id: *topic, name: Arc::clone(&of_topic.name) };
                due.extend(partitions.map(|(partition, committed)| DeleteOffset {
                    topic: topic.clone(),
                    partition: *partition,
                    committed_ms: Some(committed.committed_ms),
                }));
            }
            due
        })
    }
}
