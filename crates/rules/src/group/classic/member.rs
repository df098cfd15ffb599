//! Member of a classic group: its JoinGroup, and the answers that it waits for.

use crate::group::{MemberId, RequestTicket};
use bytes::Bytes;
use fullbore_wire::Text;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use std::collections::HashSet;

/// A new member's JoinGroup is answered at the latest after so long: it has no id yet to heartbeat with, and a client
/// that went away and came back would otherwise be there many times. As in Kafka.
pub(super) const NEW_MEMBER_JOIN_MAX_MS: i64 = 5 * 60 * 1000;

/// A deadline that never comes.
pub(super) const NEVER: i64 = i64::MAX;

/// Fields of a member's JoinGroup. None of them keeps the frame it came in.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Profile {
    pub session_timeout_ms: i32,
    pub rebalance_timeout_ms: i32,
    /// Protocol names with what the member says in each, its favourite first.
    pub protocols: Vec<(Text, Bytes)>,
}

impl Profile {
    pub fn of(request: &JoinGroupRequest) -> Self {
        // A name said twice counts once: a vote per member and protocol.
        let mut seen = HashSet::new();
        let own = |protocol: &JoinGroupRequestProtocol| {
            let is_first = seen.insert(protocol.name.clone());
            is_first.then(|| (Text::from(&*protocol.name), Bytes::copy_from_slice(&protocol.metadata)))
        };
        // Version 0 has one timeout for both.
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
    /// Assignment by the leader; empty until then.
    pub assignment: Bytes,
    /// The member's JoinGroup that waits for the others.
    pub joining: Option<RequestTicket>,
    /// The member's SyncGroup that waits for the leader.
    pub syncing: Option<RequestTicket>,
    /// True if the member waits for the answer to its first JoinGroup.
    pub is_new: bool,
    /// True if the member's SyncGroup of this generation has not come.
    pub owes_sync: bool,
    /// When its session ends; [`NEVER`] while a request of its own waits.
    pub deadline: i64,
}

impl ClassicGroupMember {
    /// Returns its metadata in this protocol.
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

    /// Bytes it holds, apart from a fixed part.
    pub fn bytes(&self, id: &MemberId) -> usize {
        let protocols = self.profile.protocols.iter().map(|(name, metadata)| name.len() + metadata.len() + 64);
        let instance = self.instance_id.as_deref().map_or(0, str::len);
        2 * id.len() + instance + self.client_id.len() + self.assignment.len() + protocols.sum::<usize>() + MEMBER_BYTES
    }
}

/// About what a member costs beside its texts.
pub(super) const MEMBER_BYTES: usize = 512;
