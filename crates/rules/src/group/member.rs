//! Identity of members of either protocol, of joining ones, and of those that commit offsets.

use fullbore_wire::apis::join_group::JoinGroupRequest;
use fullbore_wire::{ErrorCode, Text};

/// The id of a member: what the coordinator gave it, or what it chose itself (KIP-848).
pub type MemberId = Text;

/// Sender of an OffsetCommit or a TxnOffsetCommit.
#[derive(Clone, Copy, Debug)]
pub struct Committer<'a> {
    /// Empty from outside the group.
    pub member_id: &'a str,
    /// The static name.
    pub instance_id: Option<&'a str>,
    /// The generation in a classic group, the member epoch in one of the consumer protocol; -1 from outside the group.
    pub generation: i32,
    /// The version of its OffsetCommit; means nothing for TxnOffsetCommit.
    pub version: i16,
    /// True for TxnOffsetCommit (KIP-447), whose client need not name itself as a member.
    pub is_transactional: bool,
}

impl Committer<'_> {
    /// Returns true for TxnOffsetCommit of a client that names neither member nor generation, as those before KIP-447.
    pub(super) fn is_unnamed_in_transaction(&self) -> bool {
        self.is_transactional && self.generation < 0 && self.member_id.is_empty() && self.instance_id.is_none()
    }

    /// Returns the error as the client knows it: no TxnOffsetCommit is answered STALE_MEMBER_EPOCH
    /// (`OffsetMetadataManager` of Kafka).
    pub(super) fn as_known(&self, code: ErrorCode) -> ErrorCode {
        match code {
            ErrorCode::STALE_MEMBER_EPOCH if self.is_transactional => ErrorCode::ILLEGAL_GENERATION,
            code => code,
        }
    }
}

/// A JoinGroup with what only the caller knows.
#[derive(Clone, Copy, Debug)]
pub struct Joining<'a> {
    /// The request.
    pub request: &'a JoinGroupRequest,
    /// The version of JoinGroup.
    pub version: i16,
    /// The client id.
    pub client_id: &'a str,
    /// The client's host, as tools show it.
    pub client_host: &'a str,
    /// An unused id, for a member without one.
    pub new_member_id: &'a MemberId,
}
