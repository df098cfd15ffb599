//! Checks that decisions about topics share: the topic exists, and the number of partitions is allowed.

use std::sync::Arc;

use fullbore_wire::ErrorCode;

use super::super::command::Refusal;
use super::super::image::{Image, Topic};

/// Largest number of partitions of one topic.
pub const PARTITIONS_PER_TOPIC_MAX: i32 = 100_000;
/// Largest number of partitions of all topics together: each takes files and memory. Also the limit of one request,
/// since the control plane computes all partitions of a request, even with `validate_only`. (Kafka allows 10,000 per
/// request.)
pub const PARTITIONS_MAX: usize = 200_000;

/// Returns the topic of this name, or refuses an unknown name.
pub fn known<'a>(image: &'a Image, name: &str) -> Result<&'a Arc<Topic>, Refusal> {
    let unknown = || Refusal::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, format!("The topic '{name}' does not exist."));
    image.topic(name).ok_or_else(unknown)
}

/// Checks that the cluster stays within its limit with `more` new partitions.
pub fn check_total(image: &Image, more: usize) -> Result<(), Refusal> {
    let total = image.partition_count().saturating_add(more);
    if total <= PARTITIONS_MAX {
        return Ok(());
    }
    let message = format!("The broker would have {total} partitions; it may have {PARTITIONS_MAX}.");
    Err(Refusal::new(ErrorCode::POLICY_VIOLATION, message))
}

/// Checks the sum of the partitions of one request; as in Kafka, a sum over the limit refuses the whole request. A
/// topic above the limit of one topic is not counted, since it is refused separately.
pub fn check_asked(partitions: impl Iterator<Item = i32>) -> Result<(), Refusal> {
    let of_topics = partitions.filter(|count| *count <= PARTITIONS_PER_TOPIC_MAX);
    let asked = of_topics.map(|count| usize::try_from(count).unwrap_or(0)).fold(0, usize::saturating_add);
    if asked <= PARTITIONS_MAX {
        return Ok(());
    }
    let message = format!(
        "Excessively large number of partitions per request: it asks for {asked}, and may for {PARTITIONS_MAX}."
    );
    Err(Refusal::new(ErrorCode::POLICY_VIOLATION, message))
}
