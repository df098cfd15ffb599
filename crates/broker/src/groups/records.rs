//! The records of groups in `__consumer_offsets`: committed offsets, exactly as Kafka writes them, and the records of
//! the groups themselves (`rules::group::Change`).
//!
//! The keys of the groups' own records have types that Kafka does not know, so Kafka's coordinator and tools skip them.

use super::offsets::OffsetAndMetadata;
use crate::coordinator::KeyValue;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use fullbore_rules::group::{Change, PartKey, PartKind, Snapshot};
use fullbore_wire::coordinator::{CoordinatorRecord, OffsetCommitKey, OffsetCommitValue};
use fullbore_wire::{DecodeError, EncodeError, Text, Uuid};

/// The type in the key of a group's own record, "Fb" in ASCII. The key continues with the group's id in UTF-8. The
/// value is the version of the layout in 64 bits, followed by the state.
const SNAPSHOT: i16 = 0x4662;
/// The type in the key of a part of a group (a member, an assignment or a regular expression), "Fp" in ASCII. The key
/// continues with the id of the group's parts, the kind in 8 bits, and the number in 64 bits.
const PART: i16 = 0x4670;
/// Length of a part's key after its type.
const PART_KEY_BYTES: usize = 25;
/// The expiry time in a record if the client sent none.
const NEVER_SAID: i64 = -1;

/// A record in `__consumer_offsets`.
#[derive(Debug, PartialEq)]
pub(super) enum GroupRecord {
    /// A committed offset. `None` if it was deleted.
    Offset { group: Text, topic: Text, partition: i32, committed: Option<(Uuid, OffsetAndMetadata)> },
    /// A group's own record. `None` if the group was deleted.
    Group { group: Text, snapshot: Option<Snapshot> },
    /// A part of a group. `None` if it was deleted.
    Part { key: PartKey, value: Option<Bytes> },
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

/// Returns the records of a change, the group's own record last.
pub(super) fn change(id: &str, change: &Change) -> Vec<KeyValue> {
    let parts = change.parts.iter().map(|(key, value)| part(key, value.clone()));
    parts.chain(change.group.as_ref().map(|snapshot| group(id, Some(snapshot)))).collect()
}

/// Returns the record of a part, or its tombstone if `value` is `None`.
pub(super) fn part(key: &PartKey, value: Option<Bytes>) -> KeyValue {
    let mut bytes = BytesMut::with_capacity(2 + PART_KEY_BYTES);
    bytes.put_i16(PART);
    bytes.put_slice(&key.parts_id.0);
    bytes.put_u8(key.kind as u8);
    bytes.put_i64(key.number);
    (bytes.freeze(), value)
}

/// Returns a group's own record, or its tombstone if `snapshot` is `None`.
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
    // The names are copied, because the result outlives the chunk of the log from which the record was read.
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
        CoordinatorRecord::Unknown(PART, key, value) => {
            // A later release has written this part, whose kind is unknown here. It is skipped. The version in the
            // group's own record is then unknown too, so the group is not restored at all.
            let Some(key) = part_key(key)? else { return Ok(GroupRecord::Other) };
            Ok(GroupRecord::Part { key, value: value.map(|value| Bytes::copy_from_slice(&value)) })
        }
        _ => Ok(GroupRecord::Other),
    }
}

/// Reads a part's key. Returns None if its kind is unknown.
fn part_key(mut key: Bytes) -> Result<Option<PartKey>, DecodeError> {
    if key.len() < PART_KEY_BYTES {
        return Err(DecodeError::Truncated { missing: PART_KEY_BYTES - key.len() });
    }
    let mut parts_id = Uuid::ZERO;
    key.copy_to_slice(&mut parts_id.0);
    let (kind, number) = (PartKind::from_number(key.get_u8()), key.get_i64());
    Ok(kind.map(|kind| PartKey { parts_id, kind, number }))
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
        for (kind, value) in [
            (PartKind::Member, Some(Bytes::from_static(b"m"))),
            (PartKind::Assignment, Some(Bytes::new())),
            (PartKind::Regex, None),
        ] {
            let part_key = PartKey { parts_id: id, kind, number: i64::MAX };
            let (key, written) = part(&part_key, value.clone());
            assert_eq!(read(key, written), Ok(GroupRecord::Part { key: part_key, value }));
        }
        assert_eq!(read(Bytes::from_static(&[0, 2, 0, 1, b'g']), None), Ok(GroupRecord::Other), "Kafka's own groups");
    }

    #[test]
    fn key_of_a_part_cut_short_is_an_error_and_an_unknown_kind_is_skipped() {
        let (key, _) = part(&PartKey { parts_id: Uuid([1; 16]), kind: PartKind::Regex, number: 1 }, None);
        for len in 2..key.len() {
            assert_eq!(read(key.slice(..len), None), Err(DecodeError::Truncated { missing: key.len() - len }));
        }
        let mut unknown = key.to_vec();
        unknown[18] = 9;
        assert_eq!(read(unknown.into(), None), Ok(GroupRecord::Other));
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
