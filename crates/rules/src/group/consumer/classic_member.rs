//! How a member of the consumer protocol speaks the classic one, while its group is on its way between them.

use bytes::Bytes;
use fullbore_wire::{Text, consumer_protocol};

/// How a member speaks the classic protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassicMember {
    /// Its session timeout, which it chose itself, in milliseconds.
    pub session_timeout_ms: i32,
    /// The assignors it knows, its favourite first, with its subscription as it sent it.
    pub protocols: Vec<(Text, Bytes)>,
    /// When it is fenced unless it has joined again.
    pub join_by: Option<i64>,
    /// When it is fenced unless it has asked for its assignment.
    pub sync_by: Option<i64>,
}

impl ClassicMember {
    pub(super) fn deadline(&self) -> Option<i64> {
        self.join_by.into_iter().chain(self.sync_by).min()
    }

    /// Returns the name of the deadline that the member has missed, if it has.
    pub(super) fn overdue(&self, now: i64) -> Option<&'static str> {
        let passed = |by: Option<i64>| by.is_some_and(|by| by <= now);
        match () {
            () if passed(self.join_by) => Some("JoinGroup"),
            () if passed(self.sync_by) => Some("SyncGroup"),
            () => None,
        }
    }

    /// The version of its subscription, which it reads assignments in, too.
    pub(super) fn version(&self) -> i16 {
        let metadata = self.protocols.first().map(|(_, metadata)| metadata);
        let version = metadata.and_then(|metadata| Some(i16::from_be_bytes(metadata.get(..2)?.try_into().ok()?)));
        version.unwrap_or(0).clamp(*consumer_protocol::VERSIONS.start(), *consumer_protocol::VERSIONS.end())
    }
}
