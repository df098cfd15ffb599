//! An offset that a group committed (OffsetCommitKey.json, OffsetCommitValue.json; LegacyOffsetCommitKey.json and
//! LegacyOffsetCommitValue.json are the same fields under type 0).

use crate::message::message;
use crate::{Text, Uuid};

message! {
    /// Whose offset, and of which partition.
    pub struct OffsetCommitKey {
        /// The group.
        group: Text, 0..;
        /// The topic name.
        topic: Text, 0..;
        /// The partition.
        partition: i32, 0..;
    }

    /// What was committed. 1 expiry; 3 leader epoch, and the expiry is gone; 4 flexible, topic id.
    pub struct OffsetCommitValue {
        /// The offset of the next record to be read.
        offset: i64, 0..;
        /// The leader epoch of the last record that was read, or -1.
        leader_epoch: i32, 3.., default -1;
        /// What the client keeps beside it.
        metadata: Text, 0..;
        /// When it was committed, in milliseconds since 1970.
        commit_timestamp: i64, 0..;
        /// When it expires, in milliseconds since 1970, or -1 for when the broker's retention says so.
        expire_timestamp: i64, 1..=1, default -1;
        /// The topic's id, or zero.
        topic_id: Uuid, 4.., tag 0;
    }
}

impl OffsetCommitValue {
    /// An expiry is in version 1 alone.
    pub(super) fn written(&self) -> i16 {
        if self.expire_timestamp == -1 { 4 } else { 1 }
    }
}
