//! Simulated cluster in one process: brokers that decide by [`fullbore_rules`], and models of the network, disks, a
//! database and clients. A seed determines all events, so that a finding can be repeated.
//!
//! - [`schedule`]: the faults of a run, drawn from the seed, and the recovery at its end.
//! - `world`: the brokers and clients, delivery of events, and the effects of faults, which `chaos_event` lists.
//! - `client`: producers, idempotent with acks=all, or not idempotent with acks=1.
//! - `broker/`: a process and its disk: serving, following, heartbeats, failure detection.
//! - `context`: the shared state: time and the queue of events.
//! - `check`: checks after every step.
//! - `database`, `cluster`: the control plane: versions with nonces, heartbeats, and commands decided by the rules.
//! - `network`, `message`: connections, which may break and keep the order of messages; and the messages.
//! - [`fault`]: planted faults, which the checks must find.
//!
//! Not here: the broker's own code, except for the rules. The black-box tests in `tests/` kill real processes.

mod broker;
mod chaos_event;
mod check;
mod client;
mod cluster;
mod context;
mod database;
pub mod fault;
mod message;
mod network;
pub mod schedule;
mod settings;
pub mod transactions;
mod world;

pub use fault::Fault;
pub use schedule::{Report, run};
