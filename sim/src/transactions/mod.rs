//! Transactions by seed: brokers with coordinators and partitions, clients that copy numbers and offsets, and consumers
//! at read_committed.
//!
//! Decisions are those of [`fullbore_rules`]: `transaction` at coordinators, `sequence` at partitions, `group` for
//! offsets, `compaction`. Around them are models: [`partition`] replicates, [`coordinate`] and [`serve`] do what the
//! broker's code of these names does.
//!
//! - Messages come in any order, late, twice, or not at all: requests of clients, the coordinator's word on a batch,
//!   markers and their answers.
//! - Leaders move, and hear of it late: two coordinators believe to lead, and so do two leaders of a partition. What
//!   the former one writes is never replicated. Brokers are killed and paused between any two steps; a topic is deleted
//!   and made again.
//! - A diskless partition is written by every broker, by way of objects and one index: the store is away or refuses
//!   objects, and the answer to a commit is lost.
//! - In some worlds one broker is alone, with `fullbore.transaction.flush`, and its power is cut: of each log any part
//!   that is not on the disk is lost ([`power`]).
//! - Clients time out, give up, start again, and go on as zombies of each other.
//!
//! Left out with the old protocol (`transaction.version` 0 and 1): requests and markers that come once their sender has
//! gone on, and markers of a coordinator that was replaced to a topic that was made again. It cannot tell them from new
//! ones.
//!
//! Checked at each step ([`check`], [`partition::Partition::check_stable`], [`reader`]): no batch in a log before the
//! partition is on record, no marker and no answer before the decision is, and on all replicas; complete only once each
//! partition has its marker or is gone; each transaction has one outcome, the answered one; the last stable offset
//! falls never within a leader epoch, and passes no open transaction; consumers get what was committed and nothing
//! else. In the end nothing is open, and each number is in the output once.

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

/// Events of a schedule.
const STEPS: usize = 8_000;

/// What a schedule came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Transactions that were committed, with records.
    pub committed: usize,
    /// Transactions that were aborted, with records.
    pub aborted: usize,
    pub elections: u64,
}

/// Runs the schedule of this seed.
///
/// # Errors
/// What was wrong first.
pub fn run(seed: u64, fault: Option<Fault>) -> Result<Report, String> {
    let mut world = World::new(seed, fault);
    for step in 0..STEPS {
        world.step().map_err(|why| format!("step {step}: {why}"))?;
    }
    world.end().map_err(|why| format!("in the end: {why}"))?;
    let ends = |outcome| world.check.transactions.iter().filter(|truth| truth.outcome == Some(outcome)).count();
    Ok(Report { committed: ends(true), aborted: ends(false), elections: world.elections })
}
