//! Classic protocol of a member, while its group is migrating between the protocols.

use bytes::Bytes;
use fullbore_wire::{Text, consumer_protocol};

/// State of a member that uses the classic protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassicMember {
    /// Session timeout, which the member chose itself, in milliseconds.
    pub session_timeout_ms: i32,
    /// Assignors of the member in the order of its preference, each with its encoded subscription.
    pub protocols: Vec<(Text, Bytes)>,
    /// Time at which the member is fenced unless it has rejoined.
    pub join_by: Option<i64>,
    /// Time at which the member is fenced unless it has sent a SyncGroup.
    pub sync_by: Option<i64>,
}

impl ClassicMember {
    pub(super) fn deadline(&self) -> Option<i64> {
        self.join_by.into_iter().chain(self.sync_by).min()
    }

    /// Returns the name of the deadline that the member has missed; None if it has missed none.
    pub(super) fn overdue(&self, now: i64) -> Option<&'static str> {
        let passed = |by: Option<i64>| by.is_some_and(|by| by <= now);
        match () {
            () if passed(self.join_by) => Some("JoinGroup"),
            () if passed(self.sync_by) => Some("SyncGroup"),
            () => None,
        }
    }

    /// Returns the version of the member's subscription, in which it also decodes assignments.
    pub(super) fn version(&self) -> i16 {
        let metadata = self.protocols.first().map(|(_, metadata)| metadata);
        let version = metadata.and_then(|metadata| Some(i16::from_be_bytes(metadata.get(..2)?.try_into().ok()?)));
        version.unwrap_or(0).clamp(*consumer_protocol::VERSIONS.start(), *consumer_protocol::VERSIONS.end())
    }
}
