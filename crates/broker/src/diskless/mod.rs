//! Diskless topics at a broker: records in an object store, their order in the index.
//!
//! - [`index`]: the coordinator's tables, and commits to them.

pub mod index;
