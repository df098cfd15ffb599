//! The producer against a cluster that does what a test says.

mod basics;
mod fake;
mod hostile;
mod learning;
mod rows;
