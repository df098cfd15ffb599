//! The declarations of Kafka's APIs, one file each. Field names are Kafka's in snake case.

pub mod api_versions;
pub mod produce;
