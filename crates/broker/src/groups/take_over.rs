//! Groups and offsets as brokers kept them in `control.db` before they had `__consumer_offsets`: moved there once, at the first start.
//!
//! Invariant: the tables go only once everything is on the disk elsewhere, so that a start that is cut short anywhere does it
//! again from the beginning; nobody is served before.

use super::offsets::{CommitOffset, OffsetAndMetadata, TopicName};
use super::records::{self, OffsetKey};
use super::{Groups, Missing, not_kept};
use crate::control::{KeptInDatabase, KeptOffset, Refusal, StoredGroup};
use crate::coordinator::{KeyValue, PendingWrite, Records};
use fullbore_rules::group::Snapshot;
use fullbore_wire::{ErrorCode, Text};
use std::sync::Arc;

/// Writes that are on their way together.
const WRITES_MAX: usize = 256;

/// Why groups cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// The topic cannot be made or written.
    #[error("the groups that are in control.db cannot be moved to __consumer_offsets: {0}")]
    Topic(ErrorCode),
    /// The disk.
    #[error("the groups that are in control.db cannot be moved to __consumer_offsets: {0}")]
    Io(#[from] std::io::Error),
    /// The database.
    #[error("the groups were moved to __consumer_offsets, and cannot be removed from control.db: {0}")]
    Database(Refusal),
}

impl Groups {
    /// Moves what there is.
    pub(super) async fn take_over(self: &Arc<Self>) -> Result<(), TakeOverError> {
        let Some(kept) = self.control.take_kept_in_database() else { return Ok(()) };
        let KeptInDatabase { groups, offsets } = kept;
        let (group_count, offset_count) = (groups.len(), offsets.len());
        self.prepare(Missing::Create, []).await.map_err(TakeOverError::Topic)?;
        self.loaded().await;
        let mut writes = Vec::new();
        for group in groups {
            writes.push(self.take_over_group(group).map_err(TakeOverError::Topic)?);
            self.await_some(&mut writes, WRITES_MAX).await?;
        }
        for offset in offsets {
            writes.push(self.take_over_offset(offset).map_err(TakeOverError::Topic)?);
            self.await_some(&mut writes, WRITES_MAX).await?;
        }
        self.await_some(&mut writes, 0).await?;
        let logs = Arc::clone(&self.logs);
        let synced = tokio::task::spawn_blocking(move || logs.sync()).await;
        synced.unwrap_or_else(|panic| Err(std::io::Error::other(panic)))?;
        self.control.forget_kept_in_database().await.map_err(TakeOverError::Database)?;
        tracing::info!(
            groups = group_count,
            offsets = offset_count,
            "groups were moved from control.db to __consumer_offsets"
        );
        Ok(())
    }

    fn take_over_group(
        self: &Arc<Self>,
        stored: StoredGroup,
    ) -> Result<PendingWrite<Result<(), ErrorCode>>, ErrorCode> {
        let StoredGroup { group: id, version, state } = stored;
        let (id, snapshot) = (Text::from(&*id), Snapshot { version, state });
        let shard = self.serving(&id)?;
        let record = records::group(&id, Some(&snapshot));
        self.restore(&shard, id, &snapshot);
        Ok(shard.write(Records::Known(vec![record]), |kept| kept.map_err(not_kept)))
    }

    fn take_over_offset(self: &Arc<Self>, kept: KeptOffset) -> Result<PendingWrite<Result<(), ErrorCode>>, ErrorCode> {
        let KeptOffset { group, topic_id, topic, partition, offset, leader_epoch, metadata, committed_ms, expires_ms } =
            kept;
        let topic = TopicName { id: topic_id, name: topic };
        let committed = OffsetAndMetadata { offset, leader_epoch, metadata, committed_ms, expires_ms };
        let offset = CommitOffset { topic, partition, committed };
        let shard = self.serving(&group)?;
        let place = OffsetKey { group: &group, topic: &offset.topic.name, partition: offset.partition };
        let record: KeyValue = records::offset(place, Some((offset.topic.id, &offset.committed)))
            .map_err(|_| ErrorCode::OFFSET_METADATA_TOO_LARGE)?;
        // Without room for the group it is not listed, and its offsets are there.
        let _ = self.create_in(&shard, &Text::from(&*group));
        let (groups, of) = (Arc::clone(self), Arc::clone(&shard));
        Ok(shard.write(Records::Known(vec![record]), move |kept| {
            kept.map_err(not_kept)?;
            groups.offsets.put(&of, &group, vec![offset]);
            Ok(())
        }))
    }

    /// Waits for writes once there are more than `most`.
    async fn await_some(
        &self,
        writes: &mut Vec<PendingWrite<Result<(), ErrorCode>>>,
        most: usize,
    ) -> Result<(), TakeOverError> {
        if writes.len() > most {
            for write in writes.drain(..) {
                write.kept().await.map_err(not_kept).and_then(|kept| kept).map_err(TakeOverError::Topic)?;
            }
        }
        Ok(())
    }
}
