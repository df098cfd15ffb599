//! What a broker hears with each of its beats: that the database had it, and when it had those of the others.

use std::time::Duration;

use fullbore_wire::Uuid;

/// The answer to a beat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beaten {
    /// Every process that has beaten lately, this one among them. One broker may have several, of which one is registered.
    pub heard: Vec<Heard>,
    /// Whether the database does not know the version that this broker knows: it is an older copy, or another one.
    pub went_back: bool,
}

/// The last beat of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// `node.id`
    pub broker_id: i32,
    /// What the process drew when it started.
    pub process: Uuid,
    /// How long ago, by the database's clock.
    pub age: Duration,
    /// The version of the metadata that it showed then.
    pub version: u64,
}
