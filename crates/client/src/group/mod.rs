//! Member of a consumer group, under the classic protocol or that of KIP-848.
//!
//! The member's thread ([`classic`], [`consumer`]) keeps the membership: it joins, sends heartbeats, and publishes the
//! partitions to read as a [`Target`]. The reader gives up all others, commits, and confirms ([`Member::confirm`]).
//! Until then the thread sends heartbeats and reports nothing as given up. So the reader sees no difference between
//! protocols, and a reader with a blocked output keeps its session.
//!
//! [`assign`] and [`verdict`] are pure. Invariant: the reader gives up a partition before another member gets it. The
//! exception is a member that the group has removed: nothing of its partitions is committed.

pub mod assign;
mod classic;
mod config;
mod consumer;
mod coordinator;
mod empty;
mod member;
mod offsets;
mod shared;
mod verdict;

pub use assign::{Assignor, TopicPartition};
pub use config::{GroupConfig, Protocol};
pub use member::{CommitOutcome, Member, MembershipView, Position};
pub use shared::Target;
