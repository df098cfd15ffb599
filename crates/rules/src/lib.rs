//! Kafka's decisions as pure functions.
//!
//! Every module takes a state and an event, and returns the consequences. No module does I/O, reads a clock, spawns a
//! task or draws a random number. Time is an argument, so that a test can replay each decision.
//!
//! - [`group`]: members and generations of consumer groups.
//! - [`cluster`]: members of the cluster, leaders, ISRs, failed brokers.
//! - [`commit`]: offsets of the batches of diskless topics.
//! - [`compaction`]: logs that must be cleaned, and records that survive.
//! - [`replica`]: leader and follower of a partition, and the high watermark.
//! - [`sequence`]: batches that an idempotent producer may append next.
//! - [`telemetry`]: subscriptions of clients that push their metrics.
//! - [`transaction`]: a transactional id, its producer's epoch, and its transaction.

pub mod cluster;
pub mod commit;
pub mod compaction;
pub mod group;
pub mod replica;
pub mod sequence;
pub mod telemetry;
pub mod transaction;
