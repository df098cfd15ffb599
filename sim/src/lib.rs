//! A simulated cluster in one process. Its brokers decide by [`fullbore_rules`], while the network, disks, database and
//! clients are models. A seed determines all events, so that a failure can be repeated.
//!
//! - [`schedule`] draws the faults of a run from the seed, and checks the recovery at its end.
//! - `world` has the brokers and clients. It delivers events and carries out the faults that `chaos_event` lists.
//! - `client` has the producers: idempotent ones with acks=all, and others with acks=1.
//! - `broker/` has a broker's process and disk: how it serves, follows, sends heartbeats and detects failures.
//! - `context` has the shared state: the time and the queue of events.
//! - `check` has the checks that run after every step.
//! - `database` and `cluster` are the control plane: versions with nonces, heartbeats, and commands that the rules
//!   decide.
//! - `network` and `message` are the connections, which keep the order of messages and may break, and the messages on
//!   them.
//! - [`fault`] has the planted faults, which the checks must find.
//!
//! The broker's own code does not run here, except for the rules. The black-box tests in `tests/` kill real processes.

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
