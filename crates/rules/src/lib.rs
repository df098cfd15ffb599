//! Kafka's decisions as pure functions.
//!
//! Every module takes a state and an event, and returns the consequences. No module does I/O, reads a clock, spawns a
//! task or draws a random number. Time is an argument, so a test can replay each decision.
//!
//! - [`group`]: the members and generations of consumer groups.
//! - [`cluster`]: the members of a cluster, leaders, ISRs and failed brokers.
//! - [`commit`]: the offsets of batches in diskless topics.
//! - [`compaction`]: which logs must be cleaned, and which records survive.
//! - [`replica`]: leader and follower of a partition, and the high watermark.
//! - [`sequence`]: which batch an idempotent producer may append next.
//! - [`telemetry`]: which metrics clients are to push.
//! - [`transaction`]: a transactional id, its producer's epoch, and its transaction.

pub mod cluster;
pub mod commit;
pub mod compaction;
pub mod group;
pub mod replica;
pub mod sequence;
pub mod telemetry;
pub mod transaction;
