//! Administers consumer groups: lists, describes and deletes them, and handles their committed offsets.
//!
//! Membership in a group is in [`group`](crate::group).

mod coordinator;
mod describe;
mod list;
mod offsets;

pub use coordinator::{GroupAdmin, GroupOutcomes};
pub use describe::{GroupDescription, GroupMember, GroupProtocol};
pub use list::GroupListing;
pub use offsets::{CommittedOffset, CommittedOffsets, OffsetsToCommit};
