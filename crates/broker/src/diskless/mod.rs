//! Diskless topics at a broker: records in an object store, their order in the index.
//!
//! - [`line`]: what is admitted and not yet answered.
//! - [`index`]: the coordinator's tables, and commits to them.

pub mod index;
pub mod line;
