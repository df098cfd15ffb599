//! State of a member that uses the classic protocol while its group is migrating.

use bytes::Bytes;
use fullbore_wire::{Text, consumer_protocol};

/// State that a member has only if it uses the classic protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassicMember {
    /// The session timeout in milliseconds, which the member has chosen itself.
    pub session_timeout_ms: i32,
    /// The member's assignors in the order of its preference, each with its encoded subscription.
    pub protocols: Vec<(Text, Bytes)>,
    /// The deadline to rejoin, after which the member is fenced; `None` if it need not rejoin.
    pub join_by: Option<i64>,
    /// The deadline for a SyncGroup, after which the member is fenced; `None` if none is due.
    pub sync_by: Option<i64>,
}

impl ClassicMember {
    pub(super) fn deadline(&self) -> Option<i64> {
        self.join_by.into_iter().chain(self.sync_by).min()
    }

    /// Returns the name of the deadline that the member has missed, if any.
    pub(super) fn overdue(&self, now: i64) -> Option<&'static str> {
        let passed = |by: Option<i64>| by.is_some_and(|by| by <= now);
        match () {
            () if passed(self.join_by) => Some("JoinGroup"),
            () if passed(self.sync_by) => Some("SyncGroup"),
            () => None,
        }
    }

    /// Returns the version of the member's subscription. The member can decode assignments of the same version.
    pub(super) fn version(&self) -> i16 {
        let metadata = self.protocols.first().map(|(_, metadata)| metadata);
        let version = metadata.and_then(|metadata| Some(i16::from_be_bytes(metadata.get(..2)?.try_into().ok()?)));
        version.unwrap_or(0).clamp(*consumer_protocol::VERSIONS.start(), *consumer_protocol::VERSIONS.end())
    }
}
