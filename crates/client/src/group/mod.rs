//! A member of a consumer group, under the classic protocol or that of KIP-848.
//!
//! The member's thread ([`classic`], [`consumer`]) keeps the membership: it joins, beats, and says in [`Target`] which
//! partitions are to be read. Whoever reads them lets go of the others, commits, and confirms ([`Member::confirm`]);
//! until then the thread beats on and gives nothing away. So both protocols, eager and cooperative, look the same to
//! the reader, and a reader that waits for a slow output costs no session.
//!
//! [`assign`] and [`verdict`] decide and are pure. Invariant: partitions are let go of before anybody else is given
//! them, unless the group has given this member up, and then nothing of them is committed.

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
