//! The identity of a group member in either protocol, of a joining member, and of a client that commits offsets.

use fullbore_wire::apis::join_group::JoinGroupRequest;
use fullbore_wire::{ErrorCode, Text};

/// The id of a member. The coordinator assigns it, or the member chooses it itself (KIP-848).
pub type MemberId = Text;

/// The client that sent an OffsetCommit or a TxnOffsetCommit.
#[derive(Clone, Copy, Debug)]
pub struct Committer<'a> {
    /// The member id; empty if the client is not a member.
    pub member_id: &'a str,
    pub instance_id: Option<&'a str>,
    /// The generation in a classic group, or the member epoch in a consumer group; -1 if the client is not a member.
    pub generation: i32,
    /// The version of the OffsetCommit; not used for TxnOffsetCommit.
    pub version: i16,
    /// True for a TxnOffsetCommit (KIP-447), in which the member id may be missing.
    pub is_transactional: bool,
}

impl Committer<'_> {
    /// Returns true for a TxnOffsetCommit without a member and a generation, as clients from before KIP-447 send it.
    pub(super) fn is_unnamed_in_transaction(&self) -> bool {
        self.is_transactional && self.generation < 0 && self.member_id.is_empty() && self.instance_id.is_none()
    }

    /// Converts an error to a code that the client knows. A TxnOffsetCommit gets ILLEGAL_GENERATION instead of
    /// STALE_MEMBER_EPOCH, as in Kafka's `OffsetMetadataManager`.
    pub(super) fn as_known(&self, code: ErrorCode) -> ErrorCode {
        match code {
            ErrorCode::STALE_MEMBER_EPOCH if self.is_transactional => ErrorCode::ILLEGAL_GENERATION,
            code => code,
        }
    }
}

/// A JoinGroup and everything that is needed to handle it.
#[derive(Clone, Copy, Debug)]
pub struct Joining<'a> {
    pub request: &'a JoinGroupRequest,
    /// The version of the JoinGroup request.
    pub version: i16,
    pub client_id: &'a str,
    /// The client's host, as administration tools show it.
    pub client_host: &'a str,
    /// An unused id, in case the member has none.
    pub new_member_id: &'a MemberId,
}
