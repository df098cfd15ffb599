//! The records of groups in `__consumer_offsets`: committed offsets, exactly as Kafka writes them, and snapshots of
//! groups.
//!
//! The key of a snapshot has a type that Kafka does not know. Kafka's coordinator and tools skip unknown types.

use super::offsets::OffsetAndMetadata;
use crate::coordinator::KeyValue;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use fullbore_rules::group::Snapshot;
use fullbore_wire::coordinator::{CoordinatorRecord, OffsetCommitKey, OffsetCommitValue};
use fullbore_wire::{DecodeError, EncodeError, Text, Uuid};

/// The type of a snapshot's key, "Fb" in ASCII. The key continues with the group's id in UTF-8. The value is the
/// version of the layout in 64 bits, followed by the state.
const SNAPSHOT: i16 = 0x4662;
/// In a record, stands for an expiry time that the client did not send.
const NEVER_SAID: i64 = -1;

/// A record in `__consumer_offsets`.
#[derive(Debug, PartialEq)]
pub(super) enum GroupRecord {
    /// A committed offset. `None` if it was deleted.
    Offset { group: Text, topic: Text, partition: i32, committed: Option<(Uuid, OffsetAndMetadata)> },
    /// The snapshot of a group. `None` if the group was deleted.
    Group { group: Text, snapshot: Option<Snapshot> },
    /// Any other record, which is skipped.
    Other,
}

/// The key of a committed offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct OffsetKey<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub partition: i32,
}

/// Returns the record of a committed offset, or its tombstone if `committed` is `None`.
///
/// # Errors
/// Returns an error if a name or the metadata is longer than a record allows.
pub(super) fn offset(
    place: OffsetKey<'_>,
    committed: Option<(Uuid, &OffsetAndMetadata)>,
) -> Result<KeyValue, EncodeError> {
    let OffsetKey { group, topic, partition } = place;
    let key = OffsetCommitKey { group: group.into(), topic: topic.into(), partition, ..Default::default() };
    let value = committed.map(|(topic_id, committed)| OffsetCommitValue {
        offset: committed.offset,
        leader_epoch: committed.leader_epoch,
        metadata: Text::from(&*committed.metadata),
        commit_timestamp: committed.committed_ms,
        expire_timestamp: committed.expires_ms.unwrap_or(NEVER_SAID),
        topic_id,
        ..Default::default()
    });
    CoordinatorRecord::OffsetCommit(key, value).encode()
}

/// Returns the record of a group, or its tombstone if `snapshot` is `None`.
pub(super) fn group(id: &str, snapshot: Option<&Snapshot>) -> KeyValue {
    let mut key = BytesMut::with_capacity(2 + id.len());
    key.put_i16(SNAPSHOT);
    key.put_slice(id.as_bytes());
    let value = snapshot.map(|snapshot| {
        let mut value = BytesMut::with_capacity(8 + snapshot.state.len());
        value.put_i64(snapshot.version);
        value.put_slice(&snapshot.state);
        value.freeze()
    });
    (key.freeze(), value)
}

/// Reads a record. The result shares no memory with `key` and `value`.
///
/// # Errors
/// Returns an error if neither Kafka nor Fullbore writes such a record.
pub(super) fn read(key: Bytes, value: Option<Bytes>) -> Result<GroupRecord, DecodeError> {
    // The names are copied, because the result outlives the piece of the log from which the record was read.
    let own = |text: &Text| Text::from(text.as_str());
    match CoordinatorRecord::decode(key, value)? {
        CoordinatorRecord::OffsetCommit(key, value) => {
            let committed = value.map(|value| {
                let committed = OffsetAndMetadata {
                    offset: value.offset,
                    leader_epoch: value.leader_epoch,
                    metadata: value.metadata.as_str().into(),
                    committed_ms: value.commit_timestamp,
                    expires_ms: Some(value.expire_timestamp).filter(|expires| *expires != NEVER_SAID),
                };
                (value.topic_id, committed)
            });
            Ok(GroupRecord::Offset {
                group: own(&key.group),
                topic: own(&key.topic),
                partition: key.partition,
                committed,
            })
        }
        CoordinatorRecord::Unknown(SNAPSHOT, id, value) => {
            let group = Text::from_utf8(Bytes::copy_from_slice(&id)).map_err(|_| DecodeError::Utf8)?;
            let snapshot = value.map(|mut value| match value.len() {
                0..8 => Err(DecodeError::Truncated { missing: 8 - value.len() }),
                _ => Ok(Snapshot { version: value.get_i64(), state: Bytes::copy_from_slice(&value) }),
            });
            Ok(GroupRecord::Group { group, snapshot: snapshot.transpose()? })
        }
        _ => Ok(GroupRecord::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_records_equal_the_encoded_ones() {
        let committed =
            OffsetAndMetadata { offset: 7, leader_epoch: 3, metadata: "m".into(), committed_ms: 11, expires_ms: None };
        let place = OffsetKey { group: "g", topic: "t", partition: 5 };
        let id = Uuid([1; 16]);
        for committed in [Some((id, committed)), None] {
            let (key, value) =
                offset(place, committed.as_ref().map(|(id, committed)| (*id, committed))).expect("short");
            let kept = GroupRecord::Offset { group: "g".into(), topic: "t".into(), partition: 5, committed };
            assert_eq!(read(key, value), Ok(kept));
        }
        for snapshot in [Some(Snapshot { version: 1, state: Bytes::from_static(b"state") }), None] {
            let (key, value) = group("g", snapshot.as_ref());
            assert_eq!(read(key, value), Ok(GroupRecord::Group { group: "g".into(), snapshot }));
        }
        assert_eq!(read(Bytes::from_static(&[0, 2, 0, 1, b'g']), None), Ok(GroupRecord::Other), "Kafka's own groups");
    }

    #[test]
    fn a_snapshot_cut_short_is_an_error() {
        let (key, _) = group("g", None);
        for len in 0..8 {
            let value = Bytes::from(vec![0; len]);
            assert_eq!(read(key.clone(), Some(value)), Err(DecodeError::Truncated { missing: 8 - len }));
        }
    }
}
