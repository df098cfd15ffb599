//! Identity of members of either protocol, of joining ones, and of those that commit offsets.

use fullbore_wire::Text;
use fullbore_wire::apis::join_group::JoinGroupRequest;

/// The id of a member: what the coordinator gave it, or what it chose itself (KIP-848).
pub type MemberId = Text;

/// Sender of an OffsetCommit.
#[derive(Clone, Copy, Debug)]
pub struct Committer<'a> {
    /// Empty from outside the group.
    pub member_id: &'a str,
    /// The static name.
    pub instance_id: Option<&'a str>,
    /// The generation in a classic group, the member epoch in one of the consumer protocol; -1 from outside the group.
    pub generation: i32,
    /// The version of its OffsetCommit.
    pub version: i16,
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
