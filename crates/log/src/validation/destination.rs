//! Describes where a batch goes: its partition, and the topic's settings.

use fullbore_config::TopicConfig;

/// The partition that a batch is for, and the time of the broker's clock.
#[derive(Clone, Copy)]
pub struct Destination<'a> {
    /// The topic's name.
    pub topic: &'a str,
    pub partition: i32,
    /// The topic's settings that are in force.
    pub config: &'a TopicConfig,
    pub now_ms: i64,
}
