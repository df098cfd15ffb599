//! Simulates transactions from a seed. Brokers run coordinators and partitions, clients copy numbers and commit
//! offsets, and consumers read at read_committed.
//!
//! Decisions are made by [`fullbore_rules`]: `transaction` at coordinators, `sequence` at partitions, `group` for
//! offsets, and `compaction`. The rest is a model. [`partition`] replicates logs, and [`coordinate`] and [`serve`]
//! stand for the broker's code of coordinators and leaders.
//!
//! - Messages arrive in any order, late, twice or never. They are requests of clients, verifications of batches,
//!   markers and responses.
//! - Leaders move, and brokers learn of it late. For a while an id may have two coordinators and a partition two
//!   leaders. Writes of the former leader are never replicated.
//! - Brokers are killed and paused between any two steps. A topic is deleted and recreated.
//! - Every broker writes to a diskless partition, through objects and one index. The store is down or refuses objects,
//!   and responses to commits are lost.
//! - Some worlds have a standalone broker with `fullbore.transaction.flush`. In a power loss each of its logs loses an
//!   unflushed part of any length ([`power`]).
//! - Clients time out, give up and restart, while their former processes go on as zombies.
//!
//! In the old protocol (`transaction.version` 0 and 1) some late messages cannot be distinguished from new ones. The
//! simulation therefore drops a client's older requests once its EndTxn or InitProducerId is answered. It drops the
//! copies of a marker once the marker is written, and the markers of a replaced coordinator to a recreated topic.
//!
//! The checks of each step are in [`check`], [`partition::Partition::check_stable`] and [`reader`]:
//!
//! - A batch is in a log only after a record of `__transaction_state` names its partition. Markers and responses follow
//!   only once their decision is on all replicas.
//! - A transaction is complete only once each partition has its marker or is deleted. Its outcome is the one in the
//!   response to the client.
//! - The last stable offset never decreases within a leader epoch, and never passes an open transaction. Consumers get
//!   committed records only.
//! - At the end no transaction is open, and the output has each number once.

mod broker;
mod check;
mod client;
mod coordinate;
mod diskless;
mod entry;
pub mod fault;
mod message;
mod partition;
mod power;
mod reader;
mod replica;
mod serve;
mod world;

pub use fault::Fault;

use world::World;

/// How many events a schedule has.
const STEPS: usize = 8_000;

/// Totals of a schedule that passed all checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How many transactions with records were committed.
    pub committed: usize,
    /// How many transactions with records were aborted.
    pub aborted: usize,
    pub elections: u64,
}

/// Runs the schedule of `seed`.
///
/// # Errors
///
/// Returns the text of the first check that fails.
pub fn run(seed: u64, fault: Option<Fault>) -> Result<Report, String> {
    let mut world = World::new(seed, fault);
    for step in 0..STEPS {
        world.step().map_err(|why| format!("step {step}: {why}"))?;
    }
    world.end().map_err(|why| format!("in the end: {why}"))?;
    let ends = |outcome| world.check.transactions.iter().filter(|truth| truth.outcome == Some(outcome)).count();
    Ok(Report { committed: ends(true), aborted: ends(false), elections: world.elections })
}
