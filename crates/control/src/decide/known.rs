//! Checks that several decisions about topics share: whether the topic exists, and whether the number of partitions is
//! allowed.

use std::sync::Arc;

use fullbore_wire::ErrorCode;

use super::super::command::Refusal;
use super::super::image::{Image, Topic};

/// Maximum number of partitions of one topic.
pub const PARTITIONS_PER_TOPIC_MAX: i32 = 100_000;
/// Maximum number of partitions in the cluster, because each partition uses files and memory. A single request has the
/// same limit, since all its partitions are computed even with `validate_only`. (Kafka allows 10,000 per request.)
pub const PARTITIONS_MAX: usize = 200_000;

/// Returns the topic with this name, or a refusal if it does not exist.
pub fn known<'a>(image: &'a Image, name: &str) -> Result<&'a Arc<Topic>, Refusal> {
    let unknown = || Refusal::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, format!("The topic '{name}' does not exist."));
    image.topic(name).ok_or_else(unknown)
}

/// Checks that `more` new partitions do not exceed the limit of the cluster.
pub fn check_total(image: &Image, more: usize) -> Result<(), Refusal> {
    let total = image.partition_count().saturating_add(more);
    if total <= PARTITIONS_MAX {
        return Ok(());
    }
    let message = format!("The cluster would have {total} partitions; at most {PARTITIONS_MAX} are allowed.");
    Err(Refusal::new(ErrorCode::POLICY_VIOLATION, message))
}

/// Checks the total number of partitions of all topics in a request. As in Kafka, the whole request is refused if the
/// total exceeds the limit. Topics that exceed the limit of a single topic do not count, since they are refused one by
/// one.
pub fn check_requested(partitions: impl Iterator<Item = i32>) -> Result<(), Refusal> {
    let of_topics = partitions.filter(|count| *count <= PARTITIONS_PER_TOPIC_MAX);
    let requested = of_topics.map(|count| usize::try_from(count).unwrap_or(0)).fold(0, usize::saturating_add);
    if requested <= PARTITIONS_MAX {
        return Ok(());
    }
    let message = format!(
        "Excessively large number of partitions per request: it requests {requested}; at most {PARTITIONS_MAX} are \
         allowed."
    );
    Err(Refusal::new(ErrorCode::POLICY_VIOLATION, message))
}
