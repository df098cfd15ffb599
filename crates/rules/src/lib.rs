//! Kafka's decisions as pure functions.
//!
//! Every module here takes what is known and says what follows. None does I/O, reads a clock, spawns a
//! task or draws a random number: time is an argument, so each decision can be replayed in a test.
//!
//! - [`group`]: who is in a consumer group, and in which generation.
//! - [`cluster`]: who is a member, who leads, who is in sync, who is held for dead.
//! - [`commit`]: which batches of diskless topics are appended, and where.
//! - [`compaction`]: what of a log is to be cleaned, and which records survive.
//! - [`replica`]: who leads a partition and who follows, and up to where readers may see it.
//! - [`sequence`]: what an idempotent producer may append to a partition next.
//! - [`telemetry`]: which clients may tell their metrics when.
//! - [`transaction`]: what becomes of a transactional id, its producer's epoch and its transaction.

pub mod cluster;
pub mod commit;
pub mod compaction;
pub mod group;
pub mod replica;
pub mod sequence;
pub mod telemetry;
pub mod transaction;
