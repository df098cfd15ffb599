//! Tests of the protocol, with round trips, another implementation as the oracle, and hostile bytes.

mod consumer_protocol;
mod coordinator;
mod decompressing;
mod fuzz;
mod hostile;
mod mutate;
mod oracle;
mod produce;
mod recode;
mod records;
mod round_trip;
mod schema;
mod transactions;
