//! A member of a consumer group, under the classic protocol or that of KIP-848.
//!
//! The member's thread ([`classic`], [`consumer`]) joins the group, sends heartbeats, and publishes the partitions to
//! read as a [`Target`]. The reader gives up all other partitions, commits, and confirms ([`Member::confirm`]). Until
//! the confirmation, the thread sends heartbeats and does not report any partition as given up. The session therefore
//! stays alive while the reader's output is blocked, and the reader needs no code for one protocol or the other.
//!
//! [`assign`] and [`verdict`] have no state. Invariant: the reader gives up a partition before another member gets it.
//! There is one exception. A member that the group has removed may still read, but commits no offsets.

pub mod assign;
mod classic;
mod config;
mod consumer;
mod coordinator;
mod empty;
mod lookout;
mod member;
mod offsets;
mod round_trips;
mod shared;
mod verdict;

pub use assign::{Assignor, TopicPartition};
pub use config::{GroupConfig, Protocol};
pub use member::{CommitOutcome, Member, MembershipView, Position};
pub use shared::{CommittedOffset, Target};
