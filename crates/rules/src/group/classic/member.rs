//! Member of a classic group: its JoinGroup, and the requests of the member that wait for a response.

use crate::group::{MemberId, RequestTicket};
use bytes::Bytes;
use fullbore_wire::Text;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use std::collections::HashSet;

/// Longest wait, ms, of a new member's JoinGroup, as in Kafka. The member has no id for heartbeats yet. Without this
/// limit, a client that leaves and returns would be in the group many times.
pub(super) const NEW_MEMBER_JOIN_MAX_MS: i64 = 5 * 60 * 1000;

/// Deadline that never comes.
pub(super) const NEVER: i64 = i64::MAX;

/// Fields of a member's JoinGroup, copied so that they do not keep the request's buffer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Profile {
    pub session_timeout_ms: i32,
    pub rebalance_timeout_ms: i32,
    /// Protocol names, each with the member's metadata, in the order of the member's preference.
    pub protocols: Vec<(Text, Bytes)>,
}

impl Profile {
    pub fn of(request: &JoinGroupRequest) -> Self {
        // A repeated name counts once: a member has one vote for each protocol.
        let mut seen = HashSet::new();
        let own = |protocol: &JoinGroupRequestProtocol| {
            let is_first = seen.insert(protocol.name.clone());
            is_first.then(|| (Text::from(&*protocol.name), Bytes::copy_from_slice(&protocol.metadata)))
        };
        // Version 0 has one timeout for sessions and rebalances.
        let rebalance_timeout_ms = match request.rebalance_timeout_ms {
            -1 => request.session_timeout_ms,
            ms => ms.max(0),
        };
        Profile {
            session_timeout_ms: request.session_timeout_ms,
            rebalance_timeout_ms,
            protocols: request.protocols.iter().filter_map(own).collect(),
        }
    }
}

#[derive(Debug)]
pub(super) struct ClassicGroupMember {
    pub instance_id: Option<Text>,
    pub client_id: Text,
    pub client_host: Text,
    pub profile: Profile,
    /// Assignment by the leader; empty until the leader has assigned.
    pub assignment: Bytes,
    /// Waiting JoinGroup of the member.
    pub joining: Option<RequestTicket>,
    /// Waiting SyncGroup of the member.
    pub syncing: Option<RequestTicket>,
    /// True if the member waits for the response to its first JoinGroup.
    pub is_new: bool,
    /// True until the member's SyncGroup of this generation has arrived.
    pub owes_sync: bool,
    /// End of the member's session; [`NEVER`] while a request of the member waits.
    pub deadline: i64,
}

impl ClassicGroupMember {
    /// Returns the member's metadata in this protocol.
    pub fn metadata(&self, protocol: &str) -> Bytes {
        let of = self.profile.protocols.iter().find(|(name, _)| *name == protocol);
        of.map(|(_, metadata)| metadata.clone()).unwrap_or_default()
    }

    pub fn session_end(&self, now: i64) -> i64 {
        now.saturating_add(i64::from(self.profile.session_timeout_ms))
    }

    pub fn is_static(&self) -> bool {
        self.instance_id.is_some()
    }

    /// Returns the memory that the member takes, in bytes.
    pub fn bytes(&self, id: &MemberId) -> usize {
        let protocols = self.profile.protocols.iter().map(|(name, metadata)| name.len() + metadata.len() + 64);
        let instance = self.instance_id.as_deref().map_or(0, str::len);
        2 * id.len() + instance + self.client_id.len() + self.assignment.len() + protocols.sum::<usize>() + MEMBER_BYTES
    }
}

/// Approximate bytes of a member without its texts.
pub(super) const MEMBER_BYTES: usize = 512;
