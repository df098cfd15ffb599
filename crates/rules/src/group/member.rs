//! Who a member is, whatever the protocol, and who commits offsets.

use fullbore_wire::Text;

/// The id of a member: what the coordinator gave it, or what it chose itself (KIP-848).
pub type MemberId = Text;

/// Who commits offsets, as OffsetCommit says it.
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
