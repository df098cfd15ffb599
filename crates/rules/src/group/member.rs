//! Identity of members of either protocol, of joining members, and of the senders of commits.

use fullbore_wire::apis::join_group::JoinGroupRequest;
use fullbore_wire::{ErrorCode, Text};

/// Id of a member, assigned by the coordinator or chosen by the member itself (KIP-848).
pub type MemberId = Text;

/// Sender of an OffsetCommit or a TxnOffsetCommit.
#[derive(Clone, Copy, Debug)]
pub struct Committer<'a> {
    /// Member id; empty for a sender outside the group.
    pub member_id: &'a str,
    pub instance_id: Option<&'a str>,
    /// Generation in a classic group, member epoch in a consumer group; -1 for a sender outside the group.
    pub generation: i32,
    /// Version of the OffsetCommit; meaningless for TxnOffsetCommit.
    pub version: i16,
    /// True for TxnOffsetCommit (KIP-447), whose client may omit its member id.
    pub is_transactional: bool,
}

impl Committer<'_> {
    /// Returns true for a TxnOffsetCommit without member and generation, as clients before KIP-447 send it.
    pub(super) fn is_unnamed_in_transaction(&self) -> bool {
        self.is_transactional && self.generation < 0 && self.member_id.is_empty() && self.instance_id.is_none()
    }

    /// Returns the error as a code that the client knows: a TxnOffsetCommit never gets STALE_MEMBER_EPOCH
    /// (`OffsetMetadataManager` of Kafka).
    pub(super) fn as_known(&self, code: ErrorCode) -> ErrorCode {
        match code {
            ErrorCode::STALE_MEMBER_EPOCH if self.is_transactional => ErrorCode::ILLEGAL_GENERATION,
            code => code,
        }
    }
}

/// JoinGroup with its context.
#[derive(Clone, Copy, Debug)]
pub struct Joining<'a> {
    pub request: &'a JoinGroupRequest,
    /// Version of JoinGroup.
    pub version: i16,
    pub client_id: &'a str,
    /// Client's host, as tools show it.
    pub client_host: &'a str,
    /// Unused id, for a member that has none.
    pub new_member_id: &'a MemberId,
}
