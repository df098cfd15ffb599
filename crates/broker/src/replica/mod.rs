//! This broker's copy of a partition: its log under a lock, its role, and who waits for it.

pub(crate) mod checkpoints;
pub(crate) mod failures;
pub(crate) mod flusher;
pub(crate) mod following;
pub(crate) mod log_dir;
pub(crate) mod opener;
pub(crate) mod opening;
pub(crate) mod reorder;
pub(crate) mod replica;
pub(crate) mod role;
pub(crate) mod succession;
pub(crate) mod times;
pub(crate) mod waiters;
