//! Tests the producer against a scripted cluster.

mod alone;
mod basics;
mod fake;
mod hostile;
mod kip_1269;
mod lanes;
mod leaders;
mod learning;
mod peers;
mod rows;
mod runtime;
mod split;
mod topics;
mod transactions;
