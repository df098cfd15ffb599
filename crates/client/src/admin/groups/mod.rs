//! Administration of consumer groups: list, describe, delete, and their committed offsets.
//!
//! Not here: membership, which is in [`group`](crate::group).

mod coordinator;
mod describe;
mod list;
mod offsets;

pub use coordinator::{GroupAdmin, GroupOutcomes};
pub use describe::{GroupDescription, GroupMember, GroupProtocol};
pub use list::GroupListing;
pub use offsets::{CommittedOffset, CommittedOffsets, OffsetsToCommit};
