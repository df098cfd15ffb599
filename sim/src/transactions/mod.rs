//! Simulation of transactions by seed: brokers with coordinators and partitions, clients that copy numbers and offsets,
//! and consumers at read_committed.
//!
//! [`fullbore_rules`] decides: `transaction` at coordinators, `sequence` at partitions, `group` for offsets,
//! `compaction`. The environment is modelled: [`partition`] replicates, [`coordinate`] and [`serve`] do what the
//! broker's code for coordinators and leaders does.
//!
//! - Messages arrive in any order, late, twice, or never: requests of clients, verifications of batches, markers and
//!   their responses.
//! - Leaders move, and brokers learn of the move late. For a while, two coordinators may serve an id, and two leaders a
//!   partition. Writes of the former leader are never replicated.
//! - Brokers are killed and paused between any two steps. A topic is deleted and recreated.
//! - Every broker writes to a diskless partition, through objects and one index. The store is down or refuses objects,
//!   and responses to commits are lost.
//! - Some worlds have a standalone broker with `fullbore.transaction.flush`. In a power loss each of its logs loses an
//!   unflushed part of any length ([`power`]).
//! - Clients time out, give up, restart, and continue as zombies of each other.
//!
//! Left out with the old protocol (`transaction.version` 0 and 1) are requests and markers that arrive after their
//! sender has continued. Markers of a replaced coordinator to a recreated topic are also left out. The old protocol
//! cannot distinguish such messages from new ones.
//!
//! Checks at each step ([`check`], [`partition::Partition::check_stable`], [`reader`]):
//!
//! - A batch is in a log only after a record of `__transaction_state` names its partition. Markers and responses follow
//!   only once their decision is on all replicas.
//! - A transaction is complete only once each partition has its marker or is deleted. It has one outcome, which is that
//!   of its response.
//! - The last stable offset never falls within a leader epoch, and passes no open transaction. Consumers get committed
//!   records only.
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

/// Number of events of a schedule.
const STEPS: usize = 8_000;

/// Outcome of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of committed transactions with records.
    pub committed: usize,
    /// Number of aborted transactions with records.
    pub aborted: usize,
    pub elections: u64,
}

/// Runs the schedule of this seed.
///
/// # Errors
///
/// Text of the first failed check, if one fails.
pub fn run(seed: u64, fault: Option<Fault>) -> Result<Report, String> {
    let mut world = World::new(seed, fault);
    for step in 0..STEPS {
        world.step().map_err(|why| format!("step {step}: {why}"))?;
    }
    world.end().map_err(|why| format!("in the end: {why}"))?;
    let ends = |outcome| world.check.transactions.iter().filter(|truth| truth.outcome == Some(outcome)).count();
    Ok(Report { committed: ends(true), aborted: ends(false), elections: world.elections })
}
