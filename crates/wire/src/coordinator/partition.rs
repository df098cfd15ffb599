//! Which partition of `__consumer_offsets` is a group's (Kafka's `GroupCoordinatorService.partitionFor` and
//! `Utils.abs`).

/// The partition, of `partitions`, that `group_id` is in: the hash of Java's `String.hashCode`, without its sign.
///
/// # Panics
/// When there are no partitions.
pub fn partition_for(group_id: &str, partitions: i32) -> i32 {
    assert!(partitions > 0, "a topic has partitions");
    let hash = group_id.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // The least number has no opposite, and counts as 0.
    hash.checked_abs().unwrap_or(0) % partitions
}
