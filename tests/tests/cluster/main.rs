//! Several brokers over a PostgreSQL, each a process: what is promised of a cluster, whatever befalls it.

mod asked;
mod command;
mod faults;
mod records;
mod topics;
