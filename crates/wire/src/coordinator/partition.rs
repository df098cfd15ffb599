//! The partition of an internal topic that holds a group or a transactional id (Kafka's
//! `GroupCoordinatorService.partitionFor`, `TransactionStateManager.partitionFor` and `Utils.abs`).

/// Returns the one of `partitions` partitions that has `id`, by the absolute value of Java's `String.hashCode`.
///
/// # Panics
/// Panics if `partitions` is not above 0.
pub fn partition_for(id: &str, partitions: i32) -> i32 {
    assert!(partitions > 0, "a topic has partitions");
    let hash = id.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // The least number has no opposite, and counts as 0.
    hash.checked_abs().unwrap_or(0) % partitions
}
