//! Consumer groups from outside: list, describe, delete, and their committed offsets.
//!
//! Not a member: nothing here joins a group.

mod coordinator;
mod describe;
mod list;
mod offsets;

pub use coordinator::{GroupAdmin, GroupOutcomes};
pub use describe::{GroupDescription, GroupMember, GroupProtocol};
pub use list::GroupListing;
pub use offsets::{CommittedOffset, CommittedOffsets, OffsetsToCommit};
