//! What each decision about topics looks at: the topic there is, and how many partitions there may be.

use std::sync::Arc;

use fullbore_wire::ErrorCode;

use super::super::command::Refusal;
use super::super::image::{Image, Topic};

/// Partitions of one topic.
pub const PARTITIONS_PER_TOPIC_MAX: i32 = 100_000;
/// Partitions of all topics of this broker: each has files and memory.
pub const PARTITIONS_MAX: usize = 200_000;

/// The topic of this name.
pub fn known<'a>(image: &'a Image, name: &str) -> Result<&'a Arc<Topic>, Refusal> {
    let unknown = || Refusal::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, format!("The topic '{name}' does not exist."));
    image.topic(name).ok_or_else(unknown)
}
