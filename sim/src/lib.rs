//! A cluster in one process: brokers that decide by [`fullbore_rules`], and a network, disks, a database and clients
//! that are models. A seed says everything that happens, so that what it finds can be repeated.
//!
//! - [`schedule`]: what befalls the cluster, drawn from the seed, and that all is well in the end.
//! - `world`: the brokers and clients, how an event comes to whom it is for, and what a misfortune (`befalling`) does.
//! - `client`: producers, idempotent with acks=all, or not with acks=1.
//! - `broker/`: a process and its disk: serving, following, beating, judging.
//! - `context`: what they share: time and the queue of events.
//! - `check`: what must hold after every step (`TESTING.md`, "Invariants").
//! - `database`, `cluster`: the control plane: versions with marks, beats, and its commands, decided by the rules.
//! - `network`, `message`: connections, which break, and on which nothing overtakes; and what goes over them.
//! - [`fault`]: what is broken on purpose, to see that the check finds it.
//!
//! What it is not: it runs none of the broker's own code but the rules. Real processes are killed in `tests/`.

mod befalling;
mod broker;
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
