//! A member of a classic group: its JoinGroup, and its requests that wait for a response.

use crate::group::{MemberId, RequestTicket};
use bytes::Bytes;
use fullbore_wire::Text;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use std::collections::HashSet;

/// Maximum time that a new member's JoinGroup waits, in ms, as in Kafka. The new member has no generation yet, so it
/// cannot send heartbeats. Without this limit, a client that disconnects and joins again could leave many dead members
/// behind.
pub(super) const NEW_MEMBER_JOIN_MAX_MS: i64 = 5 * 60 * 1000;

/// A deadline that is never reached.
pub(super) const NEVER: i64 = i64::MAX;

/// The fields of a member's JoinGroup, copied from the request, so that the request's buffer can be freed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Profile {
    pub session_timeout_ms: i32,
    pub rebalance_timeout_ms: i32,
    /// The protocols that the member offers, with its metadata for each, in the order of its preference.
    pub protocols: Vec<(Text, Bytes)>,
}

impl Profile {
    pub fn of(request: &JoinGroupRequest) -> Self {
        // A name that is repeated in the request is dropped, because the member must be counted once for each protocol.
        let mut seen = HashSet::new();
        let own = |protocol: &JoinGroupRequestProtocol| {
            let is_first = seen.insert(protocol.name.clone());
            is_first.then(|| (Text::from(&*protocol.name), Bytes::copy_from_slice(&protocol.metadata)))
        };
        // Version 0 has a single timeout for sessions and rebalances.
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
    /// The member's assignment from the leader; empty before the leader has sent it.
    pub assignment: Bytes,
    /// The member's JoinGroup, if one waits for a response.
    pub joining: Option<RequestTicket>,
    /// The member's SyncGroup, if one waits for a response.
    pub syncing: Option<RequestTicket>,
    /// True while the member's first JoinGroup waits for a response.
    pub is_new: bool,
    /// True until the member has sent a SyncGroup for this generation.
    pub owes_sync: bool,
    /// When the member's session ends. If a request of the member waits at that time, the deadline becomes [`NEVER`]
    /// until the response is sent.
    pub deadline: i64,
}

impl ClassicGroupMember {
    /// Returns the member's metadata for this protocol.
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

    /// Returns how much memory the member takes, in bytes.
    pub fn bytes(&self, id: &MemberId) -> usize {
        let protocols = self.profile.protocols.iter().map(|(name, metadata)| name.len() + metadata.len() + 64);
        let instance = self.instance_id.as_deref().map_or(0, str::len);
        2 * id.len() + instance + self.client_id.len() + self.assignment.len() + protocols.sum::<usize>() + MEMBER_BYTES
    }
}

/// Approximate size of a member in bytes, without its texts.
pub(super) const MEMBER_BYTES: usize = 512;
