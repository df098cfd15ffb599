//! Several brokers over a PostgreSQL, each a process: what is promised of a cluster, whatever befalls it.

mod command;
mod faults;
mod hunted;
mod records;
mod topics;
